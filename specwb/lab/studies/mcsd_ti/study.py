"""Improved MCSD (Lu et al. 2409.10644).

Measured are the decision model against none *on one pair*, shapes, several roots, and the cost of
masks. Several roots (``roots=2,lossy=true`` and more) change the output, so they are LOSSY: they
stand in tables of their own, beside how far they move it.

Differs from the paper in: models, machine and prompts; texts go on past an end of text. The number
of decoding steps a prompt is fixed. Times and tokens of a speedup are those of all steps but the
first, which processes the prompt; times are means and not medians, since steps of an adaptive draft
differ. The paper's decision model works below several roots; here it works below one, so that both
sides of a comparison have one output.
"""

from __future__ import annotations

from statistics import fmean
from typing import Any

from scipy import stats

from specwb.lab.studies import grid
from specwb.lab.studies.grid import Cell, error_of
from specwb.lab.studies.mcsd_ti import cells, claims
from specwb.lab.studies.mcsd_ti.cells import (
    DEPTH,
    MCSD,
    PAIR,
    STATIC,
    TEMPERATURES,
    TI,
    WIDTH,
    as_published,
    cut,
    first_version,
    mcsd,
    rooted,
    spelling,
    static,
    values,
    wide,
)
from specwb.lab.studies.mcsd_ti.figures import FIGURES
from specwb.lab.studies.study import (
    Document,
    Labelled,
    Rows,
    Study,
    Tables,
    lines,
    table_rows,
    theirs,
)

OURS = (
    "Acceptance (depth_fraction) is accepted over drafted levels, roots left out, as there. Ratios "
    "are geometric means over the paper's pairs and data sets, over widths those of "
    f"{PAIR}. Where the paper's numbers are judged, several roots are verified as its code does "
    "(rule=independent); the same without loss below each root stands beside it. LOSSY: the output "
    "is not the target's, so a speed there is no speedup at equal output."
)


def row(document: dict[str, Any], cell: Cell) -> dict[str, Any]:
    """Add to a cell's figures ``levels`` and ``depth_fraction``, means over prompts."""
    figures = grid.row(document, cell, values)
    for what in ("levels", "depth_fraction"):
        by_prompt = values(document["cells"], cell, what)
        figures[what], figures[f"{what}_error"] = round(fmean(by_prompt), 4), error_of(by_prompt)
    return {**figures, "lossy": cells.lossy(cell)}


# ----------------------------------------------------------------------------------------- tables

SHOWN = ("drafted", "levels", "acceptance", "tau", "ms/step", grid.SHOWN["speedup"])


def tables(document: Document, own: Rows, _: Rows) -> Tables:
    """Make the printed tables; nodes and levels are what was drafted."""
    shapes = table_rows("mcsd_ti", "shapes")
    titled = (
        (
            f"LOSSY: roots with a chain of {DEPTH} below each, with and without the decision model "
            f"on the same pair, T = 0; the paper's {PAIR}",
            _roots(),
        ),
        ("Chains below one root, T = 0: lossless", _widths(0.0)),
        ("Chains below one root, T = 1", _widths(1.0)),
        (f"What stops drafting, {WIDTH} chains", _stops()),
        ("Baselines; the paper's on MT-bench at T = 0.7", _baselines()),
        (
            "Shapes at one root, T = 0.7: lossless",
            ((static(r["shape"]), _setting(spelling(r["shape"]))) for r in shapes),
        ),
        (
            "LOSSY: shapes at two roots, verified as published, T = 0.7",
            ((as_published(r["shape"]), _setting(spelling(r["shape"]), r)) for r in shapes),
        ),
        (
            "LOSSY: shapes at two roots, without loss below each, T = 0.7",
            ((_below_each(r["shape"]), _setting(spelling(r["shape"]))) for r in shapes),
        ),
        (
            "LOSSY from two on: roots, and how far they move the output",
            _shifts(document.get("moved", {})),
        ),
    )
    return [(title, lines(own, labelled, SHOWN)) for title, labelled in titled]


def _setting(name: str, *published: dict[str, Any] | None) -> dict[str, str]:
    """The columns before ours: of a table that has the paper's figures these too, blank where it
    states none."""
    label = {"setting": name}
    for r in published:
        r = r or {}
        label |= theirs(acceptance=r.get("acceptance"), **{"tokens/s": r.get("rate")})
    return label


def _below_each(shape: list[int]) -> Cell:
    """The shape without loss below each root."""
    return rooted(shape[0], shape[1:])


def _roots() -> Labelled:
    for width in cells.WIDE:
        for stop, decision in (("soft", True), ("none", False)):
            numbers = claims.widths(PAIR, decision).get(width)
            yield wide(width, stop), _setting(f"{width} roots, {stop}", numbers)


def _widths(temperature: float) -> Labelled:
    for width in cells.WIDTHS:
        for stop in ("soft", "none"):
            yield cut(width, stop, temperature=temperature), _setting(f"{width} chains, {stop}")


def _stops() -> Labelled:
    for t in TEMPERATURES:
        yield cut(stop="none", temperature=t), _setting(f"T = {t:g}, none")
        for stop, thresholds in cells.THRESHOLDS.items():
            for x in thresholds:
                yield cut(WIDTH, stop, x, t), _setting(f"T = {t:g}, {stop} {x:g}")


def _baselines() -> Labelled:
    rows = table_rows("mcsd_ti", "static")
    known = {r["method"]: r for r in rows if (r["pair"], r["data"]) == (PAIR, "MT-bench")}
    yield Cell("sps", temperature=STATIC), _setting("SpS, T = 0.7", known["SD"])
    yield mcsd(MCSD), _setting("MCSD 4-2-2-1", known["MCSD"])
    yield as_published(), _setting("LOSSY: as published", known["TI"])
    yield rooted(2, TI), _setting("LOSSY: without loss below each root", None)
    yield static(TI), _setting("one root with 4-4-1-1", None)
    for t in TEMPERATURES:
        trees = [mcsd(shape, t) for shape in (*cells.EQUALS, (*MCSD, 1))]
        for cell in (Cell("sps", temperature=t), *trees):
            yield cell, _setting(cell.key, None)


def _shifts(shifts: dict[str, Any]) -> Labelled:
    judged = table_rows("mcsd_ti", "judged")
    scores = {r["roots"]: r["mean"] for r in judged if r["roots"]}
    for t in TEMPERATURES:
        for n in cells.ROOTS:
            labels = _shift(scores.get(n), shifts.get(f"T={t:g} roots={n}"))
            label = f"T = {t:g}, {n} root{'s' * (n > 1)}"
            yield rooted(n, [1] * DEPTH, t), {"setting": label, **labels}
        for cell in (first_version(t), first_version(t, True)):
            yield cell, {"setting": cell.key, **_shift(None, None)}


def _shift(score: float | None, shift: dict[str, Any] | None) -> dict[str, str]:
    """The paper's score of an output's quality, and how far the output is moved here."""
    out = {**theirs(score=score), "not its first choice": "", "log p": "", "TV of the first": ""}
    if shift:
        out["not its first choice"] = f"{shift['other']:.1%}"
        out["log p"] = f"{shift['log_p']:.2f}±{shift['error']:.2f}"
        if shift["tv"] is not None:
            out["TV of the first"] = f"{shift['tv']:.3f}"
    return out


def notes(document: Document) -> list[str]:
    """Say how the order of shapes agrees with the paper's."""
    speedups = {r["cell"]: r["speedup"] for r in document["rows"]}
    shapes, out = table_rows("mcsd_ti", "shapes"), []
    two = "2 roots (LOSSY), without loss below each"
    for text, cell in ((two, _below_each), ("one root", static)):
        ours = [speedups.get(cell(r["shape"]).key) for r in shapes]
        if all(ours):
            rank = stats.spearmanr([r["rate"] for r in shapes], ours).statistic
            out.append(
                f"Rank correlation of the {len(shapes)} shapes' tokens a second with the paper's, "
                f"{text}: {rank:.2f}."
            )
    return out


STUDY = Study(
    name="mcsd_ti",
    bars=claims.bars,
    cells=cells.cells,
    claims=claims.claims,
    tables=tables,
    notes=notes,
    options=cells.options,
    row=row,
    values=values,
    probe=cells.probe,
    heads=("decision",),
    given="decision",
    figures=FIGURES,
    rules=OURS,
)
