"""Sweeps: many settings measured side by side, kept in one file, and looked at by parameter."""

from specwb.lab.bench.store import Store, StoreError
from specwb.lab.sweeps.results import frame, front, summary
from specwb.lab.sweeps.run import sweep
from specwb.lab.sweeps.space import Space, SweepError, shapes

__all__ = ["Space", "Store", "StoreError", "SweepError", "frame", "front", "shapes", "summary"]
__all__ += ["sweep"]
