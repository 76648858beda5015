"""Is the machine quiet enough to measure on? One small fixed piece of work, timed again and again, and the load of others.

A comparison that other programs disturb gives figures that look like any others. So the same step is timed between all
runs: a run beside a step much slower than the fast ones was disturbed, whatever the reason (other programs, a
processor that became hot, a virtual machine whose host is busy).
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Sequence
from statistics import median, quantiles
from typing import Any

import torch

from specwb.models.target import Target

STEPS = 3
"""Steps of one look. A look costs as much as so many tokens of plain decoding."""
SLOW = 1.5
"""A run is disturbed if the look beside it took more than so many times the fast looks."""
SHARE = 0.1
"""The machine is busy if more than this share of the runs was disturbed."""
SPARE = 0.5
"""The machine is busy if others had more than so many CPUs' worth of work beyond the CPUs left to them."""


def one_step(target: Target) -> Callable[[], float]:
    """What is timed: the transformers model's forward over one token, without a cache. Seconds a call."""
    device = target.device
    token = torch.zeros(1, 1, dtype=torch.long, device=device)

    def wait() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    def step() -> float:
        wait()
        began = time.perf_counter()
        with torch.inference_mode():
            target.model(input_ids=token, use_cache=False)
        wait()
        return time.perf_counter() - began

    return step


def load_average() -> float | None:
    """Of the last minute: how many threads ran or waited to run, on all CPUs. None where the system does not say."""
    try:
        return os.getloadavg()[0]
    except (AttributeError, OSError):
        return None


def others_load(before: float, after: float, seconds: float, own: float) -> float:
    """How many threads of other programs ran or waited, on average over a run.

    The load average L is damped exponentially over a minute: after t seconds at a constant n,
    ``L(t) = L(0) e^(-t/60) + n (1 - e^(-t/60))``. Solved for n, less the run's own. In a run shorter than 15 s too little
    of it has come into the average; then it is what was there before.

    Args:
        before, after: load averages. seconds: between them. own: CPU seconds a second of this process.
    """
    if seconds < 15:
        return before
    kept = math.exp(-seconds / 60)
    return max(0.0, (after - before * kept) / (1 - kept) - own)


class Watch:
    """Looks at the machine while something is measured on it.

    Args:
        step: seconds that the fixed piece of work takes now.
    Attributes: fastest (seconds of the fast looks), last (of the last look), looks (of all).
    """

    def __init__(self, step: Callable[[], float]) -> None:
        step()  # warm-up
        self._step = step
        self.looks: list[float] = []
        self._began = (time.monotonic(), time.process_time(), load_average())
        self.look()

    @property
    def last(self) -> float:
        return self.looks[-1]

    def look(self) -> float:
        """Seconds of a step now, the median of a few."""
        self.looks.append(median(self._step() for _ in range(STEPS)))
        return self.last

    @property
    def fastest(self) -> float:
        """Of ten looks the second fastest: the first one, before any run has filled the caches with
        something else, is faster than any that follows on a machine that is never disturbed."""
        return sorted(self.looks)[len(self.looks) // 10]

    def slow(self, seconds: float) -> bool:
        """Is a step of so many seconds one of a disturbed machine?"""
        return seconds > SLOW * self.fastest

    def facts(self, steps: Sequence[float], again: int) -> dict[str, Any]:
        """What is said of the machine: ``attrs["machine"]`` of a comparison.

        Args:
            steps: of every run the slower of the two steps beside it, seconds. again: how many runs were measured again.
        Returns:
            step_seconds: of the fast looks. spread: quartiles of all looks over it. runs, disturbed, measured_again: counts.
            load: the load average before and after, None where the system has none. others: see :func:`others_load`.
            cpus, threads: of the machine, and those that this process computes with. busy: is one of the limits passed?
        """
        wall, cpu, before = self._began
        wall, own, after = time.monotonic() - wall, time.process_time() - cpu, load_average()
        own /= max(wall, 1e-9)
        threads, cpus = torch.get_num_threads(), os.cpu_count() or 1
        load = None if before is None or after is None else [round(before, 2), round(after, 2)]
        others = None if before is None or after is None else others_load(before, after, wall, own)
        disturbed = sum(map(self.slow, steps))
        crowded = others is not None and others + own > cpus + SPARE
        quartiles = quantiles(self.looks, n=4, method="inclusive") if len(self.looks) > 1 else self.looks * 3
        return {
            "step_seconds": self.fastest,
            "spread": [round(q / self.fastest, 3) for q in quartiles],
            "runs": len(steps),
            "disturbed": disturbed,
            "measured_again": again,
            "load": load,
            "others": None if others is None else round(others, 2),
            "cpus": cpus,
            "threads": threads,
            "busy": disturbed > SHARE * len(steps) or crowded,
        }


def said(facts: dict[str, Any]) -> list[str]:
    """The facts as notes below a table; the first one warns where the machine is busy and says what to do."""
    low, middle, high = facts["spread"]
    runs, disturbed, threads, cpus = (facts[name] for name in ("runs", "disturbed", "threads", "cpus"))
    load, others = "", ""
    if facts["load"] is not None:
        before, after = facts["load"]
        load = f"; load average {before:g} before and {after:g} after, {facts['others']:g} of others, on {cpus} CPUs"
        others = f", other programs kept {facts['others']:g} threads busy on {cpus} CPUs"
    out = [
        f"machine: {threads} thread{'s' * (threads > 1)}; a fixed step between runs took "
        f"{1e3 * facts['step_seconds']:.2f} ms at its fastest, {middle:.2f}x that in the median (quartiles {low:.2f}-{high:.2f}); "
        f"beside {disturbed} of {runs} runs it took over {SLOW:g}x, {facts['measured_again']} runs were measured again{load}"
    ]
    if facts["busy"]:
        fewer = f", or compute with fewer threads (--threads {threads // 2})" if threads > 1 else ""
        warning = f"BUSY MACHINE: {disturbed} of {runs} runs were disturbed{others}: these speeds are not to be relied on."
        out.insert(0, f"{warning} Close other programs{fewer} and measure again.")
    return out
