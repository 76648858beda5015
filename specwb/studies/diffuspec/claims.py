"""What DiffuSpec's paper claims, and the comparisons that it lacks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import inf
from typing import Any

from specwb.studies.claim import LACKING, ROUNDED, Bar, Bars, Claim
from specwb.studies.diffuspec.cells import (
    ARGMAX,
    FIXED,
    HERE,
    LAMS,
    LONG,
    NAMES,
    NGRAMS,
    RELAXED,
    SHORT,
    SIZES,
    USUAL,
    diffuspec,
    figure,
    rows_of,
    sweeps,
)
from specwb.studies.grid import Cell
from specwb.studies.study import Document, published

LONGEST = {"SPS": 4}
"""Draft tokens of a step here, of methods that draft a fixed number."""
RATCHET = (
    "theorem 11.6: unless all of its first draft is kept, ADL drafts 20 tokens in every later "
    "step, and the paper's own row of k = 20 has less than half of this effect"
)


def claims(_: Document | None = None) -> list[Claim]:
    """List the claims of the paper's tables 1, 2 and 5 and figure 7, and comparisons it lacks."""
    return [*_headlines(), *_table_claims(), *_sweep_claims(), *_other_claims()]


def bars() -> Bars:
    """What the paper's drafter accepts; its MAT is taken to count the bonus token."""
    mat = rows_of(1, "method")["DiffuSpec"]["mat"]
    return {("diffuspec", ""): Bar(diffuspec(LONG), mat - 1)}


def _headlines() -> Iterator[Claim]:
    """The abstract's "up to 3x", which is the mean over tasks."""
    r = rows_of(1, "method")["DiffuSpec"]
    yield Claim(
        "DiffuSpec over plain decoding, mean over tasks",
        "abstract",
        "speedup",
        diffuspec(LONG),
        Cell("ar"),
        r["speedup"],
        tau=r["mat"],
        headline=True,
    )


def _ratios(a: dict[str, Any], b: dict[str, Any], what: str) -> dict[str, Any]:
    """The paper's ratios of two rows, for a claim on ``what``."""
    mat = a["mat"] / b["mat"]
    return (
        {"paper": a["speedup"] / b["speedup"], "tau": mat} if what == "speedup" else {"paper": mat}
    )


def _table_claims() -> Iterator[Claim]:
    """The claims of the paper's tables 1, 2 and 5."""
    one, two, five = rows_of(1, "method"), rows_of(2, "cps", "adl"), rows_of(5, "k")

    def compare(
        text: str,
        table: str,
        first: Cell,
        second: Cell,
        a: dict[str, Any],
        b: dict[str, Any],
        whats: Sequence[str] = ("tau", "speedup"),
        adaptive: bool = False,
        foregone: str = "",
    ) -> Iterator[Claim]:
        for what in whats:
            numbers, column = _ratios(a, b, what), "speedup" if what == "speedup" else "mat"
            # with the published constants ADL is k = 20; two digits are rounded
            constant = five[20][column] / five.get(b.get("k"), five[20])[column]
            is_false = adaptive and constant + ROUNDED < numbers["paper"] ** 0.5
            yield Claim(
                f"{text}: {what}",
                table,
                what,
                first,
                second,
                **numbers,
                theorem=RATCHET if is_false else "",
                foregone=foregone,
            )

    for constants, name in NAMES.items():
        if constants == SHORT:  # our own lengths are compared below
            continue
        # The paper's search has an n-gram that was counted beforehand. One that reads along is
        # another method, compared below.
        search, fixed = diffuspec(constants, "ngram=own"), diffuspec(FIXED[constants], "ngram=own")
        on, off = diffuspec(constants), diffuspec(FIXED[constants])
        row_on, row_off = diffuspec(constants, ARGMAX), diffuspec(FIXED[constants], ARGMAX)
        yield from compare(
            f"CPS over the argmax row, ADL of {name}",
            "table 2",
            search,
            row_on,
            two[True, True],
            two[False, True],
        )
        yield from compare(
            f"CPS over the argmax row, {FIXED[constants]}",
            "table 2",
            fixed,
            row_off,
            two[True, False],
            two[False, False],
        )
        yield from compare(
            f"ADL of {name} over {FIXED[constants]}",
            "table 2",
            on,
            off,
            two[True, True],
            two[True, False],
        )
        yield from compare(
            f"ADL of {name} over {FIXED[constants]}, argmax rows",
            "table 2",
            row_on,
            row_off,
            two[False, True],
            two[False, False],
        )
        for k in SIZES[constants]:
            long = "a draft of so many more tokens costs more" if k >= 50 else ""
            for what in ("tau", "speedup"):
                yield from compare(
                    f"ADL of {name} over k = {k}",
                    "table 5",
                    on,
                    diffuspec(f"k={k}"),
                    five["adl"],
                    five[k],
                    (what,),
                    adaptive=True,
                    foregone=long if what == "speedup" else "",
                )
        for other, key in HERE.items():
            differs = ""
            if one[other]["target"] != one["DiffuSpec"]["target"]:
                differs = f"models: {other} ran on {one[other]['target']} there"
            elif one[other]["mat"] > LONGEST.get(other, inf) + 1:
                differs = f"definition: {other} drafts more there than the {LONGEST[other]} here"
            full, theirs = one["DiffuSpec"], one[other]
            yield Claim(
                f"DiffuSpec ({name}) is faster than {other}",
                "table 1",
                "speedup",
                on,
                Cell(key),
                **_ratios(full, theirs, "speedup"),
                differs=differs,
            )
            yield Claim(
                f"DiffuSpec ({name}) over {other}: tau",
                "table 1",
                "tau",
                on,
                Cell(key),
                **_ratios(full, theirs, "tau"),
                differs=differs,
            )


def _sweep_claims() -> Iterator[Claim]:
    """The claims of figure 7.

    They are its best setting over every other one by speed, and of any two by MAT the larger over
    the smaller one, if they differ by more than what was read off may be wrong.
    """
    reading_error = 2 * figure(7)["error"] + 1e-9
    for name, rows in sweeps().items():
        usual = published("diffuspec")["constants"][name]
        best, best_row = rows[usual]
        for value, (cell, r) in rows.items():
            if value == usual:
                continue
            if best_row["speedup"] - r["speedup"] > reading_error:
                yield Claim(
                    f"{name} = {usual} is faster than {value}",
                    "figure 7",
                    "speedup",
                    best,
                    cell,
                    **_ratios(best_row, r, "speedup"),
                    error=figure(7)["error"],
                    foregone="every denoising step is a pass" if name == "steps" else "",
                )
            if abs(best_row["mat"] - r["mat"]) > reading_error:
                larger, smaller = (best, usual, best_row), (cell, value, r)
                if r["mat"] >= best_row["mat"]:
                    larger, smaller = smaller, larger
                (a, x, of_a), (b, y, of_b) = larger, smaller
                text = f"{name} = {x} over {y}: tau"
                yield Claim(text, "figure 7", "tau", a, b, **_ratios(of_a, of_b, "tau"))


def _other_claims() -> list[Claim]:
    """The comparisons that the paper lacks."""
    out: list[Claim] = []

    def add(text: str, first: Cell, second: Cell, *whats: str) -> None:
        out.extend(
            Claim(f"{text}: {what}", LACKING, what, first, second)
            for what in whats or ("accepted",)
        )

    for constants, name in NAMES.items():
        usual = diffuspec(constants)
        for lam in LAMS:
            add(f"lam = 0.5 over {lam}, {name}", usual, diffuspec(constants, f"lam={lam}"))
        for option, text in NGRAMS.items():
            if option != USUAL[constants]:
                add(
                    f"the n-gram of order 3 ({NGRAMS[USUAL[constants]]}) over {text}, {name}",
                    usual,
                    diffuspec(constants, option),
                )
        add(f"a beam of 15 over 3, {name}", diffuspec(constants, "beams=15"), usual)
        add(
            f"the beam's paths as one tree over the best path, {name}",
            diffuspec(constants, "tree=true"),
            usual,
            "accepted",
            "speedup",
        )
        relaxed, strict = map(diffuspec, RELAXED[constants])
        add(f"ADL that grows at 0.8 over 1, {name}", relaxed, strict, "accepted", "speedup")
        if USUAL[constants] != "ngram=own":
            add(
                f"CPS with an n-gram that reads along too over the argmax row, {name}",
                usual,
                diffuspec(constants, ARGMAX),
                "accepted",
                "speedup",
            )
    for search, text in (
        (diffuspec(SHORT, "ngram=own"), f"ADL of {NAMES[SHORT]}"),
        (diffuspec(FIXED[SHORT], "ngram=own"), FIXED[SHORT]),
    ):
        row = diffuspec(FIXED[SHORT] if text == FIXED[SHORT] else SHORT, ARGMAX)
        add(f"CPS over the argmax row, {text}", search, row, "accepted", "speedup")
    for other, key in HERE.items():
        add(
            f"DiffuSpec ({NAMES[SHORT]}) over {other}",
            diffuspec(SHORT),
            Cell(key),
            "tau",
            "speedup",
        )
    for k in SIZES[SHORT]:
        add(
            f"ADL of {NAMES[SHORT]} over k = {k}",
            diffuspec(SHORT),
            diffuspec(f"k={k}"),
            "accepted",
            "speedup",
        )
    add(
        "one denoising step over two, 4 to 8 tokens",
        diffuspec(SHORT),
        diffuspec("steps=2"),
        "accepted",
        "speedup",
    )
    add(
        "chunks of 4 while confident over ADL",
        diffuspec("k=12,chunk=4,confidence=0.5"),
        diffuspec(SHORT),
        "accepted",
        "speedup",
    )
    searched = diffuspec(SHORT, temperature=1.0)
    for option, text in (
        (ARGMAX, "the argmax row"),
        ("draw=sample", "independent draws by the ratio rule"),
        ("draw=sample,rule=block", "independent draws verified as a block"),
        ("draw=sample,paths=4", "four sequences of draws"),
    ):
        add(f"the searched path over {text}, T = 1", searched, diffuspec(option, temperature=1.0))
    return out
