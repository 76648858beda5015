"""The papers' figures, drawn again: the published points and ours in one plot.

A figure is data: its panels have curves, and a curve has at every x the paper's value and what
measures the same here. What was not measured, or is not in the paper, is left out.
:mod:`specwb.studies.pictures` draws it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

THESE = "these models"
"""The name of our bars where the paper has several models."""
Ours = Callable[[dict[str, Any], Mapping[str, dict[str, Any]]], float | None]
"""Gives a value from (document, cell's key -> its row)."""


@dataclass(frozen=True)
class Point:
    """A point of a curve.

    Attributes:
        x: where it is; of bars the text below it.
        paper: the published value, None where there is none.
        cell: what is measured here, None where nothing is.
        ours: gives our value, default the curve's figure of the cell.
    """

    x: float | str
    paper: float | None
    cell: Any = None
    ours: Ours | None = None


@dataclass(frozen=True)
class Curve:
    """A curve of a panel, or its bars of one colour.

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
        curves: gives the curves of all panels, from the document of the results.
        sure: how sure the published values are.
        bars: whether bars are drawn, of points whose x are texts.
        differs: what has to be known when the two are compared.
    """

    title: str
    x: str
    curves: Callable[[dict[str, Any]], Iterable[Curve]]
    sure: str
    bars: bool = False
    differs: str = ""

    @property
    def note(self) -> str:
        """What stands below the figure."""
        return "; ".join(filter(None, (f"Published values: {self.sure}", self.differs))) + "."


def how_sure(paper: Mapping[str, Any], kind: str, key: str) -> str:
    """Say how sure the numbers of a table or figure are."""
    table = paper[kind][key]
    if table.get("read_off"):
        error = table.get("error", (paper.get("constants") or {}).get("error"))
        return f"read off a plot, ±{error}"
    return paper["certainty"]


def rows_of(document: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the rows of a document and of its ablation: cell's key -> row."""
    ablation = (document.get("ablation") or {}).get("rows") or []
    return {r["cell"]: r for r in (*document["rows"], *ablation)}


def figure_of(key: str, what: str) -> Ours:
    """Give a figure of the row of one cell."""

    def ours(_: dict[str, Any], rows: Mapping[str, dict[str, Any]]) -> float | None:
        return rows[key].get(what) if key in rows else None

    return ours


def over(first: str, second: str, what: str) -> Ours:
    """Give a figure of one cell over that of another."""

    def ours(_: dict[str, Any], rows: Mapping[str, dict[str, Any]]) -> float | None:
        a, b = (rows.get(key, {}).get(what) for key in (first, second))
        return None if a is None or not b else a / b

    return ours


def series(curve: Curve, document: dict[str, Any]) -> tuple[list[list[Any]], list[list[Any]]]:
    """Return what is drawn of a curve: the paper's x and y, and ours."""
    rows = rows_of(document)

    def ours(point: Point) -> float | None:
        if point.ours is not None:
            return point.ours(document, rows)
        return figure_of(point.cell.key, curve.what)(document, rows) if point.cell else None

    theirs = [(p.x, p.paper) for p in curve.points]
    here = [(p.x, ours(p)) for p in curve.points]
    return _columns(theirs), _columns(here)


def _columns(points: Sequence[tuple[Any, Any]]) -> list[list[Any]]:
    known = [(x, y) for x, y in points if y is not None]
    return [[x for x, _ in known], [y for _, y in known]]
