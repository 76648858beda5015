"""Layers side by side: which, what that changes in every layer, a cache that drifts, a round on
several devices, what it all may bring.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from specwb.analysis.layer_parallel import Span
from specwb.errors import ArgumentError
from specwb.figures.style import DARK, DRAFT, FAINT, FIRST, INK, MARK, OTHER, PALETTE, figure

Groups = Sequence[Sequence[int]]
BELOW = {"orientation": "h", "y": -0.2, "yanchor": "top", "x": 0, "traceorder": "normal"}
# what a device does: name, colour, hatching
KINDS = {
    "attention": (FIRST, ""),
    "mlp": (DRAFT, "/"),
    "exchange": (MARK, "x"),
    "head": ("#56B4E9", "."),
    "verify": (OTHER, "\\"),
}

HATCHING = {"fgcolor": DARK, "fgopacity": 0.5, "size": 5, "fillmode": "overlay"}


def _title(text: str) -> dict:
    return {"text": text, "x": 0, "xref": "paper", "y": 0.98, "yanchor": "top"}


def grouped(rows: Mapping[str, Groups], title: str) -> go.Figure:
    """Which layers run side by side: a row for each way, its groups as boxes with the numbers of
    their layers.

    Args:
        rows: name -> groups of consecutive layers, all layers of the same model; the first on top.
        title: of the figure.
    Raises:
        ValueError: nothing, or ways of different numbers of layers.
    """
    counts = {sum(map(len, groups)) for groups in rows.values()}
    if len(counts) != 1:
        raise ArgumentError(
            f"every way has the same layers, one way at least; got {sorted(counts)}"
        )
    boxes: dict[bool, list[tuple[str, Sequence[int]]]] = {True: [], False: []}
    for name, groups in rows.items():
        for group in groups:
            boxes[len(group) > 1].append((name, group))
    looks = {True: ("side by side", FIRST, "", "white"), False: ("alone", FAINT, "/", INK)}
    bars = [
        go.Bar(
            y=[name for name, _ in mine],
            x=[len(group) - 0.12 for _, group in mine],
            base=[group[0] - 0.44 for _, group in mine],
            orientation="h",
            name=looks[many][0],
            width=0.7,
            text=[" ".join(map(str, group)) for _, group in mine],
            textposition="inside",
            insidetextanchor="middle",
            textangle=0,
            textfont={"color": looks[many][3]},
            hovertemplate="%{y}: layers %{text}<extra></extra>",
            marker={
                "color": looks[many][1],
                "line": {"color": INK, "width": 1},
                "pattern": {"shape": looks[many][2], "fgcolor": FAINT},
            },
        )
        for many, mine in boxes.items()
    ]
    return figure(
        *bars,
        title=_title(title),
        barmode="overlay",
        xaxis={
            "title": {"text": "layer"},
            "range": [-0.6, counts.pop() - 0.4],
            "showgrid": False,
            "zeroline": False,
        },
        yaxis={
            "type": "category",
            "categoryorder": "array",
            "categoryarray": [*rows][::-1],
            "showgrid": False,
        },
        height=130 + 32 * len(rows),
        margin={"l": 120, "r": 20, "t": 84, "b": 45},
    )


def by_layer(
    curves: Mapping[str, Sequence[float]],
    groups: Groups,
    title: str,
    yaxis: str,
    least: float = 0.0,
) -> go.Figure:
    """Curves over layers 0, 1, ..; layers that run side by side have a common grey band behind
    them.

    Args:
        curves: name -> a value a layer, at most eight; None where there is none.
        groups: of layers.
        least: the axis goes at least down to it.
    Raises:
        ValueError: no curve, or more than eight.
    """
    if not 1 <= len(curves) <= len(PALETTE):
        raise ArgumentError(f"between one and {len(PALETTE)} curves, got {len(curves)}")
    drawn = [
        go.Scatter(
            x=list(range(len(values))),
            y=[None if v is None else round(v, 4) for v in values],
            mode="lines+markers",
            name=name,
            line={"color": colour, "dash": dash, "width": 2},
            marker={"symbol": symbol, "size": 8},
            hovertemplate="layer %{x}: %{y:.3f}<extra>%{fullData.name}</extra>",
        )
        for (name, values), (colour, dash, symbol) in zip(curves.items(), PALETTE, strict=False)
    ]
    bands = [
        {
            "type": "rect",
            "xref": "x",
            "yref": "paper",
            "x0": group[0] - 0.4,
            "x1": group[-1] + 0.4,
            "y0": 0,
            "y1": 1,
            "fillcolor": FAINT,
            "line": {"width": 0},
            "layer": "below",
        }
        for group in groups
        if len(group) > 1
    ]
    low = min(least, *(v for values in curves.values() for v in values if v is not None))
    return figure(
        *drawn,
        title=_title(title),
        shapes=bands,
        xaxis={"title": {"text": "layer"}, "dtick": 1, "showgrid": False, "zeroline": False},
        yaxis={"title": {"text": yaxis}, "range": [low - 0.03, 1.03], "zeroline": False},
        height=400,
        margin={"l": 60, "r": 20, "t": 100, "b": 50},
    )


def cache_drift(
    errors: Mapping[str, Sequence[float]], layers: Mapping[str, Sequence[float]]
) -> go.Figure:
    """How far the entries of a draft's cache are from exact ones: by round (left), and by layer in
    one of the rounds (right).

    Args:
        errors: name -> relative error in round 1, 2, ..;
        layers: name -> relative error of layer 0, 1, ..
    Raises:
        ValueError: nothing to draw, or more than eight curves on a side.
    """
    if not 1 <= len(errors) <= len(PALETTE) or not 1 <= len(layers) <= len(PALETTE):
        raise ArgumentError(
            f"between one and {len(PALETTE)} curves on each side, got {len(errors)} and "
            f"{len(layers)}"
        )
    drawn = make_subplots(
        1,
        2,
        column_widths=[0.55, 0.45],
        horizontal_spacing=0.14,
        subplot_titles=["by round", "by layer, last round"],
        figure=figure(
            height=420, margin={"l": 70, "r": 20, "t": 40, "b": 110}, showlegend=True, legend=BELOW
        ),
    )
    colours = dict(zip(dict.fromkeys([*errors, *layers]), PALETTE, strict=False))
    for col, (curves, first) in enumerate(((errors, 1), (layers, 0)), 1):
        for name, values in curves.items():
            colour, dash, symbol = colours[name]
            drawn.add_trace(
                go.Scatter(
                    x=list(range(first, first + len(values))),
                    y=[float(f"{v:.4g}") for v in values],
                    mode="lines+markers",
                    name=name,
                    showlegend=col == 1 or name not in errors,
                    line={"color": colour, "dash": dash, "width": 2},
                    marker={"symbol": symbol, "size": 7},
                    hovertemplate="%{x}: %{y:.2g}<extra>%{fullData.name}</extra>",
                ),
                row=1,
                col=col,
            )
    drawn.update_yaxes(title={"text": "relative error"}, rangemode="tozero", row=1, col=1)
    drawn.update_yaxes(rangemode="tozero", row=1, col=2)
    drawn.update_xaxes(
        title={"text": "round"},
        dtick=1 if len(next(iter(errors.values()))) <= 20 else 5,
        showgrid=False,
        zeroline=False,
        row=1,
        col=1,
    )
    drawn.update_xaxes(
        title={"text": "layer"}, dtick=1, showgrid=False, zeroline=False, row=1, col=2
    )
    drawn.update_annotations(font_size=13)
    return drawn


def round_on_devices(spans: Sequence[Span], depth: int, title: str, unit: str = "ms") -> go.Figure:
    """One round as a timeline, a bar for each device: what it does and when; a gap is waiting.
    Dotted lines part the draft's steps. Of a verification that takes long its beginning is shown.

    Args:
        spans: of :func:`specwb.analysis.layer_parallel.timeline`.
        depth: draft tokens; the step after them verifies.
        unit: of the times.
    Raises:
        ValueError: no spans.
    """
    if not spans:
        raise ArgumentError("there must be at least one span")
    devices, end = 1 + max(s.device for s in spans), max(s.stop for s in spans)
    names = [f"device {d}" for d in range(devices)]
    bars = []
    for kind, (colour, shape) in KINDS.items():
        mine = [s for s in spans if s.kind == kind]
        bars.append(
            go.Bar(
                y=[names[s.device] for s in mine],
                x=[round(s.stop - s.start, 6) for s in mine],
                base=[round(s.start, 6) for s in mine],
                orientation="h",
                name=kind,
                width=0.7,
                customdata=["" if s.layer is None else f", layer {s.layer}" for s in mine],
                marker={
                    "color": colour,
                    "line": {"width": 0},
                    "pattern": {**HATCHING, "shape": shape},
                },
                hovertemplate="%{y}: "
                + kind
                + "%{customdata}, from %{base:.3f} for %{x:.3f} "
                + unit
                + "<extra></extra>",
            )
        )
    steps = {
        step: min(s.start for s in spans if s.step == step)
        for step in sorted({s.step for s in spans})
    }
    drafted = steps.get(depth, end)
    lines = [
        {
            "type": "line",
            "xref": "x",
            "yref": "paper",
            "x0": x,
            "x1": x,
            "y0": 0,
            "y1": 1,
            "line": {"color": INK, "dash": "dot", "width": 1},
        }
        for x in [*steps.values()][1:]
    ]
    notes = [
        {
            "x": x,
            "y": 1,
            "yref": "paper",
            "yanchor": "bottom",
            "xanchor": "left",
            "showarrow": False,
            "font": {"size": 11},
            "text": f"verify, {end - drafted:.1f} {unit}" if step == depth else f"step {step + 1}",
        }
        for step, x in steps.items()
    ]
    return figure(
        *bars,
        title=_title(title),
        barmode="overlay",
        shapes=lines,
        annotations=notes,
        legend=BELOW | {"y": -60 / (30 + 30 * devices)},
        showlegend=True,
        xaxis={
            "title": {"text": unit, "standoff": 4},
            "range": [0, min(1.01 * end, 1.4 * drafted)],
            "showgrid": False,
            "zeroline": False,
        },
        yaxis={
            "type": "category",
            "categoryorder": "array",
            "categoryarray": names[::-1],
            "showgrid": False,
        },
        height=205 + 30 * devices,
        margin={"l": 75, "r": 20, "t": 75, "b": 100},
    )


def stage_and_round(
    shares: Sequence[float],
    stages: Mapping[str, Sequence[float]],
    points: Mapping[str, tuple[float, float]],
    published: float,
    costs: Sequence[float],
    tokens: Mapping[str, Sequence[float]],
    most: int,
    title: str,
) -> go.Figure:
    """The cost model: what the drafting stage gains from attention's share of a layer (left),
    tokens a round that a speedup needs (right).

    Args:
        shares: of a layer's time that attention takes.
        stages: name -> the stage's speedup at each, at most three.
        points: name -> (share, speedup of the stage), at most four.
        published: a stage's speedup, a dashed line.
        costs: of a draft step, in plain steps.
        tokens: name -> tau needed at each, at most three.
        most: tokens a round can have.
        title: of the panel on the right, what is needed.
    Raises:
        ValueError: curves of other lengths, or too many of something.
    """
    lengths = (
        {len(curve) for curve in stages.values()} | {len(shares)},
        {len(curve) for curve in tokens.values()} | {len(costs)},
    )
    if (
        any(len(each) != 1 for each in lengths)
        or not 1 <= len(stages) <= 3
        or not 1 <= len(tokens) <= 3
        or len(points) > 4
    ):
        raise ArgumentError(
            "as many values as shares or costs, at most three curves and four points; got "
            f"{[*stages]}, {[*tokens]}, {[*points]}"
        )
    drawn = make_subplots(
        1,
        2,
        column_widths=[0.5, 0.5],
        horizontal_spacing=0.12,
        subplot_titles=["speedup of the drafting stage", title],
        figure=figure(
            height=460, margin={"l": 55, "r": 20, "t": 40, "b": 130}, showlegend=True, legend=BELOW
        ),
    )
    for name, curve, (colour, dash, _) in (
        (*each, look) for each, look in zip(stages.items(), PALETTE, strict=False)
    ):
        line = {"color": colour, "dash": dash, "width": 3}
        drawn.add_trace(
            go.Scatter(
                x=list(shares), y=[round(v, 4) for v in curve], mode="lines", name=name, line=line
            ),
            row=1,
            col=1,
        )
    symbols = ("circle", "diamond", "square", "star")
    for (name, (x, y)), symbol in zip(points.items(), symbols, strict=False):
        marker = {
            "symbol": symbol,
            "size": 12,
            "color": MARK if symbol == "circle" else INK,
            "line": {"color": "white", "width": 1},
        }
        drawn.add_trace(
            go.Scatter(x=[round(x, 4)], y=[round(y, 4)], mode="markers", name=name, marker=marker),
            row=1,
            col=1,
        )
    for (name, curve), (colour, dash, _) in zip(tokens.items(), PALETTE[3:], strict=False):
        line = {"color": colour, "dash": dash, "width": 3}
        drawn.add_trace(
            go.Scatter(
                x=list(costs), y=[round(v, 4) for v in curve], mode="lines", name=name, line=line
            ),
            row=1,
            col=2,
        )
    for col, y, colour in ((1, published, MARK), (2, most, OTHER)):
        line = {"color": colour, "dash": "dash", "width": 1.5}
        drawn.add_shape(
            type="line", x0=0, x1=1, xref="x domain", y0=y, y1=y, line=line, row=1, col=col
        )
    above = {
        "x": 0.02,
        "xanchor": "left",
        "y": published,
        "yanchor": "bottom",
        "text": f"{published:g}x, the paper's best",
    }
    below = {
        "x": 0.98,
        "xanchor": "right",
        "y": most,
        "yanchor": "top",
        "text": f"{most}: everything drafted is kept",
    }
    for col, note in ((1, above), (2, below)):
        drawn.add_annotation(**note, xref="x domain", showarrow=False, row=1, col=col)
    drawn.update_xaxes(
        title={"text": "attention's share of a layer's time", "standoff": 4},
        range=[0, 1.02],
        zeroline=False,
        row=1,
        col=1,
    )
    drawn.update_xaxes(
        title={"text": "draft step / plain step", "standoff": 4},
        rangemode="tozero",
        zeroline=False,
        row=1,
        col=2,
    )
    drawn.update_yaxes(zeroline=False, row=1, col=1)
    drawn.update_yaxes(rangemode="tozero", zeroline=False, row=1, col=2)
    drawn.update_annotations(font_size=13)
    return drawn
