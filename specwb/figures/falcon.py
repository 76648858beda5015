"""Drafting in blocks: what a pair sees, which pairs glance, trees by passes, and dependence against
loss and acceptance.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from specwb.blocks import BlockTree
from specwb.errors import ArgumentError
from specwb.figures.style import DRAFT, EDGE, FAINT, INK, OTHER, PALETTE, figure
from specwb.figures.tree import edges_of

MARKED = 24  # pairs that can have numbers in their cells
STEPS = [
    [0, "#56B4E9"],
    [0.5, "#56B4E9"],
    [0.5, "#0072B2"],
    [1, "#0072B2"],
]  # light: an earlier block; dark: one's own


def block_sight(ends: Sequence[int], starts: Sequence[int], k: int) -> go.Figure:
    """Which pairs each pair of a text sees, and what the last k of them say.

    A row is a pair that looks, a column one that is looked at: dark its own block, light an earlier
    one, empty hidden.

    Args:
        ends, starts: of each pair, the numbers (from 1) of the last and the first pair of its
            block.
        k: size of a block.
    Raises:
        ValueError: not as many ends as starts, or fewer pairs than k.
    """
    n = len(ends)
    if len(starts) != n or n < k:
        raise ArgumentError(
            f"a block of {k} needs at least {k} pairs, with an end and a start each; got {n} ends "
            f"and {len(starts)} starts"
        )
    z = [[None if j > ends[i] else int(j >= starts[i]) for j in range(1, n + 1)] for i in range(n)]
    words = [["" if v is None else "own" if v else "·" for v in row] for row in z]
    said = [f"{i} says X{i - n + k}" if i > n - k else str(i) for i in range(1, n + 1)]
    cells = go.Heatmap(
        x=list(range(1, n + 1)),
        y=list(range(1, n + 1)),
        z=z,
        zmin=0,
        zmax=1,
        colorscale=STEPS,
        showscale=False,
        xgap=1,
        ygap=1,
        text=words,
        texttemplate="%{text}" if n <= MARKED else "",
        hovertemplate="pair %{y} sees pair %{x} (%{text})<extra></extra>",
    )
    every = list(range(1, n + 1))
    return figure(
        cells,
        title={
            "text": "What each pair sees: its own block (dark) and earlier ones",
            "x": 0,
            "xref": "paper",
        },
        xaxis={
            "title": {"text": "seen pair (the newest is last)", "standoff": 4},
            "tickvals": every,
            "showgrid": False,
            "zeroline": False,
        },
        yaxis={
            "tickvals": every,
            "ticktext": said,
            "autorange": "reversed",
            "showgrid": False,
            "zeroline": False,
        },
        height=max(260, 110 + 26 * n),
        margin={"l": 90, "r": 20, "t": 50, "b": 50},
    )


def glancing(
    replaced: Sequence[Sequence[bool]],
    k: int,
    curves: Mapping[str, Sequence[float]],
    here: tuple[float, float],
    measured: Mapping[str, Sequence[tuple[float, float, float]]] | None = None,
) -> go.Figure:
    """Which pairs of some texts are replaced, and what the loss of a block is above autoregression
    as more blocks glance.

    Args:
        replaced: ``[texts][pairs]``.
        k: size of a block.
        curves: name -> prediction at evenly spaced shares 0..1 of blocks that glance.
        here: share and excess of the texts shown.
        measured: name -> (share, value, standard error) of trainings; names of curves.
    Raises:
        ValueError: texts of other lengths than the first or of no whole blocks, no curve or more
            than seven, or measurements without a curve.
    """
    rows = [list(map(bool, row)) for row in replaced]
    width = len(rows[0]) if rows else 0
    if k < 1 or not width or width % k or any(len(row) != width for row in rows):
        raise ArgumentError(
            f"every text has as many whole blocks of {k} pairs, got texts of "
            f"{sorted({len(row) for row in rows})} pairs"
        )
    _some(curves)
    if set(measured or ()) - set(curves):
        raise ArgumentError(
            f"measured must be of the curves {', '.join(curves)}, got {', '.join(measured or ())}"
        )
    drawn = make_subplots(
        2,
        1,
        row_heights=[0.4, 0.6],
        vertical_spacing=0.2,
        subplot_titles=[
            "pairs that are replaced by the pairs they are to predict (dark)",
            "least loss above the autoregressive one, nats",
        ],
        figure=figure(
            height=620,
            showlegend=True,
            legend={"orientation": "h", "y": -0.12, "yanchor": "top", "x": 0},
        ),
    )
    words = [
        [
            "glances" if v else "sees" if any(row[j // k * k : (j // k + 1) * k]) else ""
            for j, v in enumerate(row)
        ]
        for row in rows
    ]
    hover = "text %{y}, pair %{x}: %{text}<extra></extra>"
    drawn.add_trace(
        go.Heatmap(
            x=list(range(1, width + 1)),
            y=list(range(1, len(rows) + 1)),
            z=[[int(v) for v in row] for row in rows],
            zmin=0,
            zmax=1,
            colorscale=[[0, FAINT], [1, "#0072B2"]],
            showscale=False,
            xgap=1,
            ygap=2,
            text=words,
            hovertemplate=hover,
        ),
        row=1,
        col=1,
    )
    for edge in range(k, width, k):
        drawn.add_shape(
            type="line",
            x0=edge + 0.5,
            x1=edge + 0.5,
            y0=0.5,
            y1=len(rows) + 0.5,
            line={"color": INK, "width": 1},
            row=1,
            col=1,
        )
    for (name, curve), (colour, dash, symbol) in zip(curves.items(), PALETTE, strict=False):
        xs = [i / (len(curve) - 1) for i in range(len(curve))]
        line = {"color": colour, "dash": dash, "width": 2}
        drawn.add_trace(
            go.Scatter(x=xs, y=[round(v, 5) for v in curve], mode="lines", name=name, line=line),
            row=2,
            col=1,
        )
        if points := (measured or {}).get(name):
            drawn.add_trace(_points(points, f"{name}, trained", colour, symbol), row=2, col=1)
    drawn.add_trace(
        go.Scatter(
            x=[round(here[0], 4)],
            y=[round(here[1], 5)],
            mode="markers",
            name="these texts",
            marker={
                "symbol": "diamond",
                "size": 13,
                "color": DRAFT,
                "line": {"width": 1, "color": INK},
            },
        ),
        row=2,
        col=1,
    )
    drawn.update_xaxes(
        title={"text": "pair", "standoff": 4}, showgrid=False, zeroline=False, row=1, col=1
    )
    drawn.update_yaxes(
        title={"text": "text"},
        tickvals=list(range(1, len(rows) + 1)),
        autorange="reversed",
        showgrid=False,
        row=1,
        col=1,
    )
    drawn.update_xaxes(
        title={"text": "share of blocks that glance", "standoff": 4},
        range=[-0.02, 1.02],
        row=2,
        col=1,
    )
    drawn.update_yaxes(rangemode="tozero", row=2, col=1)
    drawn.update_annotations(font_size=13)
    return drawn


def ratios(
    curves: Mapping[str, Sequence[tuple[float, float]]],
    measured: Mapping[str, Sequence[tuple[float, float, float]]],
    title: str,
) -> go.Figure:
    """Losses of trainings by glancing ratio, beside what was predicted.

    Args:
        curves: name -> (ratio, predicted loss).
        measured: name -> (ratio, loss, standard error); names of curves.
    Raises:
        ValueError: no curve or more than eight, or measurements without a curve.
    """
    _some(curves)
    if set(measured) - set(curves):
        raise ArgumentError(
            f"measured must be of the curves {', '.join(curves)}, got {', '.join(measured)}"
        )
    traces = []
    for (name, line), (colour, dash, symbol) in zip(curves.items(), PALETTE, strict=False):
        x, y = zip(*line, strict=True)
        traces.append(
            go.Scatter(
                x=x,
                y=[round(v, 5) for v in y],
                mode="lines",
                name=name,
                line={"color": colour, "dash": dash, "width": 2},
            )
        )
        if points := measured.get(name):
            traces.append(_points(points, f"{name}, measured", colour, symbol))
    return figure(
        *traces,
        title={"text": title, "x": 0, "xref": "paper", "y": 0.98, "yanchor": "top"},
        xaxis={
            "title": {"text": "share of blocks that glance in training"},
            "range": [-0.03, 1.03],
        },
        yaxis={"title": {"text": "nats a token"}, "rangemode": "tozero"},
        height=460,
        margin={"l": 60, "r": 20, "t": 130, "b": 50},
    )


def block_tree(tree: BlockTree, title: str) -> go.Figure:
    """A tree as its passes make it: colour and marker say which pass a node comes of; a ring says
    that the next pass begins a block there.

    Args:
        tree: blocks of a tree of at most eight passes.
        title: of the figure.
    Raises:
        ValueError: more than eight passes.
    """
    traces, leaves = _by_pass(tree)
    return figure(
        *traces,
        title={"text": title, "x": 0, "xref": "paper", "y": 0.99, "yanchor": "top"},
        xaxis={
            "tickvals": list(range(tree.tree.D + 1)),
            "title": {"text": "depth", "standoff": 4},
            "showgrid": False,
            "zeroline": False,
        },
        yaxis={"visible": False, "range": [-leaves + 0.4, 0.6]},
        height=max(300, 150 + 7 * leaves),
        margin={"l": 20, "r": 20, "t": 90, "b": 45},
        showlegend=True,
    )


def block_designer(
    tree: BlockTree, speeds: Mapping[str, Sequence[float]], chosen: str
) -> go.Figure:
    """A tree by passes, its nodes by depth, and the predicted speedup of the best trees by number
    of nodes.

    Args:
        tree: as :func:`block_tree`.
        speeds: name -> speedup at 1, 2, .. nodes.
        chosen: the curve that this tree is on.
    Raises:
        ValueError: as :func:`block_tree`; more than eight curves, or a chosen one that is none of
            them or too short for the tree.
    """
    _some(speeds)
    if chosen not in speeds or len(speeds[chosen]) < tree.tree.n:
        raise ArgumentError(
            f"chosen must be one of {', '.join(speeds)} and go on to {tree.tree.n} nodes, got "
            f"{chosen!r}"
        )
    drawn = make_subplots(
        2,
        2,
        specs=[[{}, {}], [{"colspan": 2}, None]],
        row_heights=[0.62, 0.38],
        column_widths=[0.64, 0.36],
        vertical_spacing=0.17,
        horizontal_spacing=0.1,
        subplot_titles=[
            "tree, by the pass that makes a node",
            "nodes by depth",
            "predicted speedup by number of nodes",
        ],
        figure=figure(
            height=740,
            margin={"l": 50, "r": 30, "t": 40, "b": 110},
            showlegend=True,
            bargap=0.3,
            legend={"orientation": "h", "y": -0.12, "yanchor": "top", "x": 0},
        ),
    )
    traces, leaves = _by_pass(tree)
    drawn.add_traces(traces, rows=1, cols=1)
    levels = [stop - start for start, stop in tree.tree.levels[1:]]
    colours = [PALETTE[d // tree.k][0] for d in range(len(levels))]
    bars = go.Bar(
        x=list(range(1, len(levels) + 1)),
        y=levels,
        text=levels,
        textposition="outside",
        marker={"color": colours},
        showlegend=False,
        hovertemplate="depth %{x}: %{y} nodes<extra></extra>",
        cliponaxis=False,
    )
    drawn.add_trace(bars, row=1, col=2)
    hover = "%{x} nodes: %{y:.2f}x<extra>%{fullData.name}</extra>"
    for i, ((name, curve), (colour, dash, _)) in enumerate(
        zip(speeds.items(), PALETTE, strict=False)
    ):
        line = go.Scatter(
            x=list(range(1, len(curve) + 1)),
            y=[round(v, 4) for v in curve],
            mode="lines",
            name=name,
            hovertemplate=hover,
            line={
                "color": colour,
                "dash": dash,
                "width": 2 + 1.5 * (len(speeds) - 1 - i),
            },  # curves often coincide; the later ones lie on top
        )
        drawn.add_trace(line, row=2, col=1)
    here = go.Scatter(
        x=[tree.tree.n],
        y=[round(speeds[chosen][tree.tree.n - 1], 4)],
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
    drawn.add_shape(
        type="line",
        x0=0,
        x1=1,
        xref="x3 domain",
        y0=1,
        y1=1,
        yref="y3",
        line={"color": INK, "width": 1},
    )
    depth = tree.tree.D
    drawn.update_xaxes(
        {"tickvals": list(range(depth + 1)), "showgrid": False, "zeroline": False}, row=1, col=1
    )
    drawn.update_yaxes({"visible": False, "range": [-leaves + 0.4, 0.6]}, row=1, col=1)
    drawn.update_xaxes({"tickvals": list(range(1, depth + 1)), "showgrid": False}, row=1, col=2)
    drawn.update_yaxes(rangemode="tozero", range=[0, 1.2 * max(levels)], row=1, col=2)
    longest = max(map(len, speeds.values()))
    drawn.update_xaxes(
        title={"text": "nodes, the root included", "standoff": 6},
        range=[0.5, longest + 0.5],
        row=2,
        col=1,
    )
    drawn.update_yaxes(
        title={"text": "speedup"},
        range=[0, 1.12 * max(1.0, *(max(c) for c in speeds.values()))],
        row=2,
        col=1,
    )
    drawn.update_annotations(font_size=13)
    return drawn


def by_dependence(
    points: Mapping[str, Sequence[tuple[float, float]]],
    bound: Sequence[tuple[float, float]],
    title: str,
) -> go.Figure:
    """Acceptance at places of texts against how much the token there depends on those before it in
    the block.

    Args:
        points: name -> (information in nats, acceptance), at most eight.
        bound: a curve to put beside them.
        title: of the figure.
    Raises:
        ValueError: no points, or of more than eight names.
    """
    _some(points)
    x, y = zip(*bound, strict=True)
    line = go.Scatter(
        x=x,
        y=[round(v, 4) for v in y],
        mode="lines",
        name="1 − √(I/2)",
        line={"color": OTHER, "dash": "dash", "width": 2},
    )
    dots = [
        go.Scatter(
            x=[round(a, 3) for a, _ in pairs],
            y=[round(b, 3) for _, b in pairs],
            mode="markers",
            name=name,
            marker={"color": colour, "symbol": symbol, "size": 9},
            hovertemplate="I %{x:.2f}: %{y:.2f}<extra>" + name + "</extra>",
        )
        for (name, pairs), (colour, _, symbol) in zip(points.items(), PALETTE, strict=False)
    ]
    return figure(
        line,
        *dots,
        title={"text": title, "x": 0, "xref": "paper", "y": 0.98, "yanchor": "top"},
        xaxis={
            "title": {"text": "I with the tokens before it in the block, nats"},
            "rangemode": "tozero",
        },
        yaxis={"title": {"text": "accepted"}, "range": [0, 1.03]},
        height=460,
        margin={"l": 60, "r": 20, "t": 110, "b": 50},
    )


# ------------------------------------------------------------------------------------------- parts


def _some(named: Mapping[str, Any]) -> None:
    if not 1 <= len(named) <= len(PALETTE):
        raise ArgumentError(f"between one and {len(PALETTE)} names, got {len(named)}")


def _points(
    points: Sequence[tuple[float, float, float]], name: str, colour: str, symbol: str
) -> go.Scatter:
    return go.Scatter(
        x=[x for x, _, _ in points],
        y=[round(y, 4) for _, y, _ in points],
        mode="markers",
        name=name,
        error_y={"type": "data", "array": [round(2 * e, 4) for _, _, e in points]},
        marker={"color": colour, "symbol": symbol, "size": 9},
    )


def _by_pass(tree: BlockTree) -> tuple[list[go.Scatter], int]:
    """Edges, a trace of nodes for each of eight passes (the same number for every tree, so that a
    widget can change them in place), rings.
    """
    if len(tree.passes) > len(PALETTE):
        raise ArgumentError(
            f"at most {len(PALETTE)} passes can be told apart, this tree has {len(tree.passes)}"
        )
    parents = tree.tree.host[0]
    place, xs, ys = edges_of(parents)
    traces = [
        go.Scatter(
            x=xs,
            y=ys,
            mode="lines",
            line={"color": EDGE, "width": 1},
            hoverinfo="skip",
            showlegend=False,
        )
    ]
    size = 9 if len(parents) <= 40 else 6
    begins = [node for one in tree.passes for node in one.blocks]
    traces.append(
        go.Scatter(
            x=[place[i][0] for i in begins],
            y=[place[i][1] for i in begins],
            mode="markers",
            name="a block begins below",
            hoverinfo="skip",
            marker={
                "symbol": "circle-open",
                "size": size + 8,
                "color": INK,
                "line": {"width": 1.5},
            },
            cliponaxis=False,
        )
    )
    of = [-1, *(b for b, _, _, _ in tree.places)]
    for b, (colour, _, symbol) in enumerate(PALETTE):
        nodes = [i for i, home in enumerate(of) if home == b]
        traces.append(
            go.Scatter(
                x=[place[i][0] for i in nodes],
                y=[place[i][1] for i in nodes],
                mode="markers",
                name=f"pass {b + 1}",
                showlegend=bool(nodes),
                marker={"symbol": symbol, "size": size, "color": colour},
                customdata=nodes,
                cliponaxis=False,
                hovertemplate="node %{customdata}, depth %{x}<extra>%{fullData.name}</extra>",
            )
        )
    return traces, len(set(range(len(parents))) - set(parents))
