"""Sweeps: many settings measured side by side, kept in one file, and looked at by parameter."""

from typing import Any

from specwb.lab.sweeps.results import SweepError, frame, front, summary

__all__ = ["SweepError", "frame", "front", "shapes", "summary"]


def __getattr__(name: str) -> Any:
    # results are read without torch, whose import takes seconds
    if name == "shapes":
        from specwb.lab.sweeps.space import shapes

        return shapes
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
