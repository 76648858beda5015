"""Ratios of means over prompts, and how sure one is of them.

The unit that is repeated is a prompt; pairs of one prompt stay together. The spread of a
head's training runs is a further :class:`Part`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import exp, inf

import numpy as np
from scipy import stats

from specwb.lab.bench.results import RESAMPLES, resampled

SMALLEST = 1e-9
"""An error below this is no spread at all."""


@dataclass(frozen=True)
class Part:
    """A part of the error of a ratio's logarithm."""

    variance: float  # of the logarithm
    # degrees of freedom that the variance was estimated with; infinite if it is known
    freedom: float = inf


def spread(logs: Sequence[float] | np.ndarray) -> Part:
    """The part of a mean of so many logarithms, >= 2, from their own spread."""
    return Part(float(np.var(logs, ddof=1)) / len(logs), len(logs) - 1)


@dataclass(frozen=True)
class Estimate:
    """A ratio with its error."""

    ratio: float  # of means over prompts
    low: float  # lower end of its 95 % interval
    high: float  # upper end
    error: float  # standard error of its logarithm; NaN where nothing varies
    freedom: float  # degrees of freedom of the error, by Welch and Satterthwaite

    @property
    def varies(self) -> bool:
        """Whether anything can be said of its error."""
        return self.error > SMALLEST

    def within(self, alpha: float) -> tuple[float, float]:
        """Return the interval that misses the ratio with probability ``alpha``.

        It is Student's of the logarithm: ``exp(log ratio +- t error)``.
        """
        t = float(stats.t.ppf(1 - alpha / 2, self.freedom)) * self.error
        return self.ratio * exp(-min(t, 50.0)), self.ratio * exp(min(t, 50.0))

    def seen(self, alpha: float, power: float) -> float:
        """Return the ratio over 1 whose interval at ``alpha`` is above 1 with ``power``."""
        quantiles = stats.t.ppf([1 - alpha / 2, power], self.freedom)
        return exp(min(self.error * float(quantiles.sum()), 50.0))


def estimate(data: np.ndarray, more: Sequence[Part] = ()) -> Estimate:
    """Estimate the ratio of means of two or four series over the same prompts.

    The interval is that of the percentiles of resampled prompts. With ``more`` it is Student's, of
    all parts of the error together.

    Args:
        data: the series, ``[2,n]`` or ``[4,n]``.
        more: parts of the error beside that of the prompts.
    """
    n = data.shape[1]
    ratio, samples = resample(data)
    low, high = np.nan, np.nan
    if not np.isnan(samples).all():
        with np.errstate(invalid="ignore"):  # samples may be infinite
            low, high = np.nanquantile(samples, [0.025, 0.975])
    positive = samples[np.isfinite(samples) & (samples > 0)]
    if len(positive) <= 0.9 * len(samples) or not np.isfinite(ratio) or ratio <= 0:
        return Estimate(ratio, float(low), float(high), np.nan, n - 1)
    parts = [Part(float(np.log(positive).var(ddof=1)), n - 1), *more]
    variance = sum(part.variance for part in parts)
    if parts[0].variance ** 0.5 <= SMALLEST:  # prompts that are all alike are no sample
        return Estimate(ratio, float(low), float(high), np.nan, n - 1)
    known = sum(part.variance**2 / part.freedom for part in parts)
    found = Estimate(ratio, float(low), float(high), variance**0.5, variance**2 / known)
    if any(part.variance for part in more):
        low, high = found.within(0.05)
        found = Estimate(ratio, low, high, found.error, found.freedom)
    return found


@lru_cache(maxsize=16)
def weights(n: int) -> np.ndarray:
    """The columns' shares of each draw of :func:`specwb.lab.bench.results.resampled`,
    ``[n,RESAMPLES]``: means of several series are products with them."""
    places = resampled(n) + n * np.arange(RESAMPLES)[:, None]
    counts = np.bincount(places.ravel(), minlength=n * RESAMPLES)
    return (counts / n).reshape(RESAMPLES, n).T.copy()


def resample(data: np.ndarray) -> tuple[float, np.ndarray]:
    """The ratio ``a / b`` of the means of ``data [2,n]``, or ``(a / b) / (c / d)`` of ``[4,n]``,
    and that of resampled columns ``[RESAMPLES]``."""
    drawn = list(data @ weights(data.shape[1]))
    means = [series.mean() for series in data]
    with np.errstate(divide="ignore", invalid="ignore"):
        if len(data) == 2:
            return float(means[0] / means[1]), drawn[0] / drawn[1]
        a, b, c, d = drawn
        ratio = means[0] * means[3] / (means[1] * means[2])
        return float(ratio), a * d / (b * c)


def bootstrap(pairs: np.ndarray) -> tuple[float, float, float]:
    """Compute the ratio of the means of ``pairs [2,n]`` with its 95 % interval.

    The interval is over resampled columns. Both are infinite where the second mean is 0.
    """
    ratio, ratios = resample(pairs)
    low, high = np.nan, np.nan
    if not np.isnan(ratios).all():
        low, high = np.nanquantile(ratios, [0.025, 0.975])
    return ratio, float(low), float(high)
