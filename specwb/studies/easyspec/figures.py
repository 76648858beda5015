"""EasySpec's figures. Of the paper's only what its text states is known, and drawn."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import fmean
from typing import Any

from specwb.studies.curves import Curve, Ours, Picture, Point, figure_of, over
from specwb.studies.easyspec.cells import NS, WIDE_NS, WIDTHS, N, easy, ns_of, plain
from specwb.studies.study import Document, published


def _groups(document: Document) -> Iterator[Curve]:
    """Figure 4: acceptance and throughput over N, by width, with and without calibration."""
    constants = published("easyspec")["constants"]
    stated = {"at most 7 % lower": 1 - constants["drop"]}
    panels = (
        ("acceptance over the plain drafter's", "accepted", stated),
        ("speedup", "speedup", {"up to, over all targets": constants["speedup"]}),
    )
    for panel, what, words in panels:
        for name, value in words.items():
            yield Curve(panel, name, what, (Point(N, value),))
        for w in WIDTHS:
            for on in (True, False):
                name = f"width {w}{'' if on else ', uncalibrated'}"
                ns = ns_of(document["layers"], NS if w == 1 else WIDE_NS)
                points = (Point(n, None, ours=_value(what, n, w, on)) for n in ns)
                yield Curve(panel, name, what, tuple(points))


def _value(what: str, n: int, width: int, calibrate: bool) -> Ours:
    key = easy(n, width, calibrate).key
    return over(key, plain(width).key, what) if what == "accepted" else figure_of(key, what)


def _stages(document: Document) -> Iterator[Curve]:
    """The stage speedup over N."""
    constants = published("easyspec")["constants"]
    points = (
        Point(n, constants["stage"] if n == constants["n"] else None, easy(n))
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
    def ours(document: Document, _: Any) -> float | None:
        return fmean(document["cosines"][n][kind])

    return ours


TEXT = "only what the text states; the paper's plots could not be read"
FIGURES = {
    "groups": Picture("EasySpec, figure 4: N, width and calibration, T = 0", "N", _groups, TEXT),
    "stage": Picture("EasySpec: speedup of drafting, chains, T = 0", "N", _stages, TEXT),
    "cosines": Picture("EasySpec, table 4: cosines of fuzzy execution", "N", _cosines, TEXT),
}
