"""Draw a paper's figure with ours: interactive with plotly, as a picture with matplotlib.

The paper's values have hollow markers and dashes, or hatched bars; ours are solid. Both are drawn
from the same :class:`specwb.studies.curves.Picture`.
"""

from __future__ import annotations

import importlib.util
from io import BytesIO
from textwrap import wrap
from typing import Any

from specwb.errors import ArgumentError
from specwb.studies.curves import Curve, Picture, series
from specwb.studies.grid import SHOWN

WHO = ("paper", "here")
HEIGHT, WORDS = 520, 110
"""Height of a figure in pixels, and letters in a line below its title."""
MISSING = "pictures are drawn by matplotlib, which the extra 'train' brings"


def _parts(picture: Picture, document: dict[str, Any]) -> tuple[list[Curve], list[str], list[str]]:
    """The curves of a figure, its panels and the names of its curves."""
    curves = list(picture.curves(document))
    panels, names = ([getattr(c, part) for c in curves] for part in ("panel", "name"))
    return curves, list(dict.fromkeys(panels)), list(dict.fromkeys(names))


def draw(picture: Picture, document: dict[str, Any]) -> Any:
    """Draw an interactive figure."""
    import plotly.graph_objects as go
    from plotly.subplots import make_subplots

    from specwb.figures.style import CLEAR, PALETTE
    from specwb.figures.style import figure as bare

    curves, panels, names = _parts(picture, document)
    titles = [SHOWN.get(panel, panel) for panel in panels]
    figure = make_subplots(1, len(panels), subplot_titles=titles)
    shown: set[str] = set()
    for curve in curves:
        color, _, symbol = PALETTE[names.index(curve.name) % len(PALETTE)]
        column = panels.index(curve.panel) + 1
        for who, (xs, ys) in zip(WHO, series(curve, document), strict=True):
            if not xs:
                continue
            is_paper, name = who == "paper", f"{who}, {curve.name}"
            common: dict[str, Any] = {"x": xs, "y": ys, "name": name, "legendgroup": name}
            common["showlegend"] = name not in shown
            shown.add(name)
            if picture.bars:
                trace: Any = go.Bar(
                    **common,
                    marker={
                        "color": CLEAR if is_paper else color,
                        "line": {"color": color, "width": 1.5},
                        "pattern": {"shape": "/" if is_paper else "", "fgcolor": color},
                    },
                )
            else:
                trace = go.Scatter(
                    **common,
                    mode="lines+markers",
                    line={"color": color, "dash": "dash" if is_paper else "solid"},
                    marker={"symbol": f"{symbol}-open" if is_paper else symbol, "size": 8},
                )
            figure.add_trace(trace, row=1, col=column)
    figure.update_xaxes(title_text=picture.x)
    note = "<br>".join(wrap(picture.note, WORDS))
    figure.update_layout(bare().layout)
    figure.update_layout(
        title={"text": picture.title, "subtitle": {"text": note}},
        height=HEIGHT,
        margin={"t": 130, "b": 130},
        legend={"orientation": "h", "y": -0.25, "yanchor": "top"},
    )
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

    from specwb.figures.style import PALETTE

    marks = {"square": "s", "diamond": "D", "triangle-up": "^", "x": "X", "star": "*"}
    marks |= {"triangle-down": "v", "cross": "P", "circle": "o"}
    curves, panels, names = _parts(picture, document)
    figure = Figure(figsize=(max(2, len(panels)) * 4.4, 4.4), layout="constrained")
    axes = figure.subplots(1, len(panels), squeeze=False)[0]
    handles: dict[str, Any] = {}
    for axis, panel in zip(axes, panels, strict=True):
        inside = [curve for curve in curves if curve.panel == panel]
        ticks = list(dict.fromkeys(str(p.x) for c in inside for p in c.points))
        drawn: list[tuple[Curve, str, list[Any], list[Any]]] = [
            (curve, who, xs, ys)
            for curve in inside
            for who, (xs, ys) in zip(WHO, series(curve, document), strict=True)
            if xs
        ]
        for index, (curve, who, xs, ys) in enumerate(drawn):
            color, _, symbol = PALETTE[names.index(curve.name) % len(PALETTE)]
            is_paper, label = who == "paper", f"{who}, {curve.name}"
            if picture.bars:
                width = 0.8 / len(drawn)
                at = [ticks.index(str(x)) - 0.4 + (index + 0.5) * width for x in xs]
                look = {"facecolor": "none" if is_paper else color, "edgecolor": color}
                handles[label] = axis.bar(at, ys, width, hatch="///" if is_paper else "", **look)
            else:
                (handles[label],) = axis.plot(
                    xs,
                    ys,
                    color=color,
                    linestyle="--" if is_paper else "-",
                    marker=marks.get(symbol, "o"),
                    markersize=5.5,
                    markerfacecolor="none" if is_paper else color,
                )
        if picture.bars:
            turned = max(map(len, ticks)) * len(ticks) > 40
            axis.set_xticks(
                range(len(ticks)), ticks, rotation=35 * turned, ha="right" if turned else "center"
            )
        elif all(float(x).is_integer() for one in drawn for x in one[2]):
            axis.xaxis.set_major_locator(MaxNLocator(integer=True))
        axis.set_title(SHOWN.get(panel, panel), fontsize=10)
        axis.set_xlabel(picture.x)
        axis.grid(alpha=0.25)
    width = 32 * max(2, len(panels))
    note = wrap(picture.note, width + 10)
    figure.suptitle("\n".join((*wrap(picture.title, width), *note)), fontsize=10)
    columns = 2 + (len(panels) > 2)
    figure.legend(
        list(handles.values()), list(handles), loc="outside lower center", ncols=columns, fontsize=8
    )
    buffer = BytesIO()
    # no date and no version in the file: the same results are the same picture
    quiet = {"png": {"Software": None}, "svg": {"Date": None, "Creator": None}}.get(kind)
    figure.savefig(buffer, format=kind, dpi=110, metadata=quiet or {"CreationDate": None})
    return buffer.getvalue()
