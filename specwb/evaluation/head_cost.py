"""The cost model of drafting with a trained head: measured on a few trees, predicted for any.

A round over a tree of n nodes costs ``t_target(n) + a + b P + c m``, with P passes of the head and m pairs fed to it below the text: of EAGLE the
levels, and all nodes but the last level's; of Falcon a pass for k levels, and k pairs a block; of Medusa none. a, b, c >= 0 are a least-squares
fit to whole rounds; acceptance by depth and rank is counted on one wide tree.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np
from scipy.optimize import nnls

from specwb.analysis import expected_rounds, tree_reach
from specwb.blocks import BlockTree
from specwb.evaluation.cost import CostModel, _at, _Tally, _timed
from specwb.methods import method as make_method
from specwb.models.target import Target
from specwb.tree import Tree

# the tree that acceptance is counted on, and those that times are fitted to
WIDE = {"medusa": (6, 4, 3), "eagle": (4, 3, 2, 1, 1, 1), "falcon": (4, 3, 2, 1, 1, 1)}
FITTED = [(1,), (1, 1, 1), (1, 1, 1, 1, 1), (4,), (4, 2), (2, 2, 2), (4, 2, 2)]
TURNS = 3


@dataclass(frozen=True)
class HeadCost:
    """One head on one machine. kind: the method. target: as in :class:`CostModel`. opening: (target, head) seconds of prompt processing.
    fit: seconds (a, b, c). rates: acceptance by depth and rank. prompts: how many they were counted on. k: levels a pass makes."""

    kind: str
    target: dict[int, float]
    opening: tuple[float, float]
    fit: tuple[float, float, float]
    rates: list[list[float]]
    prompts: int = 0
    k: int = 1

    @classmethod
    def from_json(cls, saved: dict[str, Any]) -> HeadCost:
        target = {int(n): s for n, s in saved["target"].items()}
        return cls(saved["kind"], target, tuple(saved["opening"]), tuple(saved["fit"]), saved["rates"], saved["prompts"], saved["k"])

    def reach(self, tree: Tree) -> list[float]:
        return tree_reach(self.rates, tree.host[0])

    def round_seconds(self, tree: Tree) -> float:
        drafting = sum(seconds * count for seconds, count in zip(self.fit, _work(self.kind, tree, self.k), strict=True)) if tree.D else 0.0
        return _at(self.target, tree.n) + drafting

    def speedup(self, tree: Tree, tokens: int) -> float:
        """Plain decoding's seconds for ``tokens`` new tokens over the tree's."""
        plain = self.opening[0] + tokens * self.target[1]
        return plain / (sum(self.opening) + expected_rounds(self.reach(tree), tokens) * self.round_seconds(tree))


def _work(kind: str, tree: Tree, k: int) -> tuple[int, int, int]:
    """1, passes, pairs fed below the text."""
    if kind == "medusa":
        return 1, tree.D, 0
    if kind == "falcon":
        blocks = BlockTree(tree, k)
        return 1, len(blocks.passes), blocks.slots
    return 1, tree.D, tree.levels[-1][0] - 1


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
    progress: Callable[[float, str], None] | None = None,
) -> HeadCost:
    """Measure what :class:`HeadCost` needs, on the prompts that ``model`` was calibrated on; ``model`` gives the target's side."""
    say = progress or (lambda done, text: None)
    settings: dict[str, Any] = {"max_new_tokens": max_new_tokens, "temperature": temperature, "seed": seed}
    own: dict[str, Any] = {"head": head} if head is not None else {}
    drafter = make_method(kind, target, **own, tree=(1,)).drafter
    deepest, k = getattr(drafter, "deepest", len(WIDE[kind])), getattr(drafter, "k", 1)
    wide = make_method(kind, target, **own, tree=WIDE[kind][:deepest])
    # of blocks also chains of two and three passes and several blocks in the second: otherwise a pass and a pair cannot be told apart
    shapes = [*FITTED, *([(1,) * 2 * k, (1,) * 3 * k, (2,) * (k + 1)] if k > 1 else [])]
    made = [make_method(kind, target, **own, tree=ks) for ks in dict.fromkeys(shapes) if len(ks) <= deepest or k > 1]
    plain = make_method("ar", target)
    typical = sorted(prompts, key=len)[len(prompts) // 2]
    runs = []
    for turn in range(TURNS):
        say(turn / TURNS / 2, f"{kind}: rounds")
        runs.append([_timed(target, typical, m, rounds, **settings) for m in (plain, *made)])
    first, later = (np.median([[run[i] for run in turn] for turn in runs], axis=0) for i in (0, 1))
    trees = [m.drafter.tree for m in made]
    # against the target's cost at this same length of text: what plain decoding takes here over what it takes at the typical one
    scale = later[0] / model.target[1]
    extra = [later[i + 1] - scale * _at(model.target, tree.n) for i, tree in enumerate(trees)]
    columns = np.array([_work(kind, tree, k) for tree in trees], dtype=float)
    found = nnls(columns, np.array(extra))[0].tolist()  # none of them can be negative; a column of zeros gets none
    opening = max(0.0, median(float(first[i] - later[i]) for i in range(1, len(first))) - float(first[0] - later[0]))
    tally = _Tally(wide)
    for i, row in enumerate(prompts):
        say(0.5 + i / len(prompts) / 2, f"{kind}: acceptance")
        tally.add(target, row, **settings)
    ranks = [row[:width] for row, width in zip(tally.rates, wide.drafter.tree.widths, strict=True)]
    return HeadCost(kind, model.target, (model.opening[0], opening), tuple(found), ranks, len(prompts), k)
