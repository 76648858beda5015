"""The papers' figures, drawn again: the published points and ours in one plot.

A figure is data: its panels have curves, and a curve has at every x the paper's value and what
measures the same here. What was not measured, or is not in the paper, is left out.
:mod:`specwb.show.pictures` draws it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import isnan
from typing import Any, NamedTuple

from scipy import stats

from specwb.lab.bench.statistics import mean_and_error, ratio_and_error
from specwb.lab.studies import grid
from specwb.lab.studies.claim import Values

THESE = "these models"
"""The name of our bars where the paper has several models."""


class Seen(NamedTuple):
    """A value measured here, with its 95 % interval over prompts where it has one."""

    value: float
    low: float | None = None
    high: float | None = None


Ours = Callable[[dict[str, Any], Mapping[str, dict[str, Any]]], Seen | None]
"""Gives a value from (document, cell's key -> its row)."""


class Drawn(NamedTuple):
    """The columns that are drawn of a curve; ``low`` and ``high`` have None where a value has no
    interval."""

    x: list[Any]
    y: list[float]
    low: list[float | None]
    high: list[float | None]

    def ends(self) -> tuple[list[float], list[float]]:
        """The lower and upper ends; the value itself where it has no interval."""
        low, high = (
            [y if end is None else end for y, end in zip(self.y, ends, strict=True)]
            for ends in (self.low, self.high)
        )
        return low, high


@dataclass(frozen=True)
class Point:
    """A point of a curve: the paper's value and what measures the same here, each None where there
    is none. ``ours`` gives our value in place of the curve's figure of the cell."""

    x: float | str  # of bars the text below them
    paper: float | None
    cell: Any = None
    ours: Ours | None = None


@dataclass(frozen=True)
class Curve:
    """A curve of a panel, or its bars of one color; its points are in order of x."""

    panel: str  # the title, with what is on the y axis
    name: str
    what: str  # the figure of the cells' rows on the y axis, such as "tau"
    points: Iterable[Point]

    def __post_init__(self) -> None:
        object.__setattr__(self, "points", tuple(self.points))


Curves = Callable[[dict[str, Any]], Iterable[Curve]]
"""Gives the curves of all panels of a figure, from the document of the results."""


@dataclass(frozen=True)
class Picture:
    """A figure of a paper."""

    title: str  # of the figure
    x: str  # the title of the x axis
    curves: Curves  # gives the curves of all panels, from the document of the results
    sure: str  # how sure the published values are, "" where there are none
    bars: bool = False  # whether bars are drawn, of points whose x are texts
    differs: str = ""  # what has to be known when the two are compared
    over: str = "our prompts"  # what intervals are over

    @property
    def note(self) -> str:
        """What stands below the figure."""
        published = self.sure and f"Published values: {self.sure}"
        parts = published, self.differs, f"whiskers: 95 % over {self.over}"
        return f"{'; '.join(filter(None, parts))}."


class Figures(dict[str, Picture]):
    """The figures of a paper by name; :meth:`add` decorates the function that yields the curves."""

    def add(
        self,
        name: str,
        title: str,
        sure: str,
        x: str = "",
        *,
        bars: bool = False,
        differs: str = "",
        over: str = "our prompts",
    ) -> Callable[[Curves], Curves]:
        def added(curves: Curves) -> Curves:
            self[name] = Picture(title, x, curves, sure, bars, differs, over)
            return curves

        return added


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


@lru_cache(maxsize=64)
def _quantile(freedom: int) -> float:
    return float(stats.t.ppf(0.975, freedom))


def seen(value: float, error: float | None, prompts: int) -> Seen:
    """Give a mean over prompts its interval: Student's, from its standard error."""
    if error is None or isnan(error) or prompts < 2:
        return Seen(value)
    half = _quantile(prompts - 1) * error
    return Seen(value, value - half, value + half)


def over_prompts(values: Sequence[float]) -> Seen | None:
    """Give the mean of a figure's values, one a prompt, with its interval; None of no values."""
    return seen(*mean_and_error(values), len(values)) if len(values) else None


def figure_of(key: str, what: str) -> Ours:
    """Give a figure of the row of one cell."""

    def ours(_: dict[str, Any], rows: Mapping[str, dict[str, Any]]) -> Seen | None:
        row = rows.get(key, {})
        if row.get(what) is None:
            return None
        error = row.get(f"{'tau' if what == 'accepted' else what}_error")
        return seen(row[what], error, row.get("prompts", 0))

    return ours


def over(
    first: grid.Setting, second: grid.Setting, what: str, values: Values = grid.values
) -> Ours:
    """Give a figure of one cell over that of another on the same prompts."""

    def ours(document: dict[str, Any], _: Mapping[str, dict[str, Any]]) -> Seen | None:
        a, b = (values(document["cells"], cell, what) for cell in (first, second))
        return share(list(zip(a, b, strict=False)))

    return ours


def share(pairs: Sequence[tuple[float, float]]) -> Seen | None:
    """Give the ratio of two means over prompts its interval; None where there is none."""
    return seen(*ratio_and_error(pairs), len(pairs)) if any(b for _, b in pairs) else None


def in_domain(cell: grid.Setting, what: str, domain: str = "") -> Ours:
    """Give a figure of a cell over the prompts of one domain, of all where it is not named."""

    def ours(document: dict[str, Any], _: Mapping[str, dict[str, Any]]) -> Seen | None:
        values = grid.values(document["cells"], cell, what)
        pairs = zip(values, document["domains"], strict=False)
        return over_prompts([x for x, where in pairs if domain in ("", where)])

    return ours


def series(curve: Curve, document: dict[str, Any]) -> tuple[Drawn, Drawn]:
    """Return what is drawn of a curve: the paper's values, and ours."""
    rows = rows_of(document)

    def ours(point: Point) -> Seen | None:
        if point.ours is not None:
            return point.ours(document, rows)
        return figure_of(point.cell.key, curve.what)(document, rows) if point.cell else None

    theirs = [(p.x, None if p.paper is None else Seen(p.paper)) for p in curve.points]
    here = [(p.x, ours(p)) for p in curve.points]
    return _columns(theirs), _columns(here)


def _columns(points: Sequence[tuple[Any, Seen | None]]) -> Drawn:
    known = [(x, *one) for x, one in points if one is not None]
    return Drawn(*([list(column) for column in zip(*known, strict=True)] or [[] for _ in range(4)]))
