"""EasySpec's figures. Of the paper's only what its text states is known, and drawn."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import fmean
from typing import Any

from specwb.lab.studies.curves import Curve, Figures, Ours, Point, Seen, figure_of, over
from specwb.lab.studies.easyspec.cells import NS, WIDE_NS, WIDTHS, easy, ns_of, plain
from specwb.lab.studies.grid import SHOWN
from specwb.lab.studies.study import Document, published

TEXT = "only what the text states; the paper's plots could not be read"
CONSTANTS = published("easyspec")["constants"]
FIGURES = Figures()


@FIGURES.add(
    "groups",
    "EasySpec, figure 4: N, width w and calibration, T = 0",
    TEXT,
    "N",
    differs="kept is the plain drafter's share; speedups there up to "
    f"{CONSTANTS['speedup']}x over all targets",
)
def _groups(document: Document) -> Iterator[Curve]:
    """Acceptance and throughput over N, a panel a width, with and without calibration."""
    for title, what in (("acceptance kept", "accepted"), (SHOWN["speedup"], "speedup")):
        for w in WIDTHS:
            panel, ns = f"w = {w}: {title}", ns_of(document["layers"], NS if w == 1 else WIDE_NS)
            if what == "accepted":
                kept = 1 - CONSTANTS["drop"]
                yield Curve(panel, "at most 7 % lower", what, (Point(n, kept) for n in ns))
            for on in (True, False):
                points = (Point(n, None, ours=_value(what, n, w, on)) for n in ns)
                yield Curve(panel, "calibrated" if on else "uncalibrated", what, points)


def _value(what: str, n: int, width: int, calibrate: bool) -> Ours:
    cell = easy(n, width, calibrate)
    return over(cell, plain(width), what) if what == "accepted" else figure_of(cell.key, what)


@FIGURES.add("stage", "EasySpec: speedup of drafting, chains, T = 0", TEXT, "N")
def _stages(document: Document) -> Iterator[Curve]:
    points = (
        Point(n, {CONSTANTS["n"]: CONSTANTS["stage"]}.get(n), ours=over(plain(), easy(n), "draft"))
        for n in ns_of(document["layers"])
    )
    yield Curve("speedup of drafting", "width 1", "stage", points)


@FIGURES.add("cosines", "EasySpec, table 4: cosines of fuzzy execution", TEXT, "N")
def _cosines(document: Document) -> Iterator[Curve]:
    """Mean cosines of exact and fuzzy execution, by N."""
    known = (Point(n, CONSTANTS["cosine"]) for n in CONSTANTS["cosine_n"])
    yield Curve("mean cosine", "all stay above", "", known)
    measured = {n: x for n, x in document.get("cosines", {}).items() if n != "consecutive"}
    for kind in next(iter(measured.values()), ()):
        points = (Point(int(n), None, ours=_mean(n, kind)) for n in measured)
        yield Curve("mean cosine", kind, "", points)


def _mean(n: str, kind: str) -> Ours:
    def ours(document: Document, _: Any) -> Seen:
        return Seen(fmean(document["cosines"][n][kind]))

    return ours
