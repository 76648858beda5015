"""Kangaroo's figures: what the paper has of each, and what measures the same here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from statistics import fmean
from typing import Any

from specwb.studies.curves import Curve, Picture, Point, how_sure
from specwb.studies.grid import Cell
from specwb.studies.kangaroo.cells import (
    ABLATION_ETAS,
    ETAS,
    EXITS,
    GAMMAS,
    HERE,
    PARTS,
    USUAL,
    chain,
    tree,
)
from specwb.studies.kangaroo.claims import depths, etas
from specwb.studies.study import Document, published

PANELS = (("CR", "cr", "tau"), ("speedup", "speedup", "speedup"))
"""A panel, its column in the paper and in our rows."""
SPECS = {**HERE, "Kangaroo, chain": chain(USUAL).spec, "Kangaroo": tree(10, 0.4).spec}
"""The paper's name of a method -> its spec here."""
BINS = 10
"""Of the densities of the top probability."""


def _etas(_: Document) -> Iterator[Curve]:
    points = etas()
    for panel, column, what in PANELS:
        for g in GAMMAS:
            line = (Point(x, points.get((x, g), {}).get(column), chain(x, g)) for x in ETAS)
            yield Curve(panel, f"gamma {g}", what, tuple(line))


def _depths(document: Document) -> Iterator[Curve]:
    """Over the part of all layers that is run before the exit."""
    constants = published("kangaroo")["constants"]["layers"]
    for panel, column, what in PANELS:
        for target, layers in constants.items():
            points = (Point(n / layers, r[column]) for n, r in depths(target).items())
            yield Curve(panel, target, what, tuple(points))
        yield from _exits(document, panel, what)


def _exits(document: Document, panel: str, what: str) -> Iterator[Curve]:
    """Ours over the exit layer."""
    for eta in ABLATION_ETAS:
        here = (Point(n / PARTS, None, chain(eta, variant=f"exit{n}")) for n in EXITS)
        yield Curve(panel, f"lab, eta {eta:g}", what, tuple(here))


def _ratios(document: Document) -> Iterator[Curve]:
    """The speedup of four targets over the exit layer's part of all layers."""
    paper = published("kangaroo")
    for target, layers in paper["constants"]["layers"].items():
        rows = [r for r in paper["figures"]["ratio"]["rows"] if r["target"] == target]
        points = (Point(r["exit"] / layers, r["speedup"]) for r in rows)
        yield Curve("speedup", target, "speedup", tuple(points))
    yield from _exits(document, "speedup", "speedup")


def _share(key: str, w: int, _: Document, rows: Mapping[str, dict[str, Any]]) -> float | None:
    """CTAR(w) of a cell."""
    shares = rows.get(key, {}).get("ctar") or []
    return shares[w - 1] if w <= len(shares) else None


def _ctars(_: Document) -> Iterator[Curve]:
    for r in published("kangaroo")["figures"]["ctar"]["rows"]:
        spec = SPECS.get(r["method"])
        points = (
            Point(w, value, ours=partial(_share, Cell(spec).key, w) if spec else None)
            for w, value in enumerate(r["ctar"], 1)
        )
        yield Curve("share of rounds with at least w accepted", r["method"], "ctar", tuple(points))


def _share_of_bin(
    accepted: bool, index: int, document: Document, _: Mapping[str, Any]
) -> float | None:
    """The share of a bin among the first draft tokens that are accepted, or among the others."""
    trace = document.get("traces", {}).get("")
    if not trace or not trace["sure"]:
        return None
    sure = [
        row[0]
        for row, kept in zip(trace["sure"], trace["kept"], strict=True)
        if (kept > 0) == accepted
    ]
    return fmean(min(x * BINS // 1000, BINS - 1) == index for x in sure) if sure else None


def _densities(_: Document) -> Iterator[Curve]:
    for accepted, name in ((True, "accepted"), (False, "rejected")):
        points = (
            Point((i + 0.5) / BINS, None, ours=partial(_share_of_bin, accepted, i))
            for i in range(BINS)
        )
        yield Curve("share of first draft tokens", name, "", tuple(points))


def _methods(_: Document) -> Iterator[Curve]:
    """The main table's means by method, of Vicuna 7B."""
    rows = {
        r["method"]: r
        for r in published("kangaroo")["tables"]["main"]["rows"]
        if r["target"] == "Vicuna 7B"
    }
    for panel, what in (("speedup", "speedup"), ("mean CR", "tau")):
        points = (
            Point(
                name,
                r["mean"] if what == "speedup" else fmean(r["cr"].values()),
                Cell(SPECS[name]) if name in SPECS else None,
            )
            for name, r in rows.items()
        )
        yield Curve(panel, "T = 0", what, tuple(points))


_sure = partial(how_sure, published("kangaroo"))
FIGURES = {
    "eta": Picture(
        "Kangaroo: threshold and steps, chains at T = 0", "eta", _etas, _sure("figures", "eta")
    ),
    "depth": Picture(
        "Kangaroo: exit layer, chains of 6",
        "part of the layers",
        _depths,
        _sure("figures", "depth"),
        differs="our adapters are the ablation's, of a small budget",
    ),
    "ratio": Picture(
        "Kangaroo: speedup by exit layer, four targets",
        "part of the layers",
        _ratios,
        _sure("figures", "ratio"),
        differs="our adapters are the ablation's, of a small budget",
    ),
    "ctar": Picture(
        "Kangaroo: accepted tokens by round, math there, all prompts here",
        "w",
        _ctars,
        _sure("figures", "ctar"),
        differs="REST is not implemented",
    ),
    "density": Picture(
        "Kangaroo: top probability of first draft tokens",
        "top probability",
        _densities,
        "none could be read off the paper's plot",
    ),
    "methods": Picture(
        "Kangaroo: main table, mean of Vicuna 7B",
        "",
        _methods,
        _sure("tables", "main"),
        bars=True,
        differs="there on a GPU",
    ),
}
