"""Drafting in blocks: what a block cannot know, and trees by passes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np

from specwb.core.blocks import BlockTree
from specwb.drafters.heads import accuracies, measured_tree
from specwb.show import figures
from specwb.show.widgets.controls import Control, Drawn, Explorer
from specwb.theory.analysis import dependence, path_values


class DependenceExplorer(Explorer):
    """Choose how much the second of two tokens depends on the first, at the same margins, and what
    share of blocks glances; see what a block lacks, and what is kept of its second token.

    The joint distribution is ``p(x) ((1 - d) p(y) + d [y belongs to x])``.

    Args:
        names: pairs of a first and a second token that belong together.
        chances: their probabilities.
    """

    names: Sequence[tuple[str, str]]
    chances: Sequence[float]
    d: Any = Control(1.0, step=0.05, label="dependence")
    g: Any = Control(0.0, step=0.05, label="glancing")
    continuous = True

    def draw(self, d: float, g: float) -> Drawn:
        chances = np.array(self.chances)
        self.joint = (1 - d) * np.outer(chances, chances) + d * np.diag(chances)
        lacks = dependence.mutual_information(self.joint, (1,), (2,))
        kept = float(np.minimum(self.joint, np.outer(chances, chances)).sum())
        line = (
            f"dependence {d:.2f}, {g:.0%} of blocks glance: I(X; Y) = {lacks:.3f} of H(Y) = "
            f"{dependence.entropy(self.joint, (2,)):.3f} nats; the least loss of the second token "
            f"is above autoregression by {(1 - g) * lacks:.3f} in training, by {lacks:.3f} in "
            f"drafting, where {kept:.3f} of the second tokens are kept"
        )
        firsts, seconds = zip(*self.names, strict=True)
        return line, figures.dependence(self.joint.tolist(), firsts, seconds, g)


class BlockDesigner(Explorer):
    """Choose a head, how many passes it may take, how many nodes are scored and what they cost, and
    see the best tree by the head's measured accuracies: its passes and blocks, expected tokens per
    step, predicted speedup.

    A step costs ``1 + v (n - 1) + c passes + f fed`` plain steps, with n the nodes, the root
    included, and ``fed`` the pairs given to the head below the text, k for each block. The tree of
    a budget is :func:`specwb.drafters.heads.measured_tree`'s, what the methods take where no tree
    is named.

    Args:
        cards: name -> (k, ``card.json``).
        most: the largest tree.
    Attributes:
        tree: the :class:`specwb.core.blocks.BlockTree` shown.
    """

    cards: Mapping[str, tuple[int, Mapping[str, Any]]]
    most: int = 64
    head: Any = Control(of=lambda self: list(self.cards))
    passes: Any = Control(2, low=1, high=4)
    nodes: Any = Control(16, low=2, high=lambda self: self.most)
    v: Any = Control(0.02, high=0.2, step=0.005, label="v, a node", row=1)
    c: Any = Control(0.1, high=1, step=0.01, label="c, a pass", row=1)
    f: Any = Control(0.01, high=0.2, step=0.005, label="f, a pair", row=1)

    def prepare(self) -> None:
        self._rates = {name: accuracies(card) for name, (_, card) in self.cards.items()}
        self._best = cache(self.best)

    def best(self, head: str, passes: int, nodes: int) -> tuple[BlockTree, float]:
        """The head's tree of so many nodes, the root included, in at most so many passes, and its
        expected tau at T = 0.
        """
        k, card = self.cards[head]
        tree = measured_tree(dict(card), nodes, min(k * passes, len(self._rates[head])))
        return BlockTree(tree, k), float(sum(path_values(self._rates[head], tree.host[0])))

    def draw(self, head: str, passes: int, nodes: int, *costs: float) -> Drawn:
        def speed(m: int, n: int) -> float:
            tree, tau = self._best(head, m, n)
            return tau / tree.steps(*costs)

        (self.tree, self.tau), self.speed = self._best(head, passes, nodes), speed(passes, nodes)
        sizes, names = range(2, self.most + 1), ["1 pass", *(f"{m} passes" for m in (2, 3, 4))]
        speeds = {x: [1.0, *(speed(m, n) for n in sizes)] for m, x in enumerate(names, 1)}
        fastest, steps = max(names, key=lambda x: max(speeds[x])), self.tree.steps(*costs)
        top = max(speeds[fastest])
        blocks = ", ".join(str(len(one.blocks)) for one in self.tree.passes)
        line = (
            f"{head}, k = {self.tree.k}: {self.tree.tree.n} nodes to depth {self.tree.tree.D}, "
            f"blocks by pass {blocks}; {self.tau - 1:.2f} accepted + 1 = {self.tau:.2f} tokens per "
            f"step expected at T = 0 for {steps:.2f} plain steps, speedup {self.speed:.2f}x; the "
            f"fastest of at most {self.most} nodes: {fastest}, {1 + speeds[fastest].index(top)} "
            f"nodes, {top:.2f}x"
        )
        return line, figures.block_designer(self.tree, speeds, names[passes - 1])
