"""One prompt of a study's cell."""

from __future__ import annotations

from typing import Any

from specwb.bench.measure import measure
from specwb.studies import grid


def measured_once(
    target: Any, method: Any, cell: Any, count: int, seed: int, most: int | None = None
) -> dict[str, Any]:
    """What a study records of ``count`` decoding steps after the tokens 5, 6."""
    job = grid.job_of(cell, method, [[5, 6]], count, [seed], most)
    ((_, run),) = measure(target, [job], steps=count, timed=False)
    return grid.results(run, method)
