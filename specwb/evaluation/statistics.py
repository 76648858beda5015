"""Means over prompts and their standard errors: a prompt is the unit that was sampled, whatever was measured in it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy import stats


def mean_and_error(values: Sequence[float]) -> tuple[float, float]:
    """Mean and standard error of independent values, ``s / sqrt(n)``; the error of a single value is NaN.

    Raises:
        ValueError: there is no value.
    """
    x = np.asarray(values, dtype=float)
    if x.ndim != 1 or not len(x):
        raise ValueError(f"values must be a list of numbers, at least one; got shape {list(x.shape)}")
    return float(x.mean()), float(x.std(ddof=1) / len(x) ** 0.5) if len(x) > 1 else float("nan")


def z_score(difference: float, error: float, count: int) -> float:
    """The normal quantile that is as improbable as ``t = difference / error`` of ``count`` values, whose spread is not known but measured:
    ``z = Phi^-1(F(t))``, F Student's with count - 1 degrees of freedom. 0 (nothing is concluded) where no spread was measured."""
    if not error > 0:
        return 0.0
    t = difference / error
    return float(np.copysign(stats.norm.isf(stats.t.sf(abs(t), count - 1)), t))
