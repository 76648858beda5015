"""Speedup over the length of the draft."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import plotly.graph_objects as go

from specwb.errors import ArgumentError
from specwb.figures.style import DRAFT, FIRST, INK, MARK, OTHER, figure

_LOOKS = [
    (FIRST, "solid", "circle"),
    (OTHER, "dot", "square"),
    (MARK, "dashdot", "triangle-up"),
]


def speedup(
    curves: Mapping[str, Sequence[float]],
    measured: Mapping[int, float] | None = None,
    gamma: int | None = None,
) -> go.Figure:
    """Predicted speedups over gamma as lines, measured ones as diamonds; the dashed line at 1 is
    plain decoding.

    Args:
        curves: name -> speedup at gamma = 0, 1, ..; at most three.
        measured: gamma -> speedup.
        gamma: ringed on the first curve.
    Raises:
        ValueError: no curve, more than three, or gamma beyond the first.
    """
    if not 1 <= len(curves) <= len(_LOOKS):
        raise ArgumentError(f"between one and {len(_LOOKS)} curves, got {len(curves)}")
    first = next(iter(curves.values()))
    if gamma is not None and not 0 <= gamma < len(first):
        raise ArgumentError(f"gamma must be 0..{len(first) - 1}, got {gamma}")
    measured = measured or {}
    most = max([len(c) - 1 for c in curves.values()] + list(measured))
    hover = "gamma %{x}: %{y:.2f}x<extra>%{fullData.name}</extra>"
    lines = [
        go.Scatter(
            x=list(range(len(values))),
            y=list(values),
            mode="lines+markers",
            name=name,
            hovertemplate=hover,
            line={"color": colour, "dash": dash, "width": 2},
            marker={"symbol": symbol, "size": 6},
        )
        for (name, values), (colour, dash, symbol) in zip(curves.items(), _LOOKS, strict=False)
    ]
    ring = go.Scatter(
        x=[] if gamma is None else [gamma],
        y=[] if gamma is None else [first[gamma]],
        mode="markers",
        name="chosen gamma",
        hovertemplate=hover,
        marker={"symbol": "circle-open", "size": 18, "color": INK, "line": {"width": 3}},
        showlegend=gamma is not None,
    )
    points = go.Scatter(
        x=list(measured),
        y=list(measured.values()),
        mode="markers",
        name="measured",
        hovertemplate=hover,
        marker={
            "symbol": "diamond",
            "size": 11,
            "color": DRAFT,
            "line": {"width": 1, "color": INK},
        },
        showlegend=bool(measured),
    )
    top = max([1.0, *measured.values(), *(v for c in curves.values() for v in c)])
    return figure(
        *lines,
        ring,
        points,
        title={"text": "Speedup over plain decoding (dashed: 1)", "x": 0, "xref": "paper"},
        shapes=[
            {
                "type": "line",
                "xref": "paper",
                "x0": 0,
                "x1": 1,
                "y0": 1,
                "y1": 1,
                "line": {"color": MARK, "dash": "dash", "width": 2},
            }
        ],
        xaxis={
            "title": {"text": "gamma, draft tokens a round"},
            "range": [-0.4, most + 0.4],
            "dtick": 1 if most <= 16 else 2,
        },
        yaxis={"title": {"text": "speedup"}, "range": [0, 1.15 * top]},
        height=380,
        margin={"l": 60, "r": 20, "t": 80, "b": 50},
    )
