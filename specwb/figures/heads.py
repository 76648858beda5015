"""Trained heads: how often their guesses are right, and the trees that follow from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import plotly.graph_objects as go

from specwb.figures.kit import BARE, Panel, axis, draw
from specwb.figures.tree import NODES, valued
from specwb.palette import DEPTHS

Table = Sequence[Sequence[float]]


def head_accuracy(rank: Table, title: str) -> go.Figure:
    """How often the right token is a head's first, second, .. guess: a row a position, a column a
    rank. A colour means the same share for every head, so that figures can be compared.

    Args:
        rank: by position and rank, shares of places ``[positions][ranks]``.
        title: of the figure.
    """
    return draw(_cells(title, rank, x=1.02, y=0.5, length=0.9), 130 + 38 * len(rank))


def heads(
    rank: Table,
    parents: Sequence[int],
    values: Sequence[float],
    taus: Mapping[str, Sequence[float]],
    chosen: str,
) -> go.Figure:
    """A head's accuracies, the tree that they make best, and the expected tokens a round of every
    head's best trees.

    Args:
        rank: as :func:`head_accuracy`.
        parents, values: as :func:`specwb.figures.value_tree`.
        taus: head -> tau of its best tree of 1, 2, .. nodes.
        chosen: the head whose accuracies and tree these are.
    """
    cells = _cells("right token by position and rank", rank, x=0.43, y=0.71, length=0.6)
    tree = valued(f"best tree of {chosen} (marker size: value)", parents, values)
    curves = Panel("expected tokens a round by number of nodes")
    curves.x = axis(NODES, 0.5, max(map(len, taus.values())) + 0.5)
    curves.y = axis("tau", 0, 1.1 * max(float(max(c)) for c in taus.values()))
    points = {name: (list(range(1, len(curve) + 1)), curve) for name, curve in taus.items()}
    hover = "%{x} nodes: tau %{y:.2f}"
    curves.lines(points, size=5, hover=hover)
    curves.here("this tree", len(parents), float(sum(values)), hover=hover)
    return draw(
        [[cells, tree], [curves]], 720, heights=(0.64, 0.36), widths=(0.44, 0.56), gaps=(0.14, 0.17)
    )


def _cells(title: str, rank: Table, x: float, y: float, length: float) -> Panel:
    ranks, positions = (list(range(1, n + 1)) for n in (len(rank[0]), len(rank)))
    one = Panel(title, axis("rank in the head's list (cells: percent)", tickvals=ranks, **BARE))
    one.y = axis("position", tickvals=positions, autorange="reversed", **BARE)
    words = [[f"{100 * float(v):.0f}" for v in row] for row in rank]
    hover = "position %{y}, rank %{x}: %{z:.1%}"
    bar = {"x": x, "y": y, "len": length, "thickness": 12, "tickformat": ".0%"}
    more = {"showscale": True, "colorbar": bar, "written": True}
    return one.cells(ranks, positions, rank, DEPTHS, words, hover=hover, **more)
