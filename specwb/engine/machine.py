"""Is the machine quiet enough to measure on?

A comparison that other programs disturb gives figures that look like any others. So one small fixed
piece of work, the *step*, is timed between all runs. A run beside a step that took much longer than
the fast ones was disturbed, whatever the reason: other programs, a processor that became hot, a
virtual machine whose host is busy. The load of other programs is looked at too.
"""

from __future__ import annotations

import math
import os
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch.nn import functional

from specwb.models.place import Place
from specwb.models.target import Target

STEPS = 3
"""Steps of a probe whose first one is slow. A step costs as much as a token of plain decoding."""
SLOW = 1.5
"""A run is disturbed if the probe beside it took more than so many times the fast probes."""
SHARE = 0.1
"""The machine is busy if more than this share of the runs was disturbed."""
SPARE = 0.5
"""The machine is busy if others had more than so many CPUs' worth of work beyond the CPUs left."""

SPAN = 0.01
"""Seconds for which a product is repeated to time it with a number of threads."""
TURNS = 5
"""How often each number of threads has its turn."""
CRAWL = 1.2
"""One thread is chosen where a product takes more than so many times as long with all of them."""


def one_step(target: Target, rows: int = 1, length: int = 1) -> Callable[[], float]:
    """Make the function that runs the fixed step once and returns its seconds.

    The step is this engine's forward pass over one token, or over ``rows x length``, with nothing
    before them.
    """
    device, backbone = target.device, target.backbone
    tokens = torch.zeros(rows, length, dtype=torch.long, device=device)
    place, cache = Place.text(rows, length, device), backbone.cache(rows, length)

    def step() -> float:
        began = time.perf_counter()
        with torch.inference_mode():
            logits = backbone.head(backbone.run(backbone.embed(tokens), place, cache)[0])
            logits.flatten()[0].item()  # waits for the device
        return time.perf_counter() - began

    return step


def product_seconds(threads: int) -> float:
    """Time a product of a few tokens with so many threads: seconds, the mean of a few milliseconds.

    The mean and not the fastest: where other programs hold a CPU, most products take as usual and
    some wait for a thread that does not run.
    """
    torch.set_num_threads(threads)
    tokens, weight = torch.ones(5, 1024), torch.ones(1024, 1024)
    functional.linear(tokens, weight)  # starts the threads
    began, count = time.perf_counter(), 0
    while not count or time.perf_counter() - began < SPAN:
        functional.linear(tokens, weight)
        count += 1
    return (time.perf_counter() - began) / count


def slowdown() -> float:
    """Compare all of torch's threads with one: time of a product with all over its time with one,
    the median of the pairs, so that a burst in fewer than half of them does not decide.

    The threads of a product wait for each other by spinning. Where other programs hold the CPUs,
    each wait can last until the system runs a thread again, thousands of times what the product
    takes, and one thread is faster by far.
    """
    every = torch.get_num_threads()
    try:
        pairs = [(product_seconds(every), product_seconds(1)) for _ in range(TURNS)]
    finally:
        torch.set_num_threads(every)
    return median(with_all / with_one for with_all, with_one in pairs)


def load_average() -> float | None:
    """Read the load average of the last minute: how many threads ran or waited to run, on all CPUs.

    It is None where the system does not say.
    """
    try:
        return os.getloadavg()[0]
    except (AttributeError, OSError):
        return None


def others_load(before: float, after: float, seconds: float, own: float) -> float:
    """Estimate how many threads of other programs ran or waited, on average over a run.

    The load average L is damped exponentially over a minute: after t seconds at a constant n,
    ``L(t) = L(0) e^(-t/60) + n (1 - e^(-t/60))``. This is solved for n, and the run's own threads
    are subtracted. In a run shorter than 15 s too little of n has come into the average; then the
    result is the load from before.
    """
    if seconds < 15:
        return before
    decay = math.exp(-seconds / 60)
    return max(0.0, (after - before * decay) / (1 - decay) - own)


class Watch:
    """Times the fixed step again and again while something else is measured."""

    def __init__(self, step: Callable[[], float]) -> None:
        step()  # warm-up
        self._step = step
        self.probes: list[float] = []
        self.repeat_until = math.inf  # monotonic time; no disturbed run is repeated after it
        self._began = (time.monotonic(), time.process_time(), load_average())
        self.probe()

    @property
    def last(self) -> float:
        return self.probes[-1]

    def probe(self) -> float:
        """Time the step, where it is slow a few times; return the median, in seconds."""
        times = [self._step()]
        if not self.probes or self.slow(times[0]):
            times += [self._step() for _ in range(STEPS - 1)]
        self.probes.append(median(times))
        return self.last

    @property
    def fastest(self) -> float:
        """Of ten probes the second fastest.

        The first probe runs before any run has filled the caches with something else, so that it is
        faster than any that follows, even on a machine that is never disturbed.
        """
        return sorted(self.probes)[len(self.probes) // 10]

    def slow(self, seconds: float) -> bool:
        """Tell whether a step of so many seconds is one of a disturbed machine."""
        return seconds > SLOW * self.fastest

    def facts(self, steps: Sequence[float], again: int) -> dict[str, Any]:
        """Summarise the state of the machine: ``attrs["machine"]`` of a comparison.

        Returns:
            A dict with the keys

            - step_seconds: of the fast probes.
            - runs, disturbed, measured_again: counts of runs.
            - others: see :func:`others_load`; None where the system has no load average.
            - cpus: of the machine.
            - threads: how many this process computes with.
            - busy: whether one of the limits ``SHARE`` and ``SPARE`` is passed.
        """
        began, cpu_began, before = self._began
        wall = time.monotonic() - began
        own = (time.process_time() - cpu_began) / max(wall, 1e-9)
        after = load_average()
        threads, cpus = torch.get_num_threads(), os.cpu_count() or 1
        others = None
        if before is not None and after is not None:
            others = others_load(before, after, wall, own)
        disturbed = sum(map(self.slow, steps))
        crowded = others is not None and others + own > cpus + SPARE
        return {
            "step_seconds": self.fastest,
            "runs": len(steps),
            "disturbed": disturbed,
            "measured_again": again,
            "others": None if others is None else round(others, 2),
            "cpus": cpus,
            "threads": threads,
            "busy": disturbed > SHARE * len(steps) or crowded,
        }


def commit() -> str:
    """Return the version of this code: its commit, with + where files were changed since.

    It is "unknown" where the code is in no git checkout of its own. In an environment inside some
    other project git would name that project's version.
    """
    checkout = Path(__file__).resolve().parents[2]
    if not (checkout / ".git").exists():
        return "unknown"

    def git(*words: str) -> str:
        command = ["git", "-C", str(checkout), *words]
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()

    try:
        head = git("rev-parse", "HEAD")
        changed = bool(head) and bool(git("status", "--porcelain", "--untracked-files=no"))
    except OSError:  # no git here
        return "unknown"
    if not head:
        return "unknown"
    return f"{head}+" if changed else head


def notes(facts: dict[str, Any]) -> list[str]:
    """Write the facts as notes below a table.

    Where the machine is busy, the first note is a warning that says what to do.
    """
    runs, disturbed, again = facts["runs"], facts["disturbed"], facts["measured_again"]
    threads, cpus = facts["threads"], facts["cpus"]
    computing = f"{threads} threads" if threads > 1 else "1 thread"
    summary = (
        f"machine: {computing} on {cpus} CPUs; {disturbed} of {runs} "
        "decodings were disturbed (a short computation timed next to them took over "
        f"{SLOW:g} times its usual time), and {again} measured again"
    )
    if not facts["busy"]:
        return [summary]
    others = ""
    if facts["others"] is not None:
        others = f", and other programs kept {facts['others']:.1f} threads busy on {cpus} CPUs"
    fewer = (
        f", or compute with fewer threads (OMP_NUM_THREADS={threads // 2})" if threads > 1 else ""
    )
    warning = (
        f"BUSY MACHINE: other work disturbed {disturbed} of {runs} decodings{others}: do not rely "
        f"on these speeds. Close other programs{fewer} and measure again."
    )
    return [warning, summary]
