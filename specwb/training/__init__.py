"""Training text, the one training loop, and recipes of heads."""

from specwb import modules_of

__getattr__ = modules_of(__name__)
