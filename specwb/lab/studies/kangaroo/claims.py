"""What Kangaroo's paper claims, and the comparisons that it lacks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from statistics import fmean, geometric_mean
from typing import Any

from specwb.lab.studies.claim import LACKING, Bar, Bars, Claim, Tuned
from specwb.lab.studies.grid import Cell
from specwb.lab.studies.kangaroo import cells
from specwb.lab.studies.kangaroo.cells import ETAS, EXITS, GAMMAS, HERE, PARTS, USUAL, chain, tree
from specwb.lab.studies.study import Document, figure_rows, medusa_of, published, table_rows

SAME_PART = {0: 0, 3: 8, 6: 16}
"""Exit layers, in parts of the target's -> the paper's of Vicuna 7B at the same part."""
READ: float = published("kangaroo")["constants"]["error"]
"""How far a value that was read off a figure may be off."""
PLAIN = Cell("ar")
BEST_TREE = tree(10, 0.4)


def etas() -> dict[tuple[float, int], dict[str, float]]:
    """Return the figure over thresholds: (eta, gamma) -> cr, speedup."""
    return {(r["eta"], r["gamma"]): r for r in figure_rows("kangaroo", "eta")}


def depths(target: str = "Vicuna 7B") -> dict[int, dict[str, float]]:
    """Return the figure over exit layers: exit -> cr, speedup."""
    return {r["exit"]: r for r in figure_rows("kangaroo", "depth") if r["target"] == target}


def adapters() -> dict[str, float]:
    """Return the speedup of every adapter variant."""
    return {r["variant"]: r["speedup"] for r in table_rows("kangaroo", "adapter")}


def temperatures() -> dict[tuple[float, str], float]:
    """Return the table over temperatures: (temperature, confidence) -> speedup."""
    rows = table_rows("kangaroo", "temperature")
    return {(r["temperature"], r["stop"]): r["speedup"] for r in rows}


def ratios(first: str, second: str, what: str = "speedup", family: str = "") -> list[float]:
    """Compute the ratios of two methods of the main table.

    There is one for every task and target (of a ``family``) that has both.
    """
    rows = {
        (r["target"], r["method"]): r[what]
        for r in table_rows("kangaroo", "main")
        if r["target"].startswith(family)
    }
    pairs = [
        (rows[t, first], rows[t, second]) for t, m in rows if m == first and (t, second) in rows
    ]
    return [a[task] / b[task] for a, b in pairs for task in a]


def claims(document: Document | None = None) -> list[Claim]:
    """List the paper's claims, and comparisons that it lacks."""
    compared = partial(_methods, document)
    parts = (_headlines, _thresholds, compared, _temperatures, _variants, _other_claims)
    return [claim for part in parts for claim in part()]


def exit_chain(n: int, eta: float = USUAL) -> Cell:
    """The ablation's chain behind ``n / PARTS`` of the layers."""
    return chain(eta, variant=f"exit{n}")


def tuned_chain(
    gamma: int, thresholds: Sequence[float] = cells.INSIDE, like: int | None = None
) -> Tuned:
    """Choose the chain of ``gamma`` with the threshold that is fastest on other prompts.

    With ``like`` the threshold is chosen by the chains of that many tokens.
    """
    where = f" at gamma={like}" if like else ""
    name = f"gamma={gamma}, eta tuned{where} among {', '.join(map(str, thresholds))}"
    compared = tuple(chain(eta, like) for eta in thresholds) if like else ()
    return Tuned(name, tuple(chain(eta, gamma) for eta in thresholds), like=compared)


def bars() -> Bars:
    """What the paper's drafters accept: of Vicuna 7B, and by exit layer."""
    means = {
        r["method"]: fmean(r["cr"].values()) - 1
        for r in table_rows("kangaroo", "main")
        if r["target"] == "Vicuna 7B"
    }
    by_exit = depths()
    return {
        ("kangaroo", ""): Bar(chain(USUAL), means["Kangaroo, chain"]),
        ("medusa", ""): Bar(Cell(HERE["Medusa, chain"]), means["Medusa, chain"]),
        ("sps", ""): Bar(Cell("sps"), means["SpS"]),
        **{
            ("kangaroo", f"exit{n}"): Bar(exit_chain(n), by_exit[there]["cr"] - 1)
            for n, there in SAME_PART.items()
        },
    }


def _headlines() -> Iterator[Claim]:
    """Mean speedups of Vicuna 7B over plain decoding."""
    for name, cell in (("Kangaroo, chain", chain(USUAL)), ("Kangaroo", BEST_TREE)):
        (r,) = (
            r
            for r in table_rows("kangaroo", "main")
            if (r["target"], r["method"]) == ("Vicuna 7B", name)
        )
        text = f"{name} over plain decoding, mean of Vicuna 7B"
        yield Claim(text, "abstract", "speedup", cell, PLAIN, r["mean"], headline=True)


def _thresholds() -> Iterator[Claim]:
    """The claims of the figure over eta and gamma."""
    points = etas()

    def compare(
        text: str, what: str, first: Any, second: Any, a: Any, b: Any, **more: Any
    ) -> Claim:
        """The claim with the ratios of two of the figure's points."""
        column = "speedup" if what == "speedup" else "cr"
        return Claim(text, "figure eta", what, first, second, a[column] / b[column], **more)

    def fastest(at: Sequence[float], g: int, by: int | None = None) -> Any:
        """The point of gamma = g whose eta is fastest at gamma = by."""
        known = [eta for eta in at if (eta, g) in points and (eta, by or g) in points]
        return points[max(known, key=lambda eta: points[eta, by or g]["speedup"]), g]

    for g in GAMMAS:
        known = [eta for eta in ETAS if (eta, g) in points]
        low, high = (points[eta, g] for eta in (known[0], known[-1]))
        if low["cr"] - high["cr"] > 2 * READ + 1e-9:
            text = f"CR falls with eta, gamma = {g}: {known[0]:g} over {known[-1]:g}"
            ends = chain(known[0], g), chain(known[-1], g)
            why = "a draft that stops earlier cannot have more accepted (theorem 12.6)"
            yield compare(text, "tau", *ends, low, high, foregone=why)
        inside = fastest(cells.INSIDE, g)
        for eta in (0, 0.9):
            text = f"speed peaks at an eta between .3 and .9, gamma = {g}: over {eta:g}"
            both = tuned_chain(g), chain(eta, g)
            yield compare(text, "speedup", *both, inside, points[eta, g])
        if g != 6:
            text = (
                f"the best eta hardly depends on gamma: at {g} the one tuned at 6 over the one "
                f"tuned at {g}"
            )
            tuned = tuned_chain(g, ETAS, 6), tuned_chain(g, ETAS)
            numbers = fastest(ETAS, g, 6), fastest(ETAS, g)
            yield compare(text, "speedup", *tuned, *numbers, even=True)
    for eta, even in ((0, False), (0.7, True)):
        (a, b), (x, y) = ((f(eta, 4), f(eta, 8)) for f in (chain, lambda *at: points[at]))
        yield compare(f"gamma = 4 over 8 at eta = {eta:g}", "speedup", a, b, x, y, even=even)


def _methods(document: Document | None) -> Iterator[Claim]:
    """The claims of the main table."""
    usual, sps = chain(USUAL), Cell("sps")

    def compare(
        text: str, first: Cell, second: Cell, a: str, b: str, family: str = "", differs: str = ""
    ) -> Claim:
        number = geometric_mean(ratios(a, b, family=family))
        return Claim(text, "table main", "speedup", first, second, number, differs=differs)

    ours = "Kangaroo", "Kangaroo, chain"
    yield compare("Kangaroo's tree over its chain: speedup", BEST_TREE, usual, *ours)
    number = geometric_mean(ratios(*ours, "cr"))
    text = "Kangaroo's tree over its chain: tau"
    yield Claim(text, "table main", "tau", BEST_TREE, usual, number)
    for words, name in (("Medusa's", "Medusa, chain"), ("Lookahead", "Lookahead")):
        text = f"Kangaroo's chain is faster than {words}"
        yield compare(text, usual, Cell(HERE[name]), "Kangaroo, chain", name)
    text = "SpS (drafts of 4 here) is faster than Kangaroo's chain (there with Vicuna)"
    yield compare(text, sps, usual, "SpS", "Kangaroo, chain", "Vicuna")
    text = "Kangaroo's tree is faster than SpS (drafts of 4 here)"
    yield compare(text, BEST_TREE, sps, "Kangaroo", "SpS")
    text = "Kangaroo's tree is faster than Medusa's"
    medusa, other_tree = medusa_of(document)
    yield compare(text, BEST_TREE, medusa, "Kangaroo", "Medusa", differs=other_tree)


def _temperatures() -> Iterator[Claim]:
    """The claims of the table over temperatures."""
    speedups = temperatures()
    for t in cells.TEMPERATURES:
        both = chain(USUAL, temperature=t), chain(USUAL, stop="scaled", temperature=t)
        known = (t, "scaled") in speedups
        number = speedups[t, "top"] / speedups[t, "scaled"] if known else None
        text, table = f"unscaled over scaled confidence, T = {t:g}", "table temperature"
        yield Claim(text, table if known else LACKING, "speedup", *both, number)


def part_of_all(n: int) -> str:
    """Names the exit layer behind ``n / PARTS`` of all layers."""
    return f"{n}/{PARTS} of the layers" if n else "no layer"


def _variants() -> Iterator[Claim]:
    """Claims on exit layers, compared where they are the same part of all layers, and adapters."""
    by_exit, by_adapter = depths(), adapters()
    layers = published("kangaroo")["constants"]["layers"]["Vicuna 7B"]
    inner = EXITS[1:-1]
    peak = Tuned(
        f"exit tuned among {', '.join(map(str, inner))} of {PARTS} parts of the layers",
        tuple(map(exit_chain, inner)),
    )
    best = max(by_exit.values(), key=lambda r: r["speedup"])
    for n, part in ((EXITS[0], 0), (EXITS[-1], layers // 2)):
        edge = by_exit[part]
        yield Claim(
            f"speed peaks at an inner exit layer: over {part_of_all(n)} (the paper's {part})",
            "figure depth",
            "speedup",
            peak,
            exit_chain(n),
            best["speedup"] / edge["speedup"],
        )
    for (a, at), (b, below) in (((3, 8), (0, 0)), ((6, 16), (3, 8))):
        here = f"{part_of_all(a)} over {part_of_all(b)}"
        text = f"CR rises with the exit layer: {here} (the paper's {at} over {below})"
        effect = by_exit[at]["cr"] / by_exit[below]["cr"]
        yield Claim(text, "figure depth", "tau", exit_chain(a), exit_chain(b), effect)
    for name in cells.ADAPTERS:
        both = chain(USUAL, variant=cells.REFERENCE), chain(USUAL, variant=name)
        number = by_adapter["attention"] / by_adapter[name]
        yield Claim(f"attention alone over {name}", "table adapter", "speedup", *both, number)


def _other_claims() -> Iterator[Claim]:
    """The comparisons that the paper lacks."""

    def lacking(text: str, first: Any, second: Any, what: str = "speedup") -> Claim:
        return Claim(text, LACKING, what, first, second)

    def tuned(name: str, settings: Iterator[Cell]) -> Tuned:
        return Tuned(name, tuple(settings))

    chains = tuned_chain(6, ETAS)
    trees = tuned(
        "tree=true, top and eta tuned", (tree(k, e) for k in cells.TOPS for e in cells.TREE_ETAS)
    )
    static = tuned(
        "a static tree of as many nodes, tuned",
        (Cell(f"kangaroo:tree={shape}") for shape in cells.STATIC),
    )
    entropy = tuned("entropy, eta tuned", (chain(eta, stop="entropy") for eta in cells.ENTROPIES))
    yield lacking("Kangaroo's chain over plain decoding", chain(USUAL), PLAIN)
    yield lacking("the tuned tree over the tuned chain", trees, chains)
    yield lacking("the tuned tree over the tuned static tree", trees, static)
    yield lacking("the tuned static tree over the tuned chain", static, chains)
    text = "stopping by the largest probability over by entropy, both tuned"
    yield lacking(text, chains, entropy)
    yield lacking("Kangaroo's tuned chain over EAGLE", chains, Cell("eagle"))
    for name in cells.ADAPTERS:
        for eta in (0, USUAL):
            both = chain(eta, variant=cells.REFERENCE), chain(eta, variant=name)
            yield lacking(f"attention alone over {name}, eta = {eta:g}: tau", *both, "tau")
    etas, inner = cells.ABLATION_ETAS, EXITS[1:-1]
    peak = tuned("exit and eta tuned", (exit_chain(n, eta) for n in inner for eta in etas))
    for n in (EXITS[0], EXITS[-1]):
        edge = tuned(f"exit {part_of_all(n)}, eta tuned", (exit_chain(n, eta) for eta in etas))
        text = f"the best inner exit layer over {part_of_all(n)}, each with its best eta"
        yield lacking(text, peak, edge)
