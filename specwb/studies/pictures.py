"""The papers' figures, drawn again: the published points and ours in one plot.

A figure is data: its panels have curves, and a curve has at every x the paper's value and the cell
that measures the same here. What was not measured, or is not in the paper, is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Point:
    """A point of a curve.

    Attributes:
        x: where it is.
        paper: the published value, None where there is none.
        cell: what is measured here, None where nothing is.
    """

    x: float
    paper: float | None
    cell: Any = None


@dataclass(frozen=True)
class Curve:
    """A curve of a panel.

    Attributes:
        panel: its title, with what is on the y axis.
        name: of the curve.
        what: the figure of the cells' rows that is on the y axis, such as "tau".
        points: in order of x.
    """

    panel: str
    name: str
    what: str
    points: tuple[Point, ...]


@dataclass(frozen=True)
class Picture:
    """A figure of a paper.

    Attributes:
        title: of the figure.
        x: the title of the x axis.
        curves: gives the curves of all panels.
    """

    title: str
    x: str
    curves: Callable[[], Iterable[Curve]]


def series(curve: Curve, document: dict[str, Any]) -> tuple[list[list[float]], list[list[float]]]:
    """Return what is drawn of a curve: the paper's x and y, and ours."""
    ablation = (document.get("ablation") or {}).get("rows") or []
    rows = {r["cell"]: r for r in (*document["rows"], *ablation)}
    theirs = [(p.x, p.paper) for p in curve.points if p.paper is not None]
    ours = [
        (p.x, rows[p.cell.key][curve.what])
        for p in curve.points
        if p.cell is not None and p.cell.key in rows and rows[p.cell.key][curve.what] is not None
    ]
    return _columns(theirs), _columns(ours)


def _columns(points: Sequence[tuple[float, Any]]) -> list[list[float]]:
    return [[x for x, _ in points], [y for _, y in points]]


def draw(picture: Picture, document: dict[str, Any]) -> Any:
    """Draw a figure: the paper's curves with hollow markers and dashes, ours solid.

    Args:
        picture: the figure.
        document: of the results, with rows.
    Returns:
        A plotly figure.
    """
    import plotly.graph_objects as go
    from plotly.subplots import make_subplots

    from specwb.figures.style import PALETTE

    curves = list(picture.curves())
    panels = list(dict.fromkeys(curve.panel for curve in curves))
    names = list(dict.fromkeys(curve.name for curve in curves))
    figure = make_subplots(1, len(panels), subplot_titles=panels)
    for curve in curves:
        color = PALETTE[names.index(curve.name) % len(PALETTE)][0]
        column = panels.index(curve.panel) + 1
        for who, (xs, ys) in zip(("paper", "here"), series(curve, document), strict=True):
            is_paper = who == "paper"
            if xs:
                trace = go.Scatter(
                    x=xs,
                    y=ys,
                    mode="lines+markers",
                    name=f"{who}, {curve.name}",
                    legendgroup=f"{who} {curve.name}",
                    showlegend=column == 1,
                    line={"color": color, "dash": "dash" if is_paper else "solid"},
                    marker={"symbol": "circle-open" if is_paper else "circle", "size": 8},
                )
                figure.add_trace(trace, row=1, col=column)
        figure.update_xaxes(title_text=picture.x, row=1, col=column)
    figure.update_layout(
        title=picture.title, template="plotly_white", width=460 * len(panels), height=440
    )
    return figure
