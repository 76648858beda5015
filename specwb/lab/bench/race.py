"""The order and the end of a comparison: the most promising first, and what falls behind stops.

The time of a decoding step varies little, acceptance from prompt to prompt. So every method decodes
a few steps first, its *opening*, and the rest of the time goes to prompts. With a time limit the
transformers library's rows have one run, but for its plain decoding where that is the faster one;
and methods stop that are told apart from the fastest after 4, 8, 16, ... prompts.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import ttest_1samp

from specwb.core.flow import Exactness
from specwb.core.probability import Sampling
from specwb.engine.machine import Watch
from specwb.engine.methods import Method
from specwb.lab.bench.library import Library, plain_row
from specwb.lab.bench.measure import Job, Run, measure, rotated
from specwb.lab.bench.results import PARTS, figures, of_plain, reference
from specwb.models.target import Target

LEVEL = 0.05
"""How often the fastest method is told apart from the one that looks fastest, at most."""
OPENING = 8
"""Decoding steps of an opening."""
LOOKS = (4, 8, 16, 32, 64)
"""Numbers of runs after which methods may stop."""

PromptGroups = list[tuple[str, list[list[int]]]]
"""Category and rows of token ids of every group of prompts, in running order."""
Decoder = Method | Library
"""A built method, or a decoding of the transformers library."""


@dataclass
class Race:
    """Decodings of the same groups of prompts, and which of them runs next.

    The runs of each are of the first groups, without a gap.
    """

    decoders: Mapping[str, Decoder]
    groups: PromptGroups
    settings: tuple[int, Sampling, int]  # of every job: new tokens, sampling, seed
    watch: Watch
    seconds: float  # the time limit; infinite: every decoder runs on all groups
    progress: Callable[..., None] | None  # see compare

    def __post_init__(self) -> None:
        self.opened: dict[str, list[Run]] = {name: [] for name in self.decoders}
        self.runs: dict[str, list[Run]] = {name: [] for name in self.decoders}
        self.stopped: set[str] = set()
        self.plain = ("ar", plain_row(self.settings[1]))
        self.began = time.monotonic()
        self.end = self.began + self.seconds

    def run(self, target: Target) -> None:
        """Measure every method's opening, then group by group."""
        for job, run in measure(target, self.opening(), steps=OPENING, warm=False):
            self.opened[job.key].append(run)
        for job, run in measure(target, self.jobs(), watch=self.watch):
            self.runs[job.key].append(run)

    def opening(self) -> Iterator[Job]:
        """The first steps of methods on the first group, begun in a quarter of the time."""
        for name, decoder in self.decoders.items():
            is_early = time.monotonic() < self.began + self.seconds / 4
            if isinstance(decoder, Method) and (is_early or name == "ar"):
                self.tell(0)
                yield Job(name, decoder, self.groups[0][1], *self.settings)

    def jobs(self) -> Iterator[Job]:
        """Every decoder on every group, group by group, while there is time.

        No run is begun that is likely to end after the limit, but those of ``ar`` in every round
        that has begun, and of the next decoder in the first round.
        """
        for index in range(len(self.groups)):
            if index and self.end < math.inf:
                self.stop(index)
            # with little time, a first run of every method is worth more than a second of one
            self.watch.repeat_until = self.end if index or self.end == math.inf else 0.0
            for turn, name in enumerate(self.order(index)):
                is_late = time.monotonic() + self.expected(name) > self.end
                if is_late and index and not turn:
                    return
                if not is_late or name == "ar" or index + turn < 2:
                    if not (index and turn):
                        self.tell(index)
                    yield Job(name, self.decoders[name], self.groups[index][1], *self.settings)

    def tell(self, index: int) -> None:
        """Report how far it is: before every decoding of the first round, then before a round."""
        if self.progress:
            spent = (time.monotonic() - self.began) / self.seconds
            done, size = max(spent, index / len(self.groups)), len(self.groups[0][1])
            text = f"prompt {index * size + 1} of {size * len(self.groups)}"
            self.progress(min(done, 1.0), text, self.frame if self.runs["ar"] else None)

    def order(self, index: int) -> list[str]:
        """The decoders of a round.

        They rotate where all are likely to end in time, so that a machine whose speed drifts
        favours none. Otherwise, and in the first round, ``ar`` comes first, then the fastest so
        far.
        """
        names = [x for x, some in self.runs.items() if len(some) == index and x not in self.stopped]
        if index and time.monotonic() + sum(map(self.expected, names)) <= self.end:
            return rotated(names, index)
        return sorted(names, key=lambda x: (x != "ar", self.expected(x) or math.inf))

    def expected(self, name: str) -> float:
        """Seconds of the next run at the speed of the last, or of the opening; 0 without both."""
        tokens = self.settings[0] * len(self.groups[0][1])
        some = self.runs[name] or self.opened[name]
        return tokens / some[-1].tokens_per_second if some else 0.0

    def stop(self, count: int) -> None:
        """Stop what needs no more than this number of runs."""
        if count == 1:
            over = self.table()[1]
            self.stopped = {x for x in self.runs if x.startswith("hf_") and x != over}
        elif count in LOOKS:
            best = self.fastest()
            self.stopped |= set(self.runs) - {best["method"], *best["tied"], *self.plain}

    def fastest(self) -> dict[str, Any]:
        """:func:`fastest` of the runs so far."""
        looks = [look for look in LOOKS if look < len(self.groups) and self.end < math.inf]
        return fastest(*self.table(), 1 + len(looks))

    def table(self) -> tuple[pd.DataFrame, str]:
        """The runs as rows of :mod:`specwb.lab.bench.results`, with speedups; and the reference."""
        table = pd.DataFrame(
            [
                {
                    "method": name,
                    "prompt": i,
                    "tokens": run.written,
                    "forwards": run.forwards,
                    "seconds": run.seconds,
                    "tokens_per_second": run.tokens_per_second,
                    "disturbed": self.watch.slow(run.probe),
                }
                for name, some in self.runs.items()
                for i, run in enumerate(some)
            ]
        )
        over = reference(table)
        plain = of_plain(table, "tokens_per_second", over, ["prompt"])
        return table.assign(speedup=table.tokens_per_second / plain), over

    def cost(self, name: str) -> float:
        """The time of a method's decoding step over plain decoding's, without the first steps: the
        median over the groups of both; before the first run, and where parts of steps are not
        timed, the ratio of the medians of the openings. NaN of the library's methods, and where
        there is one step."""
        pairs = zip(self.runs[name], self.runs["ar"], strict=False)
        ratios = [_step(run) / _step(plain) for run, plain in pairs if run.parts and plain.parts]
        if ratios := [ratio for ratio in ratios if math.isfinite(ratio)]:
            return median(ratios)
        steps = [run.step_seconds[1:] for x in (name, "ar") for run in self.opened[x]]
        return median(steps[0]) / median(steps[1]) if len(steps) == 2 and all(steps) else math.nan

    def frame(self) -> pd.DataFrame:
        """The figures so far, as :func:`specwb.lab.bench.compare.compare` has them, of all that has
        at least an opening."""
        table, over = self.table()
        some = {name: x for name in self.runs if (x := self.runs[name] or self.opened[name])}
        frame = figures(table, ["method"]).reindex(list(some)).reset_index(names="method")
        frame["lossless"] = [
            getattr(self.decoders[x], "exactness", None) is not Exactness.LOSSY for x in some
        ]
        frame["runs"] = [len(self.runs[name]) for name in some]
        frame["cost"] = [self.cost(name) for name in some]
        for part in PARTS:
            frame[part] = [sum(x.parts.get(part, math.nan) for x in runs) for runs in some.values()]
        stopped = sorted(self.stopped)
        frame.attrs = {"reference": {"method": over}, "stopped": stopped, "same_text": None}
        return frame


def _step(run: Run) -> float:
    """Seconds of a step after the first one, which processes the prompts."""
    later = max(map(len, run.accepted)) - 1
    seconds = sum(run.parts[part] - run.first_parts[part] for part in PARTS)
    return seconds / later if later > 0 else math.nan


def fastest(table: pd.DataFrame, over: str, looks: int = 1) -> dict[str, Any]:
    """Find the method with the largest median speedup, and those that may be as fast.

    Another method is told apart from it by a t test of the logarithms of their paired runs' ratios,
    whose mean is 0 if both are equally fast. The level of all tests together is :data:`LEVEL`
    (Bonferroni): of all methods, and of all looks at the growing table. The transformers library's
    rows count if speedups are over them.

    Args:
        table: one row a run, with the columns method, prompt, tokens_per_second and speedup.
        over: the method that speedups are over.
        looks: how often methods may stop, and the end.
    Returns:
        A dict with the keys

        - method, speedup: the fastest, and its median speedup over ``over``.
        - others: how many other methods there are.
        - tied: those of them that are not told apart from it.
    """
    table = table[(table.method == over) | ~table.method.str.startswith("hf_")]
    medians = table.groupby("method", sort=False).speedup.median()
    best = str(medians.idxmax())
    speeds = table.pivot(index="prompt", columns="method", values="tokens_per_second")
    others = [name for name in medians.index if name != best]
    tied = []
    for name in others:
        ratios = np.log(speeds[best] / speeds[name]).dropna().to_numpy()
        if len(ratios) < 2 or not ttest_1samp(ratios, 0).pvalue < LEVEL / len(others) / looks:
            tied.append(name)
    return {"method": best, "speedup": float(medians[best]), "others": len(others), "tied": tied}
