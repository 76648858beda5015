"""The papers' figures, drawn again: the published points and ours in one plot.

A figure is data, ``[figures.NAME]`` of a paper's file. Its ``panels`` say which figure is on the y
axis (``what``, ours; ``y``, the column of the paper's table, divided by ``unit``), over the prompts
of which ``domain`` or set (the first of several that was measured, "" for all prompts), and
whether ours is divided by another cell's (``over``). Its ``curves`` are
drawn in every panel: from the rows of a ``table`` ``where`` columns have given values, or from a
list ``x``. ``here`` is the cell that measures a point, or a dict to it from x, the row's method, or
``else``. In names and cells ``{column}`` stands for a row's value, ``{x}`` for the point's, and the
rows of one name are one curve. :mod:`specwb.show.pictures` draws it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isnan
from statistics import fmean
from typing import Any, NamedTuple

from scipy import stats

from specwb.lab.bench.statistics import mean_and_error, ratio_and_error
from specwb.lab.papers.figures import SavedResults, Table, figure, runs_of
from specwb.lab.papers.paper import Paper


class Seen(NamedTuple):
    """A value measured here, with its 95 % interval over prompts where it has one."""

    value: float
    low: float | None = None
    high: float | None = None


class Point(NamedTuple):
    """A point of a curve: the paper's value and ours, each None where there is none."""

    x: Any  # of bars the text below them
    paper: float | None
    here: Seen | None


@dataclass(frozen=True)
class Curve:
    """A curve of a panel, or its bars of one color; its points are in order of x."""

    panel: str
    name: str
    points: tuple[Point, ...]


def note(paper: Paper, name: str) -> str:
    """What stands below a figure: how sure the paper's values are, what differs, what whiskers are.

    Raises:
        KeyError: the paper has no such figure.
    """
    drawing = paper.figures[name]
    tables = [paper.tables[curve["table"]] for curve in drawing["curves"] if "table" in curve]
    sure = ""
    if tables:
        error = tables[0].get("read_off")
        how = f"read off a plot, ±{error}" if error else paper.certainty
        sure = f"published values: {how}"
    parts = sure, drawing.get("note", ""), "whiskers: 95 % over prompts, or over training runs"
    text = "; ".join(filter(None, parts))
    return f"{text[0].upper()}{text[1:]}."


def curves(paper: Paper, name: str, documents: Sequence[SavedResults]) -> list[Curve]:
    """Compute the curves of all panels of a figure.

    Args:
        paper: the paper.
        name: the figure, a key of ``paper.figures``.
        documents: results, see :func:`specwb.lab.papers.results.shipped`.
    Returns:
        The curves that have a point of the paper's or of ours.
    """
    drawing = paper.figures[name]
    found = []
    for panel in drawing["panels"]:
        for curve in drawing["curves"]:
            groups: dict[str, list[Point]] = {}
            for row, x, value in _points(paper, curve, panel):
                fields = {**panel, **row, "x": x}
                points = groups.setdefault(curve["name"].format(**fields), [])
                here = curve.get("here", "")
                if isinstance(here, dict):
                    keys = (key for key in (str(x), row.get("method"), "else") if key in here)
                    here = here.get(next(keys, ""), "")
                seen = _seen(here.format(**fields), panel, fields, documents)
                if value is not None or seen is not None:
                    points.append(Point(x, value, seen))
            found += [Curve(panel["title"], n, tuple(p)) for n, p in groups.items() if p]
    return found


def _points(paper: Paper, curve: Table, panel: Table) -> Iterator[tuple[Table, Any, float | None]]:
    """The row, x and the paper's value of every point of a curve."""
    if "table" not in curve:
        values = curve.get("paper", [None] * len(curve["x"]))
        for x, value in zip(curve["x"], values, strict=True):
            yield {}, x, None if value is None or isnan(value) else value
        return
    chosen = curve.get("where", {})
    for row in paper.tables[curve["table"]]["rows"]:
        if any(row.get(column) != value for column, value in chosen.items()):
            continue
        if "columns" in curve:
            for column in curve["columns"]:
                yield row, column, row.get(column)
            continue
        value = row
        for key in filter(None, curve.get("y", panel.get("y", "")).split(".")):
            value = value.get(key) if isinstance(value, Mapping) else None
        if isinstance(value, list):
            for x, one in enumerate(value, 1):
                yield row, x, one
            continue
        if isinstance(value, Mapping):  # by task; a row itself where the curve has no column
            value = None if value is row else fmean(value.values())
        yield row, row[curve["x"]], None if value is None else value / panel.get("unit", 1)


def _seen(
    cell: str,
    panel: Table,
    fields: Table,
    documents: Sequence[SavedResults],
) -> Seen | None:
    """What measures a point here; None where nothing does."""
    measured = [d for d in documents if cell in d["cells"]]
    choices = [(d, name) for name in panel.get("domain", [""]) for d in measured]
    found = ((d, name) for d, name in choices if name in _prompts(d))
    document, wanted = next(found, (None, ""))
    if document is None:
        return None
    cells, domains = document["cells"], document.get("domains", ())
    what = panel["what"].format(**fields)
    if "over" in panel:
        other = figure(cells, panel["over"].format(**fields), what)
        pairs = list(zip(figure(cells, cell, what), other, strict=False))
        return interval(*ratio_and_error(pairs), len(pairs)) if any(b for _, b in pairs) else None
    runs = runs_of(cells, [cell])
    if len(runs) > 1:
        values = [fmean(figure(cells, run, what)) for (run,) in runs]
    else:
        values = figure(cells, cell, what)
        if wanted in domains:
            values = [v for v, domain in zip(values, domains, strict=False) if domain == wanted]
    return interval(*mean_and_error(values), len(values)) if values else None


def _prompts(document: SavedResults) -> tuple[str, ...]:
    """What prompts of results are called: all of them "", those of a domain, and their set."""
    return ("", *document.get("domains", ()), document.get("arguments", {}).get("prompts", ""))


def interval(value: float, error: float | None, count: int) -> Seen:
    """Give a mean of so many values its interval: Student's, from its standard error."""
    if error is None or isnan(error) or count < 2:
        return Seen(value)
    half = float(stats.t.ppf(0.975, count - 1)) * error
    return Seen(value, value - half, value + half)
