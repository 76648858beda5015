"""The figures of a comparison, from what methods wrote and how long that took."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.stats import ttest_1samp

from specwb.core.flow import Exactness
from specwb.core.stops import loops
from specwb.engine.machine import Watch
from specwb.engine.methods import Method
from specwb.lab.bench.measure import Run
from specwb.lab.bench.results import ratios_of, speedup
from specwb.lab.bench.ties import Same

PARTS = ("draft", "score", "verify", "commit")
"""The parts of a decoding step whose seconds are measured."""
LEVEL = 0.05
"""How often some method that is as fast as the fastest is told apart from it, at most."""


Runs = dict[str, list[Run]]
"""Method -> its runs, one a group. All methods' lists are of one length."""


def reference(runs: Runs) -> str:
    """Choose what speedups are over: the plain decoding that is fastest in the median of pairs."""
    first, *others = runs
    best = max(others, key=lambda name: summary(runs[name], runs[first])["speedup"])
    return best if summary(runs[best], runs[first])["speedup"] > 1 else first


def fastest(runs: Runs, over: str) -> dict[str, Any]:
    """Find the method with the largest median speedup, and those that may be as fast.

    Another method is told apart from it by a t test of the logarithms of their paired runs' ratios,
    whose mean is 0 if both are equally fast. The level of all tests together is ``LEVEL``
    (Bonferroni).

    Args:
        runs: of all methods.
        over: the method that speedups are over.
    Returns:
        A dict with the keys

        - method, speedup: the fastest, and its median speedup over ``over``.
        - others: how many other methods there are.
        - tied: those of them that are not told apart from it.
    """
    speeds = {name: [run.tokens_per_second for run in runs[name]] for name in runs}

    def median_speedup(name: str) -> float:
        return speedup(np.stack([speeds[name], speeds[over]], 1))

    best = max(runs, key=median_speedup)
    others = [name for name in runs if name != best]

    def told_apart(name: str) -> bool:
        ratios = np.log(speeds[best]) - np.log(speeds[name])
        if len(ratios) < 2:
            return False
        if np.ptp(ratios) < 1e-9:  # no spread to test against
            return bool(abs(ratios[0]) > 1e-9)
        return bool(ttest_1samp(ratios, 0).pvalue < LEVEL / len(others))

    tied = [name for name in others if not told_apart(name)]
    return {
        "method": best,
        "speedup": round(median_speedup(best), 4),
        "others": len(others),
        "tied": tied,
    }


def acceptance_by_depth(runs: Sequence[Run]) -> list[tuple[int, int]]:
    """Count (accepted, tested) for depth 1, 2, ..., each with its own denominator."""
    accepted = [a for run in runs for row in run.accepted for a in row]
    tested = [t for run in runs for row in run.tested for t in row]
    return [
        (sum(a >= d for a in accepted), sum(t >= d for t in tested))
        for d in range(1, max(tested, default=0) + 1)
    ]


def written(runs: list[Run]) -> int:
    """How many tokens the runs wrote."""
    return sum(run.written for run in runs)


def row_of(
    name: str,
    runs: Runs,
    over: str,
    timed: list[Run],
    method: Method | None,
    same: Same | None,
    watch: Watch,
) -> dict[str, Any]:
    """One row of the frame."""
    seconds: dict[str, float | None] = dict.fromkeys(PARTS)
    if timed and timed[0].parts:
        seconds = {part: sum(run.parts[part] for run in timed) for part in PARTS}
    return {
        "method": name,
        "lossless": method is None or method.exactness is Exactness.LOSSLESS,
        "identical": None if same is None else not same.ties + same.others,
        **summary(runs[name], runs[over]),
        "disturbed": sum(watch.slow(run.probe) for run in runs[name]),
        **seconds,
    }


def summary(runs: list[Run], plain: list[Run]) -> dict[str, float]:
    """The figures of one method, with its speedups over ``plain``, the reference's runs."""
    tokens = written(runs)
    tau = tokens / max(1, sum(run.forwards for run in runs))
    speed = tokens / sum(run.seconds for run in runs)

    pairs = [(a.tokens_per_second, b.tokens_per_second) for a, b in zip(runs, plain, strict=True)]
    low, high = np.quantile(ratios_of(pairs), [0.25, 0.75])
    return {
        "tau": round(tau, 4),
        "accepted_per_round": round(tau - 1, 4),
        "tokens_per_second": round(speed, 2),
        "speedup": round(speedup(pairs), 4),
        "speedup_low": round(float(low), 4),
        "speedup_high": round(float(high), 4),
    }


def by_category(
    runs: Runs, over: str, categories: list[str]
) -> dict[str, dict[str, dict[str, Any]]]:
    """The figures of every method by category; ``categories``: of every group."""
    figures = {}
    for category in dict.fromkeys(categories):
        groups = [i for i, other in enumerate(categories) if other == category]
        part = {name: [runs[name][i] for i in groups] for name in runs}
        figures[category] = {
            name: {
                "runs": len(groups),
                **summary(part[name], part[over]),
                "acceptance_by_depth": acceptance_by_depth(part[name]),
            }
            for name in part
        }
    return figures


def non_looping(runs: Runs, over: str) -> dict[str, Any]:
    """The figures of every method on the groups in which no plain text loops."""
    plain = runs["ar"]
    groups = [i for i, run in enumerate(plain) if not any(map(loops, run.tokens))]
    base = [runs[over][i] for i in groups]
    figures = {}
    if groups:
        figures = {name: summary([runs[name][i] for i in groups], base) for name in runs}
    return {
        "runs": len(groups),
        "of": len(plain),
        "prompts": sum(len(run.tokens) for run in base),
        "methods": figures,
    }
