"""What improved MCSD's paper claims, compared as it should be, and the comparisons it lacks."""

from __future__ import annotations

from statistics import fmean, geometric_mean
from typing import Any

from specwb.lab.studies.claim import LACKING, Bar, Bars, Claim, Pooled, Tuned
from specwb.lab.studies.grid import Cell
from specwb.lab.studies.mcsd_ti.cells import (
    DEPTH,
    EQUALS,
    FIRST_VERSION,
    MCSD,
    PAIR,
    ROOTS,
    STATIC,
    TEMPERATURES,
    THRESHOLDS,
    TI,
    WIDE,
    WIDTH,
    WIDTHS,
    as_published,
    cut,
    first_version,
    mcsd,
    rooted,
    spelling,
    static,
    wide,
)
from specwb.lab.studies.study import Document, figure_rows, table_rows

FIGURES = (("depth_fraction", "acceptance"), ("speedup", "rate"))
"""A figure here, and its column in the paper."""


def widths(pair: str, decision: bool) -> dict[int, dict[str, float]]:
    """Return the sweep over widths: width -> acceptance, rate."""
    return {
        r["width"]: r
        for r in table_rows("mcsd_ti", "width")
        if (r["pair"], r["decision"]) == (pair, decision)
    }


def ratio(table: str, first: str, second: str, what: str, **where: Any) -> float:
    """Compute the ratio of two methods of a table.

    It is the geometric mean over pairs of models and data sets that have both.
    """
    rows = {
        (r["pair"], r["data"], r["method"]): r[what]
        for r in table_rows("mcsd_ti", table)
        if all(r[k] == v for k, v in where.items())
    }
    both = [
        (x, rows[pair, data, second]) for (pair, data, method), x in rows.items() if method == first
    ]
    return geometric_mean(a / b for a, b in both if a and b)


def bars() -> Bars:
    """What the paper's draft models accept at T = 0.7, as shares of the drafted levels."""
    rows = [r for r in table_rows("mcsd_ti", "static") if r["pair"] == PAIR]
    cells = {"SD": Cell("sps", temperature=STATIC), "MCSD": mcsd(MCSD), "TI": as_published()}
    return {
        (cell.kind, ""): Bar(
            cell, fmean(r["acceptance"] for r in rows if r["method"] == name), "depth_fraction"
        )
        for name, cell in cells.items()
    }


def claims(_: Document | None = None) -> list[Claim]:
    """List the paper's claims, compared as they should be, and comparisons that it lacks."""
    out: list[Claim] = []

    def add(
        text: str,
        what: str,
        first: Any,
        second: Any,
        table: str = LACKING,
        paper: float | None = None,
        even: bool = False,
    ) -> None:
        out.append(Claim(f"{text}: {what}", table, what, first, second, paper, even=even))

    repaired = "without loss below each root"
    ours = "LOSSY: 2 roots with 4-4-1-1"
    bars = next(r for r in figure_rows("mcsd_ti", "static") if r["pair"] == PAIR)
    for name, second, other in (
        ("plain decoding", Cell("ar", temperature=STATIC), 1.0),
        ("MCSD 4-2-2-1", mcsd(MCSD), bars["MCSD"]),
    ):
        text, numbers = f"{ours} over {name}, mean of {PAIR}", (bars["TI"] / other,)
        both = as_published(), second
        out.append(Claim(text, "abstract", "speedup", *both, *numbers, headline=True))
        add(f"{ours} over {name}, {repaired}", "speedup", rooted(2, TI), second)
    with_, without = widths(PAIR, True), widths(PAIR, False)
    for width in WIDE:
        both = wide(width, "soft"), wide(width, "none")
        text = f"LOSSY: decision model over none, {width} roots with a chain below each"
        for what, column in FIGURES:
            number = with_[width][column] / without[width][column]
            add(text, what, *both, "table width", number, what == "speedup")
    for width in WIDTHS:
        for what, _column in FIGURES:
            text = f"decision model over none, {width} chains below one root"
            add(text, what, cut(width), cut(width, "none"))

    for t in TEMPERATURES:
        soft, none = (
            Pooled(
                f"T={t:g} {stop}, all widths", tuple(cut(w, stop, temperature=t) for w in WIDTHS)
            )
            for stop in ("soft", "none")
        )
        text = f"decision model over none, all widths below one root, T = {t:g}"
        add(text, "speedup", soft, none)
    soft, none = (
        Pooled(f"{stop}, all numbers of roots", tuple(wide(w, stop) for w in WIDE))
        for stop in ("soft", "none")
    )
    number = fmean(with_[w]["rate"] / without[w]["rate"] for w in with_ if w in without)
    text = "LOSSY: decision model over none, all numbers of roots"
    add(text, "speedup", soft, none, "table width", number, True)
    for t in TEMPERATURES:
        best = {
            stop: Tuned(
                f"T={t:g} {stop}, threshold tuned", tuple(cut(WIDTH, stop, x, t) for x in xs)
            )
            for stop, xs in THRESHOLDS.items()
        }
        never = cut(stop="none", temperature=t)
        for stop, tuned in best.items():
            text = f"{stop} at its best threshold over none, {WIDTH} chains, T = {t:g}"
            add(text, "speedup", tuned, never)
        for stop in ("top", "hard"):
            text = f"soft over {stop}, each at its best threshold, T = {t:g}"
            add(text, "speedup", best["soft"], best[stop])
        trees = cut(6, "none", temperature=t), mcsd(EQUALS[0], t)
        add(f"6 chains (31 nodes) over MCSD 4-2-2 (29), T = {t:g}", "speedup", *trees)
        one, *several = (rooted(n, [1] * DEPTH, t) for n in ROOTS)
        for n, cell in zip(ROOTS[1:], several, strict=True):
            for what in ("tau", "speedup"):
                add(f"LOSSY: {n} roots over one, chains below, T = {t:g}", what, cell, one)
        deep = mcsd((*MCSD, 1), t)
        text = (
            f"LOSSY: {FIRST_VERSION} roots with the decision model over MCSD 4-2-2-1-1, T = {t:g}"
        )
        for what, column in reversed(FIGURES):
            number = ratio("v1", "DynaSD", "MCSD", column, temperature=int(t))
            add(text, what, first_version(t), deep, "table v1", number)
            add(f"{text}, {repaired}", what, first_version(t, True), deep)
    for what, column in reversed(FIGURES):
        number = ratio("static", "MCSD", "SD", column)
        both = mcsd(MCSD), Cell("sps", temperature=STATIC)
        text = "MCSD 4-2-2-1 over SpS (drafts of 4 here), T = 0.7"
        add(text, what, *both, "table static", number)
        text, number = f"{ours} over MCSD 4-2-2-1, T = 0.7", ratio("static", "TI", "MCSD", column)
        add(text, what, as_published(), mcsd(MCSD), "table static", number)
        add(f"{text}, {repaired}", what, rooted(2, TI), mcsd(MCSD))
        text = "one root with 4-4-1-1 over MCSD 4-2-2-1, T = 0.7"
        add(text, what, static(TI), mcsd(MCSD))
    for what, _column in FIGURES:
        text = f"{ours}, verified as published over {repaired}"
        add(text, what, as_published(), rooted(2, TI))
    text = f"{ours} over one root with as many nodes (2-4-4-1-1), T = 0.7"
    add(text, "speedup", rooted(2, TI), static((2, *TI)))
    by_shape = {tuple(r["shape"]): r for r in table_rows("mcsd_ti", "shapes")}
    rates = {shape: r["rate"] for shape, r in by_shape.items()}
    best_shape, worst = max(rates, key=lambda s: rates[s]), min(rates, key=lambda s: rates[s])
    text = f"the paper's best shape {spelling(best_shape)} over its worst {spelling(worst)}"
    published = as_published(best_shape), as_published(worst)
    for what, column in FIGURES:
        number = by_shape[best_shape][column] / by_shape[worst][column]
        add(f"LOSSY: {text}, 2 roots", what, *published, "table shapes", number)
    good, bad = (rooted(s[0], s[1:]) for s in (best_shape, worst))
    add(f"LOSSY: {text}, 2 roots, {repaired}", "speedup", good, bad)
    add(f"{text}, one root", "speedup", static(best_shape), static(worst))
    return out
