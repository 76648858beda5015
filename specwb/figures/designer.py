"""Draft trees as shapes: their nodes and values, what each node sees, and what they are worth by
size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from specwb.errors import ArgumentError
from specwb.figures.style import DEPTHS, DRAFT, EDGE, FIRST, INK, MARK, MONOSPACE, figure, lines
from specwb.figures.tree import edges_of
from specwb.verify.exact import depths

LABELLED = 26  # nodes that can have their value written beside them
WRITTEN = 16  # nodes whose positions can be written into the mask's cells


def value_tree(
    parents: Sequence[int], values: Sequence[float], labels: Sequence[str] | None = None
) -> go.Figure:
    """A tree from left to right, one column a depth, siblings from top to bottom in drawing order;
    markers grow with the values.

    Args:
        parents: -1 for the root, in level order.
        values: of every node, the root's first.
        labels: what to write at the nodes, default their numbers.
    Raises:
        ValueError: not a tree, or not one value (and label) a node.
    """
    traces, leaves, depth = _tree(parents, values, labels)
    return figure(
        *traces,
        title={"text": _sum_of(values), "x": 0, "xref": "paper"},
        xaxis=_columns(depth),
        yaxis={"visible": False, "range": [-leaves + 0.4, 0.6]},
        height=max(240, 110 + 24 * leaves),
        margin={"l": 20, "r": 20, "t": 50, "b": 45},
        showlegend=False,
    )


def tree_mask(parents: Sequence[int]) -> go.Figure:
    """Which nodes each node sees, coloured by position.

    A row is a node that looks, a column what it looks at: the committed text before the pending
    token, then the nodes. Empty is hidden; a colour and, in small trees, a number say at which
    position after the pending token the seen node stands.

    Args:
        parents: -1 for the root, in level order.
    Raises:
        ValueError: not a tree.
    """
    n = len(parents)
    return figure(
        _mask(parents, x=1.02, y=0.5, length=0.9),
        title={"text": "What each node sees, and at which position", "x": 0, "xref": "paper"},
        xaxis=_keys(n),
        yaxis=_queries(n),
        height=max(300, min(560, 120 + 24 * n)),
        margin={"l": 60, "r": 90, "t": 50, "b": 50},
    )


def designer(
    parents: Sequence[int], values: Sequence[float], best: Mapping[int, float], speed: float
) -> go.Figure:
    """A tree, its mask and positions, and its speedup among the best trees by number of nodes.

    Args:
        parents, values: as :func:`value_tree`.
        best: number of nodes -> the largest predicted speedup of a tree of so many.
        speed: this tree's.
    Raises:
        ValueError: as :func:`value_tree`, or no best.
    """
    if not best:
        raise ArgumentError("best must have at least one number of nodes")
    traces, leaves, depth = _tree(parents, values, None)
    n = len(parents)
    drawn = make_subplots(
        2,
        2,
        specs=[[{}, {}], [{"colspan": 2}, None]],
        row_heights=[0.66, 0.34],
        column_widths=[0.52, 0.48],
        vertical_spacing=0.2,
        horizontal_spacing=0.08,
        subplot_titles=[
            "tree (marker size: value)",
            "mask (colour: position)",
            "predicted speedup by number of nodes",
        ],
        figure=figure(
            height=720,
            margin={"l": 50, "r": 90, "t": 40, "b": 80},
            showlegend=True,
            legend={"orientation": "h", "y": -0.12, "yanchor": "top", "x": 0},
        ),
    )
    drawn.add_traces(traces, rows=1, cols=1)
    drawn.add_trace(_mask(parents, x=1.02, y=0.74, length=0.55), row=1, col=2)
    sizes = sorted(best)
    hover = "%{x} nodes: %{y:.2f}x<extra>%{fullData.name}</extra>"
    drawn.add_traces(
        [
            go.Scatter(
                x=sizes,
                y=[best[m] for m in sizes],
                mode="lines+markers",
                name="best tree of so many nodes",
                hovertemplate=hover,
                line={"color": FIRST, "width": 2},
                marker={"size": 5},
            ),
            go.Scatter(
                x=[n],
                y=[speed],
                mode="markers",
                name="this tree",
                hovertemplate=hover,
                marker={
                    "symbol": "diamond",
                    "size": 13,
                    "color": DRAFT,
                    "line": {"width": 1, "color": INK},
                },
            ),
        ],
        rows=2,
        cols=1,
    )
    drawn.add_shape(
        type="line",
        x0=0,
        x1=1,
        xref="x3 domain",
        y0=1,
        y1=1,
        yref="y3",
        line={"color": MARK, "dash": "dash", "width": 2},
    )
    drawn.update_xaxes(_columns(depth), row=1, col=1)
    drawn.update_yaxes({"visible": False, "range": [-leaves + 0.4, 0.6]}, row=1, col=1)
    drawn.update_xaxes(_keys(n), row=1, col=2)
    drawn.update_yaxes(_queries(n), row=1, col=2)
    drawn.update_xaxes(
        title={"text": "nodes, the root included", "standoff": 6},
        range=[0.5, max(sizes[-1], n) + 0.5],
        row=2,
        col=1,
    )
    drawn.update_yaxes(
        title={"text": "speedup"}, range=[0, 1.15 * max(1.0, speed, *best.values())], row=2, col=1
    )
    drawn.update_annotations(font_size=13)
    return drawn


def by_nodes(
    curves: Mapping[str, Sequence[float]],
    title: str,
    yaxis: str,
    xaxis: str = "nodes, the root included",
) -> go.Figure:
    """Lines over the number of nodes.

    Args:
        curves: name -> its value at 1, 2, .. nodes; None where there is none; at most eight.
        title: of the figure.
        yaxis, xaxis: what the values are, and which nodes are counted.
    Raises:
        ValueError: no curve, or more than eight.
    """
    points = {
        name: (
            list(range(1, len(values) + 1)),
            [None if v is None else round(v, 4) for v in values],
        )
        for name, values in curves.items()
    }
    return lines(
        points,
        title,
        yaxis,
        xaxis,
        height=430,
        size=6,
        hover="%{x} nodes: %{y:.2f}<extra>%{fullData.name}</extra>",
    )


# ------------------------------------------------------------------------------------------- parts


def _sum_of(values: Sequence[float]) -> str:
    return f"{len(values) - 1} draft tokens, their values sum to {float(sum(values)) - 1:.2f}"


def _tree(
    parents: Sequence[int], values: Sequence[float], labels: Sequence[str] | None
) -> tuple[list[go.Scatter], int, int]:
    """Edges and nodes, number of leaves, depth."""
    depth = depths(parents)
    if len(values) != len(parents) or (labels is not None and len(labels) != len(parents)):
        raise ArgumentError(
            f"a tree of {len(parents)} nodes needs as many values and labels, got {len(values)} "
            f"and {len(labels or parents)}"
        )
    place, xs, ys = edges_of(parents)
    words = list(labels) if labels is not None else [str(i) for i in range(len(parents))]
    written = [f"{word} <b>{float(v):.2f}</b>" for word, v in zip(words, values)]
    edges = go.Scatter(
        x=xs,
        y=ys,
        mode="lines",
        line={"color": EDGE, "width": 1.5},
        hoverinfo="skip",
        showlegend=False,
    )
    sizes = [round(5 + 15 * float(v) ** 0.5, 1) for v in values]
    nodes = go.Scatter(
        x=[place[i][0] for i in range(len(parents))],
        y=[place[i][1] for i in range(len(parents))],
        mode="markers+text" if len(parents) <= LABELLED else "markers",
        text=written,
        textposition="top right",
        showlegend=False,
        textfont={"family": MONOSPACE, "size": 11, "color": INK},
        customdata=list(range(len(parents))),
        hovertemplate="node %{customdata}: %{text}<extra></extra>",
        cliponaxis=False,
        marker={"color": FIRST, "opacity": 1, "size": sizes, "line": {"width": 0}},
    )
    return [edges, nodes], len(set(range(len(parents))) - set(parents)), max(depth)


def _mask(parents: Sequence[int], x: float, y: float, length: float) -> go.Heatmap:
    depth, n = depths(parents), len(parents)
    seen: list[set[int]] = []
    for node, parent in enumerate(parents):
        seen.append({node} | (seen[parent] if parent >= 0 else set()))
    z = [[-1, *(depth[j] if j in seen[i] else None for j in range(n))] for i in range(n)]
    words = [
        ["text", *(f"+{depth[j]}" if j in seen[i] else "" for j in range(n))] for i in range(n)
    ]
    most = max(1, max(depth))
    return go.Heatmap(
        x=list(range(-1, n)),
        y=list(range(n)),
        z=z,
        zmin=-1,
        zmax=most,
        colorscale=DEPTHS,
        xgap=1,
        ygap=1,
        text=words,
        texttemplate="%{text}" if n <= WRITTEN else "",
        hovertemplate="node %{y} sees %{x}: %{text}<extra></extra>",
        colorbar={
            "title": {"text": "position"},
            "x": x,
            "y": y,
            "len": length,
            "thickness": 12,
            "tickvals": [-1, *range(most + 1)],
            "ticktext": ["text", *(f"+{d}" for d in range(most + 1))],
        },
    )


def _columns(depth: int) -> dict:
    ticks = list(range(depth + 1))
    return {
        "range": [-0.2, depth + 0.9],
        "tickvals": ticks,
        "title": {"text": "depth", "standoff": 4},
        "showgrid": False,
        "zeroline": False,
    }


def _keys(n: int) -> dict:
    every = _every(n) if n <= WRITTEN else _every(n)[1:]  # no room beside the text's
    return {
        "title": {"text": "seen", "standoff": 4},
        "tickvals": [-1, *every],
        "ticktext": ["text", *map(str, every)],
        "tickangle": 0,
        "showgrid": False,
        "zeroline": False,
    }


def _queries(n: int) -> dict:
    return {
        "title": {"text": "node"},
        "tickvals": _every(n),
        "autorange": "reversed",
        "showgrid": False,
        "zeroline": False,
    }


def _every(n: int) -> list[int]:
    return list(range(0, n, 1 if n <= WRITTEN else 4 if n <= 40 else 8))
