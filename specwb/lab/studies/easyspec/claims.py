"""What EasySpec's text states, and the comparisons that it lacks."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise, product
from statistics import fmean
from typing import Any

from specwb.lab.evaluation import fuzzy
from specwb.lab.studies.claim import LACKING, Claim, Tuned
from specwb.lab.studies.easyspec.cells import (
    TEMPERATURE,
    WIDE_NS,
    WIDTHS,
    Eager,
    N,
    easy,
    ends,
    ns_of,
    plain,
)
from specwb.lab.studies.grid import Cell
from specwb.lab.studies.study import Document, published, typed_ratio

STATED = "stated"
"""Where a claim is from."""
NEAR = 0.95
"""A cosine above this is near 1."""


def claims(document: Document) -> list[Claim]:
    """List what is judged of a document, by its draft model's layers and its device."""
    return [*all_claims(document["layers"], document["kind"]), *_typed()]


def _typed() -> Iterator[Claim]:
    """The claims of the table of speeds, where somebody has typed it."""
    for w, t in product(WIDTHS, (0.0, TEMPERATURE)):
        for what, column in (("accepted", "acceptance"), ("speedup", "speedup")):
            number = typed_ratio("easyspec", "EasySpec", "draft", column, width=w, temperature=t)
            if number is not None:
                text = f"EasySpec over its drafter, width {w}, T = {t:g}: {what}"
                both = easy(N, w, temperature=t), plain(w, t)
                yield Claim(text, "table speed", what, *both, number)


def all_claims(layers: int, device: str = "cpu") -> Iterator[Claim]:
    """List the paper's statements, and comparisons that it lacks.

    They are those for which a draft model of so many layers can be compared.
    """
    c, ns, wide = published("easyspec")["constants"], ns_of(layers), ns_of(layers, WIDE_NS)

    def stated(
        text: str, what: str, first: Any, second: Any, number: float | None = None, **more: Any
    ) -> Claim:
        return Claim(text, STATED, what, first, second, number, sign=number is None, **more)

    def lacking(text: str, what: str, first: Cell, second: Cell) -> Claim:
        return Claim(text, LACKING, what, first, second, sign=True)

    def faster(text: str, first: Cell, second: Cell) -> Claim:
        return stated(text, "speedup", first, second)

    clocked = Eager if device == "cuda" else Cell  # a recorded step has no parts
    both, text = (plain(kind=clocked), easy(kind=clocked)), "drafting of the plain drafter over N"
    yield stated(f"{text} = 4", "draft", *both, c["stage"])
    if clocked is Cell:
        yield stated(f"{text} = 4, width 8", "draft", plain(8), easy(N, 8), c["stage"])
    every = tuple(easy(n, w) for w in WIDTHS for n in (ns if w == 1 else wide) if n > 1)
    yield stated(
        "EasySpec, N and width tuned, over plain decoding",
        "speedup",
        Tuned("N and width tuned", every),
        Cell("ar"),
        c["speedup"],
        differs="models: the most of several pairs there, whose tokens a step are not known",
        headline=True,
    )
    text = "a gain without a tree: N = 4 over the plain drafter, width 1"
    yield faster(text, easy(), plain())
    for w in (1, 8):
        for n in (2, N):
            text = f"throughput rises with N from 1: N = {n} over 1, width {w}"
            yield faster(text, easy(n, w), easy(1, w))
        for n in wide[1::2]:
            yield faster(f"N = 4 is best: over N = {n}, width {w}", easy(N, w), easy(n, w))
    for w in WIDTHS:
        text = f"at N = 4 acceptance is at most 7 % below the plain drafter's, width {w}"
        least = 1 - c["drop"]
        yield stated(text, "accepted", easy(N, w), plain(w), least, least=least)
        for n in (ns if w == 1 else wide)[1:]:
            text = f"calibration raises acceptance, N = {n}, width {w}"
            yield stated(text, "accepted", easy(n, w), easy(n, w, False))
        a, b = (wide[-1], w), (2, w)
        text = f"calibration flattens the decline: N = {wide[-1]} over 2, width {w}"
        over = easy(*a, False), easy(*b, False)
        yield stated(text, "accepted", easy(*a), easy(*b), over=over)
    for w, n in product(WIDTHS[1:], wide[2:]):
        text = (
            f"wider trees tolerate larger N: acceptance at N = {n} over 1, width {w} over width 1"
        )
        yield stated(text, "accepted", easy(n, w), plain(w), over=(easy(n), plain()))
    for what in ("accepted", "speedup"):
        for name, cell in ends(layers).items():
            text = f"the first and the last layer left out over {name} grouped: {what}"
            yield stated(text, what, easy(), cell)
        for n in (2, N):
            text = f"MLPs in sequence over side by side, N = {n}: {what}"
            yield stated(text, what, easy(n), easy(n, mlp="parallel"))
    for w in WIDTHS:
        text = f"calibration, N = 4, width {w}: speedup"
        yield lacking(text, "speedup", easy(N, w), easy(N, w, False))
    both = easy(kind=clocked, execution="simulation"), easy(kind=clocked)
    yield lacking("drafting of the simulation over the fused groups, N = 4", "draft", *both)
    both = easy(temperature=TEMPERATURE), plain(temperature=TEMPERATURE)
    yield lacking(f"N = 4 over the plain drafter, T = {TEMPERATURE:g}", "speedup", *both)
    for kind, word in ((Cell, "graphs"), (Eager, "eager")) if device == "cuda" else ():
        for execution in ("simulation", "streams"):
            both = easy(kind=kind), easy(kind=kind, execution=execution)
            yield lacking(f"fused groups over {execution}, {word}", "speedup", *both)
        both = easy(kind=kind), plain(kind=kind)
        yield lacking(f"N = 4 over the plain drafter, {word}", "speedup", *both)


def cosines_judged(document: dict[str, Any]) -> list[dict[str, str]]:
    """Give verdicts on what is stated of cosines, each with the cosines it is from."""
    c, cosines = published("easyspec")["constants"], document.get("cosines", {})
    means = [
        {kind: fmean(cosines[str(n)][kind]) for kind in fuzzy.KINDS}
        for n in c["cosine_n"]
        if str(n) in cosines
    ]
    if not means:
        return []
    lowest = min(min(mean.values()) for mean in means)
    lowest_qk = min(mean[kind] for mean in means for kind in "qk")
    falls = all(a[kind] > b[kind] for a, b in pairwise(means) for kind in fuzzy.KINDS)
    above, near = f"lowest {lowest:.3f}", f"lowest {lowest_qk:.3f}"
    statements = [
        (f"mean cosines stay above {c['cosine']}, N from 2 to 4", lowest > c["cosine"], above),
        ("mean cosines fall with N", falls, "all of them" if falls else "not all of them"),
        (f"q and k stay near 1 (above {NEAR})", lowest_qk > NEAR, near),
    ]
    return [
        {"claim": text, "verdict": "reproduced" if holds else "contradicted", "from": reason}
        for text, holds, reason in statements
    ]
