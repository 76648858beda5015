"""Sweeps: many settings measured side by side, kept in one file, and looked at by parameter."""

from specwb.sweeps.results import frame, summary
from specwb.sweeps.run import sweep
from specwb.sweeps.space import Space, SweepError
from specwb.sweeps.store import Store

__all__ = ["Space", "Store", "SweepError", "frame", "summary", "sweep"]
