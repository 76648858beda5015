"""DiffuSpec's figures: what the paper has of each, and what measures the same here."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from specwb.lab.studies.curves import Curve, Figures, Ours, Point, Seen, how_sure, in_domain, share
from specwb.lab.studies.diffuspec.cells import (
    ARGMAX,
    BLOCKS,
    FIXED,
    HERE,
    LONG,
    NAMES,
    SIZES,
    diffuspec,
    figure,
    rows_of,
    sweeps,
)
from specwb.lab.studies.grid import PARTS, Cell, values
from specwb.lab.studies.study import Document, published

PANELS = (("MAT", "mat", "tau"), ("speedup", "speedup", "speedup"))
"""A panel, its column in the paper and in our rows."""
SURE = partial(how_sure, published("diffuspec"))
THERE = "there Qwen2.5-32B with Dream-7B on a GPU"
FIGURES = Figures()


def _sweep(name: str, _: Document) -> Iterator[Curve]:
    """One setting changed at a time."""
    rows = sweeps()[name].items()
    for panel, column, what in PANELS:
        yield Curve(panel, name, what, (Point(value, r[column], cell) for value, (cell, r) in rows))


for _name in ("steps", "beams", "top", "mass"):
    _title = f"DiffuSpec, figure 7: {_name}, {NAMES[LONG]}"
    FIGURES.add(_name, _title, SURE("figures", "7"), _name, differs=THERE)(partial(_sweep, _name))


@FIGURES.add(
    "length", "DiffuSpec, table 5: fixed draft length, CPS", SURE("tables", "5"), "k", differs=THERE
)
def _lengths(_: Document) -> Iterator[Curve]:
    five = rows_of(5, "k")
    for panel, column, what in PANELS:
        points = (Point(k, five[k][column], diffuspec(f"k={k}")) for k in SIZES[LONG])
        yield Curve(panel, "fixed length", what, points)


@FIGURES.add(
    "blocks",
    "DiffuSpec, figure 5: drafted and accepted tokens by k",
    SURE("figures", "5"),
    "k",
    differs=f"{THERE}; generated is up to an end of text there",
)
def _blocks(_: Document) -> Iterator[Curve]:
    """Of a range of k the paper has a range of values, which is drawn at both of its ends."""
    for panel, what in (("generated", "drafted"), ("accepted", "accepted")):
        ranges = figure(5)[panel]
        lower = {r[k]: r["low"] for r in ranges for k in ("from", "to")}
        upper = {r[k]: r["high"] for r in ranges if r["low"] < r["high"] for k in ("from", "to")}
        ks = sorted({*lower, *BLOCKS})
        points = (Point(k, lower.get(k), diffuspec(f"k={k}", ARGMAX)) for k in ks)
        yield Curve(panel, "argmax rows", what, points)
        yield Curve(
            panel, "upper end of a range", what, (Point(k, upper[k]) for k in sorted(upper))
        )


def _share(cell: Cell, part: str) -> Ours:
    """A part's share of the time of a cell's step."""

    def ours(document: Document, _: Any) -> Seen | None:
        a, ms = (values(document["cells"], cell, what) for what in (part, "ms"))
        return share(list(zip(a, ms, strict=False)))

    return ours


@FIGURES.add(
    "split",
    "DiffuSpec, figure 6: where a step's time goes",
    SURE("figures", "6"),
    bars=True,
    differs=THERE,
)
def _split(_: Document) -> Iterator[Curve]:
    cells = {"SPS": Cell("sps"), "DiffuSpec": diffuspec(LONG)}
    for r in figure(6)["rows"]:
        total, cell = sum(r[part] for part in PARTS[:3]), cells[r["method"]]
        points = (
            Point(part, r[part] / total if part in r else None, ours=_share(cell, part))
            for part in PARTS
        )
        yield Curve("share of a step", r["method"], "", points)


@FIGURES.add(
    "methods",
    "DiffuSpec, table 1: methods",
    SURE("tables", "1"),
    bars=True,
    differs=f"{THERE}; Medusa, Hydra, EAGLE and EAGLE2 of another target there",
)
def _methods(_: Document) -> Iterator[Curve]:
    cells = {name: Cell(spec) for name, spec in HERE.items()} | {"DiffuSpec": diffuspec(LONG)}
    rows = rows_of(1, "method").items()
    for panel, column, what in PANELS:
        points = (Point(name, r[column], cells.get(name)) for name, r in rows)
        yield Curve(panel, "mean over tasks", what, points)


@FIGURES.add(
    "parts",
    "DiffuSpec, table 2: search and controller",
    SURE("tables", "2"),
    bars=True,
    differs=f"{THERE}; without ADL k = 20 here",
)
def _parts(_: Document) -> Iterator[Curve]:
    for panel, column, what in PANELS:
        points = []
        for (search, adaptive), r in rows_of(2, "cps", "adl").items():
            options = (LONG if adaptive else FIXED[LONG], "ngram=own" if search else ARGMAX)
            name = " + ".join(filter(None, ("CPS" * search, "ADL" * adaptive))) or "neither"
            points.append(Point(name, r[column], diffuspec(*options)))
        yield Curve(panel, NAMES[LONG], what, points)


@FIGURES.add("tasks", "DiffuSpec, table 4: by task", SURE("tables", "4"), bars=True, differs=THERE)
def _tasks(_: Document) -> Iterator[Curve]:
    """The whole method by task there, by domain here."""
    (both,) = (r for r in rows_of(4, "cps", "adl").values() if r["cps"] and r["adl"])
    for panel, column, what in PANELS:
        known = [Point(task, value) for task, value in both[column].items()]
        known += [
            Point(f"{domain}, here", None, ours=in_domain(diffuspec(LONG), what, domain))
            for domain in ("code", "math", "prose")
        ]
        yield Curve(panel, "by task", "", known)
