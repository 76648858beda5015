"""What improved MCSD's paper claims, compared as it should be, and the comparisons it lacks."""

from __future__ import annotations

from statistics import fmean, geometric_mean
from typing import Any

from specwb.studies.claim import LACKING, Claim, Pooled, Tuned
from specwb.studies.grid import Cell
from specwb.studies.mcsd_ti.cells import (
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
    WIDTH,
    WIDTHS,
    as_published,
    cut,
    first_version,
    mcsd,
    rooted,
    spelling,
    static,
)
from specwb.studies.study import Document, published

ROOTS_THERE = "definition: the paper's widths are numbers of roots, here of chains below one root"


def widths(pair: str, decision: bool) -> dict[int, dict[str, float]]:
    """Return the sweep over widths: width -> acceptance, rate."""
    return {
        r["width"]: r
        for r in published("mcsd_ti")["tables"]["width"]["rows"]
        if (r["pair"], r["decision"]) == (pair, decision)
    }


def rate_ratios(a: dict[int, dict[str, float]], b: dict[int, dict[str, float]]) -> list[float]:
    """Compute the rates of a over those of b, at every width of both."""
    return [a[w]["rate"] / b[w]["rate"] for w in a if w in b]


def ratio(table: str, first: str, second: str, what: str, **where: Any) -> float:
    """Compute the ratio of two methods of a table.

    It is the geometric mean over pairs of models and data sets that have both.
    """
    rows = {
        (r["pair"], r["data"], r["method"]): r[what]
        for r in published("mcsd_ti")["tables"][table]["rows"]
        if all(r[k] == v for k, v in where.items())
    }
    both = [
        (x, rows[pair, data, second]) for (pair, data, method), x in rows.items() if method == first
    ]
    return geometric_mean(a / b for a, b in both if a and b)


def claims(_: Document | None = None) -> list[Claim]:
    """List the paper's claims, compared as they should be, and comparisons that it lacks."""
    with_, without = widths(PAIR, True), widths(PAIR, False)
    out: list[Claim] = []

    def add(
        text: str,
        table: str,
        what: str,
        first: Any,
        second: Any,
        paper: float | None = None,
        even: bool = False,
    ) -> None:
        place = table if paper else LACKING
        differs = ROOTS_THERE if place == "table width" else ""
        out.append(
            Claim(f"{text}: {what}", place, what, first, second, paper, even=even, differs=differs)
        )

    bars = next(r for r in published("mcsd_ti")["figures"]["static"]["rows"] if r["pair"] == PAIR)
    for name, second, other in (
        ("plain decoding", Cell("ar", temperature=STATIC), 1.0),
        ("MCSD 4-2-2-1", mcsd(MCSD), bars["MCSD"]),
    ):
        text = f"LOSSY: 2 roots with 4-4-1-1 over {name}, mean of {PAIR}"
        out.append(
            Claim(
                text,
                "abstract",
                "speedup",
                rooted(2, TI),
                second,
                bars["TI"] / other,
                headline=True,
            )
        )
    for width in WIDTHS:
        both = cut(width), cut(width, "none")
        acceptance, rate = None, None
        if width in with_:
            acceptance = with_[width]["acceptance"] / without[width]["acceptance"]
            rate = with_[width]["rate"] / without[width]["rate"]
        text = f"decision model over none, {width} chains"
        add(text, "table width", "depth_fraction", *both, acceptance)
        add(text, "table width", "speedup", *both, rate, True)
    for t in TEMPERATURES:
        soft, none = (
            Pooled(
                f"T={t:g} {stop}, all widths", tuple(cut(w, stop, temperature=t) for w in WIDTHS)
            )
            for stop in ("soft", "none")
        )
        add(
            f"decision model over none, all widths, T = {t:g}",
            "table width",
            "speedup",
            soft,
            none,
            None if t else fmean(rate_ratios(with_, without)),
            True,
        )
    best = {
        (stop, t): Tuned(
            f"T={t:g} {stop}, threshold tuned", tuple(cut(WIDTH, stop, x, t) for x in thresholds)
        )
        for stop, thresholds in THRESHOLDS.items()
        for t in TEMPERATURES
    }
    for t in TEMPERATURES:
        for stop in THRESHOLDS:
            add(
                f"{stop} at its best threshold over none, {WIDTH} chains, T = {t:g}",
                "",
                "speedup",
                best[stop, t],
                cut(stop="none", temperature=t),
            )
        add(
            f"soft over top, each at its best threshold, T = {t:g}",
            "",
            "speedup",
            best["soft", t],
            best["top", t],
        )
        add(
            f"soft over hard, each at its best threshold, T = {t:g}",
            "",
            "speedup",
            best["soft", t],
            best["hard", t],
        )
        add(
            f"6 chains (31 nodes) over MCSD 4-2-2 (29), T = {t:g}",
            "",
            "speedup",
            cut(6, "none", temperature=t),
            mcsd(EQUALS[0], t),
        )
        for n in ROOTS[1:]:
            for what in ("tau", "speedup"):
                add(
                    f"LOSSY: {n} roots over one, chains below, T = {t:g}",
                    "",
                    what,
                    rooted(n, [1] * DEPTH, t),
                    rooted(1, [1] * DEPTH, t),
                )
        for what, name in (("speedup", "rate"), ("depth_fraction", "acceptance")):
            text = f"{FIRST_VERSION} roots with the decision model over MCSD 4-2-2-1-1, T = {t:g}"
            add(
                f"LOSSY: {text}",
                "table v1",
                what,
                first_version(t),
                mcsd((*MCSD, 1), t),
                ratio("v1", "DynaSD", "MCSD", name, temperature=int(t)),
            )
    for what, name in (("speedup", "rate"), ("depth_fraction", "acceptance")):
        add(
            "MCSD 4-2-2-1 over SpS, T = 0.7",
            "table static",
            what,
            mcsd(MCSD),
            Cell("sps", temperature=STATIC),
            ratio("static", "MCSD", "SD", name),
        )
        add(
            "LOSSY: 2 roots with 4-4-1-1 over MCSD 4-2-2-1, T = 0.7",
            "table static",
            what,
            rooted(2, TI),
            mcsd(MCSD),
            ratio("static", "TI", "MCSD", name),
        )
        add("one root with 4-4-1-1 over MCSD 4-2-2-1, T = 0.7", "", what, static(TI), mcsd(MCSD))
    for what in ("depth_fraction", "speedup"):
        add(
            "LOSSY: 2 roots with 4-4-1-1, verified as published over without loss below each root",
            "",
            what,
            as_published(),
            rooted(2, TI),
        )
    add(
        "LOSSY: 2 roots with 4-4-1-1 over one root with as many nodes (2-4-4-1-1), T = 0.7",
        "",
        "speedup",
        rooted(2, TI),
        static((2, *TI)),
    )
    rates = {tuple(r["shape"]): r["rate"] for r in published("mcsd_ti")["tables"]["shapes"]["rows"]}
    best_shape, worst = max(rates, key=lambda s: rates[s]), min(rates, key=lambda s: rates[s])
    text = f"the paper's best shape {spelling(best_shape)} over its worst {spelling(worst)}"
    good, bad = (rooted(s[0], s[1:]) for s in (best_shape, worst))
    add(
        f"LOSSY: {text}, 2 roots",
        "table shapes",
        "speedup",
        good,
        bad,
        rates[best_shape] / rates[worst],
    )
    add(f"{text}, one root", "", "speedup", static(best_shape), static(worst))
    return out
