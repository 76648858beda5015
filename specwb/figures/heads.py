"""Trained heads: how often their guesses are right, and the trees that follow from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from specwb.errors import ArgumentError
from specwb.figures.designer import value_tree
from specwb.figures.style import DEPTHS, DRAFT, INK, PALETTE, figure

Table = Sequence[Sequence[float]]


def head_accuracy(rank: Table, title: str) -> go.Figure:
    """How often the right token is a head's first, second, .. guess: a row a position, a column a
    rank.

    Up to 0.6 a colour means the same share for every head, so that figures can be compared.

    Args:
        rank: by position and rank, shares of places ``[positions][ranks]``.
        title: of the figure.
    Raises:
        ValueError: no position, or rows of different lengths.
    """
    return figure(
        _cells(rank, x=1.02, y=0.5, length=0.9),
        title={"text": title, "x": 0, "xref": "paper"},
        xaxis=_ranks(rank),
        yaxis=_positions(rank),
        height=130 + 38 * len(rank),
        margin={"l": 60, "r": 90, "t": 50, "b": 50},
    )


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
        chosen: the head whose tree this is.
    Raises:
        ValueError: as :func:`head_accuracy` and ``value_tree``, more than eight heads, or a chosen
            one that is none of them.
    """
    if chosen not in taus or len(taus) > len(PALETTE):
        raise ArgumentError(
            f"taus must have at most {len(PALETTE)} heads, {chosen!r} among them; got "
            f"{', '.join(taus) or 'none'}"
        )
    tree = value_tree(parents, values)
    drawn = make_subplots(
        2,
        2,
        specs=[[{}, {}], [{"colspan": 2}, None]],
        row_heights=[0.64, 0.36],
        column_widths=[0.44, 0.56],
        vertical_spacing=0.17,
        horizontal_spacing=0.14,
        figure=figure(
            height=720,
            margin={"l": 60, "r": 30, "t": 40, "b": 80},
            showlegend=True,
            legend={"orientation": "h", "y": -0.12, "yanchor": "top", "x": 0},
        ),
        subplot_titles=[
            "right token by position and rank",
            "the best tree (marker size: value)",
            "expected tokens a round by number of nodes",
        ],
    )
    drawn.add_trace(_cells(rank, x=0.43, y=0.71, length=0.6), row=1, col=1)
    drawn.add_traces(tree.data, rows=1, cols=2)
    hover = "%{x} nodes: tau %{y:.2f}<extra>%{fullData.name}</extra>"
    for (name, curve), (colour, dash, symbol) in zip(taus.items(), PALETTE, strict=False):
        line = go.Scatter(
            x=list(range(1, len(curve) + 1)),
            y=[round(float(v), 4) for v in curve],
            mode="lines+markers",
            name=name,
            hovertemplate=hover,
            line={"color": colour, "dash": dash, "width": 2},
            marker={"symbol": symbol, "size": 5},
        )
        drawn.add_trace(line, row=2, col=1)
    here = go.Scatter(
        x=[len(parents)],
        y=[round(float(sum(values)), 4)],
        mode="markers",
        name="this tree",
        hovertemplate=hover,
        marker={
            "symbol": "diamond",
            "size": 13,
            "color": DRAFT,
            "line": {"width": 1, "color": INK},
        },
    )
    drawn.add_trace(here, row=2, col=1)
    drawn.update_xaxes(_ranks(rank), row=1, col=1)
    drawn.update_yaxes(_positions(rank), row=1, col=1)
    drawn.update_xaxes(tree.layout.xaxis.to_plotly_json(), row=1, col=2)
    drawn.update_yaxes(tree.layout.yaxis.to_plotly_json(), row=1, col=2)
    longest = max(map(len, taus.values()))
    drawn.update_xaxes(
        title={"text": "nodes, the root included", "standoff": 6},
        range=[0.5, longest + 0.5],
        row=2,
        col=1,
    )
    drawn.update_yaxes(
        title={"text": "tau"},
        range=[0, 1.1 * max(float(max(c)) for c in taus.values())],
        row=2,
        col=1,
    )
    drawn.update_annotations(font_size=13)
    return drawn


def _cells(rank: Table, x: float, y: float, length: float) -> go.Heatmap:
    if not rank or len({len(row) for row in rank}) != 1:
        raise ArgumentError("rank must have at least one position, and as many ranks at each")
    return go.Heatmap(
        x=list(range(1, len(rank[0]) + 1)),
        y=list(range(1, len(rank) + 1)),
        z=[[round(float(v), 4) for v in row] for row in rank],
        zmin=0,
        zmax=1,  # the same shades for every head
        colorscale=DEPTHS,
        xgap=1,
        ygap=1,
        text=[[f"{100 * float(v):.0f}" for v in row] for row in rank],
        texttemplate="%{text}",
        hovertemplate="position %{y}, rank %{x}: %{z:.1%}<extra></extra>",
        colorbar={"x": x, "y": y, "len": length, "thickness": 12, "tickformat": ".0%"},
    )


def _ranks(rank: Table) -> dict:
    ticks = list(range(1, len(rank[0]) + 1))
    return {
        "title": {"text": "rank in the head's list (cells: percent)", "standoff": 4},
        "tickvals": ticks,
        "showgrid": False,
        "zeroline": False,
    }


def _positions(rank: Table) -> dict:
    ticks = list(range(1, len(rank) + 1))
    return {
        "title": {"text": "position"},
        "tickvals": ticks,
        "autorange": "reversed",
        "showgrid": False,
        "zeroline": False,
    }
