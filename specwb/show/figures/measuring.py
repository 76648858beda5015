"""Measuring: what several ways to measure say of one truth, and tokens against what they cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from textwrap import wrap
from typing import Any

import numpy as np
import plotly.graph_objects as go

from specwb.show.figures.kit import Panel, axis, draw
from specwb.show.palette import FIRST, INK, MARK, OTHER

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
    """
    rng, diamond = np.random.default_rng(0), (FIRST, "", "diamond")
    one = Panel("", axis(xaxis, zeroline=False), axis("", len(found) - 0.55, -0.55))
    one.y |= {"tickvals": list(range(len(found))), "ticktext": list(found), "showgrid": False}
    one.y |= {"zeroline": False}
    for row, values in enumerate(found.values()):
        x = np.asarray(values, float)
        low, middle, high = np.quantile(x, [(1 - MIDDLE) / 2, 0.5, (1 + MIDDLE) / 2])
        shown = x[:400]  # a cloud says no more with more points
        y = np.round(row - rng.uniform(0.1, 0.42, len(shown)), 2)
        cloud = {"size": 4, "marker_opacity": 0.45}
        one.points("", np.round(shown, 3), y, (FIRST, "", "circle"), **cloud)
        hover = f"{MIDDLE:.0%} of the estimates lie up to %{{x:.2f}}"
        one.line("", [low, high], [row, row], (INK, "solid", ""), 0, 6, hover=hover)
        words: dict[str, Any] = {"text": [f"{low:.2f} to {high:.2f}"]}
        words |= {
            "textposition": "bottom center",
            "textfont": {"color": INK},
            "cliponaxis": False,
            "mode": "markers+text",
        }
        one.points("", [middle], [row], diamond, size=12, hover="median %{x:.2f}", **words)
    return draw(one.rule(x=truth), 110 + 90 * len(found))


def bars(
    values: Mapping[str, Mapping[str, float]], yaxis: str, line: float | None = None
) -> go.Figure:
    """Groups of bars, each with its value above it; series differ in colour and hatching.

    Args:
        values: series -> group -> value; a series may lack a group.
        yaxis: what the values are.
        line: a dashed line at this value.
    """
    groups = list(dict.fromkeys(group for by_group in values.values() for group in by_group))
    labels = ["<br>".join(wrap(group.replace("_", " "), LABEL)) for group in groups]
    one = Panel("", axis(tickvals=groups, ticktext=labels, tickangle=0))
    one.y = axis(yaxis, rangemode="tozero")
    heights = {name: [by_group.get(g) for g in groups] for name, by_group in values.items()}
    series = {name: (groups, row) for name, row in heights.items()}
    one.groups(series, written=True, textposition="outside", cliponaxis=False)
    if line is not None:
        one.rule(y=line, layer="below")
    return draw(one, 360 if len(values) > 1 else 320, bargap=0.2 if len(groups) > 1 else 0.6)


def price_and_tokens(points: Mapping[str, tuple[float, float]]) -> go.Figure:
    """Methods by what a decoding step costs and what it writes.

    Rays from the origin are equal speedups, tokens per step over plain steps per step; below the
    ray of 1, dashed, a method is slower than plain decoding.

    Args:
        points: name -> plain steps that one of its steps takes, tokens that it writes; both > 0.
    """
    right, top = (1.15 * max(pair[i] for pair in points.values()) for i in (0, 1))
    one = Panel("", axis("what a step costs, in plain steps", 0, 1.08 * right))
    one.y = axis("tokens per step", 0, 1.08 * top)
    for speed in (0.5, 1.0, 1.5, 2.0, 3.0):
        x = min(right, top / speed)
        look = (MARK, "dash", 2) if speed == 1.0 else (OTHER, "solid", 1)
        one.rule((0, x), (0, speed * x), look, layer="below")
        corner = {"xanchor": "left", "yanchor": "bottom", "font": {"color": INK, "size": 12}}
        one.note(x, speed * x, f"{speed:g}x", **corner)
    pairs = {name: ([cost], [tokens]) for name, (cost, tokens) in points.items()}
    hover = "%{y:.2f} tokens for %{x:.2f} plain steps"
    return draw(one.lines(pairs, size=13, width=0, hover=hover), 430, showlegend=True)
