"""The effect of noise on a measured speedup: a simulated machine whose true speedup is known, and
three ways to measure it.

Nothing is timed here. The machine is simulated: other programs come and go, so that for a while
everything takes longer, and every run has its own jitter. Since the truth is known, the error of
each way can be counted.
"""

from __future__ import annotations

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
    rng = np.random.default_rng(seed)
    busy = np.empty((trials, runs), bool)
    busy[:, 0] = rng.random(trials) < BUSY / (CALM + BUSY)  # the share of time that is busy
    change = rng.random((trials, runs))
    for i in range(1, runs):
        before = busy[:, i - 1]
        busy[:, i] = before ^ (change[:, i] < np.where(before, 1 / BUSY, 1 / CALM))
    return np.where(busy, load, 1.0) * np.exp(JITTER * rng.standard_normal((trials, runs)))


DESIGNS = ("one run each", "one after the other", "in turn, paired")
"""How runs are ordered and put together.

One after the other: all plain decodings, then the method as often, and medians are divided. In
turn: a plain decoding and then the method, again and again; paired, every two neighbours have a
ratio, and the median of these counts.
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
        ArgumentError: there is no such design.
    """
    if design not in DESIGNS:
        raise ArgumentError(f"design must be one of {', '.join(DESIGNS)}; got {design!r}")
    factors = slowdowns(2 * runs, trials, load, seed)
    if design == "one after the other":
        plain, method = factors[:, :runs], factors[:, runs:] / speedup
        return np.median(plain, axis=1) / np.median(method, axis=1)
    plain, method = factors[:, ::2], factors[:, 1::2] / speedup
    if design == "one run each":
        return plain[:, 0] / method[:, 0]
    return np.median(plain / method, axis=1)
