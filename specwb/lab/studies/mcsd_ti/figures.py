"""Improved MCSD's figures: what the paper has of each, and what measures the same here."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from specwb.lab.studies.curves import THESE, Curve, Figures, Ours, Point, Seen, over
from specwb.lab.studies.grid import Cell
from specwb.lab.studies.mcsd_ti.cells import (
    MCSD,
    PAIR,
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
from specwb.lab.studies.mcsd_ti.claims import widths
from specwb.lab.studies.study import Document, figure_rows, published, table_rows

SURE, PRINTED = published("mcsd_ti")["certainty"], "printed on the bars"
PLAIN = min(published("mcsd_ti")["constants"]["plain"])
"""Tokens a second of plain decoding in the paper."""
PANELS = (("acceptance", "acceptance", "depth_fraction", 1), ("speedup", "rate", "speedup", PLAIN))
"""A panel, its column in the paper, the figure here, and what the column is divided by."""
OURS = (
    f"several roots are LOSSY; there on a GPU, and tokens a second over {PLAIN:g} of plain decoding"
)
ROOTS_16 = "16 roots here (LOSSY); there on a GPU"
REPAIRED = "without loss below each root"
FIGURES = Figures()


@FIGURES.add(
    "width",
    f"Improved MCSD: width, T = 0; the paper's {PAIR}",
    SURE,
    "width",
    differs="numbers of roots (LOSSY); no speeds here where nothing was timed",
)
def _widths(_: Document) -> Iterator[Curve]:
    """Widths are numbers of roots, with a chain below each."""
    for decision, stop, name in ((True, "soft", "decision model"), (False, "none", "none")):
        known = widths(PAIR, decision)
        for panel, column, what, unit in PANELS:
            points = (
                Point(w, known[w][column] / unit if w in known else None, wide(w, stop))
                for w in sorted({*known, *WIDE})
            )
            yield Curve(panel, name, what, points)


@FIGURES.add(
    "shapes", "Improved MCSD: shapes of the static tree, T = 0.7", SURE, bars=True, differs=OURS
)
def _shapes(_: Document) -> Iterator[Curve]:
    """The heat map, as rows of bars: every shape of the static tree."""
    rows = table_rows("mcsd_ti", "shapes")
    for panel, column, what, unit in PANELS:
        for name, numbers, cell in (
            ("2 roots (LOSSY)", [r[column] / unit for r in rows], as_published),
            (
                "2 roots (LOSSY), without loss below each",
                [None] * len(rows),
                lambda shape: rooted(shape[0], shape[1:]),
            ),
            ("one root", [None] * len(rows), static),
        ):
            points = (
                Point(spelling(r["shape"]), number, cell(r["shape"]))
                for r, number in zip(rows, numbers, strict=True)
            )
            yield Curve(panel, name, what, points)


Bars = dict[str, Cell]


def _bars(figure: str, cells: Bars, repaired: Bars, _: Document) -> Iterator[Curve]:
    """Speedups of every pair of models; ours as published, and without loss below each root."""
    for r in figure_rows("mcsd_ti", figure):
        yield Curve("speedup", r["pair"], "speedup", (Point(name, r.get(name)) for name in cells))
    for name, ours in ((THESE, cells), (f"{THESE}, {REPAIRED}", repaired)):
        here = (Point(method, None, cell) for method, cell in ours.items())
        yield Curve("speedup", name, "speedup", here)


def _add_bars(name: str, title: str, cells: Bars, repaired: Bars, differs: str) -> None:
    curves = partial(_bars, name, cells, repaired)
    FIGURES.add(name, f"Improved MCSD{title}", PRINTED, bars=True, differs=differs)(curves)


_add_bars(
    "static",
    ": mean speedup of static trees, T = 0.7",
    {"SD": Cell("sps", temperature=STATIC), "MCSD": mcsd(MCSD), "TI": as_published()},
    {"TI": rooted(2, TI)},
    OURS,
)
_add_bars(
    "dynamic",
    ": mean speedup with the decision model, T = 1",
    {"ours": first_version(1.0)},
    {"ours": first_version(1.0, True)},
    ROOTS_16,
)


@FIGURES.add(
    "ratio", "Improved MCSD: acceptance over that of SD, T = 0.7", PRINTED, bars=True, differs=OURS
)
def _ratios(_: Document) -> Iterator[Curve]:
    base, cells = Cell("sps", temperature=STATIC), {"MCSD": mcsd(MCSD), "ours": as_published()}
    for r in figure_rows("mcsd_ti", "ratio"):
        yield Curve("acceptance over SD", r["pair"], "", (Point(name, r[name]) for name in cells))
    here = (
        Point(name, None, ours=over(cell, base, "depth_fraction", values))
        for name, cell in cells.items()
    )
    yield Curve("acceptance over SD", THESE, "", here)


_add_bars(
    "v1",
    ", first version: speedup at T = 0",
    {"SD": Cell("sps"), "MCSD": mcsd((*MCSD, 1), 0.0), "DynaSD": first_version(0.0)},
    {"DynaSD": first_version(0.0, True)},
    ROOTS_16.replace(" here", ""),
)


def _moved(temperature: float, roots: int) -> Ours:
    """The share of tokens that are not the target's first choice."""

    def ours(document: Document, _: Any) -> Seen | None:
        moved = document.get("moved", {}).get(f"T={temperature:g} roots={roots}")
        return Seen(moved["other"]) if moved else None

    return ours


@FIGURES.add(
    "judged",
    "Improved MCSD: what several roots cost in quality",
    SURE,
    "roots",
    differs="a judge's score and a share of tokens are not comparable",
)
def _judged(_: Document) -> Iterator[Curve]:
    """A judge's score there, tokens that are moved here."""
    scores = (Point(r["roots"], r["mean"]) for r in table_rows("mcsd_ti", "judged") if r["roots"])
    yield Curve("GPT-4's score of the answers", "two turns", "", scores)
    for t in (0.0, 1.0):
        points = (Point(n, None, ours=_moved(t, n)) for n in (1, 2, 3, 4))
        yield Curve("share that is not the target's first choice", f"T = {t:g}", "", points)
