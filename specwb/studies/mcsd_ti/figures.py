"""Improved MCSD's figures: what the paper has of each, and what measures the same here."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from specwb.studies.curves import THESE, Curve, Ours, Picture, Point, Seen, over
from specwb.studies.grid import Cell
from specwb.studies.mcsd_ti.cells import (
    MCSD,
    STATIC,
    TI,
    WIDE,
    as_published,
    first_version,
    mcsd,
    rooted,
    spelling,
    static,
    values,
    wide,
)
from specwb.studies.mcsd_ti.claims import PAIR, widths
from specwb.studies.study import Document, published


def _widths(_: Document) -> Iterator[Curve]:
    """Widths are numbers of roots, with a chain below each."""
    plain = min(published("mcsd_ti")["constants"]["plain"])
    for decision, stop, name in ((True, "soft", "decision model"), (False, "none", "none")):
        known = widths(PAIR, decision)
        every = sorted({*known, *WIDE})
        for panel, column, what, unit in (
            ("acceptance", "acceptance", "depth_fraction", 1),
            ("speedup", "rate", "speedup", plain),
        ):
            points = (
                Point(w, known[w][column] / unit if w in known else None, wide(w, stop))
                for w in every
            )
            yield Curve(panel, name, what, tuple(points))


def _shapes(_: Document) -> Iterator[Curve]:
    """The heat map, as rows of bars: every shape of the static tree."""
    plain = min(published("mcsd_ti")["constants"]["plain"])
    rows = published("mcsd_ti")["tables"]["shapes"]["rows"]
    for panel, column, what, unit in (
        ("acceptance", "acceptance", "depth_fraction", 1),
        ("speedup", "rate", "speedup", plain),
    ):
        points = (
            Point(spelling(r["shape"]), r[column] / unit, as_published(r["shape"])) for r in rows
        )
        yield Curve(panel, "2 roots (LOSSY)", what, tuple(points))
        ours = (
            Point(spelling(r["shape"]), None, rooted(r["shape"][0], r["shape"][1:])) for r in rows
        )
        yield Curve(panel, "2 roots (LOSSY), without loss below each", what, tuple(ours))
        one = (Point(spelling(r["shape"]), None, static(r["shape"])) for r in rows)
        yield Curve(panel, "one root", what, tuple(one))


Keys = dict[str, Cell]
REPAIRED = "without loss below each root"


def _bars(
    figure: str, cells: Keys, repaired: Keys, what: str, panel: str, _: Document
) -> Iterator[Curve]:
    """Bars of every pair of models; ours as published, and without loss below each root."""
    for r in published("mcsd_ti")["figures"][figure]["rows"]:
        points = (Point(name, r.get(name)) for name in cells)
        yield Curve(panel, r["pair"], what, tuple(points))
    for name, ours in ((THESE, cells), (f"{THESE}, {REPAIRED}", repaired)):
        here = (Point(method, None, cell) for method, cell in ours.items())
        yield Curve(panel, name, what, tuple(here))


def _ratios(_: Document) -> Iterator[Curve]:
    """Acceptance over that of SD."""
    base, cells = Cell("sps", temperature=STATIC), {"MCSD": mcsd(MCSD), "ours": as_published()}
    for r in published("mcsd_ti")["figures"]["ratio"]["rows"]:
        points = (Point(name, r[name]) for name in cells)
        yield Curve("acceptance over SD", r["pair"], "", tuple(points))
    here = (
        Point(name, None, ours=over(cell, base, "depth_fraction", values))
        for name, cell in cells.items()
    )
    yield Curve("acceptance over SD", THESE, "", tuple(here))


def _moved(temperature: float, roots: int) -> Ours:
    """The share of tokens that are not the target's first choice."""

    def ours(document: Document, _: Any) -> Seen | None:
        moved = document.get("moved", {}).get(f"T={temperature:g} roots={roots}")
        return Seen(moved["other"]) if moved else None

    return ours


def _judged(_: Document) -> Iterator[Curve]:
    """What several roots cost in quality: a judge's score there, tokens that are moved here."""
    rows = published("mcsd_ti")["tables"]["judged"]["rows"]
    scores = [Point(r["roots"], r["mean"]) for r in rows if r["roots"]]
    yield Curve("GPT-4's score of the answers", "two turns", "", tuple(scores))
    for t in (0.0, 1.0):
        points = (Point(n, None, ours=_moved(t, n)) for n in (1, 2, 3, 4))
        yield Curve("share that is not the target's first choice", f"T = {t:g}", "", tuple(points))


def _baseline(temperature: float) -> Keys:
    return {"SD": Cell("sps", temperature=temperature)}


SURE = published("mcsd_ti")["certainty"]
OURS = (
    "several roots are LOSSY; there on a GPU, and tokens a second over "
    f"{min(published('mcsd_ti')['constants']['plain']):g} of plain decoding"
)
FIGURES = {
    "width": Picture(
        f"Improved MCSD: width, T = 0; the paper's {PAIR}",
        "width",
        _widths,
        SURE,
        differs="numbers of roots (LOSSY); no speeds here where nothing was timed",
    ),
    "shapes": Picture(
        "Improved MCSD: shapes of the static tree, T = 0.7", "", _shapes, SURE, True, OURS
    ),
    "static": Picture(
        "Improved MCSD: mean speedup of static trees, T = 0.7",
        "",
        partial(
            _bars,
            "static",
            {**_baseline(STATIC), "MCSD": mcsd(MCSD), "TI": as_published()},
            {"TI": rooted(2, TI)},
            "speedup",
            "speedup",
        ),
        "printed on the bars",
        True,
        OURS,
    ),
    "dynamic": Picture(
        "Improved MCSD: mean speedup with the decision model, T = 1",
        "",
        partial(
            _bars,
            "dynamic",
            {"ours": first_version(1.0)},
            {"ours": first_version(1.0, True)},
            "speedup",
            "speedup",
        ),
        "printed on the bars",
        True,
        "16 roots here (LOSSY); there on a GPU",
    ),
    "ratio": Picture(
        "Improved MCSD: acceptance over that of SD, T = 0.7",
        "",
        _ratios,
        "printed on the bars",
        True,
        OURS,
    ),
    "v1": Picture(
        "Improved MCSD, first version: speedup at T = 0",
        "",
        partial(
            _bars,
            "v1",
            {**_baseline(0.0), "MCSD": mcsd((*MCSD, 1), 0.0), "DynaSD": first_version(0.0)},
            {"DynaSD": first_version(0.0, True)},
            "speedup",
            "speedup",
        ),
        "printed on the bars",
        True,
        "16 roots (LOSSY); there on a GPU",
    ),
    "judged": Picture(
        "Improved MCSD: what several roots cost in quality",
        "roots",
        _judged,
        SURE,
        differs="a judge's score and a share of tokens are not comparable",
    ),
}
