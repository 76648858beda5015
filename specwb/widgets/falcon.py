"""Drafting in blocks: what a pair sees, which pairs glance, and trees by passes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import ipywidgets as w
import numpy as np
import plotly.graph_objects as go
import torch

from specwb import figures
from specwb.analysis import dependence, path_values
from specwb.blocks import BlockTree
from specwb.drafters.heads import accuracies, measured_tree
from specwb.errors import ArgumentError
from specwb.mask import block_ends
from specwb.models.falcon import ALIGNS, LARGEST
from specwb.training.falcon import glance_mask
from specwb.tree import Tree
from specwb.widgets.live import STYLE, Explorer


class BlockExplorer(Explorer):
    """Choose the size of a block, the number of pairs of a text and where blocks end, and see what
    each pair sees and who says the next tokens.

    The blocks are those of the drafter (:func:`specwb.mask.block_ends`).

    Args:
        k, pairs, align: where the controls stand at first.
        most: the longest text.
    Attributes:
        k, pairs, align: the controls; set ``.value``.
        sees: of each of the last k pairs, how many it sees.
        summary: one line about it.
    """

    def __init__(self, *, k: int = 2, pairs: int = 7, align: str = "right", most: int = 12) -> None:
        self.k = w.IntSlider(
            k, min=1, max=LARGEST, description="k", continuous_update=False, style=STYLE
        )
        self.pairs = w.IntSlider(
            pairs, min=LARGEST, max=most, description="pairs", continuous_update=False, style=STYLE
        )
        self.align = w.Dropdown(options=ALIGNS, value=align, description="blocks end", style=STYLE)
        self.sees: list[int] = []
        self._build([self.k, self.pairs, self.align])

    def _new(self) -> tuple[str, go.Figure]:
        k, n = self.k.value, self.pairs.value
        ends = (block_ends(torch.arange(n), torch.tensor(n - 1), k, self.align.value) + 1).tolist()
        starts = [ends.index(end) + 1 for end in ends]
        self.sees = ends[n - k :]
        blocks = " ".join(
            str(a) if a == b else f"{a}-{b}" for a, b in dict.fromkeys(zip(starts, ends))
        )
        said = ", ".join(
            f"X{j} by pair {n - k + j}, which sees {seen} of {n}"
            for j, seen in enumerate(self.sees, 1)
        )
        missing = sum(seen < n for seen in self.sees)
        tokens = f"{missing} of the {k} next tokens are" if missing > 1 else "1 of them is"
        judged = (
            "all see the newest pair" if not missing else f"{tokens} said without the newest pair"
        )
        return f"k = {k}, {n} pairs in blocks {blocks}: {said}; {judged}", figures.block_sight(
            ends, starts, k
        )


class GlancingExplorer(Explorer):
    """Choose a block size and how much is glanced, and see which pairs of a few texts the trainer
    would replace (:func:`specwb.training.falcon.glance_mask`), and what the least loss is then
    (:func:`specwb.analysis.dependence.excess`).

    As in the trainer, ``lambda x wrong x pairs`` pairs of every text are replaced, ``wrong`` being
    the share of places that a first pass gets wrong.

    Args:
        tables: k -> (joint, weights) as in :mod:`specwb.analysis.dependence`: the source whose
            losses are predicted.
        measured: what :func:`specwb.training.markov.run` gave on that source, for any k.
        k, ratio, wrong, seed: where the controls stand at first.
    Attributes:
        k, ratio, wrong, seed: the controls; set ``.value``.
        replaced: ``[texts][pairs]``.
        share: of blocks that glance.
        excess: nats a block, for the prefixes that are shown.
        summary: one line about it.
    Raises:
        ValueError: no tables, or one of another k than it says.
    """

    TEXTS, BLOCKS = 6, 12

    def __init__(
        self,
        tables: Mapping[int, tuple[Any, Any]],
        measured: Sequence[Mapping[str, Any]] = (),
        *,
        k: int | None = None,
        ratio: float = 0.4,
        wrong: float = 0.5,
        seed: int = 0,
    ) -> None:
        if not tables or any(np.ndim(joint) - 1 != size for size, (joint, _) in tables.items()):
            raise ArgumentError(
                "tables must have for each k a joint distribution [contexts, V, .., V] of k "
                "tokens, at least one"
            )
        self._tables, self._measured = tables, measured
        self._curves = cache(self._predicted)
        self.k = w.Dropdown(
            options=sorted(tables), value=k or min(tables), description="k", style=STYLE
        )
        self.ratio, self.wrong = (
            w.FloatSlider(
                v,
                min=0,
                max=1,
                step=0.05,
                description=name,
                readout_format=".2f",
                continuous_update=False,
                style=STYLE,
            )
            for name, v in (("lambda", ratio), ("wrong", wrong))
        )
        self.seed = w.IntSlider(
            seed, min=0, max=9, description="seed", continuous_update=False, style=STYLE
        )
        self.replaced: list[list[bool]] = []
        self.share = self.excess = 0.0
        self._build([self.k, self.ratio, self.wrong, self.seed])

    def _predicted(self, k: int) -> dict[str, list[float]]:
        joint, weights = self._tables[k]
        curves = [
            [
                _above(joint, weights, j, row)
                for j, row in enumerate(dependence.prefix_reveal(k, g / 20), 1)
            ]
            for g in range(21)
        ]
        return {f"place {j}": [row[j - 1] for row in curves] for j in range(2, k + 1)} | {
            "the block": [sum(row) for row in curves]
        }

    def _trained(self, k: int) -> dict[str, list[tuple[float, float, float]]]:
        joint, weights = self._tables[k]
        points: dict[str, list[tuple[float, float, float]]] = {}
        for one in self._measured:
            j = one["place"]
            if one["k"] == k and j > 1:
                floor = dependence.entropy(joint, (j,), range(1, j), weights)
                points.setdefault(f"place {j}", []).append(
                    (one["ratio"], one["loss"] - floor, one["stderr"])
                )
        return points

    def _new(self) -> tuple[str, go.Figure]:
        k, pairs = self.k.value, self.k.value * self.BLOCKS
        made = np.random.default_rng(self.seed.value)
        order, lengths = (
            torch.from_numpy(made.random((self.TEXTS, self.BLOCKS))) for _ in range(2)
        )
        count = int(round(self.ratio.value * self.wrong.value, 6) * pairs)
        mask = glance_mask(torch.full((self.TEXTS,), count), pairs, k, order, lengths)
        self.replaced = mask.tolist()
        counts = torch.bincount(mask.view(-1, k).sum(1), minlength=k).tolist()
        self.share = sum(counts[1:]) / sum(counts)
        reveal = [
            [n / sum(counts[:j]) for n in counts[:j]]
            if sum(counts[:j])
            else [0.0] * (j - 1) + [1.0]
            for j in range(1, k + 1)
        ]
        joint, weights = self._tables[k]
        self.excess = dependence.excess(joint, reveal, weights)
        floor = dependence.total_correlation(joint, weights)
        line = (
            f"k = {k}: lambda {self.ratio.value:.2f} of {self.wrong.value:.0%} wrong guesses, "
            f"{int(mask.sum())} of {mask.numel()} pairs replaced, "
            f"{self.share:.0%} of blocks glance; least loss {self.excess:.3f} nats a block above "
            f"autoregression, {floor:.3f} with nothing shown"
        )
        curves = self._curves(k)
        return line, figures.glancing(
            self.replaced, k, curves, (self.share, self.excess), self._trained(k)
        )


def _above(joint: Any, weights: Any, j: int, row: Sequence[float]) -> float:
    """Place j's least loss above the autoregressive one, for this distribution of what is shown."""
    return sum(
        share
        * dependence.mutual_information(joint, (j,), range(r + 1, j), range(1, r + 1), weights)
        for r, share in enumerate(row)
    )


class BlockDesigner(Explorer):
    """Choose a head, how many passes it may take, how many nodes are scored and what they cost, and
    see the best tree by the head's measured accuracies: its passes and blocks, expected tokens a
    round, predicted speedup.

    A round costs ``1 + v (n - 1) + c passes + f fed`` plain steps, with n the nodes, the root
    included, and ``fed`` the pairs given to the head below the text, k for each block. The tree of
    a budget is :func:`specwb.drafters.heads.measured_tree`'s, what the methods take where no tree
    is named.

    Args:
        cards: name -> (k, ``card.json``).
        head, passes, nodes: where the controls stand at first;
        v, c, f: costs.
        most: the largest tree.
    Attributes:
        head, passes, nodes, v, c, f: the controls; set ``.value``.
        tree: the :class:`specwb.blocks.BlockTree` shown.
        tau: tokens a round that it is expected to give at T = 0.
        speed: predicted.
        summary: one line about it.
    Raises:
        ValueError: no card, or one without measured accuracies.
    """

    def __init__(
        self,
        cards: Mapping[str, tuple[int, Mapping[str, Any]]],
        *,
        head: str | None = None,
        passes: int = 2,
        nodes: int = 16,
        v: float = 0.02,
        c: float = 0.1,
        f: float = 0.01,
        most: int = 64,
    ) -> None:
        if not cards:
            raise ArgumentError("cards must have at least one head")
        self._cards, self._rates = (
            cards,
            {name: accuracies(card) for name, (_, card) in cards.items()},
        )
        self._most = most
        self._made = cache(self._grown)
        self.head = w.Dropdown(
            options=list(cards), value=head or next(iter(cards)), description="head", style=STYLE
        )
        self.passes = w.IntSlider(
            passes, min=1, max=4, description="passes", continuous_update=False, style=STYLE
        )
        self.nodes = w.IntSlider(
            nodes, min=2, max=most, description="nodes", continuous_update=False, style=STYLE
        )
        self.v, self.c, self.f = (
            w.FloatSlider(
                round(x, 3),
                min=0,
                max=top,
                step=step,
                description=name,
                readout_format=".3f",
                continuous_update=False,
                style=STYLE,
            )
            for name, x, top, step in (
                ("v, a node", v, 0.2, 0.005),
                ("c, a pass", c, 1.0, 0.01),
                ("f, a pair", f, 0.2, 0.005),
            )
        )
        self.tau = self.speed = 1.0
        self._build([self.head, self.passes, self.nodes], [self.v, self.c, self.f])

    def _grown(self, head: str, passes: int, nodes: int) -> tuple[BlockTree, float]:
        k, card = self._cards[head]
        tree: Tree = measured_tree(dict(card), nodes, min(k * passes, len(self._rates[head])))
        return BlockTree(tree, k), float(sum(path_values(self._rates[head], tree.host[0])))

    def best(self, head: str, passes: int, nodes: int) -> tuple[BlockTree, float]:
        """The head's tree of so many nodes, the root included, in at most so many passes, and its
        expected tau at T = 0.
        """
        return self._made(head, passes, nodes)

    def cost(self, tree: BlockTree) -> float:
        """Plain steps that a round takes, as the controls say."""
        return tree.steps(self.v.value, self.c.value, self.f.value)

    def _new(self) -> tuple[str, go.Figure]:
        head, passes, nodes = self.head.value, self.passes.value, self.nodes.value
        self.tree, self.tau = self._made(head, passes, nodes)
        self.speed = self.tau / self.cost(self.tree)
        speeds: dict[str, list[float]] = {}
        for m in range(1, self.passes.max + 1):
            trees = [self._made(head, m, n) for n in range(2, self._most + 1)]
            speeds[f"{m} pass{'es' if m > 1 else ''}"] = [
                1.0,
                *(tau / self.cost(tree) for tree, tau in trees),
            ]
        chosen = f"{passes} pass{'es' if passes > 1 else ''}"
        top, size = max((max(curve), -curve.index(max(curve))) for curve in speeds.values())
        name = next(name for name, curve in speeds.items() if max(curve) == top)
        blocks = ", ".join(str(len(one.blocks)) for one in self.tree.passes)
        line = (
            f"{head}, k = {self.tree.k}: {self.tree.tree.n} nodes to depth {self.tree.tree.D}, "
            f"blocks by pass {blocks}; "
            f"{self.tau - 1:.2f} accepted + 1 = {self.tau:.2f} tokens a round expected at T = 0 "
            f"for {self.cost(self.tree):.2f} plain steps, "
            f"speedup {self.speed:.2f}x; "
            f"the fastest of at most {self._most} nodes: {name}, {1 - size} nodes, {top:.2f}x"
        )
        return line, figures.block_designer(self.tree, speeds, chosen)
