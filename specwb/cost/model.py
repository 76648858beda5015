"""The cost model of a pair: the speedup of any chain or tree, predicted from measured times.

:mod:`specwb.cost.calibrate` measures what it needs. What is predicted is what
:func:`specwb.compare` measures, prompt processing included.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

import numpy as np

from specwb.analysis import expected_rounds, tree_reach
from specwb.drafters.level import LevelDrafter
from specwb.errors import ArgumentError, SpecwbError
from specwb.tree import Tree


class CostError(SpecwbError, ValueError):
    """Measured times that no prediction can be made from."""


def in_order(seconds: Mapping[int, float]) -> dict[int, float]:
    """Find the nearest times in which no width is cheaper than a narrower one.

    This is isotonic regression by least squares. A step that scores more tokens reads the same
    weights and does more work, so what is cheaper by measurement is noise, or a kernel that starts
    at a width. Noise has no sign: neighbours out of order are replaced by their mean, where taking
    the larger or the smaller of them would make every figure too large or too small. Times in order
    stay as they are.
    """
    bad = {n: s for n, s in seconds.items() if not (math.isfinite(s) and s > 0)}
    if bad:
        times = ", ".join(f"{s!r} for {n} tokens" for n, s in bad.items())
        raise CostError(f"seconds of a step must be finite and > 0, got {times}; measure again")
    pools: list[list[float]] = []
    for n in sorted(seconds):
        pools.append([seconds[n]])
        while len(pools) > 1 and fmean(pools[-2]) > fmean(pools[-1]):
            last = pools.pop()
            pools[-1] += last
    means = [fmean(pool) for pool in pools for _ in pool]
    return dict(zip(sorted(seconds), means, strict=True))


def disorder(seconds: Mapping[int, float]) -> float:
    """Tell by what share the furthest of these times must be moved to be in order.

    0.1 is a tenth of the time.
    """
    ordered = in_order(seconds)
    return max(abs(ordered[n] / s - 1) for n, s in seconds.items())


class Predicts:
    """What follows from the times of a step and from acceptance rates."""

    target: dict[int, float]
    opening: tuple[float, float]

    def rates_of(self, tree: Tree, top: bool = False) -> list[list[float]]:
        """A tree's acceptance rates by depth and rank; ``top``: of the drafter's most probable
        tokens and one draw."""
        raise NotImplementedError

    def round_seconds(self, tree: Tree) -> float:
        """Predict the seconds of one decoding step."""
        raise NotImplementedError

    def reach(self, tree: Tree, top: bool = False) -> list[float]:
        """Return the probability that a step accepts at least d draft tokens, for d = 0, 1, .."""
        return tree_reach(self.rates_of(tree, top), tree.host[0])

    def speedup(self, tree: Tree, tokens: int, top: bool = False) -> float:
        """Predict plain decoding's seconds for ``tokens`` new tokens over the tree's."""
        plain = self.opening[0] + tokens * self.target[1]
        steps = expected_rounds(self.reach(tree, top), tokens)
        return plain / (sum(self.opening) + steps * self.round_seconds(tree))


@dataclass(frozen=True)
class CostModel(Predicts):
    """The cost model of one pair of models on one machine.

    ``seconds = opening + expected steps (t_target(n) + sum over levels t_draft(width) + D rest)``.

    Raises:
        CostError: a time is not finite and > 0, a wider step is cheaper than a narrower one, or a
            drafted level has negative cost. No prediction is made from such figures, wherever they
            are from.
    """

    # number of tokens n -> seconds of a decoding step that scores n tokens and drafts at no cost,
    # at the length of text that is typical of what is predicted. It is linear between the widths
    # measured.
    target: dict[int, float]
    # the same of the draft model; empty where there is none, and then nothing can be predicted but
    # what trained heads draft
    draft: dict[int, float]
    opening: tuple[float, float]  # (target, draft) seconds of prompt processing
    # seconds that a drafted level takes beyond these (choosing candidates, testing them), from one
    # measured chain. It may be negative, since a whole step overlaps what was measured apart, but a
    # level does not cost less than nothing: with its draft forward it takes 0 or more.
    rest: float
    chain: list[list[float]]  # acceptance rates by depth and rank, from one long chain
    tree: list[list[float]]  # the same from one wide tree
    # k -> the same rates of a tree with k children a node that are the draft model's k - 1 most
    # probable tokens and one draw from the rest. They are measured for each k, because the last
    # child's rate holds only where it is the last.
    top: dict[int, list[list[float]]] = field(default_factory=dict)
    # "target" and "draft" -> length of text -> seconds as above, which ``target`` and ``draft``
    # were interpolated from
    contexts: dict[str, dict[int, dict[int, float]]] = field(default_factory=dict)
    prompts: int = 0  # how many prompts acceptance was counted on
    # sentences on what was measured and cannot be true: what replaces it, and by how much that
    # differs
    doubts: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for side, table in (("target", self.target), ("draft", self.draft)):
            if table and disorder(table) > 1e-9:  # interpolating rounds
                times = ", ".join(f"{n}: {1e3 * table[n]:.3g}" for n in sorted(table))
                raise CostError(
                    f"{side}: a step of more tokens is cheaper than one of fewer "
                    f"(ms by tokens {times}); measure again"
                )
        if not all(math.isfinite(s) and s >= 0 for s in self.opening):
            raise CostError(
                "opening: seconds of prompt processing must be finite and >= 0, "
                f"got {self.opening}; measure again"
            )
        level = self.rest + min(self.draft.values(), default=0.0)
        if not (math.isfinite(self.rest) and level >= 0):
            raise CostError(f"rest: a drafted level would take {level:.3g} s; measure again")

    @classmethod
    def from_json(cls, saved: dict[str, Any]) -> CostModel:
        """Read a model from JSON that ``dataclasses.asdict`` was written as.

        In JSON the keys are strings.
        """

        def integer_keys(table: dict[str, Any]) -> dict[int, Any]:
            return {int(n): value for n, value in table.items()}

        contexts = {
            side: {length: integer_keys(table) for length, table in integer_keys(tables).items()}
            for side, tables in saved["contexts"].items()
        }
        return cls(
            integer_keys(saved["target"]),
            integer_keys(saved["draft"]),
            tuple(saved["opening"]),
            saved["rest"],
            saved["chain"],
            saved["tree"],
            integer_keys(saved["top"]),
            contexts,
            saved["prompts"],
            tuple(saved.get("doubts", ())),
        )

    @property
    def c(self) -> float:
        """Draft step time over target step time."""
        return self.draft[1] / self.target[1]

    def v(self, gamma: float) -> float:
        """Return the time to score gamma + 1 tokens over the time to score one."""
        return seconds_at(self.target, gamma + 1) / self.target[1]

    def rates_of(self, tree: Tree, top: bool = False) -> list[list[float]]:
        """Return a tree's acceptance rates by depth and rank.

        Args:
            tree: the tree.
            top: whether children are the draft model's top tokens and one draw. Then all nodes of a
                level must have the same number of children.
        """
        if tree.is_chain:
            return self.chain
        if not top:
            return self.tree
        missing = {k for k in tree.widths if k > 1} - set(self.top)
        if missing:
            numbers = ", ".join(map(str, sorted(missing)))
            raise ArgumentError(
                f"top-and-sample rates were not measured for {numbers} children a node"
            )
        return [self.chain[d] if k == 1 else self.top[k][d] for d, k in enumerate(tree.widths)]

    def round_seconds(self, tree: Tree) -> float:
        # the first pass processes the text's last tokens, each of the others a level
        widths = [LevelDrafter.window, *(stop - start for start, stop in tree.levels[1:-1])]
        drafting = sum(seconds_at(self.draft, width) for width in widths[: tree.D])
        return seconds_at(self.target, tree.n) + drafting + tree.D * self.rest


def at_length(contexts: dict[int, dict[int, float]], length: float) -> dict[int, float]:
    """Interpolate seconds by width after a text of this length: attention is linear in it."""
    lengths = sorted(contexts)
    return {
        n: float(np.interp(length, lengths, [contexts[m][n] for m in lengths]))
        for n in contexts[lengths[0]]
    }


def seconds_at(table: dict[int, float], n: float) -> float:
    """Interpolate seconds by width at the width n.

    It is linear between the widths measured; beyond the widest the last slope goes on.
    """
    widths = sorted(table)
    if n > widths[-1] and len(widths) > 1:
        a, b = widths[-2:]
        return table[b] + (n - b) * (table[b] - table[a]) / (b - a)
    return float(np.interp(n, widths, [table[width] for width in widths]))
