"""Means over prompts and their standard errors.

A prompt is the unit that was sampled, whatever was measured in it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from specwb.errors import ArgumentError


def mean_and_error(values: Sequence[float]) -> tuple[float, float]:
    """Compute the mean of independent values and its standard error, ``s / sqrt(n)``.

    The error of a single value is NaN.

    Raises:
        ValueError: there is no value.
    """
    x = np.asarray(values, dtype=float)
    if x.ndim != 1 or not len(x):
        raise ArgumentError(
            f"values must be a list of numbers, at least one; got shape {list(x.shape)}"
        )
    error = float(x.std(ddof=1) / len(x) ** 0.5) if len(x) > 1 else float("nan")
    return float(x.mean()), error
