"""Named series: lines over one setting, groups of bars, estimates of one number."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import cycle
from textwrap import wrap
from typing import Any

import plotly.graph_objects as go

from specwb.show.figures.kit import HATCHES, Panel, axis, draw
from specwb.show.palette import FIRST, INK, looks

LABEL = 14  # letters in a line below a group of bars


def by_setting(
    curves: Mapping[str, Mapping[Any, Any]],
    title: str,
    yaxis: str,
    xaxis: str,
    points: Mapping[str, Mapping[Any, Any]] | None = None,
) -> go.Figure:
    """Lines over the values of one setting, with points next to them.

    Args:
        curves: name -> value of the setting -> value, None where there is none.
        title, yaxis, xaxis: of the figure, of the values and of the setting.
        points: the same for markers without a line.
    """
    points = points or {}
    panel = Panel(title, xaxis, axis(yaxis, rangemode="tozero"))
    look = looks([*curves, *points])
    for name, values in curves.items():
        size = 0 if points else 7
        panel.line(name, list(values), values.values(), look[name], size=size)
    for name, values in points.items():
        panel.points(name, list(values), values.values(), look[name])
    return draw(panel, 400)


def bars(
    values: Mapping[str, Mapping[str, float]],
    yaxis: str,
    line: float | None = None,
    title: str = "",
) -> go.Figure:
    """Groups of bars, each with its value above it; series differ in colour and hatching.

    Args:
        values: series -> group -> value; a series may lack a group.
        yaxis: title of the values.
        line: a dashed line at this value.
        title: of the figure.
    """
    groups = list(dict.fromkeys(group for by_group in values.values() for group in by_group))
    labels = ["<br>".join(wrap(group.replace("_", " "), LABEL)) for group in groups]
    panel = Panel(title, axis(tickvals=groups, ticktext=labels, tickangle=0, type="category"))
    panel.y = axis(yaxis, rangemode="tozero")
    above = {"texttemplate": "%{y:.2f}", "textposition": "outside", "cliponaxis": False}
    rows = zip(values.items(), looks(values).values(), cycle(HATCHES[:4]))
    for (name, row), (colour, _, _), hatch in rows:
        heights = [row.get(group) for group in groups]
        panel.bars(name, groups, heights, colour, hatch, hover="%{x}: %{y:.3f}", **above)
    if line is not None:
        panel.rule(y=line, layer="below")
    return draw(panel, 340, bargap=0.2 if len(groups) > 1 else 0.6)


def estimates(ways: Mapping[str, Sequence[float]], truth: float, xaxis: str) -> go.Figure:
    """Estimates of one number by several ways: a box for each, with its points; the dashed line is
    the truth.

    Args:
        ways: name -> its estimates.
        truth: the number that is estimated.
        xaxis: its name.
    """
    panel = Panel("", axis(xaxis, zeroline=False), {"autorange": "reversed", "type": "category"})
    for name, values in ways.items():
        look: dict[str, Any] = {"marker": {"color": FIRST, "size": 4}, "line": {"color": INK}}
        look |= {"fillcolor": "rgba(0,0,0,0)", "boxpoints": "all", "jitter": 0.4}
        y = [name] * len(values)
        panel.traces.append(go.Box(x=list(values), y=y, orientation="h", showlegend=False, **look))
    return draw(panel.rule(x=truth), 110 + 90 * len(ways))
