"""Measuring: what several ways to measure say of one truth, and tokens against what they cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from textwrap import wrap

import numpy as np
import plotly.graph_objects as go

from specwb.errors import ArgumentError
from specwb.figures.style import FIRST, INK, MARK, OTHER, PALETTE, figure

HATCHES = ("", "/", ".", "x")
LABEL = 14  # letters in a line below a group of bars
MIDDLE = 0.9
"""The share of the estimates that a thick line spans."""


def estimates(found: Mapping[str, Sequence[float]], truth: float, xaxis: str) -> go.Figure:
    """Estimates of one number by several ways: for each a cloud of them, below it a thick line over
    the middle ``MIDDLE`` and a mark at their median. A dashed line is the truth.

    Args:
        found: way -> its estimates.
        truth: what is estimated.
        xaxis: what it is.
    Raises:
        ValueError: there is no way, or one without estimates.
    """
    if not found or not all(len(values) for values in found.values()):
        raise ArgumentError("estimates need at least one way, and each at least one estimate")
    rng = np.random.default_rng(0)
    drawn: list[go.Scatter] = []
    for row, values in enumerate(found.values()):
        x = np.asarray(values, float)
        low, middle, high = np.quantile(x, [(1 - MIDDLE) / 2, 0.5, (1 + MIDDLE) / 2])
        shown = x[:400]  # a cloud says no more with more points
        drawn += [
            go.Scatter(
                x=np.round(shown, 3).tolist(),
                y=np.round(row - rng.uniform(0.1, 0.42, len(shown)), 2).tolist(),
                mode="markers",
                marker={"size": 4, "color": FIRST, "opacity": 0.45},
                hoverinfo="skip",
            ),
            go.Scatter(
                x=[low, high],
                y=[row, row],
                mode="lines",
                line={"color": INK, "width": 6},
                hovertemplate=f"{MIDDLE:.0%} of the estimates lie up to %{{x:.2f}}<extra></extra>",
            ),
            go.Scatter(
                x=[middle],
                y=[row],
                mode="markers+text",
                marker={"symbol": "diamond", "size": 12, "color": FIRST},
                text=[f"{low:.2f} to {high:.2f}"],
                textposition="bottom center",
                textfont={"color": INK},
                hovertemplate="median %{x:.2f}<extra></extra>",
                cliponaxis=False,
            ),
        ]
    return figure(
        *drawn,
        shapes=[_line({"x0": truth, "x1": truth, "yref": "paper", "y0": 0, "y1": 1})],
        xaxis={"title": {"text": xaxis}, "zeroline": False},
        yaxis={
            "tickvals": list(range(len(found))),
            "ticktext": list(found),
            "range": [len(found) - 0.55, -0.55],
            "showgrid": False,
            "zeroline": False,
            "automargin": True,
        },
        height=110 + 90 * len(found),
        margin={"l": 60, "r": 20, "t": 20, "b": 50},
        showlegend=False,
    )


def bars(
    values: Mapping[str, Mapping[str, float]], yaxis: str, line: float | None = None
) -> go.Figure:
    """Groups of bars, each with its value above it; series differ in colour and hatching.

    Args:
        values: series -> group -> value; a series may lack a group; at most four series.
        yaxis: what the values are.
        line: a dashed line at this value.
    Raises:
        ValueError: no series, or more than four.
    """
    if not 1 <= len(values) <= len(HATCHES):
        raise ArgumentError(f"between one and {len(HATCHES)} series of bars, got {len(values)}")
    groups = list(dict.fromkeys(group for by_group in values.values() for group in by_group))
    drawn = [
        go.Bar(
            x=groups,
            y=[round(float(by_group[g]), 4) if g in by_group else None for g in groups],
            name=name,
            text=[f"{float(by_group[g]):.2f}" if g in by_group else "" for g in groups],
            textposition="outside",
            cliponaxis=False,
            marker={
                "color": colour,
                "pattern": {"shape": hatch, "fgcolor": "white", "fillmode": "overlay"},
            },
        )
        for (name, by_group), (colour, _, _), hatch in zip(
            values.items(), PALETTE, HATCHES, strict=False
        )
    ]
    across = {"xref": "paper", "x0": 0, "x1": 1, "y0": line, "y1": line, "layer": "below"}
    labels = ["<br>".join(wrap(group.replace("_", " "), LABEL)) for group in groups]
    return figure(
        *drawn,
        shapes=[] if line is None else [_line(across)],
        yaxis={"title": {"text": yaxis}, "rangemode": "tozero"},
        xaxis={"automargin": True, "tickvals": groups, "ticktext": labels, "tickangle": 0},
        bargap=0.2 if len(groups) > 1 else 0.6,
        height=360 if len(values) > 1 else 320,
        margin={"l": 60, "r": 20, "t": 60 if len(values) > 1 else 30, "b": 40},
        showlegend=len(values) > 1,
    )


def price_and_tokens(points: Mapping[str, tuple[float, float]]) -> go.Figure:
    """Methods by what a decoding step costs and what it writes.

    Rays from the origin are equal speedups, tokens a step over plain steps a step; below the ray of
    1, dashed, a method is slower than plain decoding.

    Args:
        points: name -> plain steps that one of its steps takes, tokens that it writes.
    Raises:
        ValueError: no method, more than eight, or a number <= 0.
    """
    if not 1 <= len(points) <= len(PALETTE):
        raise ArgumentError(f"between one and {len(PALETTE)} methods, got {len(points)}")
    if any(not (cost > 0 and tokens > 0) for cost, tokens in points.values()):
        raise ArgumentError(f"costs and tokens must be > 0, got {dict(points)}")
    right = 1.15 * max(cost for cost, _ in points.values())
    top = 1.15 * max(tokens for _, tokens in points.values())
    rays, words = [], []
    for speed in (0.5, 1.0, 1.5, 2.0, 3.0):
        x = min(right, top / speed)
        rays.append(
            _line({"x0": 0, "y0": 0, "x1": x, "y1": speed * x}, main=speed == 1.0)
            | {"layer": "below"}
        )
        words.append(
            {"x": x, "y": speed * x, "text": f"{speed:g}x", "showarrow": False}
            | {"xanchor": "left", "yanchor": "bottom", "font": {"color": INK, "size": 12}}
        )
    drawn = [
        go.Scatter(
            x=[cost],
            y=[tokens],
            mode="markers",
            name=name,
            marker={"size": 13, "color": colour, "symbol": symbol},
            hovertemplate="%{y:.2f} tokens for %{x:.2f} plain steps<extra>%{fullData.name}</extra>",
        )
        for (name, (cost, tokens)), (colour, _, symbol) in zip(
            points.items(), PALETTE, strict=False
        )
    ]
    return figure(
        *drawn,
        shapes=rays,
        annotations=words,
        xaxis={"title": {"text": "what a step costs, in plain steps"}, "range": [0, 1.08 * right]},
        yaxis={"title": {"text": "tokens a step"}, "range": [0, 1.08 * top]},
        height=430,
        margin={"l": 60, "r": 20, "t": 70, "b": 50},
    )


def _line(where: dict, main: bool = True) -> dict:
    look = {"color": MARK, "dash": "dash", "width": 2} if main else {"color": OTHER, "width": 1}
    return {"type": "line", "line": look, **where}
