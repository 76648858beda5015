"""The parts of all figures: panels of lines, points, bars and cells in one look.

A figure says what it shows by the methods of a :class:`Panel`; :func:`draw` lays panels out.
Numbers are kept to four digits, which is what hover texts show.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from specwb.show.figures.style import LAYOUT
from specwb.show.palette import CLEAR, DRAFT, INK, MARK, Style, looks

Values = Iterable[Any]
Dict = dict[str, Any]
At = float | tuple[float, float] | None
BARE: Dict = {"showgrid": False, "zeroline": False}
BY_NAME: Dict = {"autorange": "reversed", "type": "category"}  # the first on top
HATCHES = ("", "/", ".", "x", "-", "|", "+")


def short(values: Values) -> list[Any]:
    """Numbers to four digits after the point, or if below 1 to four that count; None, texts and
    lists as they are."""
    kept: list[Any] = []
    for v in values:
        if v is None or isinstance(v, str | int | list):
            kept.append(v)
        else:
            kept.append(round(float(v), 4) if abs(v) >= 1 else float(f"{float(v):.4g}"))
    return kept


def whiskers(values: Values, low: Values, high: Values) -> Dict:
    """Error bars from ``low`` to ``high``."""
    rows = list(zip(values, low, high, strict=True))
    up, down = short(top - v for v, _, top in rows), short(v - bottom for v, bottom, _ in rows)
    return {"symmetric": False, "array": up, "arrayminus": down, "thickness": 1.5, "width": 3}


def axis(text: str = "", low: float | None = None, high: float | None = None, **more: Any) -> Dict:
    """The layout of an axis with a title, from ``low`` to ``high`` where given."""
    if text:
        more["title"] = {"text": text, "standoff": 4}
    if high is not None:
        more["range"] = [low, high]
    return more


def steps(*colours: str) -> list[list]:
    """A scale of equal steps, for cells that are 0, 1, .."""
    n = len(colours)
    return [[at / n, colour] for i, colour in enumerate(colours) for at in (i, i + 1)]


def _labels(name: str, hover: str) -> Dict:
    """Name, legend entry and hover text of a trace; one without a name is not in the legend."""
    given: Dict = {"name": name or None, "showlegend": bool(name)}
    if hover:
        extra = "%{fullData.name}" if name else ""
        return {**given, "hovertemplate": f"{hover}<extra>{extra}</extra>"}
    return given if name else {**given, "hoverinfo": "skip"}


@dataclass
class Panel:
    """What is shown between two axes: ``title`` above it, ``x`` and ``y`` their titles or layouts
    (:func:`axis`).

    Its methods take plotly's own arguments too (``more``). A series without a name is not in the
    legend; ``hover`` is plotly's ``hovertemplate``.
    """

    title: str = ""
    x: Any = ""
    y: Any = ""
    traces: list[Any] = field(default_factory=list)
    shapes: list[Dict] = field(default_factory=list)
    notes: list[Dict] = field(default_factory=list)

    def line(
        self,
        name: str,
        x: Values,
        y: Values,
        look: Style,
        *,
        size: Any = 8,
        width: Any = 2,
        hover: Any = "",
        **more: Any,
    ) -> Self:
        """A line with markers; ``size`` 0: without markers, ``width`` 0: without the line."""
        colour, dash, symbol = look
        given: Dict = _labels(name, hover)
        if width:
            given |= {"mode": "lines", "line": {"color": colour, "dash": dash, "width": width}}
        if size:
            given["mode"] = "lines+markers" if width else "markers"
            given["marker"] = {"symbol": symbol, "size": size, "color": colour}
        self.traces.append(go.Scatter(x=short(x), y=short(y), **{**given, **more}))
        return self

    def lines(self, series: Mapping[str, tuple[Values, Values]], **more: Any) -> Self:
        """A line for each name of x and y, all of them different."""
        for (name, (x, y)), look in zip(series.items(), looks(series).values(), strict=True):
            self.line(name, x, y, look, **more)
        return self

    def points(self, name: str, x: Values, y: Values, look: Style, **more: Any) -> Self:
        """Markers alone."""
        return self.line(name, x, y, look, width=0, **{"size": 9, **more})

    def here(self, name: str, x: float, y: float, **more: Any) -> Self:
        """The one point that the controls choose."""
        ring = {"width": 1, "color": INK}
        look = (DRAFT, "", "diamond")
        return self.points(name, [x], [y], look, size=13, marker_line=ring, **more)

    def bars(
        self,
        name: str,
        x: Values,
        y: Values,
        colour: Any,
        hatch: Any = "",
        *,
        hollow: Any = False,
        hover: Any = "",
        **more: Any,
    ) -> Self:
        """Bars, hatched in white; if ``hollow`` hatched in their colour on nothing."""
        pattern = {"shape": hatch, "fillmode": "overlay", "fgcolor": colour if hollow else "white"}
        marker: Dict = {"color": CLEAR if hollow and hatch else colour, "pattern": pattern}
        if hollow:
            marker["line"] = {"color": colour, "width": 1}
        given = {"marker": marker, **_labels(name, hover), **more}
        self.traces.append(go.Bar(x=short(x), y=short(y), **given))
        return self

    def cells(
        self,
        x: Values,
        y: Values,
        z: Iterable[Values],
        scale: Any,
        words: Any,
        *,
        hover: Any = "",
        written: Any = False,
        **more: Any,
    ) -> Self:
        """A matrix of coloured cells, 0 to 1, None for an empty one; ``words`` for hover texts and,
        if ``written``, in the cells.
        """
        given: Dict = {"zmin": 0, "zmax": 1, "showscale": False, "xgap": 1, "ygap": 1}
        given |= {"colorscale": scale, "text": words, **_labels("", hover), **more}
        if written:
            given["texttemplate"] = "%{text}"
        self.traces.append(go.Heatmap(x=list(x), y=list(y), z=[short(row) for row in z], **given))
        return self

    def rule(self, x: At = None, y: At = None, look: Any = (MARK, "dash", 2), **more: Any) -> Self:
        """A line, or another ``type`` of shape, at x or y or between two of them; from end to end
        of an axis that is not given. ``look``: colour, dash and width.
        """
        shape: Dict = {"type": "line", "line": dict(zip(("color", "dash", "width"), look))}
        for name, at in (("x", x), ("y", y)):
            ends = at if isinstance(at, tuple) else (at, at)
            if at is None:
                ends, shape[f"{name}ref"] = (0, 1), f"{name} domain"
            shape[f"{name}0"], shape[f"{name}1"] = ends
        self.shapes.append({**shape, **more})
        return self

    def note(self, x: Any, y: Any, text: str, **more: Any) -> Self:
        """Words at a place."""
        self.notes.append({"x": x, "y": y, "text": text, "showarrow": False, **more})
        return self


def read_off(drawn: go.Figure) -> str:
    """A line that tells whether the same was drawn: the title of a figure, and by panel of each of
    its series the first and the last value, and the largest and the smallest in between.
    """
    titles = [note.text for note in drawn.layout.annotations if note.yanchor == "bottom"]
    panels: dict[int, list[str]] = {}
    for trace in drawn.data:
        rows = trace.z if trace.type == "heatmap" else [trace.y]
        values = [float(v) for row in rows for v in row if v is not None]
        if not values:
            continue
        first, last, least, most = (
            f"{v:.3g}" for v in (values[0], values[-1], min(values), max(values))
        )
        ends = dict.fromkeys((first, last) if len(values) > 1 else (first,))
        extremes = [("least", least), ("most", most)]
        text = ", ".join((" to ".join(ends), *(f"{w} {v}" for w, v in extremes if v not in ends)))
        panel = int((trace.xaxis or "x")[1:] or 1) - 1
        panels.setdefault(panel, []).append(f"{trace.name}: {text}" if trace.name else text)
    parts = [drawn.layout.title.text]
    for panel, series in sorted(panels.items()):
        parts += [*titles[panel : panel + 1], "; ".join(series)]
    return " | ".join(filter(None, parts))


def draw(
    panels: Panel | Sequence[Sequence[Panel | None]],
    height: int,
    title: str = "",
    widths: Sequence[float] | None = None,
    heights: Sequence[float] | None = None,
    gaps: tuple[float, float] = (0.1, 0.17),
    **layout: Any,
) -> go.Figure:
    """A figure of one panel, or of rows of them; a row of one is as wide as the figure.

    Args:
        panels: one, whose title is the figure's, or rows, with None where there is none.
        height: of the figure, in pixels, without its legend.
        title: of several panels.
        widths, heights: of columns and rows, in shares of their sum.
        gaps: between columns and between rows, in shares of the figure.
        layout: plotly's.
    """
    alone = isinstance(panels, Panel)
    grid: Any = [[panels]] if alone else panels
    wide = max(map(len, grid))
    places = [(r, c, p) for r, row in enumerate(grid, 1) for c, p in enumerate(row, 1) if p]
    specs: list[list[Dict | None]] = [
        [{"colspan": wide}] + [None] * (wide - 1)
        if len(row) == 1
        else [{} if panel else None for panel in row]
        for row in grid
    ]
    names = {t.name for _, _, p in places for t in p.traces if t.showlegend}
    # a legend below, for which plotly makes room
    legend = {**LAYOUT["legend"], "yref": "container", "y": 0, "yanchor": "bottom"}
    head = {"text": panels.title if isinstance(panels, Panel) else title, "x": 0, "xref": "paper"}
    head |= {"y": 1, "yref": "container", "yanchor": "top", "pad": {"t": 12, "b": 8}}
    given = {**LAYOUT, "height": height, "title": head, "legend": legend}
    given["margin"] = {"l": 60, "r": 20, "b": 50, "t": 40 if head["text"] else 14}
    given["margin"]["t"] += 0 if alone else 22
    given["showlegend"] = len(names) > 1
    drawn = make_subplots(
        len(grid),
        wide,
        specs=specs,
        figure=go.Figure(layout={**given, **layout}),
        subplot_titles=None if alone else [p.title for _, _, p in places],
        column_widths=widths,
        row_heights=heights,
        horizontal_spacing=gaps[0],
        vertical_spacing=gaps[1],
    )
    drawn.update_annotations(font_size=13)
    shapes = []
    for row, col, panel in places:
        drawn.add_traces(panel.traces, row, col)
        axes = drawn.get_subplot(row, col)
        for shape in panel.shapes:
            for name, of in (("x", axes.xaxis), ("y", axes.yaxis)):
                ref, own = f"{name}ref", of.plotly_name.replace("axis", "")
                shape = {**shape, ref: shape.get(ref, name).replace(name, own)}
            shapes.append(shape)
        for note in panel.notes:
            drawn.add_annotation(note, row=row, col=col)
        x, y = (axis(a) if isinstance(a, str) else a for a in (panel.x, panel.y))
        drawn.update_xaxes(x, row=row, col=col)
        drawn.update_yaxes(y, row=row, col=col)
    drawn.layout.shapes = shapes  # at once: add_shape checks all that there are, each time
    return drawn
