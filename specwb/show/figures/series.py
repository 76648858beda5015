"""Named series: lines over one setting, groups of bars, estimates of one number; methods side by
side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import cycle
from textwrap import wrap
from typing import TYPE_CHECKING, Any

import plotly.graph_objects as go

from specwb.show.figures.kit import BY_NAME, HATCHES, Panel, axis, draw, whiskers
from specwb.show.palette import DRAFT, FIRST, INK, OTHER, looks

if TYPE_CHECKING:
    import pandas as pd

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
    panel = Panel("", axis(xaxis, zeroline=False), BY_NAME)
    for name, values in ways.items():
        look: dict[str, Any] = {"marker": {"color": FIRST, "size": 4}, "line": {"color": INK}}
        look |= {"fillcolor": "rgba(0,0,0,0)", "boxpoints": "all", "jitter": 0.4}
        y = [name] * len(values)
        panel.traces.append(go.Box(x=list(values), y=y, orientation="h", showlegend=False, **look))
    return draw(panel.rule(x=truth), 110 + 90 * len(ways))


def comparison(frame: pd.DataFrame) -> go.Figure:
    """Speedup over plain decoding of every row of :func:`specwb.compare`: median, with the
    quartiles as error bars.

    The denominator of the speedups is named in the title where the frame says it
    (``attrs["reference"]``). The transformers library's rows (``hf_``) are hatched; a lossy method
    says so next to its name.

    Args:
        frame: columns method, lossless, tau, tokens_per_second, speedup, speedup_low, speedup_high.
    """
    over = frame.attrs.get("reference", {}).get("method", "plain decoding")
    names = [m if ok else f"{m} (LOSSY)" for m, ok in zip(frame.method, frame.lossless)]
    library = [str(method).rpartition(" ")[2].startswith("hf_") for method in frame.method]
    reach = 1.5 * max([1.0, *frame.speedup_high])
    panel = Panel(f"Speedup over {over} (dashed: 1)", y=BY_NAME)
    panel.x = axis(f"tokens/s over {over}'s, same prompts", 0, reach, zeroline=True)
    ends = whiskers(frame.speedup, frame.speedup_low, frame.speedup_high)
    panel.bars(
        "speedup, median and quartiles",
        frame.speedup,
        names,
        [DRAFT if hf else FIRST for hf in library],
        ["/" if hf else "" for hf in library],
        orientation="h",
        error_x={**ends, "color": INK},
    )
    for name, speed, tau in zip(names, frame.speedup, frame.tau):
        words = f"{speed:.2f}x, tau {tau:.2f}"
        panel.note(1, name, words, xref="x domain", xanchor="right")
    return draw(panel.rule(x=1), 140 + 44 * max(1, len(names)))


def tried(taus: Mapping[str, Sequence[float]], speeds: Mapping[str, Sequence[float]]) -> go.Figure:
    """Settings that were tried, the last one on top: tokens per step (left) and measured speedup
    (right), each with the ends of its interval; a dashed line is plain decoding.

    Args:
        taus, speeds: settings -> value and the ends of its interval.
    """
    names = list(reversed(list(taus)))
    lines = {name: wrap(name.replace(",", ", "), 30) for name in names}
    rows = {name: "<br>".join(part.replace(", ", ",") for part in lines[name]) for name in names}
    left, right = Panel("", y=BY_NAME), Panel("", y={**BY_NAME, "showticklabels": False})
    titles = "tau, tokens per step", "speedup (measured)"
    for panel, values, title in zip((left, right), (taus, speeds), titles, strict=True):
        panel.x = axis(title, 0, 1.08 * max([1.0, *(v[2] for v in values.values())]))
        panel.y |= {"categoryorder": "array", "categoryarray": list(rows.values())}
        panel.rule(x=1, look=(OTHER, "dash", 2))
        for name in names:
            middle, low, high = values[name]
            look = (FIRST, "", "circle") if name == names[0] else (OTHER, "", "circle-open")
            ends = whiskers([middle], [low], [high])
            panel.points("", [middle], [rows[name]], look, size=11, error_x=ends)
    return draw([[left, right]], 120 + 46 * len(rows), gaps=(0.06, 0))
