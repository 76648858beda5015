"""The cost model of drafting with a trained head: measured on a few trees, predicted for any.

A decoding step over a tree of n nodes costs ``t_target(n) + a + b P + c m``, with P passes of the
head and m pairs fed to it below the text:

- EAGLE: P is the number of levels, and m all nodes but the last level's.
- Falcon: a pass makes k levels, and m is k pairs a block.
- Medusa: P is the number of levels, and m is 0.

a, b, c >= 0 are a least-squares fit to whole decoding steps. Acceptance by depth and rank is
counted on one wide tree.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np
from scipy.optimize import nnls

from specwb.blocks import BlockTree
from specwb.cost.calibrate import AcceptanceTally, count_acceptance, step_seconds
from specwb.cost.model import CostModel, Predicts, seconds_at
from specwb.methods import Method
from specwb.methods import method as make_method
from specwb.models.target import Target
from specwb.tree import Tree

WIDE = {"medusa": (6, 4, 3), "eagle": (4, 3, 2, 1, 1, 1), "falcon": (4, 3, 2, 1, 1, 1)}
"""The wide tree of every method, on which acceptance is counted."""
FIT_TREES = [(1,), (1, 1, 1), (1, 1, 1, 1, 1), (4,), (4, 2), (2, 2, 2), (4, 2, 2)]
"""The trees whose times a, b and c are fitted to."""
TURNS = 3
"""Turns in which everything is timed."""


@dataclass(frozen=True)
class HeadCost(Predicts):
    """The cost model of one head on one machine."""

    kind: str  # medusa, eagle or falcon
    target: dict[int, float]  # width -> seconds, as in :class:`CostModel`
    opening: tuple[float, float]  # (target, head) seconds of prompt processing
    fit: tuple[float, float, float]  # seconds (a, b, c)
    rates: list[list[float]]  # acceptance by depth and rank
    prompts: int = 0  # how many prompts acceptance was counted on
    k: int = 1  # levels that a pass makes

    @classmethod
    def from_json(cls, saved: dict[str, Any]) -> HeadCost:
        """Read a model from JSON that ``dataclasses.asdict`` was written as."""
        return cls(
            saved["kind"],
            {int(n): seconds for n, seconds in saved["target"].items()},
            tuple(saved["opening"]),
            tuple(saved["fit"]),
            saved["rates"],
            saved["prompts"],
            saved["k"],
        )

    def rates_of(self, tree: Tree, top: bool = False) -> list[list[float]]:
        return self.rates

    def round_seconds(self, tree: Tree) -> float:
        seconds = seconds_at(self.target, tree.n)
        if tree.D:
            seconds += float(np.dot(self.fit, work(self.kind, tree, self.k)))
        return seconds


def work(kind: str, tree: Tree, k: int = 1) -> tuple[int, int, int]:
    """What a, b and c are multiplied by: 1, the passes, and the pairs fed below the text."""
    if kind == "medusa":
        return 1, tree.D, 0
    if kind == "eagle":
        return 1, tree.D, sum(stop - start for start, stop in tree.levels[1:-1])
    passes = BlockTree(tree, k, None).passes
    return 1, len(passes), k * sum(len(one.blocks) for one in passes[1:])


def calibrate_head(
    target: Target,
    kind: str,
    prompts: Sequence[Sequence[int]],
    model: CostModel,
    *,
    head: object = None,
    max_new_tokens: int = 64,
    temperature: float = 0.0,
    rounds: int = 12,
    seed: int = 0,
    seconds: float | None = None,
    progress: Callable[[float, str], None] | None = None,
) -> HeadCost:
    """Measure what :class:`HeadCost` needs."""
    report = progress or (lambda done, text: None)
    settings: dict[str, Any] = {
        "max_new_tokens": max_new_tokens,
        "temperature": temperature,
        "seed": seed,
    }
    options: dict[str, Any] = {"head": head} if head is not None else {}

    def build(tree: tuple[int, ...]) -> Method:
        return make_method(kind, target, **options, tree=tree)

    drafter = build((1,)).drafter
    max_depth, k = getattr(drafter, "deepest", len(WIDE[kind])), getattr(drafter, "k", 1)
    wide = build(WIDE[kind][:max_depth])
    shapes = list(FIT_TREES)
    if k > 1:
        # Of blocks there are also chains of two and three passes, and several blocks in the second
        # pass. Otherwise a pass and a pair cannot be told apart.
        shapes += [(1,) * 2 * k, (1,) * 3 * k, (2,) * (k + 1)]
    methods = [build(ks) for ks in dict.fromkeys(shapes) if len(ks) <= max_depth or k > 1]
    plain = make_method("ar", target)

    typical, times = sorted(prompts, key=len)[len(prompts) // 2], []
    for turn in range(TURNS):
        report(turn / TURNS / 2, f"{kind}: rounds")
        times.append(
            [step_seconds(target, typical, m, rounds, **settings) for m in (plain, *methods)]
        )
    first, later = np.median(times, axis=0).T  # of every method, the plain one first
    opening = median((first - later)[1:].tolist()) - float(first[0] - later[0])
    tally, rows = AcceptanceTally(wide), [list(row) for row in prompts]
    counted = count_acceptance(
        target,
        rows,
        [tally],
        settings,
        seconds,
        lambda done, text: report(0.5 + done / 2, f"{kind}: {text}"),
    )
    widths = wide.drafter.tree.widths
    return HeadCost(
        kind=kind,
        target=model.target,
        opening=(model.opening[0], max(0.0, opening)),
        fit=_fit(kind, k, [m.drafter.tree for m in methods], later, model.target),
        rates=[row[:width] for row, width in zip(tally.rates, widths, strict=True)],
        prompts=counted,
        k=k,
    )


def _fit(
    kind: str, k: int, trees: list[Tree], seconds: np.ndarray, target: dict[int, float]
) -> tuple[float, float, float]:
    """Fit (a, b, c) by least squares to the seconds of a plain step and of one over every tree."""
    # The target's cost is taken at the length of text of these times: ``scale`` is what plain
    # decoding takes here over what it takes at the typical length.
    scale = seconds[0] / target[1]
    drafting = [
        s - scale * seconds_at(target, t.n) for s, t in zip(seconds[1:], trees, strict=True)
    ]
    works = np.array([work(kind, tree, k) for tree in trees], dtype=float)
    a, b, c = nnls(works, np.array(drafting))[0].tolist()  # a column of zeros gets 0
    return a, b, c
