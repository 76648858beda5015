"""Means over prompts with their standard errors and intervals.

A prompt is the unit that was sampled, whatever was measured in it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

RESAMPLES = 10_000
"""Draws of every bootstrap interval."""


def mean_and_error(values: Sequence[float] | np.ndarray) -> tuple[float, float]:
    """Compute the mean of independent values and its standard error, ``s / sqrt(n)``.

    The error of a single value is NaN.
    """
    x = np.asarray(values, dtype=float)
    error = float(x.std(ddof=1) / len(x) ** 0.5) if len(x) > 1 else float("nan")
    return float(x.mean()), error


def ratio_and_error(pairs: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Compute the ratio of two means over the same units, and its standard error.

    ``r = mean(a) / mean(b)`` over pairs ``(a, b)``; the error is, to first order, that of the mean
    of ``(a - r b) / mean(b)``. The second mean must not be 0.
    """
    a, b = np.array(pairs, dtype=float).T
    ratio = a.mean() / b.mean()
    return float(ratio), mean_and_error((a - ratio * b) / b.mean())[1]


def interval(
    values: Sequence[float] | np.ndarray, statistic: Callable[..., Any] = np.mean
) -> tuple[float, float]:
    """Return the 95 % bootstrap interval of a statistic of values over prompts.

    These are the percentiles over draws of n of the n prompts; NaN for a single value.

    Args:
        values: one per prompt, the unit that was sampled.
        statistic: ``numpy.mean``, ``numpy.median``: what takes an axis.
    """
    x = np.asarray(values, dtype=float)
    if len(x) < 2:
        return float("nan"), float("nan")
    low, high = np.quantile(statistic(x[_draws(len(x), len(x))], axis=1), [0.025, 0.975])
    return float(low), float(high)


def _draws(n: int, drawn: int, seed: int = 0) -> np.ndarray:
    """The numbers of the things in draws of ``drawn`` of n, ``[RESAMPLES,drawn]``."""
    return np.random.default_rng(seed).integers(0, n, (RESAMPLES, drawn))


@lru_cache(maxsize=32)
def weights(n: int, drawn: int | None = None, seed: int = 0) -> np.ndarray:
    """The shares ``[n,RESAMPLES]`` of n things in draws of ``drawn`` (default n) of them."""
    drawn = drawn or n
    places = _draws(n, drawn, seed) + n * np.arange(RESAMPLES)[:, None]
    counts = np.bincount(places.ravel(), minlength=n * RESAMPLES)
    return (counts / drawn).reshape(RESAMPLES, n).T.copy()


def bootstrap(data: np.ndarray) -> tuple[float, float, float]:
    """Compute a ratio of means and its 95 % interval.

    Args:
        data: ``[sides,n]`` or ``[runs,sides,n]``, the figure of two sides for every prompt and
            training run, ``mean(a) / mean(b)``, or of four, that over the ratio of the last two.
            Of r runs r - 1 are drawn, for each side by itself: their variance is then that of a
            mean of r. Prompts are drawn together.
    Returns:
        The ratio, and the ends of the interval.
    """
    runs = data[None] if data.ndim == 2 else data
    means = (runs @ weights(data.shape[-1])).transpose(1, 0, 2)  # sides, runs, draws
    if len(runs) > 1:
        shares = [weights(len(runs), len(runs) - 1, seed) for seed in range(1, len(means) + 1)]
        drawn = [(side * share).sum(0) for side, share in zip(means, shares, strict=True)]
    else:
        drawn = list(means[:, 0])
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio, ratios = _ratio(runs.mean((0, 2))), _ratio(drawn)
    if np.isnan(ratios).all():
        return float(ratio), np.nan, np.nan
    low, high = np.nanquantile(ratios, [0.025, 0.975])
    return float(ratio), float(low), float(high)


def _ratio(sides: Any) -> Any:
    a, b, *over = sides
    return a / b / (over[0] / over[1]) if over else a / b
