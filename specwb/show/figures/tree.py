"""Trees with values, what their nodes see, and what they are worth by size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import plotly.graph_objects as go

from specwb.core.errors import ArgumentError
from specwb.show.figures.kit import BARE, Panel, axis, draw
from specwb.show.figures.style import MONOSPACE
from specwb.show.palette import DEPTHS, EDGE, FIRST, INK
from specwb.theory.exact import depths

LABELLED = 26  # nodes that can have their value written next to them
WRITTEN = 16  # nodes whose positions can be written into the mask's cells
NODES = "nodes, the root included"


def value_tree(parents: Sequence[int], values: Sequence[float]) -> go.Figure:
    """A tree from left to right, one column a depth, siblings from top to bottom in drawing order;
    markers grow with the values.

    Args:
        parents: -1 for the root, in level order.
        values: of every node, the root's first.
    Raises:
        ArgumentError: not a tree, or not one value per node.
    """
    total = f"{len(values) - 1} draft tokens, their values sum to {float(sum(values)) - 1:.2f}"
    height = max(240, 110 + 24 * leaves_of(parents))
    return draw(valued(total, parents, values), height)


def tree_mask(parents: Sequence[int]) -> go.Figure:
    """The tree attention mask: which nodes each node sees, coloured by position.

    A row is a node that looks, a column one that is looked at: empty is hidden; a colour and, in
    small trees, a number say at which position after the pending token the seen node stands. All
    nodes see the committed text.

    Args:
        parents: -1 for the root, in level order.
    Raises:
        ArgumentError: not a tree.
    """
    depth, n = depths(parents), len(parents)
    seen: list[set[int]] = []
    for node, parent in enumerate(parents):
        seen.append({node} | (seen[parent] if parent >= 0 else set()))
    z = [[depth[j] if j in seen[i] else None for j in range(n)] for i in range(n)]
    words = [["" if d is None else f"+{d}" for d in row] for row in z]
    ticks = {"dtick": 1 if n <= WRITTEN else 4, "tickangle": 0}
    panel = Panel("What each node sees, and at which position", axis("seen", **ticks, **BARE))
    panel.y = axis("node", autorange="reversed", **ticks, **BARE)
    bar = {"title": {"text": "position"}, "tickprefix": "+", "dtick": 1, "thickness": 12}
    panel.cells(
        range(n),
        range(n),
        z,
        DEPTHS,
        words,
        hover="node %{y} sees %{x}: %{text}",
        written=n <= WRITTEN,
        zmax=max(1, *depth),
        showscale=True,
        colorbar={**bar, "x": 1.02, "y": 0.5, "len": 0.9},
    )
    return draw(panel, max(300, min(560, 120 + 24 * n)))


def designer(
    parents: Sequence[int], values: Sequence[float], best: Mapping[int, float], speed: float
) -> go.Figure:
    """A tree, and its speedup among the best trees by number of nodes.

    Args:
        parents: -1 for the root, in level order.
        values: of every node.
        best: number of nodes -> speedup of the best tree of that size.
        speed: the tree's own speedup.
    """
    tree = valued("tree (marker size: value)", parents, values)
    sizes, n = sorted(best), len(parents)
    curve = Panel("predicted speedup by number of nodes")
    curve.x = axis(NODES, 0.5, max(sizes[-1], n) + 0.5)
    curve.y = axis("speedup", 0, 1.15 * max(1.0, speed, *best.values()))
    look = FIRST, "solid", "circle"
    curve.line("best tree of each size", sizes, [best[m] for m in sizes], look, size=5)
    curve.here("this tree", n, speed).rule(y=1)
    return draw([[tree, curve]], 400)


# ------------------------------------------------------------------------------------------- parts


def tree_panel(
    title: str, parents: Sequence[int], width: float
) -> tuple[Panel, list[tuple[float, float]]]:
    """A panel with the edges of a tree, and the places of its nodes."""
    place = places(parents)
    pairs = [(place[parent], place[node]) for node, parent in enumerate(parents) if parent >= 0]
    panel = Panel(title, {"dtick": 1, **BARE})
    panel.y = {"visible": False, "range": [-leaves_of(parents) + 0.4, 0.6]}
    xs, ys = ([v for a, b in pairs for v in (a[i], b[i], None)] for i in (0, 1))
    return panel.line("", xs, ys, (EDGE, "solid", ""), size=0, width=width), place


def valued(title: str, parents: Sequence[int], values: Sequence[float]) -> Panel:
    """The tree of :func:`value_tree`: edges and nodes."""
    deepest, n = max(depths(parents)), len(parents)
    if len(values) != n:
        raise ArgumentError(f"a tree of {n} nodes needs as many values, got {len(values)}")
    panel, place = tree_panel(title, parents, 1.5)
    panel.x |= axis("depth", -0.2, deepest + 0.9)
    # to the left of a node whose first child lies above it, where its edge would cross the words,
    # and of its parent at the same height, whose words would meet them
    first = {parent: node for node, parent in reversed(list(enumerate(parents)))}
    y, rises = [y for _, y in place], [False] * n
    for i, parent in reversed(list(enumerate(parents))):
        child = first.get(i, i)
        rises[i] = y[i] >= y[max(parent, 0)] and (y[child], rises[child]) > (y[i], False)
    return panel.points(
        "",
        [x for x, _ in place],
        y,
        (FIRST, "", "circle"),
        size=[round(5 + 15 * float(v) ** 0.5, 1) for v in values],
        mode="markers+text" if n <= LABELLED else "markers",
        text=[f"{node} <b>{float(v):.2f}</b>" for node, v in enumerate(values)],
        textposition=["top left" if rise else "top right" for rise in rises],
        textfont={"family": MONOSPACE, "size": 11, "color": INK},
        hover="%{text}",
        cliponaxis=False,
        marker_opacity=1,
        marker_line_width=0,
    )


def places(parents: Sequence[int]) -> list[tuple[float, float]]:
    """x = depth; leaves one below the other, a parent in the middle of its children."""
    children: list[list[int]] = [[] for _ in parents]
    for node, parent in enumerate(parents):
        if parent >= 0:
            children[parent].append(node)
    place: list[tuple[float, float]] = [(0, 0)] * len(parents)
    below = 0

    def put(node: int, depth: int) -> float:
        nonlocal below
        ys = [put(child, depth + 1) for child in children[node]]
        if not ys:
            ys, below = [-float(below)], below + 1
        place[node] = depth, (ys[0] + ys[-1]) / 2
        return place[node][1]

    put(0, 0)
    return place


def leaves_of(parents: Sequence[int]) -> int:
    """The number of nodes without children."""
    return len(set(range(len(parents))) - set(parents))
