"""What DiffuSpec's paper claims, and the comparisons that it lacks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import inf

from specwb.lab.studies.claim import LACKING, Bar, Bars, Claim
from specwb.lab.studies.diffuspec.cells import (
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
from specwb.lab.studies.grid import Cell
from specwb.lab.studies.study import Document, Row, published

ROUNDED = 0.005
"""How far a number with two digits may be off."""
LONGEST = {"SPS": 4}
"""Draft tokens of a step here, of methods that draft a fixed number."""
RATCHET = (
    "theorem 11.6: unless all of its first draft is kept, ADL drafts 20 tokens in every later "
    "step, and the paper's own row of k = 20 has less than half of this effect"
)


def claims(_: Document | None = None) -> list[Claim]:
    """List the claims of the paper's tables 1, 2 and 5 and figure 7, and comparisons it lacks."""
    parts = (_headlines, _ablations, _lengths, _methods, _sweep_claims, _other_claims)
    return [claim for part in parts for claim in part()]


def bars() -> Bars:
    """What the paper's drafter accepts; its MAT is taken to count the bonus token."""
    mat = rows_of(1, "method")["DiffuSpec"]["mat"]
    return {("diffuspec", ""): Bar(diffuspec(LONG), mat - 1)}


def _headlines() -> Iterator[Claim]:
    """The abstract's "up to 3x", which is the mean over tasks."""
    r, both = rows_of(1, "method")["DiffuSpec"], (diffuspec(LONG), Cell("ar"))
    text = "DiffuSpec over plain decoding, mean over tasks"
    yield Claim(text, "abstract", "speedup", *both, r["speedup"], headline=True)


def _ratio(a: Row, b: Row, what: str) -> float:
    """The paper's ratio of two rows, for a claim on ``what``."""
    column = "speedup" if what == "speedup" else "mat"
    return a[column] / b[column]


def _compared(text: str, cells: tuple[Cell, Cell], rows: tuple[Row, Row]) -> Iterator[Claim]:
    """Claims of table 2 on tokens a step and on speed, with the ratios of two of its rows."""
    for what in ("tau", "speedup"):
        yield Claim(f"{text}: {what}", "table 2", what, *cells, _ratio(*rows, what))


def _ablations() -> Iterator[Claim]:
    """The claims of table 2.

    The paper's search has an n-gram that was counted beforehand. One that reads along is another
    method, compared below.
    """
    two, adl, k = rows_of(2, "cps", "adl"), f"ADL of {NAMES[LONG]}", FIXED[LONG]
    for here, words, is_adaptive in ((LONG, adl, True), (k, k, False)):
        cells = diffuspec(here, "ngram=own"), diffuspec(here, ARGMAX)
        rows = two[True, is_adaptive], two[False, is_adaptive]
        yield from _compared(f"CPS over the argmax row, {words}", cells, rows)
    for option, words, is_searched in (("", "", True), (ARGMAX, ", argmax rows", False)):
        cells = diffuspec(LONG, option), diffuspec(k, option)
        rows = two[is_searched, True], two[is_searched, False]
        yield from _compared(f"{adl} over {k}{words}", cells, rows)


def _lengths() -> Iterator[Claim]:
    """The claims of table 5; with the published constants ADL is k = 20."""
    five = rows_of(5, "k")
    for k in SIZES[LONG]:
        for what, column in (("tau", "mat"), ("speedup", "speedup")):
            number = _ratio(five["adl"], five[k], what)
            constant = five[20][column] / five[k][column]
            is_false = constant + ROUNDED < number**0.5  # two digits are rounded
            is_known = k >= 50 and what == "speedup"
            yield Claim(
                f"ADL of {NAMES[LONG]} over k = {k}: {what}",
                "table 5",
                what,
                diffuspec(LONG),
                diffuspec(f"k={k}"),
                number,
                theorem=RATCHET if is_false else "",
                foregone="a draft of so many more tokens costs more" if is_known else "",
            )


def _methods() -> Iterator[Claim]:
    """The claims of table 1."""
    one, name = rows_of(1, "method"), f"DiffuSpec ({NAMES[LONG]})"
    ours = one["DiffuSpec"]
    for other, key in HERE.items():
        theirs, differs = one[other], ""
        if theirs["target"] != ours["target"]:
            differs = f"models: {other} ran on {theirs['target']} there"
        elif theirs["mat"] > LONGEST.get(other, inf) + 1:
            differs = f"definition: {other} drafts more there than the {LONGEST[other]} here"
        texts = {"speedup": f"{name} is faster than {other}", "tau": f"{name} over {other}: tau"}
        for what, text in texts.items():
            number, both = _ratio(ours, theirs, what), (diffuspec(LONG), Cell(key))
            yield Claim(text, "table 1", what, *both, number, differs=differs)


def _sweep_claims() -> Iterator[Claim]:
    """The claims of figure 7.

    They are its best setting over every other one by speed, and of any two by MAT the larger over
    the smaller one, if they differ by more than what was read off may be wrong.
    """
    error = figure(7)["error"]
    for name, rows in sweeps().items():
        usual = published("diffuspec")["constants"][name]
        best, best_row = rows[usual]
        for value, (cell, r) in rows.items():
            if best_row["speedup"] - r["speedup"] > 2 * error + 1e-9:
                text = f"{name} = {usual} is faster than {value}"
                number = _ratio(best_row, r, "speedup")
                known = "every denoising step is a pass" if name == "steps" else ""
                both = best, cell
                yield Claim(text, "figure 7", "speedup", *both, number, foregone=known)
            if abs(best_row["mat"] - r["mat"]) > 2 * error + 1e-9:
                pair = [(best_row["mat"], usual, best, best_row), (r["mat"], value, cell, r)]
                (_, x, a, of_a), (_, y, b, of_b) = sorted(pair, key=lambda one: -one[0])
                text = f"{name} = {x} over {y}: tau"
                yield Claim(text, "figure 7", "tau", a, b, _ratio(of_a, of_b, "tau"))


def _other_claims() -> Iterator[Claim]:
    """The comparisons that the paper lacks."""

    def lacking(
        text: str, first: Cell, second: Cell, whats: Sequence[str] = ("accepted",)
    ) -> Iterator[Claim]:
        return (Claim(f"{text}: {what}", LACKING, what, first, second) for what in whats)

    both = "accepted", "speedup"
    for constants, name in NAMES.items():
        usual = diffuspec(constants)
        for lam in LAMS:
            other = diffuspec(constants, f"lam={lam}")
            yield from lacking(f"lam = 0.5 over {lam}, {name}", usual, other)
        for option, words in NGRAMS.items():
            if option != USUAL[constants]:
                ours = NGRAMS[USUAL[constants]]
                text = f"the n-gram of order 3 ({ours}) over {words}, {name}"
                yield from lacking(text, usual, diffuspec(constants, option))
        wide, tree = (diffuspec(constants, option) for option in ("beams=15", "tree=true"))
        yield from lacking(f"a beam of 15 over 3, {name}", wide, usual)
        text = f"the beam's paths as one tree over the best path, {name}"
        yield from lacking(text, tree, usual, both)
        relaxed, strict = map(diffuspec, RELAXED[constants])
        yield from lacking(f"ADL that grows at 0.8 over 1, {name}", relaxed, strict, both)
        if USUAL[constants] != "ngram=own":
            text = f"CPS with an n-gram that reads along too over the argmax row, {name}"
            yield from lacking(text, usual, diffuspec(constants, ARGMAX), both)
    for constants, name in ((SHORT, f"ADL of {NAMES[SHORT]}"), (FIXED[SHORT], FIXED[SHORT])):
        pair = diffuspec(constants, "ngram=own"), diffuspec(constants, ARGMAX)
        yield from lacking(f"CPS over the argmax row, {name}", *pair, both)
    usual = diffuspec(SHORT)
    for method, key in HERE.items():
        text = f"DiffuSpec ({NAMES[SHORT]}) over {method}"
        yield from lacking(text, usual, Cell(key), ("tau", "speedup"))
    for k in SIZES[SHORT]:
        yield from lacking(f"ADL of {NAMES[SHORT]} over k = {k}", usual, diffuspec(f"k={k}"), both)
    text = "one denoising step over two, 4 to 8 tokens"
    yield from lacking(text, usual, diffuspec("steps=2"), both)
    chunks = diffuspec("k=12,chunk=4,confidence=0.5")
    yield from lacking("chunks of 4 while confident over ADL", chunks, usual, both)
    searched = diffuspec(SHORT, temperature=1.0)
    for option, words in (
        (ARGMAX, "the argmax row"),
        ("draw=sample", "independent draws by the ratio rule"),
        ("draw=sample,rule=block", "independent draws verified as a block"),
        ("draw=sample,paths=4", "four sequences of draws"),
    ):
        text = f"the searched path over {words}, T = 1"
        yield from lacking(text, searched, diffuspec(option, temperature=1.0))
