"""A benchmark run as the field runs it: whole conversations, answers on disk, named metrics."""

from specwb.lab.harness.answers import CONVENTIONS, shipped_turns

__all__ = ["CONVENTIONS", "shipped_turns"]
