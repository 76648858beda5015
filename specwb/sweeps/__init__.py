"""Sweeps: many settings measured side by side, kept in one file, and looked at by parameter."""

from specwb.bench.store import Store, StoreError
from specwb.sweeps.results import frame, front, summary
from specwb.sweeps.run import sweep
from specwb.sweeps.space import Space, SweepError, shapes

__all__ = ["Space", "Store", "StoreError", "SweepError", "frame", "front", "shapes", "summary"]
__all__ += ["sweep"]
