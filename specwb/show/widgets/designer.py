"""A draft tree designed by hand or by the best rule, and what it costs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from itertools import takewhile
from typing import Any

from specwb.core.errors import ArgumentError
from specwb.core.tree import Tree
from specwb.show import figures
from specwb.show.widgets.controls import Control, Explorer
from specwb.theory.analysis import best_tree, choose_tree, path_values, roofline
from specwb.theory.exact import depths

HAND, TOKENS, SPEED = "children by level", "most tokens per step", "most tokens a second"
MEASURED, ROOFLINE = "as measured", "free up to n* nodes"
DEEPEST = 8


def _level(d: int) -> Control:
    """The number of children of a node of level d - 1."""
    return Control(
        lambda self: [*self.tree, 0, 0, 0, 0][d - 1],
        high=lambda self: min(6, self._ranks),
        label=f"level {d}",
    )


class TreeDesigner(Explorer):
    """Choose a draft tree and see its nodes' values, its mask and positions, its tokens per step
    and its predicted speedup.

    The tree is made by hand, as so many children per node of each level (0 ends it), or it is the
    best one of at most ``nodes`` nodes and ``depth`` levels, for tokens per step or for speed. A
    step costs what was measured, or, with n* nodes for the price of one,
    ``max(n*, n) / n* + depth c`` plain steps.

    Args:
        rates: acceptance by rank, or by depth and rank
            (:func:`specwb.theory.analysis.path_values`).
        cost: parents -> time of a step over the time of a plain one; without it n* is all there
            is.
        tree: the tree made by hand at first, children per node by level.
        most: the largest tree.
    """

    rates: Sequence[Any]
    cost: Callable[[list[int]], float] | None = None
    tree: Sequence[int] = (4, 2, 2)
    most: int = 40
    tabs = "tree and speedup", "mask"
    shape: Any = Control(HAND, of=[HAND, TOKENS, SPEED], label="tree")
    nodes: Any = Control(16, low=1, high=lambda self: self.most, row=1)
    depth: Any = Control(6, high=DEEPEST, row=1)
    costs: Any = Control(of=lambda self: self._prices, label="a step costs", row=1)
    balance: Any = Control(128, of=[2**i for i in range(10)], label="n*", slide=True, row=1)
    c: Any = Control(0.1, high=0.5, step=0.01, row=1)
    level_1: Any = _level(1)
    level_2: Any = _level(2)
    level_3: Any = _level(3)
    level_4: Any = _level(4)

    def prepare(self) -> None:
        self._values = cache(lambda tree: [float(v) for v in path_values(self.rates, tree)])
        self._measured = cache(lambda tree: self.cost(list(tree)) if self.cost else 1.0)
        self._prices = [MEASURED, ROOFLINE] if self.cost else [ROOFLINE]
        by_depth = hasattr(self.rates[0], "__len__")
        self._ranks = min(map(len, self.rates)) if by_depth else len(self.rates)
        self._known: list[tuple[int, ...]] = []  # the best tree of every budget and depth

        def look(parents: list[int]) -> float:
            self._known.append(tuple(parents))
            return 1.0

        choose_tree(self.rates, look, self.most, DEEPEST)

    def _price(self, tree: tuple[int, ...]) -> float:
        """Time of a step over the time of a plain one, as the controls say."""
        if self.costs.value == MEASURED:
            return self._measured(tree)
        free = roofline(len(tree) - 1, 1, self.balance.value)
        return free + max(depths(tree)) * round(self.c.value, 2)

    def _speed(self, tree: tuple[int, ...]) -> float:
        return sum(self._values(tree)) / self._price(tree)

    def _by_hand(self, levels: Sequence[int]) -> tuple[tuple[int, ...], str]:
        ks = list(takewhile(bool, levels))
        name = "-".join(map(str, ks)) or "no draft"
        tree = Tree.branching(*ks)
        if tree.n > self.most:
            few = f"more than {self.most}; take fewer children or levels"
            raise ArgumentError(f"{name} has {tree.n} nodes, {few}")
        return tuple(tree.host[0]), name

    def draw(
        self, shape: str, nodes: int, depth: int, costs: str, n: int, c: float, *levels: int
    ) -> tuple[Any, ...]:
        for level in (self.level_1, self.level_2, self.level_3, self.level_4):
            level.disabled = shape != HAND
        self.balance.disabled = self.c.disabled = costs != ROOFLINE
        # best trees within the sliders' depth, smallest first
        known = sorted((t for t in self._known if max(depths(t)) <= depth), key=len)
        if shape == HAND:
            tree, name = self._by_hand(levels)
        elif shape == TOKENS:
            tree, name = tuple(best_tree(self.rates, nodes, depth)), "most tokens"
        else:
            tree, name = max((t for t in known if len(t) <= nodes), key=self._speed), "fastest"
        values = self._values(tree)
        self.parents, self.speed, tau = list(tree), self._speed(tree), sum(values)
        best: dict[int, float] = {}
        for one in known:
            best[len(one)] = max(best.get(len(one), 0.0), self._speed(one))
        top = max((n for n in best if n <= nodes), key=lambda n: (best[n], -n))
        line = (
            f"{name}, {_nodes(len(tree))}, depth {max(depths(tree))}: {tau - 1:.2f} accepted "
            f"+ 1 = {tau:.2f} tokens per step for {self._price(tree):.2f} plain steps, speedup "
            f"{self.speed:.2f}x; the fastest of at most {_nodes(nodes)} and depth {depth} has "
            f"{_nodes(top)} and {best[top]:.2f}x"
        )
        tree = figures.designer(self.parents, values, best, self.speed)
        return line, tree, figures.tree_mask(self.parents)


def _nodes(n: int) -> str:
    return f"{n} node{'s' if n != 1 else ''}"
