"""DiffuSpec's figures: what the paper has of each, and what measures the same here."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from specwb.studies.curves import Curve, Ours, Picture, Point, Seen, how_sure, in_domain, share
from specwb.studies.diffuspec.cells import (
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
from specwb.studies.grid import PARTS, Cell, values
from specwb.studies.study import Document, published

PANELS = (("MAT", "mat", "tau"), ("speedup", "speedup", "speedup"))
"""A panel, its column in the paper and in our rows."""


def _sweep(name: str, _: Document) -> Iterator[Curve]:
    """One setting changed at a time."""
    rows = sweeps()[name].items()
    for panel, column, what in PANELS:
        points = (Point(value, r[column], cell) for value, (cell, r) in rows)
        yield Curve(panel, name, what, tuple(points))


def _lengths(_: Document) -> Iterator[Curve]:
    """Table 5: fixed draft lengths."""
    five = rows_of(5, "k")
    for panel, column, what in PANELS:
        points = (Point(k, five[k][column], diffuspec(f"k={k}")) for k in SIZES[LONG])
        yield Curve(panel, "fixed length", what, tuple(points))


def _blocks(_: Document) -> Iterator[Curve]:
    """Figure 5. Of a range of k it has a range of values, which is drawn at both of its ends."""
    for panel, what in (("generated", "drafted"), ("accepted", "accepted")):
        ranges = figure(5)[panel]
        for end in ("low", "high"):
            points = {r[k]: r[end] for r in ranges for k in ("from", "to")}
            if end == "high":
                points = {
                    k: x
                    for r in ranges
                    if r["low"] < r["high"]
                    for k, x in ((r["from"], r["high"]), (r["to"], r["high"]))
                }
            name = "argmax rows" if end == "low" else "upper end of a range"
            ks = sorted({*points, *(BLOCKS if end == "low" else ())})
            yield Curve(
                panel,
                name,
                what,
                tuple(
                    Point(k, points.get(k), diffuspec(f"k={k}", ARGMAX) if end == "low" else None)
                    for k in ks
                ),
            )


def _share(cell: Cell, part: str) -> Ours:
    """A part's share of the time of a cell's step."""

    def ours(document: Document, _: Any) -> Seen | None:
        a, ms = (values(document["cells"], cell, what) for what in (part, "ms"))
        return share(list(zip(a, ms, strict=False)))

    return ours


def _split(_: Document) -> Iterator[Curve]:
    cells = {"SPS": Cell("sps"), "DiffuSpec": diffuspec(LONG)}
    for r in figure(6)["rows"]:
        total = sum(r[part] for part in PARTS[:3])
        points = (
            Point(
                part, r[part] / total if part in r else None, ours=_share(cells[r["method"]], part)
            )
            for part in PARTS
        )
        yield Curve("share of a step", r["method"], "", tuple(points))


def _methods(_: Document) -> Iterator[Curve]:
    """Table 1: MAT and speedup by method."""
    specs = {**HERE, "DiffuSpec": diffuspec(LONG).spec}
    for panel, column, what in PANELS:
        points = (
            Point(name, r[column], Cell(specs[name]) if name in specs else None)
            for name, r in rows_of(1, "method").items()
        )
        yield Curve(panel, "mean over tasks", what, tuple(points))


def _parts(_: Document) -> Iterator[Curve]:
    """Table 2: the search and the controller, on and off."""
    for panel, column, what in PANELS:
        points = []
        for (search, adaptive), r in rows_of(2, "cps", "adl").items():
            options = (LONG if adaptive else FIXED[LONG], "ngram=own" if search else ARGMAX)
            name = " + ".join(filter(None, ("CPS" * search, "ADL" * adaptive))) or "neither"
            points.append(Point(name, r[column], diffuspec(*options)))
        yield Curve(panel, NAMES[LONG], what, tuple(points))


def _tasks(_: Document) -> Iterator[Curve]:
    """Table 4: the whole method by task there, by domain here."""
    (both,) = (r for r in rows_of(4, "cps", "adl").values() if r["cps"] and r["adl"])
    for panel, column, what in PANELS:
        known = [Point(task, value) for task, value in both[column].items()]
        known += [
            Point(f"{domain}, here", None, ours=in_domain(diffuspec(LONG), what, domain))
            for domain in ("code", "math", "prose")
        ]
        yield Curve(panel, "by task", "", tuple(known))


_sure = partial(how_sure, published("diffuspec"))
THERE = "there Qwen2.5-32B with Dream-7B on a GPU"
FIGURES = {
    **{
        name: Picture(
            f"DiffuSpec, figure 7: {name}, {NAMES[LONG]}",
            name,
            partial(_sweep, name),
            _sure("figures", "7"),
            differs=THERE,
        )
        for name in ("steps", "beams", "top", "mass")
    },
    "length": Picture(
        "DiffuSpec, table 5: fixed draft length, CPS",
        "k",
        _lengths,
        _sure("tables", "5"),
        differs=THERE,
    ),
    "blocks": Picture(
        "DiffuSpec, figure 5: drafted and accepted tokens by k",
        "k",
        _blocks,
        _sure("figures", "5"),
        differs=f"{THERE}; generated is up to an end of text there",
    ),
    "split": Picture(
        "DiffuSpec, figure 6: where a step's time goes",
        "",
        _split,
        _sure("figures", "6"),
        bars=True,
        differs=THERE,
    ),
    "methods": Picture(
        "DiffuSpec, table 1: methods",
        "",
        _methods,
        _sure("tables", "1"),
        bars=True,
        differs=f"{THERE}; Medusa, Hydra, EAGLE and EAGLE2 of another target there",
    ),
    "parts": Picture(
        "DiffuSpec, table 2: search and controller",
        "",
        _parts,
        _sure("tables", "2"),
        bars=True,
        differs=f"{THERE}; without ADL k = 20 here",
    ),
    "tasks": Picture(
        "DiffuSpec, table 4: by task", "", _tasks, _sure("tables", "4"), bars=True, differs=THERE
    ),
}
