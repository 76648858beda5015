"""The parts of all figures: panels of lines, points, bars and cells in one look.

A figure says what it shows by the methods of a :class:`Panel`; :func:`draw` lays panels out.
Numbers are kept to four digits, which is what hover texts show.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import cycle
from typing import Any, Self

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from specwb.core.errors import ArgumentError
from specwb.show.figures.style import figure
from specwb.show.palette import CLEAR, DRAFT, INK, MARK, Look, looks

Values = Iterable[Any]
Dict = dict[str, Any]
At = float | tuple[float, float] | None
BARE: Dict = {"showgrid": False, "zeroline": False}
BY_NAME = {"autorange": "reversed", "type": "category"}  # the first on top
_WHISKER: Dict = {"type": "data", "thickness": 1.5, "width": 3}


def short(values: Values) -> list[Any]:
    """Numbers to four digits after the point, or if below 1 to four that count."""

    def one(v: Any) -> Any:
        if v is None or isinstance(v, str | int | list):
            return v
        return round(float(v), 4) if abs(v) >= 1 else float(f"{float(v):.4g}")

    return [one(v) for v in values]


def whiskers(values: Values, low: Values, high: Values) -> Dict:
    """Error bars from ``low`` to ``high``."""
    rows = list(zip(values, low, high, strict=True))
    up, down = short(top - v for v, _, top in rows), short(v - bottom for v, bottom, _ in rows)
    return {"symmetric": False, "array": up, "arrayminus": down, **_WHISKER}


def errors(lengths: Values) -> Dict:
    return {"array": short(lengths), **_WHISKER}


def axis(text: str = "", low: float | None = None, high: float | None = None, **more: Any) -> Dict:
    """An axis with a title, from ``low`` to ``high`` where given."""
    title = {"title": {"text": text, "standoff": 4}} if text else {}
    return {**title, **({} if high is None else {"range": [low, high]}), **more}


def steps(*colours: str) -> list[list]:
    """A scale of equal steps, for cells that are 0, 1, .."""
    n = len(colours)
    return [[at / n, colour] for i, colour in enumerate(colours) for at in (i, i + 1)]


@dataclass
class Panel:
    """What is shown between two axes: ``title`` above it, ``x`` and ``y`` their titles or layouts
    (:func:`axis`).

    Its methods take plotly's own arguments too (``more``), ``hover`` for ``hovertemplate``. What
    has no name is not in the legend.
    """

    title: str = ""
    x: Any = ""
    y: Any = ""
    traces: list[Any] = field(default_factory=list)
    shapes: list[dict] = field(default_factory=list)
    notes: list[dict] = field(default_factory=list)

    def line(
        self,
        name: str,
        x: Values,
        y: Values,
        look: Look,
        size: Any = 8,
        width: Any = 2,
        **more: Any,
    ) -> Self:
        """A line with markers; ``size`` 0: without markers, ``width`` 0: without the line."""
        colour, dash, symbol = look
        both = ["lines"] * bool(width) + ["markers"] * bool(size)
        given: Dict = {"mode": "+".join(both), **_words(name, more)}
        line = {"color": colour, "dash": dash, "width": width}
        given |= {"line": line} if width else {}
        given |= {"marker": {"symbol": symbol, "size": size, "color": colour}} if size else {}
        self.traces.append(go.Scatter(**_pairs(x, y), **{**given, **more}))
        return self

    def lines(self, points: Mapping[str, Any], **more: Any) -> Self:
        """A line for each name of x and y, all of them different."""
        for (name, (x, y)), look in zip(points.items(), looks(points).values(), strict=True):
            self.line(name, x, y, look, **more)
        return self

    def points(self, name: str, x: Values, y: Values, look: Look, **more: Any) -> Self:
        return self.line(name, x, y, look, **{"size": 9, **more, "width": 0})

    def here(self, name: str, x: float, y: float, **more: Any) -> Self:
        """The one point that the controls choose."""
        ring = {"size": 13, "marker_line": {"width": 1, "color": INK}}
        return self.points(name, [x], [y], (DRAFT, "", "diamond"), **ring, **more)

    def bars(
        self, name: str, x: Values, y: Values, colour: Any, hatch: Any = "", **more: Any
    ) -> Self:
        """Bars, hatched in white; if ``hollow`` hatched in their colour on nothing."""
        hollow = more.pop("hollow", False)
        pattern = {"shape": hatch, "fillmode": "overlay", "fgcolor": colour if hollow else "white"}
        marker: Dict = {"color": CLEAR if hollow and hatch else colour, "pattern": pattern}
        marker |= {"line": {"color": colour, "width": 1}} if hollow else {}
        given = {"marker": marker, **_words(name, more)}
        self.traces.append(go.Bar(**_pairs(x, y), **{**given, **more}))
        return self

    def groups(self, series: Mapping[str, tuple[Values, Values]], **more: Any) -> Self:
        """Bars for each name of x and y, all of them different; ``written``: their heights too."""
        written = more.pop("written", False)
        rows = zip(series.items(), looks(series).values(), cycle(("", "/", ".", "x")))
        for (name, (x, y)), (colour, _, _), hatch in rows:
            text = ["" if v is None else f"{float(v):.2f}" for v in y] if written else None
            self.bars(name, x, y, colour, hatch, text=text, **more)
        return self

    def cells(
        self, x: Values, y: Values, z: Iterable[Values], scale: Any, words: Any, **more: Any
    ) -> Self:
        """A matrix of coloured cells, 0 to 1, None for an empty one; ``words`` for hover texts and,
        if ``written``, in the cells.
        """
        given: Dict = {"zmin": 0, "zmax": 1, "showscale": False, "xgap": 1, "ygap": 1}
        given |= {"texttemplate": "%{text}"} if more.pop("written", False) else {}
        given |= {"colorscale": scale, "text": words, **_words("", more), **more}
        self.traces.append(go.Heatmap(x=list(x), y=list(y), z=[short(row) for row in z], **given))
        return self

    def rule(self, x: At = None, y: At = None, look: Any = (MARK, "dash", 2), **more: Any) -> Self:
        """A line, or another ``type`` of shape, at x or y or between two of them; from end to end
        of an axis that is not given. ``look``: colour, dash and width.
        """
        shape: Dict = {"type": "line", "line": dict(zip(("color", "dash", "width"), look))}
        for name, at in (("x", x), ("y", y)):
            ends = at if isinstance(at, tuple) else (0, 1) if at is None else (at, at)
            shape |= {f"{name}0": ends[0], f"{name}1": ends[1]}
            shape |= {f"{name}ref": f"{name} domain"} if at is None else {}
        self.shapes.append({**shape, **more})
        return self

    def note(self, x: Any, y: Any, text: str, **more: Any) -> Self:
        self.notes.append({"x": x, "y": y, "text": text, "showarrow": False, **more})
        return self


def _pairs(x: Values, y: Values) -> Dict:
    x, y = short(x), short(y)
    if len(x) != len(y) and not (x and isinstance(x[0], list)):  # which are two lines of words
        raise ArgumentError(f"there must be a y for every x, got {len(y)} for {len(x)}")
    return {"x": x, "y": y}


def _words(name: str, more: Dict) -> Dict:
    """Name, legend and hover text of a trace."""
    given: Dict = {"name": name, "showlegend": True} if name else {"showlegend": False}
    extra = "%{fullData.name}" if name else ""
    if hover := more.pop("hover", ""):
        return {**given, "hovertemplate": f"{hover}<extra>{extra}</extra>"}
    return given if name else {**given, "hoverinfo": "skip"}


def read_off(drawn: go.Figure) -> str:
    """A line that tells whether the same was drawn: the title of a figure, and by panel of each of
    its series the first and the last value, and the largest and the smallest in between.
    """
    titles = [note.text for note in drawn.layout.annotations if note.yanchor == "bottom"]
    panels: dict[int, list[str]] = {}
    for trace in drawn.data:
        rows = trace.z if trace.type == "heatmap" else [trace.y]
        values = [float(v) for row in rows for v in row if v is not None]
        if values:
            first, last, least, most = (
                f"{v:.3g}" for v in (values[0], values[-1], min(values), max(values))
            )
            ends = dict.fromkeys((first, last) if len(values) > 1 else (first,))
            more = {"least": least, "most": most}.items()
            text = ", ".join((" to ".join(ends), *(f"{w} {v}" for w, v in more if v not in ends)))
            panel = int((trace.xaxis or "x")[1:] or 1) - 1
            panels.setdefault(panel, []).append(f"{trace.name}: {text}" if trace.name else text)
    parts = [drawn.layout.title.text]
    for panel, said in sorted(panels.items()):
        parts += [*titles[panel : panel + 1], "; ".join(said)]
    return " | ".join(filter(None, parts))


def _lines(names: list[str]) -> int:
    """Of a legend in a figure of common width; in several lines plotly makes columns."""
    widths = [45 + 7 * len(name) for name in names]
    return 1 if sum(widths) <= 620 else -(-len(names) // max(1, 620 // max(widths)))


def draw(panels: Panel | Sequence[Sequence[Panel | None]], height: int, **more: Any) -> go.Figure:
    """A figure of one panel, or of rows of them; a row of one is as wide as the figure.

    Args:
        more: ``title`` of several panels; ``below``: whether the legend, which two names need, is
            below, as it is for several panels; ``heights`` and ``widths`` of rows and columns,
            ``gaps`` between columns and between rows in shares of the figure; plotly's layout.
    """
    alone = isinstance(panels, Panel)
    grid: Any = [[panels]] if alone else panels
    every = [(r, c, p) for r, row in enumerate(grid, 1) for c, p in enumerate(row, 1) if p]
    title = more.pop("title", panels.title if isinstance(panels, Panel) else "")
    below = more.pop("below", not alone)
    spaces = {"row_heights": more.pop("heights", None), "column_widths": more.pop("widths", None)}
    across, down = more.pop("gaps", (0.1, 0.17))
    traces = [t for _, _, p in every for t in p.traces if t.visible is not False]
    names = dict.fromkeys(t.name for t in traces if t.showlegend)
    legend = _lines(list(names)) if more.setdefault("showlegend", len(names) > 1) else 0
    hidden = all(isinstance(p.y, Mapping) and p.y.get("visible") is False for _, _, p in every)
    room = 10 + 20 * legend if legend else 0
    top = 14 + 26 * bool(title) + (0 if alone else 22) + room * (not below)
    margin = {"l": 20 if hidden else 60, "r": 20, "t": top, "b": 50 + room * below}
    head = {"text": title, "x": 0, "xref": "paper", "y": 0.98, "yanchor": "top"}
    drawn = figure(**{"height": height, "margin": margin, "title": head, **more})
    if below:
        drawn.update_layout(legend={"y": -50 / (height - top - margin["b"]), "yanchor": "top"})
    if not alone:
        wide = max(map(len, grid))
        kinds = [[{"colspan": wide}] if len(row) == 1 else [p and {} for p in row] for row in grid]
        specs = [kind + [None] * (wide - len(kind)) for kind in kinds]
        spaces |= {"horizontal_spacing": across, "vertical_spacing": down}
        spaces |= {"specs": specs, "subplot_titles": [p.title for _, _, p in every]}
        make_subplots(len(grid), wide, figure=drawn, **spaces)
        drawn.update_annotations(font_size=13)
    for row, column, panel in every:
        place = {} if alone else {"row": row, "col": column}
        drawn.add_traces(panel.traces, *([] if alone else [row, column]))
        for shape in panel.shapes:
            drawn.add_shape(shape, **place)
        for note in panel.notes:
            drawn.add_annotation(note, **place)
        for update, one in ((drawn.update_xaxes, panel.x), (drawn.update_yaxes, panel.y)):
            update(axis(one) if isinstance(one, str) else one, **place)
    return drawn
