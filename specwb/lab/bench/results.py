"""The figures of measurements by name, with their formulas, and the interval of a mean or median.

Speeds are tokens per second. A *pair* is a method's speed and the reference's on the same prompt
(a group of them, or a question with all its turns). The reference is the fastest plain decoding of
the run; a sweep has one plain decoding only, ``ar``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

FIGURES = {
    "tau": "tokens per target forward, the bonus token included",
    "accepted": "tau - 1: draft tokens kept per target forward",
    "speedup": "median over prompts of the method's speed / the reference's on the same prompt",
    "speedup.total": "(all tokens / all seconds) / the same of ar: what predictions are about",
    "speedup.mean_rate": "(mean over questions of the method's speed) / the reference's mean, as"
    " Spec-Bench divides",
    "speedup.steady": "mean over prompts of the tokens of all decoding steps but the first, over"
    " those that plain decoding writes in their time: prompt processing is not in it",
}
"""Name -> formula. ``compare``, ``evaluate``, ``sweep`` and ``tune`` print the one of that name as
speedup. A paper's study prints ``speedup.steady``; in its files, and in the code of
:mod:`specwb.lab.papers`, that is the key ``speedup``."""
RESAMPLES = 10_000
"""Draws of every bootstrap interval."""


def speedup(pairs: Sequence[tuple[float, float]] | np.ndarray) -> float:
    """Returns the median of a / b over pairs ``[n,2]``; NaN where there is none."""
    ratios = ratios_of(pairs)
    return float(np.median(ratios)) if len(ratios) else float("nan")


def ratios_of(pairs: Sequence[tuple[float, float]] | np.ndarray) -> np.ndarray:
    """Returns a / b of every pair."""
    a, b = np.asarray(pairs, dtype=float).reshape(-1, 2).T
    return a / b


def mean_rate(pairs: Sequence[tuple[float, float]] | np.ndarray) -> float:
    """Returns the ratio of the means over pairs ``[n,2]``; NaN where there is none."""
    a, b = np.asarray(pairs, dtype=float).reshape(-1, 2).T
    return float(a.mean() / b.mean()) if len(a) else float("nan")


def resampled(n: int) -> np.ndarray:
    """Draws n of n prompts, :data:`RESAMPLES` times; returns their numbers ``[RESAMPLES,n]``.

    They are the same for every interval over n prompts.
    """
    return np.random.default_rng(0).integers(0, n, (RESAMPLES, n))


def interval(
    values: Sequence[float] | np.ndarray,
    statistic: Callable[..., Any] = np.mean,
    confidence: float = 0.95,
) -> tuple[float, float]:
    """Returns the bootstrap interval of a statistic of values over prompts.

    The percentiles over :func:`resampled` prompts; NaN for a single value.

    Args:
        values: one a prompt, the unit that was sampled.
        statistic: ``numpy.mean``, ``numpy.median``: what takes an axis.
        confidence: of the interval.
    """
    x = np.asarray(values, dtype=float)
    if len(x) < 2:
        return float("nan"), float("nan")
    tail = (1 - confidence) / 2
    low, high = np.quantile(statistic(x[resampled(len(x))], axis=1), [tail, 1 - tail])
    return float(low), float(high)
