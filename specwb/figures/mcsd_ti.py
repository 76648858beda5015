"""Stopping and several roots: slices of a tree's mask, where drafts end under a threshold,
calibration, and which root stays.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from specwb.errors import ArgumentError
from specwb.figures.style import ACCEPTED, DRAFT, FIRST, INK, MARK, OTHER, PALETTE, figure
from specwb.tree import Tree


def mask_slices(tree: Tree, cut: int) -> go.Figure:
    """The mask of a tree in level order, a frame round the leading block that each depth prefix is,
    and the block of the tree cut at ``cut``.

    A row is a node that looks, a column one that is looked at: dark in the chosen block, light in
    what the whole tree has beyond it, empty hidden.

    Args:
        tree: one shape for all rows, in level order.
        cut: levels that are left, 0..D.
    Raises:
        ValueError: another kind of tree, or no such level.
    """
    stops = [stop for _, stop in tree.levels]
    if not 0 <= cut <= tree.D:
        raise ArgumentError(f"cut must be 0..{tree.D}, got {cut}")
    n, kept = tree.n, stops[cut]
    seen = tree.mask[0].tolist()
    depth = tree.depths[0]
    z = [[int(i < kept and j < kept) if seen[i][j] else None for j in range(n)] for i in range(n)]
    said = [
        [f"{depth[j] - depth[i]:+d} levels" if i != j else "itself" for j in range(n)]
        for i in range(n)
    ]
    cells = go.Heatmap(
        x=list(range(n)),
        y=list(range(n)),
        z=z,
        zmin=0,
        zmax=1,
        colorscale=[[0, "#A9D3EC"], [1, FIRST]],
        showscale=False,
        xgap=1,
        ygap=1,
        text=said,
        hovertemplate="node %{y} sees node %{x}: %{text}<extra></extra>",
    )
    drawn = figure(
        cells,
        title={
            "text": f"{kept} of {n} nodes: the first {cut} of {tree.D} levels",
            "x": 0,
            "xref": "paper",
        },
        xaxis={
            "title": {"text": "seen node", "standoff": 4},
            "range": [-0.6, n - 0.4],
            "showgrid": False,
            "zeroline": False,
            "dtick": _step(n),
        },
        yaxis={
            "title": {"text": "node"},
            "range": [n - 0.4, -0.6],
            "showgrid": False,
            "zeroline": False,
            "dtick": _step(n),
        },
        height=max(320, min(620, 130 + 22 * n)),
        margin={"l": 60, "r": 20, "t": 50, "b": 50},
    )
    for d, stop in enumerate(stops):
        line = (
            {"color": MARK, "width": 3} if d == cut else {"color": OTHER, "width": 1, "dash": "dot"}
        )
        drawn.add_shape(type="rect", x0=-0.5, y0=-0.5, x1=stop - 0.5, y1=stop - 0.5, line=line)
    return drawn


def _step(n: int) -> int:
    return 1 if n <= 24 else 5 if n <= 60 else 10


def stop_rules(
    drafted: Sequence[int],
    kept: Sequence[int],
    depth: int,
    curves: Mapping[str, Sequence[tuple[float, float]]],
    here: tuple[float, float],
    *,
    xaxis: str,
    yaxis: str,
    title: str,
) -> go.Figure:
    """How many levels rounds drafted and kept, and what each way of stopping trades for what.

    Args:
        drafted, kept: levels of every round.
        depth: of the whole tree.
        curves: name -> points, at most eight.
        here: the point of these rounds.
        xaxis, yaxis, title: words for the curves.
    Raises:
        ValueError: no round, or no curve or more than eight.
    """
    if not drafted or len(drafted) != len(kept):
        raise ArgumentError(
            f"there must be at least one round, with levels drafted and kept; got {len(drafted)} "
            f"and {len(kept)}"
        )
    if not 1 <= len(curves) <= len(PALETTE):
        raise ArgumentError(f"between one and {len(PALETTE)} curves, got {len(curves)}")
    drawn = make_subplots(
        2,
        1,
        row_heights=[0.38, 0.62],
        vertical_spacing=0.17,
        subplot_titles=["rounds by levels, share", title],
        figure=figure(
            height=640,
            legend={"orientation": "h", "y": -0.12, "yanchor": "top", "x": 0},
            margin={"l": 60, "r": 20, "t": 40, "b": 110},
        ),
    )
    levels = list(range(depth + 1))
    for name, counted, colour, pattern in (
        ("drafted", drafted, DRAFT, ""),
        ("kept", kept, ACCEPTED, "/"),
    ):
        shares = [round(sum(n == level for n in counted) / len(counted), 4) for level in levels]
        marker = {"color": colour, "pattern": {"shape": pattern}}
        drawn.add_trace(
            go.Bar(
                x=levels, y=shares, name=name, marker=marker, hovertemplate="%{x} levels: %{y:.0%}"
            ),
            row=1,
            col=1,
        )
    for (name, points), (colour, dash, symbol) in zip(curves.items(), PALETTE, strict=False):
        x, y = ([round(float(v), 4) for v in values] for values in zip(*points, strict=True))
        drawn.add_trace(
            go.Scatter(
                x=x,
                y=y,
                mode="lines+markers",
                name=name,
                line={"color": colour, "dash": dash, "width": 2},
                marker={"symbol": symbol, "size": 6},
            ),
            row=2,
            col=1,
        )
    drawn.add_trace(
        go.Scatter(
            x=[round(here[0], 4)],
            y=[round(here[1], 4)],
            mode="markers",
            name="chosen",
            marker={
                "symbol": "diamond",
                "size": 15,
                "color": DRAFT,
                "line": {"width": 2, "color": INK},
            },
        ),
        row=2,
        col=1,
    )
    drawn.update_xaxes(title={"text": "levels", "standoff": 4}, tickvals=levels, row=1, col=1)
    drawn.update_yaxes(range=[0, 1], row=1, col=1)
    drawn.update_xaxes(title={"text": xaxis, "standoff": 4}, row=2, col=1)
    drawn.update_yaxes(title={"text": yaxis}, row=2, col=1)
    drawn.update_annotations(font_size=13)
    return drawn


def calibration(
    said: Mapping[str, tuple[Sequence[float], Sequence[float]]], bins: int = 10
) -> go.Figure:
    """What was said against what came true; on the diagonal a number is the probability it claims
    to be.

    Args:
        said: name -> what was said of every case, in [0, 1], and what came true: 0, 1 or a
            probability; at most eight. Cases are grouped by what was said.
        bins: how many groups, of equal width; markers grow with their cases.
    Raises:
        ValueError: no name or more than eight, nothing said, not as much said as came true, or
            something said outside [0, 1].
    """
    if not 1 <= len(said) <= len(PALETTE):
        raise ArgumentError(f"between one and {len(PALETTE)} names, got {len(said)}")
    diagonal = go.Scatter(
        x=[0, 1],
        y=[0, 1],
        mode="lines",
        name="as it says",
        line={"color": OTHER, "dash": "dot", "width": 1},
        hoverinfo="skip",
    )
    traces = []
    for (name, (values, came)), (colour, dash, symbol) in zip(said.items(), PALETTE, strict=False):
        if not len(values) or len(values) != len(came) or not all(0 <= v <= 1 for v in values):
            raise ArgumentError(
                f"{name}: as many values in [0, 1] as outcomes, one at least; got {len(values)} "
                f"and {len(came)}"
            )
        groups: dict[int, list[tuple[float, float]]] = {}
        for value, outcome in zip(values, came, strict=True):
            groups.setdefault(min(int(value * bins), bins - 1), []).append(
                (float(value), float(outcome))
            )
        pairs = [
            [fmean(column) for column in zip(*groups[at], strict=True)] for at in sorted(groups)
        ]
        many = [len(groups[at]) for at in sorted(groups)]
        traces.append(
            go.Scatter(
                x=[round(a, 4) for a, _ in pairs],
                y=[round(b, 4) for _, b in pairs],
                mode="lines+markers",
                name=name,
                customdata=many,
                line={"color": colour, "dash": dash, "width": 2},
                marker={
                    "symbol": symbol,
                    "size": [round(5 + 11 * (n / max(many)) ** 0.5, 1) for n in many],
                },
                hovertemplate="says %{x:.2f}, came true %{y:.2f} "
                "(%{customdata} cases)<extra>%{fullData.name}</extra>",
            )
        )
    return figure(
        diagonal,
        *traces,
        title={
            "text": "What was said, and what came true",
            "x": 0,
            "xref": "paper",
            "y": 0.98,
            "yanchor": "top",
        },
        xaxis={"title": {"text": "said"}, "range": [-0.02, 1.02]},
        yaxis={"title": {"text": "came true"}, "range": [-0.02, 1.05]},
        height=460,
        margin={"l": 60, "r": 20, "t": 90, "b": 50},
    )


def kept_roots(
    names: Sequence[str], shares: Mapping[str, Sequence[float]], title: str
) -> go.Figure:
    """Bars of several distributions of the same tokens, side by side.

    Args:
        names: of the tokens.
        shares: name -> a probability for each token, at most eight.
        title: of the figure.
    Raises:
        ValueError: no distribution or more than eight, or one of another length.
    """
    if not 1 <= len(shares) <= len(PALETTE) or any(
        len(row) != len(names) for row in shares.values()
    ):
        raise ArgumentError(
            f"one to {len(PALETTE)} distributions of {len(names)} tokens, got "
            f"{[len(row) for row in shares.values()]}"
        )
    bars = [
        go.Bar(
            x=list(names),
            y=[round(float(v), 4) for v in row],
            name=name,
            marker={"color": colour, "pattern": {"shape": shape}},
            hovertemplate="%{x}: %{y:.3f}<extra>" + name + "</extra>",
        )
        for (name, row), (colour, _, _), shape in zip(
            shares.items(), PALETTE, ("", "/", "x", ".", "\\", "+", "-", "|"), strict=False
        )
    ]
    return figure(
        *bars,
        title={"text": title, "x": 0, "xref": "paper", "y": 0.98, "yanchor": "top"},
        barmode="group",
        xaxis={"title": {"text": "token"}, "type": "category"},
        yaxis={"title": {"text": "probability"}, "rangemode": "tozero"},
        height=400,
        margin={"l": 60, "r": 20, "t": 90, "b": 60},
    )
