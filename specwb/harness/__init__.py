"""A benchmark run as the field runs it: whole conversations, answers on disk, named metrics."""

from specwb.harness.record import CONVENTIONS
from specwb.harness.stored import shipped_turns

__all__ = ["CONVENTIONS", "shipped_turns"]
