"""Draw a paper's figure with ours: the paper's values have hollow markers and dashes, or hatched
bars; ours are solid."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import wrap
from typing import Any

import plotly.graph_objects as go

from specwb.core.errors import ArgumentError
from specwb.lab.papers.curves import Curve, Seen, curves, note
from specwb.lab.papers.figures import SHOWN, SavedResults
from specwb.lab.papers.paper import Paper
from specwb.show.figures.kit import Panel, whiskers
from specwb.show.figures.kit import draw as laid_out
from specwb.show.palette import PALETTE

WORDS = 100
"""Letters in a line below a figure's title."""


def draw(paper: Paper, name: str, documents: Sequence[SavedResults]) -> go.Figure:
    """Draw a figure of a paper.

    Args:
        paper: the paper.
        name: the figure, a key of ``paper.figures``.
        documents: results, see :func:`specwb.lab.papers.results.shipped`.
    Raises:
        KeyError: the paper has no such figure.
        ArgumentError: the paper has no values of it, and nothing was measured.
    """
    drawing, every = paper.figures[name], curves(paper, name, documents)
    if not every:
        raise ArgumentError(
            f"nothing was measured that is drawn in {drawing['title']!r}; if it is of trained "
            "heads, --train makes them"
        )
    is_bars = drawing.get("bars", False)
    titles = dict.fromkeys(curve.panel for curve in every)
    panels = {title: Panel(SHOWN.get(title, title), drawing.get("x", "")) for title in titles}
    names = list(dict.fromkeys(curve.name for curve in every))
    legend: set[str] = set()
    for curve in every:
        look = PALETTE[names.index(curve.name) % len(PALETTE)]
        for who in ("paper", "here"):
            _add(panels[curve.panel], curve, who, look, legend, is_bars)
    columns = {4: 2, 8: 4}.get(len(panels), min(len(panels), 3))
    boxes: list[Panel | None] = [*panels.values()]
    rows = [boxes[i : i + columns] for i in range(0, len(boxes), columns)]
    rows[-1] += [None] * (columns - len(rows[-1]))
    figure = laid_out(rows, 130 + 390 * len(rows), title=drawing["title"])
    kinds = [title.rpartition(": ")[2] for title in titles]
    for i, kind in enumerate(kinds, 1):  # what is compared across panels has one axis
        first = 1 + kinds.index(kind)
        if first < i:
            figure.layout[f"yaxis{i}"].matches = "y" if first == 1 else f"y{first}"
    text = "<br>".join(wrap(note(paper, name), WORDS))
    ticks = {str(point.x) for curve in every for point in curve.points if is_bars}
    longest, margin = max(map(len, ticks), default=0), figure.layout.margin
    figure.update_layout(
        title_subtitle_text=text,
        margin={"t": margin.t + 25 * (1 + text.count("<br>")), "b": margin.b + 4 * longest},
        legend={"yref": "container", "y": 0, "yanchor": "bottom"},
    )
    if longest * len(ticks) * columns > 110:
        figure.update_xaxes(tickangle=-35)
    return figure


def _add(
    panel: Panel, curve: Curve, who: str, look: tuple[str, str, str], legend: set[str], bars: bool
) -> None:
    """Draw the paper's values of a curve, or ours; its name is in the legend once."""
    is_paper, name = who == "paper", f"{who}, {curve.name}"
    color, _, symbol = look
    if is_paper:
        drawn = [(point.x, Seen(point.paper)) for point in curve.points if point.paper is not None]
    else:
        drawn = [(point.x, point.here) for point in curve.points if point.here is not None]
    if not drawn:
        return
    x, y = [x for x, _ in drawn], [seen.value for _, seen in drawn]
    more: dict[str, Any] = {"legendgroup": name, "showlegend": name not in legend}
    legend.add(name)
    if any(seen.low is not None for _, seen in drawn):
        low = [seen.value if seen.low is None else seen.low for _, seen in drawn]
        high = [seen.value if seen.high is None else seen.high for _, seen in drawn]
        more["error_y"] = whiskers(y, low, high)
    if bars:
        panel.bars(name, x, y, color, "/" if is_paper else "", hollow=is_paper, **more)
    else:
        line = ("dash", f"{symbol}-open") if is_paper else ("solid", symbol)
        panel.line(name, x, y, (color, *line), **more)
