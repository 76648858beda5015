"""Draw a paper's figure with ours: interactive with plotly, as a picture with matplotlib.

The paper's values have hollow markers and dashes, or hatched bars; ours are solid. Both are drawn
from the same :class:`specwb.lab.studies.curves.Picture`.
"""

from __future__ import annotations

import importlib.util
from io import BytesIO
from textwrap import wrap
from typing import Any

from specwb.core.errors import ArgumentError
from specwb.lab.studies.curves import Curve, Picture, series
from specwb.lab.studies.grid import SHOWN

WHO = ("paper", "here")
WORDS = 100
"""Letters in a line below a figure's title."""
MISSING = "pictures are drawn by matplotlib, which the extra 'train' brings"


def _in_row(panels: int) -> int:
    """How many of so many panels are in a row, so that rows are full where they can be."""
    return {4: 2, 8: 4}.get(panels, min(panels, 3))


def _parts(picture: Picture, document: dict[str, Any]) -> tuple[list[Curve], list[str], list[str]]:
    """The curves of a figure, its panels and the names of its curves."""
    curves = list(picture.curves(document))
    if not curves:
        raise ArgumentError(
            f"nothing was measured that is drawn in {picture.title!r}; if it is of trained heads, "
            "--train makes them"
        )
    panels, names = ([getattr(c, part) for c in curves] for part in ("panel", "name"))
    return curves, list(dict.fromkeys(panels)), list(dict.fromkeys(names))


def draw(picture: Picture, document: dict[str, Any]) -> Any:
    """Draw an interactive figure."""
    from specwb.show.figures.kit import Panel, whiskers
    from specwb.show.figures.kit import draw as drawn
    from specwb.show.palette import PALETTE

    curves, panels, names = _parts(picture, document)
    boxes = {panel: Panel(SHOWN.get(panel, panel), picture.x) for panel in panels}
    shown: set[str] = set()
    for curve in curves:
        color, _, symbol = PALETTE[names.index(curve.name) % len(PALETTE)]
        for who, points in zip(WHO, series(curve, document), strict=True):
            if not points.x:
                continue
            is_paper, name = who == "paper", f"{who}, {curve.name}"
            more = {"legendgroup": name, "showlegend": name not in shown}
            shown.add(name)
            if any(end is not None for end in points.low):
                more["error_y"] = whiskers(points.y, *points.ends())
            if picture.bars:
                hatch = "/" if is_paper else ""
                boxes[curve.panel].bars(
                    name, points.x, points.y, color, hatch, hollow=is_paper, **more
                )
            else:
                look = color, *(("dash", f"{symbol}-open") if is_paper else ("solid", symbol))
                boxes[curve.panel].line(name, points.x, points.y, look, **more)
    every: list[Panel | None] = [*boxes.values()]
    columns = _in_row(len(every))
    rows = [every[i : i + columns] for i in range(0, len(every), columns)]
    rows[-1] += [None] * (columns - len(rows[-1]))
    ticks = {str(p.x) for c in curves for p in c.points if picture.bars}
    longest = max(map(len, ticks), default=0)
    figure = drawn(rows, 130 + 390 * len(rows), title=picture.title)
    note = "<br>".join(wrap(picture.note, WORDS))
    margin = figure.layout.margin
    figure.update_layout(
        title_subtitle_text=note,
        margin={"t": margin.t + 25 * (1 + note.count("<br>")), "b": margin.b + 4 * longest},
        legend={"yref": "container", "y": 0, "yanchor": "bottom"},
    )
    if longest * len(ticks) * columns > 110:
        figure.update_xaxes(tickangle=-35)
    return figure


def can_picture() -> bool:
    """Whether pictures can be drawn here."""
    return importlib.util.find_spec("matplotlib") is not None


def picture_of(picture: Picture, document: dict[str, Any], kind: str = "png") -> bytes:
    """Draw a picture that needs no browser."""
    if not can_picture():
        raise ArgumentError(MISSING)
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    from specwb.show.palette import PALETTE

    marks = {"square": "s", "diamond": "D", "triangle-up": "^", "x": "X", "star": "*"}
    marks |= {"triangle-down": "v", "cross": "P", "circle": "o"}
    curves, panels, names = _parts(picture, document)
    columns = _in_row(len(panels))
    rows = -(-len(panels) // columns)
    figure = Figure(figsize=(max(2, columns) * 4.4, 4.4 * rows), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False).ravel()
    for axis in axes[len(panels) :]:
        axis.remove()
    handles: dict[str, Any] = {}
    for axis, panel in zip(axes, panels, strict=False):
        inside = [curve for curve in curves if curve.panel == panel]
        ticks = list(dict.fromkeys(str(p.x) for c in inside for p in c.points))
        drawn = [
            (curve, who, points)
            for curve in inside
            for who, points in zip(WHO, series(curve, document), strict=True)
            if points.x
        ]
        for index, (curve, who, points) in enumerate(drawn):
            at: list[Any] = points.x
            color, _, symbol = PALETTE[names.index(curve.name) % len(PALETTE)]
            is_paper, label = who == "paper", f"{who}, {curve.name}"
            if picture.bars:
                width = 0.8 / len(drawn)
                at = [ticks.index(str(x)) - 0.4 + (index + 0.5) * width for x in at]
                look = {"facecolor": "none" if is_paper else color, "edgecolor": color}
                handles[label] = axis.bar(
                    at, points.y, width, hatch="///" if is_paper else "", **look
                )
            else:
                (handles[label],) = axis.plot(
                    at,
                    points.y,
                    color=color,
                    linestyle="--" if is_paper else "-",
                    marker=marks.get(symbol, "o"),
                    markersize=5.5,
                    markerfacecolor="none" if is_paper else color,
                )
            if any(end is not None for end in points.low):
                low, high = points.ends()
                lengths = [
                    [y - end for y, end in zip(points.y, low, strict=True)],
                    [end - y for y, end in zip(points.y, high, strict=True)],
                ]
                shade: dict[str, Any] = {
                    "ecolor": "#444444" if picture.bars else color,
                    "elinewidth": 1,
                }
                axis.errorbar(at, points.y, lengths, fmt="none", capsize=2, **shade)
        if picture.bars:
            turned = max(map(len, ticks)) * len(ticks) > 40
            axis.set_xticks(
                range(len(ticks)), ticks, rotation=35 * turned, ha="right" if turned else "center"
            )
        elif all(float(x).is_integer() for *_, points in drawn for x in points.x):
            axis.xaxis.set_major_locator(MaxNLocator(integer=True))
        axis.set_title(SHOWN.get(panel, panel), fontsize=10)
        axis.set_xlabel(picture.x)
        axis.grid(alpha=0.25)
    width = 32 * max(2, columns)
    note = wrap(picture.note, width + 10)
    figure.suptitle("\n".join((*wrap(picture.title, width), *note)), fontsize=10)
    in_row = 2 + (columns > 2)
    figure.legend(
        list(handles.values()), list(handles), loc="outside lower center", ncols=in_row, fontsize=8
    )
    buffer = BytesIO()
    # no date and no version in the file: the same results are the same picture
    quiet = {"png": {"Software": None}, "svg": {"Date": None, "Creator": None}}.get(kind)
    figure.savefig(buffer, format=kind, dpi=110, metadata=quiet or {"CreationDate": None})
    return buffer.getvalue()
