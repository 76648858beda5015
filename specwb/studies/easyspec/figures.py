"""EasySpec's figures. Of the paper's only what its text states is known, and drawn."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import fmean
from typing import Any

from specwb.studies.curves import Curve, Ours, Picture, Point, Seen, figure_of, over
from specwb.studies.easyspec.cells import NS, WIDE_NS, WIDTHS, easy, ns_of, plain
from specwb.studies.grid import SHOWN
from specwb.studies.study import Document, published


def _groups(document: Document) -> Iterator[Curve]:
    """Figure 4: acceptance and throughput over N, a panel a width, with and without calibration."""
    kept = 1 - published("easyspec")["constants"]["drop"]
    for title, what in (("acceptance kept", "accepted"), (SHOWN["speedup"], "speedup")):
        for w in WIDTHS:
            panel, ns = f"w = {w}: {title}", ns_of(document["layers"], NS if w == 1 else WIDE_NS)
            if what == "accepted":
                yield Curve(panel, "at most 7 % lower", what, tuple(Point(n, kept) for n in ns))
            for on in (True, False):
                points = (Point(n, None, ours=_value(what, n, w, on)) for n in ns)
                yield Curve(panel, "calibrated" if on else "uncalibrated", what, tuple(points))


def _value(what: str, n: int, width: int, calibrate: bool) -> Ours:
    cell = easy(n, width, calibrate)
    return over(cell, plain(width), what) if what == "accepted" else figure_of(cell.key, what)


def _stages(document: Document) -> Iterator[Curve]:
    """The stage speedup over N."""
    constants = published("easyspec")["constants"]
    points = (
        Point(n, {constants["n"]: constants["stage"]}.get(n), ours=over(plain(), easy(n), "draft"))
        for n in ns_of(document["layers"])
    )
    yield Curve("speedup of drafting", "width 1", "stage", tuple(points))


def _cosines(document: Document) -> Iterator[Curve]:
    """Mean cosines of exact and fuzzy execution, by N."""
    constants, measured = published("easyspec")["constants"], document.get("cosines", {})
    known = tuple(Point(n, constants["cosine"]) for n in constants["cosine_n"])
    yield Curve("mean cosine", "all stay above", "", known)
    kinds = next((list(x) for n, x in measured.items() if n != "consecutive"), [])
    for kind in kinds:
        points = (Point(int(n), None, ours=_mean(n, kind)) for n in measured if n != "consecutive")
        yield Curve("mean cosine", kind, "", tuple(points))


def _mean(n: str, kind: str) -> Ours:
    def ours(document: Document, _: Any) -> Seen:
        return Seen(fmean(document["cosines"][n][kind]))

    return ours


TEXT = "only what the text states; the paper's plots could not be read"
MOST = published("easyspec")["constants"]["speedup"]
FIGURES = {
    "groups": Picture(
        "EasySpec, figure 4: N, width w and calibration, T = 0",
        "N",
        _groups,
        TEXT,
        differs=f"kept is the plain drafter's share; speedups there up to {MOST}x over all targets",
    ),
    "stage": Picture("EasySpec: speedup of drafting, chains, T = 0", "N", _stages, TEXT),
    "cosines": Picture("EasySpec, table 4: cosines of fuzzy execution", "N", _cosines, TEXT),
}
