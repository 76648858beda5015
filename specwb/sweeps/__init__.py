"""Sweeps: many settings measured side by side, kept in one file, and looked at by parameter."""

from specwb.bench.store import Store, StoreError
from specwb.sweeps.results import frame, summary
from specwb.sweeps.run import sweep
from specwb.sweeps.space import Space, SweepError

__all__ = ["Space", "Store", "StoreError", "SweepError", "frame", "summary", "sweep"]
