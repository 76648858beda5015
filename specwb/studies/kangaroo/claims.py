"""What Kangaroo's paper claims, and the comparisons that it lacks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import fmean, geometric_mean
from typing import Any

from specwb.studies.claim import LACKING, Bar, Bars, Claim, Tuned
from specwb.studies.grid import Cell
from specwb.studies.kangaroo.cells import (
    ABLATION_ETAS,
    ENTROPIES,
    ETAS,
    EXITS,
    GAMMAS,
    HERE,
    INSIDE,
    PARTS,
    REFERENCE,
    STATIC,
    TEMPERATURES,
    TOPS,
    TREE_ETAS,
    USUAL,
    chain,
    tree,
)
from specwb.studies.study import Document, published

SAME_PART = {0: 0, 3: 8, 6: 16}
"""Exit layers, in parts of the target's -> the paper's of Vicuna 7B at the same part."""
READ: float = published("kangaroo")["constants"]["error"]
"""How far a value that was read off a figure may be off."""


def etas() -> dict[tuple[float, int], dict[str, float]]:
    """Return the figure over thresholds: (eta, gamma) -> cr, speedup."""
    return {(r["eta"], r["gamma"]): r for r in published("kangaroo")["figures"]["eta"]["rows"]}


def depths(target: str = "Vicuna 7B") -> dict[int, dict[str, float]]:
    """Return the figure over exit layers: exit -> cr, speedup."""
    return {
        r["exit"]: r
        for r in published("kangaroo")["figures"]["depth"]["rows"]
        if r["target"] == target
    }


def adapters() -> dict[str, float]:
    """Return the speedup of every adapter variant."""
    return {r["variant"]: r["speedup"] for r in published("kangaroo")["tables"]["adapter"]["rows"]}


def ratios(first: str, second: str, what: str = "speedup", family: str = "") -> list[float]:
    """Compute the ratios of two methods of the main table.

    There is one for every task and target (of a ``family``) that has both.
    """
    rows = {
        (r["target"], r["method"]): r[what]
        for r in published("kangaroo")["tables"]["main"]["rows"]
        if r["target"].startswith(family)
    }
    pairs = [
        (rows[t, first], rows[t, second]) for t, m in rows if m == first and (t, second) in rows
    ]
    return [a[task] / b[task] for a, b in pairs for task in a]


def claims(_: Document | None = None) -> list[Claim]:
    """List the paper's claims, and comparisons that it lacks."""
    return [
        *_headlines(),
        *_thresholds(),
        *_methods(),
        *_temperatures(),
        *_variants(),
        *_other_claims(),
    ]


def tuned_chain(gamma: int, thresholds: Sequence[float] = INSIDE, like: int | None = None) -> Tuned:
    """Choose the chain of ``gamma`` with the threshold that is fastest on other prompts.

    With ``like`` the threshold is chosen by the chains of so many tokens.
    """
    where = f" at gamma={like}" if like else ""
    name = f"gamma={gamma}, eta tuned{where} among {', '.join(map(str, thresholds))}"
    compared = tuple(chain(eta, like) for eta in thresholds) if like else ()
    return Tuned(name, tuple(chain(eta, gamma) for eta in thresholds), like=compared)


def bars() -> Bars:
    """What the paper's drafters accept: of Vicuna 7B, and by exit layer."""
    means = {
        r["method"]: fmean(r["cr"].values()) - 1
        for r in published("kangaroo")["tables"]["main"]["rows"]
        if r["target"] == "Vicuna 7B"
    }
    by_exit = depths()
    return {
        ("kangaroo", ""): Bar(chain(USUAL), means["Kangaroo, chain"]),
        ("medusa", ""): Bar(Cell(HERE["Medusa, chain"]), means["Medusa, chain"]),
        ("sps", ""): Bar(Cell("sps"), means["SpS"]),
        **{
            ("kangaroo", f"exit{n}"): Bar(
                chain(USUAL, variant=f"exit{n}"), by_exit[there]["cr"] - 1
            )
            for n, there in SAME_PART.items()
        },
    }


def _headlines() -> Iterator[Claim]:
    """Mean speedups of Vicuna 7B over plain decoding, each with the mean of its tokens a step."""
    for name, cell in (("Kangaroo, chain", chain(USUAL)), ("Kangaroo", tree(10, 0.4))):
        (r,) = (
            r
            for r in published("kangaroo")["tables"]["main"]["rows"]
            if (r["target"], r["method"]) == ("Vicuna 7B", name)
        )
        yield Claim(
            f"{name} over plain decoding, mean of Vicuna 7B",
            "abstract",
            "speedup",
            cell,
            Cell("ar"),
            r["mean"],
            tau=fmean(r["cr"].values()),
            costs=tuple(r["cr"][task] / r["speedup"][task] for task in r["cr"]),
            headline=True,
        )


def _thresholds() -> Iterator[Claim]:
    """The claims of the figure over eta and gamma."""
    points = etas()
    reading_error = 2 * READ + 1e-9

    def compare(
        text: str, what: str, first: Any, second: Any, a: Any, b: Any, **more: Any
    ) -> Claim:
        """The claim with the ratios of two of the figure's points."""
        numbers: dict[str, Any] = {"paper": a["cr"] / b["cr"]}
        if what == "speedup":
            numbers = {"paper": a["speedup"] / b["speedup"], "tau": a["cr"] / b["cr"]}
        return Claim(text, "figure eta", what, first, second, **numbers, error=READ, **more)

    def fastest(at: Sequence[float], g: int, by: int | None = None) -> Any:
        """The point of gamma = g whose eta is fastest at gamma = by."""
        known = [eta for eta in at if (eta, g) in points and (eta, by or g) in points]
        return points[max(known, key=lambda eta: points[eta, by or g]["speedup"]), g]

    for g in GAMMAS:
        known = [eta for eta in ETAS if (eta, g) in points]
        a, b = known[0], known[-1]
        if points[a, g]["cr"] - points[b, g]["cr"] > reading_error:
            yield compare(
                f"CR falls with eta, gamma = {g}: {a:g} over {b:g}",
                "tau",
                chain(a, g),
                chain(b, g),
                points[a, g],
                points[b, g],
                foregone="a draft that stops earlier cannot have more accepted (theorem 12.6)",
            )
        for eta in (0, 0.9):
            yield compare(
                f"speed peaks at an eta between .3 and .9, gamma = {g}: over {eta:g}",
                "speedup",
                tuned_chain(g),
                chain(eta, g),
                fastest(INSIDE, g),
                points[eta, g],
            )
        if g != 6:
            yield compare(
                f"the best eta hardly depends on gamma: at {g} the one tuned at 6 over the one "
                f"tuned at {g}",
                "speedup",
                tuned_chain(g, ETAS, 6),
                tuned_chain(g, ETAS),
                fastest(ETAS, g, 6),
                fastest(ETAS, g),
                even=True,
            )
    for eta, even in ((0, False), (0.7, True)):
        yield compare(
            f"gamma = 4 over 8 at eta = {eta:g}",
            "speedup",
            chain(eta, 4),
            chain(eta, 8),
            points[eta, 4],
            points[eta, 8],
            even=even,
        )


def _methods() -> Iterator[Claim]:
    """The claims of the main table."""
    best, usual = tree(10, 0.4), chain(USUAL)

    def compare(
        text: str, first: Cell, second: Cell, names: tuple[str, str], family: str = "", **more: Any
    ) -> Claim:
        speeds, taus = (ratios(*names, what, family) for what in ("speedup", "cr"))
        return Claim(
            text,
            "table main",
            "speedup",
            first,
            second,
            geometric_mean(speeds),
            tau=geometric_mean(taus),
            costs=tuple(t / s for t, s in zip(taus, speeds, strict=True)),
            **more,
        )

    tree_chain = ("Kangaroo", "Kangaroo, chain")
    yield compare("Kangaroo's tree over its chain: speedup", best, usual, tree_chain)
    yield Claim(
        "Kangaroo's tree over its chain: tau",
        "table main",
        "tau",
        best,
        usual,
        geometric_mean(ratios(*tree_chain, "cr")),
    )
    yield compare(
        "Kangaroo's chain is faster than Medusa's",
        usual,
        Cell(HERE["Medusa, chain"]),
        ("Kangaroo, chain", "Medusa, chain"),
    )
    yield compare(
        "Kangaroo's chain is faster than Lookahead",
        usual,
        Cell("lookahead"),
        ("Kangaroo, chain", "Lookahead"),
    )
    yield compare(
        "SpS (drafts of 4 here) is faster than Kangaroo's chain (there with Vicuna)",
        Cell("sps"),
        usual,
        ("SpS", "Kangaroo, chain"),
        "Vicuna",
    )
    text = "Kangaroo's tree is faster than SpS (drafts of 4 here)"
    yield compare(text, best, Cell("sps"), ("Kangaroo", "SpS"))
    yield compare(
        "Kangaroo's tree is faster than Medusa's",
        best,
        Cell("medusa"),
        ("Kangaroo", "Medusa"),
        differs="definition: Medusa's tree here has 10 nodes, the published one 64",
    )


def _temperatures() -> Iterator[Claim]:
    """The claims of the table over temperatures."""
    speedups = {
        (r["temperature"], r["stop"]): r["speedup"]
        for r in published("kangaroo")["tables"]["temperature"]["rows"]
    }
    for t in TEMPERATURES:
        known = (t, "scaled") in speedups
        yield Claim(
            f"unscaled over scaled confidence, T = {t:g}",
            "table temperature" if known else LACKING,
            "speedup",
            chain(USUAL, temperature=t),
            chain(USUAL, stop="scaled", temperature=t),
            speedups[t, "top"] / speedups[t, "scaled"] if known else None,
        )


def part_of_all(n: int) -> str:
    """Names the exit layer behind ``n / PARTS`` of all layers."""
    return f"{n}/{PARTS} of the layers" if n else "no layer"


def _variants() -> list[Claim]:
    """Claims on exit layers, compared where they are the same part of all layers, and adapters."""
    by_exit, by_adapter = depths(), adapters()
    layers = published("kangaroo")["constants"]["layers"]["Vicuna 7B"]
    inner = tuple(n for n in EXITS if n not in (EXITS[0], EXITS[-1]))
    peak = Tuned(
        f"exit tuned among {', '.join(map(str, inner))} of {PARTS} parts of the layers",
        tuple(chain(USUAL, variant=f"exit{n}") for n in inner),
    )
    best = max(by_exit.values(), key=lambda r: r["speedup"])
    out = []
    for n, part in ((EXITS[0], 0), (EXITS[-1], layers // 2)):
        text = f"speed peaks at an inner exit layer: over {part_of_all(n)} (the paper's {part})"
        out.append(
            Claim(
                text,
                "figure depth",
                "speedup",
                peak,
                chain(USUAL, variant=f"exit{n}"),
                best["speedup"] / by_exit[part]["speedup"],
                tau=best["cr"] / by_exit[part]["cr"],
                error=READ,
                # a draft that ends with its first wrong token drafts tau tokens
                there=tuple(
                    (f"kangaroo:gamma=6,eta={USUAL},exit={r['exit']}", r["cr"])
                    for r in (best, by_exit[part])
                ),
            )
        )
    for (a, at), (b, below) in (((3, 8), (0, 0)), ((6, 16), (3, 8))):
        here = f"{part_of_all(a)} over {part_of_all(b)}"
        text = f"CR rises with the exit layer: {here} (the paper's {at} over {below})"
        first, second = (chain(USUAL, variant=f"exit{n}") for n in (a, b))
        effect = by_exit[at]["cr"] / by_exit[below]["cr"]
        out.append(Claim(text, "figure depth", "tau", first, second, effect))
    for name in ("own_head", "layer", "mlp"):
        first, second = chain(USUAL, variant=REFERENCE), chain(USUAL, variant=name)
        out.append(
            Claim(
                f"attention alone over {name}",
                "table adapter",
                "speedup",
                first,
                second,
                by_adapter["attention"] / by_adapter[name],
            )
        )
    return out


def _other_claims() -> list[Claim]:
    """The comparisons that the paper lacks."""
    out: list[Claim] = []

    def add(text: str, first: Any, second: Any, what: str = "speedup") -> None:
        out.append(Claim(text, LACKING, what, first, second))

    chains = tuned_chain(6, ETAS)
    trees = Tuned(
        "tree=true, top and eta tuned", tuple(tree(k, e) for k in TOPS for e in TREE_ETAS)
    )
    static = Tuned(
        "a static tree of as many nodes, tuned",
        tuple(Cell(f"kangaroo:tree={shape}") for shape in STATIC),
    )
    add("Kangaroo's chain over plain decoding", chain(USUAL), Cell("ar"))
    add("the tuned tree over the tuned chain", trees, chains)
    add("the tuned tree over the tuned static tree", trees, static)
    add("the tuned static tree over the tuned chain", static, chains)
    entropy = Tuned("entropy, eta tuned", tuple(chain(eta, stop="entropy") for eta in ENTROPIES))
    add("stopping by the largest probability over by entropy, both tuned", chains, entropy)
    add("Kangaroo's tuned chain over EAGLE", chains, Cell("eagle"))
    for name in ("own_head", "layer", "mlp"):
        for eta in (0, USUAL):
            first, second = chain(eta, variant=REFERENCE), chain(eta, variant=name)
            add(f"attention alone over {name}, eta = {eta:g}: tau", first, second, "tau")
    inner = [f"exit{n}" for n in EXITS[1:-1]]
    peak = Tuned(
        "exit and eta tuned",
        tuple(chain(eta, variant=name) for name in inner for eta in ABLATION_ETAS),
    )
    for n in (EXITS[0], EXITS[-1]):
        edge = Tuned(
            f"exit {part_of_all(n)}, eta tuned",
            tuple(chain(eta, variant=f"exit{n}") for eta in ABLATION_ETAS),
        )
        add(
            f"the best inner exit layer over {part_of_all(n)}, each with its best eta",
            peak,
            edge,
        )
    return out
