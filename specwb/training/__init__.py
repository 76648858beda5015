"""Training text, one training loop, and the lab family built with it."""

from specwb import modules_of

__getattr__ = modules_of(__name__)
