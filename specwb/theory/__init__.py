"""Rules over fractions, the recovery of a rule's decisions, wrong rules, and closed forms."""

from specwb import modules_of

__getattr__ = modules_of(__name__)
