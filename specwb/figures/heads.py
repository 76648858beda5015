"""Trained heads: how often their guesses are right."""

from __future__ import annotations

from collections.abc import Sequence

import plotly.graph_objects as go

from specwb.figures.kit import BARE, Panel, axis, draw
from specwb.palette import DEPTHS


def head_accuracy(rank: Sequence[Sequence[float]], title: str) -> go.Figure:
    """How often the right token is a head's first, second, .. guess: shares of places
    ``[positions][ranks]``. A colour means the same share for every head, so that figures can be
    compared.
    """
    ranks, positions = (list(range(1, n + 1)) for n in (len(rank[0]), len(rank)))
    one = Panel(title, axis("rank in the head's list (cells: percent)", tickvals=ranks, **BARE))
    one.y = axis("position", tickvals=positions, autorange="reversed", **BARE)
    words = [[f"{100 * float(v):.0f}" for v in row] for row in rank]
    hover = "position %{y}, rank %{x}: %{z:.1%}"
    bar = {"x": 1.02, "y": 0.5, "len": 0.9, "thickness": 12, "tickformat": ".0%"}
    more = {"showscale": True, "colorbar": bar, "written": True}
    one.cells(ranks, positions, rank, DEPTHS, words, hover=hover, **more)
    return draw(one, 130 + 38 * len(rank))
