"""Means over prompts and their standard errors.

A prompt is the unit that was sampled, whatever was measured in it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from specwb.core.errors import ArgumentError


def mean_and_error(values: Sequence[float]) -> tuple[float, float]:
    """Compute the mean of independent values and its standard error, ``s / sqrt(n)``.

    The error of a single value is NaN.
    """
    x = np.asarray(values, dtype=float)
    if x.ndim != 1 or not len(x):
        raise ArgumentError(
            f"values must be a list of numbers, at least one; got shape {list(x.shape)}"
        )
    error = float(x.std(ddof=1) / len(x) ** 0.5) if len(x) > 1 else float("nan")
    return float(x.mean()), error


def ratio_and_error(pairs: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Compute the ratio of two means over the same units, and its standard error.

    ``r = mean(a) / mean(b)`` over pairs ``(a, b)``; the error is, to first order, that of the mean
    of ``(a - r b) / mean(b)``. Both are NaN where the second mean is 0.
    """
    (a, _), (b, _) = (mean_and_error([pair[i] for pair in pairs]) for i in range(2))
    if b == 0:
        return float("nan"), float("nan")
    return a / b, mean_and_error([(x - a / b * y) / b for x, y in pairs])[1]
