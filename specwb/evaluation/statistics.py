"""Means over prompts and their standard errors: a prompt is the unit that was sampled, whatever was measured in it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def mean_and_error(values: Sequence[float]) -> tuple[float, float]:
    """Mean and standard error of independent values, ``s / sqrt(n)``; the error of a single value is NaN.

    Raises:
        ValueError: there is no value.
    """
    x = np.asarray(values, dtype=float)
    if x.ndim != 1 or not len(x):
        raise ValueError(f"values must be a list of numbers, at least one; got shape {list(x.shape)}")
    return float(x.mean()), float(x.std(ddof=1) / len(x) ** 0.5) if len(x) > 1 else float("nan")


def z_score(difference: float, error: float) -> float:
    """``difference / error``, and 0 (nothing is concluded) where no spread was measured."""
    return difference / error if error > 0 else 0.0
