"""A benchmark run as the field runs it: whole conversations, answers on disk, named metrics."""

from specwb.lab.harness.record import CONVENTIONS
from specwb.lab.harness.stored import shipped_turns

__all__ = ["CONVENTIONS", "shipped_turns"]
