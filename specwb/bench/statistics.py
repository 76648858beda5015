"""Means over prompts and their standard errors.

A prompt is the unit that was sampled, whatever was measured in it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy import stats

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


def z_score(difference: float, error: float, count: int) -> float:
    """Compute the normal quantile that is as improbable as the t statistic of ``count`` values.

    With ``t = difference / error`` it is ``z = Phi^-1(F(t))``, where F is Student's distribution
    with count - 1 degrees of freedom: the spread of the values is not known but measured.

    Args:
        difference: mean of the values.
        error: standard error of that mean.
        count: how many values there are.
    Returns:
        z, and 0 (nothing is concluded) where no spread was measured.
    """
    if not error > 0:
        return 0.0
    t = difference / error
    return float(np.copysign(stats.norm.isf(stats.t.sf(abs(t), count - 1)), t))
