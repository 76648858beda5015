"""The effect of noise on a measured speedup: a simulated machine whose true speedup is known, and
three ways to measure it.

Nothing is timed here. The machine is simulated: other programs come and go, so that for a while
everything takes longer, and every run has its own jitter. Since the truth is known, the error of
each way can be counted.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from specwb.core.errors import ArgumentError

CALM = 40
"""Runs that a calm stretch lasts on average."""
BUSY = 8
"""Runs that a busy stretch lasts on average."""
JITTER = 0.02
"""Standard deviation of the logarithm of a run's own noise."""


def slowdowns(runs: int, trials: int, load: float = 1.6, seed: int = 0) -> np.ndarray:
    """``[trials, runs]``: the factors by which consecutive runs take longer than on a calm machine.

    A machine is calm or busy and changes with probability ``1 / CALM`` or ``1 / BUSY`` between two
    runs; a busy one takes ``load`` >= 1 times as long. Each run also has its own factor
    ``exp(JITTER z)``, z standard normal. Machines are drawn independently.
    """
    if runs < 1 or trials < 1 or not load >= 1:
        raise ArgumentError(
            f"runs and trials must be >= 1 and load >= 1, got {runs}, {trials} and {load}"
        )
    rng = np.random.default_rng(seed)
    busy = np.empty((trials, runs), bool)
    busy[:, 0] = rng.random(trials) < BUSY / (CALM + BUSY)  # the share of time that is busy
    change = rng.random((trials, runs))
    for i in range(1, runs):
        before = busy[:, i - 1]
        busy[:, i] = before ^ (change[:, i] < np.where(before, 1 / BUSY, 1 / CALM))
    return np.where(busy, load, 1.0) * np.exp(JITTER * rng.standard_normal((trials, runs)))


def _once(plain: np.ndarray, method: np.ndarray) -> np.ndarray:
    return plain[:, 0] / method[:, 0]


def _medians(plain: np.ndarray, method: np.ndarray) -> np.ndarray:
    return np.median(plain, axis=1) / np.median(method, axis=1)


def _pairs(plain: np.ndarray, method: np.ndarray) -> np.ndarray:
    return np.median(plain / method, axis=1)


DESIGNS: dict[str, tuple[str, Callable[[np.ndarray, np.ndarray], np.ndarray]]] = {
    "one run each": ("in turn", _once),
    "one after the other": ("apart", _medians),
    "in turn, paired": ("in turn", _pairs),
}
"""Name -> the order of the runs, and the estimate of (seconds of plain decoding, of the method).

``apart`` runs all plain decodings, then the method as often, and divides medians. ``in turn`` runs
a plain decoding and then the method, again and again; paired, every two neighbours have a ratio,
and the median of these counts.
"""


def measured_speedups(
    design: str,
    speedup: float,
    *,
    runs: int = 9,
    trials: int = 2000,
    load: float = 1.6,
    seed: int = 0,
) -> np.ndarray:
    """Measure a known speedup many times, each time on another simulated machine.

    Args:
        design: one of :data:`DESIGNS`.
        speedup: the true one, > 0.
        runs: of plain decoding, and as many of the method.
        trials: number of measurements.
    Returns:
        ``[trials]``, the estimates.
    Raises:
        ValueError: there is no such design, or a number is out of range.
    """
    if design not in DESIGNS:
        raise ArgumentError(f"design must be one of {', '.join(DESIGNS)}; got {design!r}")
    if not speedup > 0:
        raise ArgumentError(f"speedup must be > 0, got {speedup}")
    order, estimate = DESIGNS[design]
    factors = slowdowns(2 * runs, trials, load, seed)
    if order == "apart":
        plain, method = factors[:, :runs], factors[:, runs:]
    else:
        plain, method = factors[:, ::2], factors[:, 1::2]
    return estimate(plain, method / speedup)
