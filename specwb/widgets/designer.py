"""A draft tree designed by hand or by the best rule, and what it costs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import ipywidgets as w

from specwb import figures
from specwb.analysis import best_tree, choose_tree, path_values, roofline
from specwb.errors import ArgumentError
from specwb.tree import Tree
from specwb.verify.exact import depths
from specwb.widgets.figure import LiveFigure
from specwb.widgets.live import ROW, Panel, status

HAND, TOKENS, SPEED = "children by level", "most tokens a round", "most tokens a second"
MEASURED, ROOFLINE = "as measured", "free up to n* nodes"
LEVELS = 4


class TreeDesigner(Panel):
    """Choose a draft tree and see its nodes' values, its mask and positions, its tokens a round and
    its predicted speedup.

    The tree is made by hand, as so many children a node of each level (0 ends it), or it is the
    best one of at most ``nodes`` nodes and ``depth`` levels, for tokens a round or for speed. A
    round costs what was measured, or, with n* nodes for the price of one,
    ``max(n*, n) / n* + depth c`` plain steps. A tree that cannot be drawn is answered in the
    summary line, and the last one stays.

    Args:
        rates: acceptance by rank, or by depth and rank (:func:`specwb.analysis.path_values`).
        cost: parents -> time of a round over the time of a plain step; without it n* is all there
            is.
        tree, nodes, depth, c, balance: where the controls stand at first; balance is n*, a power of
            two up to 512.
        most: the largest tree.
    Attributes:
        shape, levels, nodes, depth, costs, balance, c: the controls; set ``.value``.
        parents: the tree shown.
        speed: its predicted speedup.
        summary: one line about it.
    """

    def __init__(
        self,
        rates: Sequence[Any],
        *,
        cost: Callable[[list[int]], float] | None = None,
        tree: Sequence[int] = (4, 2, 2),
        nodes: int = 16,
        depth: int = 6,
        balance: int = 128,
        c: float = 0.1,
        most: int = 40,
    ) -> None:
        self._rates, self._most, self._cost = (
            rates,
            most,
            None if cost is None else cache(lambda parents: cost(list(parents))),
        )
        self._values = cache(lambda parents: [float(v) for v in path_values(rates, parents)])
        ranks = min(len(row) for row in rates) if hasattr(rates[0], "__len__") else len(rates)
        self._known: list[tuple[int, ...]] = []
        deepest = 8

        def look(parents: list[int]) -> float:
            self._known.append(tuple(parents))
            return 1.0

        choose_tree(
            rates, look, most, deepest
        )  # it looks at the best tree of every budget and depth
        style = {"description_width": "90px"}
        self.shape = w.Dropdown(options=[HAND, TOKENS, SPEED], description="tree", style=style)
        given = [*tree, *[0] * LEVELS][:LEVELS]
        self.levels = [
            w.IntSlider(
                k,
                min=0,
                max=min(6, ranks),
                description=f"level {d}",
                continuous_update=False,
                style=style,
            )
            for d, k in enumerate(given, 1)
        ]
        self.nodes = w.IntSlider(
            nodes, min=1, max=most, description="nodes", continuous_update=False, style=style
        )
        self.depth = w.IntSlider(
            depth, min=0, max=deepest, description="depth", continuous_update=False, style=style
        )
        self.costs = w.Dropdown(
            options=[ROOFLINE] if cost is None else [MEASURED, ROOFLINE],
            description="a round costs",
            style=style,
        )
        self.balance = w.SelectionSlider(
            options=[2**i for i in range(10)],
            value=balance,
            description="n*",
            continuous_update=False,
            style=style,
        )
        self.c = w.FloatSlider(
            round(c, 2),
            min=0,
            max=0.5,
            step=0.01,
            description="c",
            readout_format=".2f",
            continuous_update=False,
            style=style,
        )
        self._line, self.summary = w.HTML(), ""
        self.parents, self.speed = [-1], 1.0
        self._figure: LiveFigure | None = None
        self._draw()
        assert self._figure is not None, self.summary
        for control in (
            self.shape,
            *self.levels,
            self.nodes,
            self.depth,
            self.costs,
            self.balance,
            self.c,
        ):
            control.observe(lambda _: self._draw(), "value")
        controls = [
            w.HBox([self.shape, *self.levels], layout=ROW),
            w.HBox([self.nodes, self.depth, self.costs, self.balance, self.c], layout=ROW),
        ]
        super().__init__([*controls, self._line, self._figure])

    def cost(self, parents: Sequence[int]) -> float:
        """Time of a round over the time of a plain step, as the controls say."""
        if self._cost is not None and self.costs.value == MEASURED:
            return self._cost(tuple(parents))
        return roofline(len(parents) - 1, 1, self.balance.value) + max(depths(parents)) * round(
            self.c.value, 2
        )

    def _speed(self, parents: Sequence[int]) -> float:
        return sum(self._values(tuple(parents))) / self.cost(parents)

    def _chosen(self) -> tuple[list[int], str]:
        if self.shape.value == TOKENS:
            return best_tree(self._rates, self.nodes.value, self.depth.value), "most tokens"
        if self.shape.value == SPEED:
            fastest: tuple[int, ...] = max(self._candidates(), key=self._speed)
            return list(fastest), "fastest"
        ks: list[int] = []
        for level in self.levels:
            if level.value == 0:
                break
            ks.append(level.value)
        name = "-".join(map(str, ks)) or "no draft"
        size = level_nodes = 1
        for k in ks:
            level_nodes *= k
            size += level_nodes
        if size > self._most:
            raise ArgumentError(
                f"{name} has {size} nodes, more than {self._most}; take fewer children or levels"
            )
        return list(Tree.branching(*ks).host[0]), name

    def _candidates(self) -> list[tuple[int, ...]]:
        """Best trees within the sliders' nodes and depth, smallest first."""
        return [
            t
            for t in sorted(self._known, key=len)
            if len(t) <= self.nodes.value and max(depths(t)) <= self.depth.value
        ]

    def _draw(self) -> None:
        for level in self.levels:
            level.disabled = self.shape.value in (TOKENS, SPEED)
        self.balance.disabled = self.c.disabled = self.costs.value != ROOFLINE
        try:
            parents, name = self._chosen()
            values = self._values(tuple(parents))
        except ValueError as error:
            self._say(
                f"Not drawn: {error}. Still shown: a tree of {_nodes(len(self.parents))}",
                wrong=True,
            )
            return
        self.parents, self.speed = parents, self._speed(parents)
        best: dict[int, float] = {}
        for tree in self._known:
            if max(depths(tree)) <= self.depth.value:
                best[len(tree)] = max(best.get(len(tree), 0.0), self._speed(tree))
        new = figures.designer(parents, values, best, self.speed)
        if self._figure is None:
            self._figure = LiveFigure(new)
        else:
            self._figure.figure = new
        top = max((n for n in best if n <= self.nodes.value), key=lambda n: (best[n], -n))
        tau = sum(values)
        self._say(
            f"{name}, {_nodes(len(parents))}, depth {max(depths(parents))}: {tau - 1:.2f} "
            f"accepted + 1 = {tau:.2f} tokens a round "
            f"for {self.cost(parents):.2f} plain steps, speedup {self.speed:.2f}x; "
            f"the fastest of at most {_nodes(self.nodes.value)} and depth {self.depth.value} has "
            f"{_nodes(top)} and {best[top]:.2f}x"
        )

    def _say(self, line: str, wrong: bool = False) -> None:
        self.summary = line
        self._line.value = status(line, wrong)


def _nodes(n: int) -> str:
    return f"{n} node{'s' if n != 1 else ''}"
