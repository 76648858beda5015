"""What improved MCSD's paper claims, compared as it should be, and the comparisons it lacks."""

from __future__ import annotations

from statistics import fmean, geometric_mean
from typing import Any

from specwb.studies.claim import LACKING, Bar, Bars, Claim, Pooled, Tuned
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
from specwb.studies.study import Document, published


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


def bars() -> Bars:
    """What the paper's draft models accept at T = 0.7, as shares of the drafted levels."""

    def mean(method: str) -> float:
        rows = published("mcsd_ti")["tables"]["static"]["rows"]
        return fmean(r["acceptance"] for r in rows if (r["pair"], r["method"]) == (PAIR, method))

    cells = {"sps": Cell("sps", temperature=STATIC), "mcsd": mcsd(MCSD), "mcsd_ti": as_published()}
    return {
        (kind, ""): Bar(cells[kind], mean(method), "depth_fraction")
        for kind, method in (("sps", "SD"), ("mcsd", "MCSD"), ("mcsd_ti", "TI"))
    }


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
        out.append(Claim(f"{text}: {what}", place, what, first, second, paper, even=even))

    bars = next(r for r in published("mcsd_ti")["figures"]["static"]["rows"] if r["pair"] == PAIR)
    for name, second, other in (
        ("plain decoding", Cell("ar", temperature=STATIC), 1.0),
        ("MCSD 4-2-2-1", mcsd(MCSD), bars["MCSD"]),
    ):
        text = f"LOSSY: 2 roots with 4-4-1-1 over {name}"
        out.append(
            Claim(
                f"{text}, mean of {PAIR}",
                "abstract",
                "speedup",
                as_published(),
                second,
                bars["TI"] / other,
                headline=True,
            )
        )
        add(f"{text}, without loss below each root", "", "speedup", rooted(2, TI), second)
    for width in WIDE:
        both = wide(width, "soft"), wide(width, "none")
        text = f"LOSSY: decision model over none, {width} roots with a chain below each"
        for what, column in (("depth_fraction", "acceptance"), ("speedup", "rate")):
            number = with_[width][column] / without[width][column]
            add(text, "table width", what, *both, number, what == "speedup")
    for width in WIDTHS:
        for what in ("depth_fraction", "speedup"):
            text = f"decision model over none, {width} chains below one root"
            add(text, "", what, cut(width), cut(width, "none"))
    every = rate_ratios(with_, without)
    for t in TEMPERATURES:
        soft, none = (
            Pooled(
                f"T={t:g} {stop}, all widths", tuple(cut(w, stop, temperature=t) for w in WIDTHS)
            )
            for stop in ("soft", "none")
        )
        text = f"decision model over none, all widths below one root, T = {t:g}"
        add(text, "", "speedup", soft, none)
    soft, none = (
        Pooled(f"{stop}, all numbers of roots", tuple(wide(w, stop) for w in WIDE))
        for stop in ("soft", "none")
    )
    text = "LOSSY: decision model over none, all numbers of roots"
    add(text, "table width", "speedup", soft, none, fmean(every), True)
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
            text += ", without loss below each root"
            add(f"LOSSY: {text}", "", what, first_version(t, True), mcsd((*MCSD, 1), t))
    for what, name in (("speedup", "rate"), ("depth_fraction", "acceptance")):
        add(
            "MCSD 4-2-2-1 over SpS (drafts of 4 here), T = 0.7",
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
            as_published(),
            mcsd(MCSD),
            ratio("static", "TI", "MCSD", name),
        )
        add(
            "LOSSY: 2 roots with 4-4-1-1 over MCSD 4-2-2-1, T = 0.7, without loss below each root",
            "",
            what,
            rooted(2, TI),
            mcsd(MCSD),
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
    shapes = published("mcsd_ti")["tables"]["shapes"]["rows"]
    rates = {tuple(r["shape"]): r["rate"] for r in shapes}
    best_shape, worst = max(rates, key=lambda s: rates[s]), min(rates, key=lambda s: rates[s])
    text = f"the paper's best shape {spelling(best_shape)} over its worst {spelling(worst)}"
    shares = {tuple(r["shape"]): r["acceptance"] for r in shapes}
    good, bad = map(as_published, (best_shape, worst))
    for what, numbers in (("depth_fraction", shares), ("speedup", rates)):
        number = numbers[best_shape] / numbers[worst]
        add(f"LOSSY: {text}, 2 roots", "table shapes", what, good, bad, number)
    good, bad = (rooted(s[0], s[1:]) for s in (best_shape, worst))
    add(f"LOSSY: {text}, 2 roots, without loss below each root", "", "speedup", good, bad)
    add(f"{text}, one root", "", "speedup", static(best_shape), static(worst))
    return out
