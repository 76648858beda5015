"""What is decoded for DiffuSpec, and the paper's numbers by setting."""

from __future__ import annotations

from typing import Any

from specwb.lab.studies.grid import Cell
from specwb.lab.studies.study import Document, Models, published, table_rows

HERE = {
    "SPS": "sps",
    "PLD": "pld",
    "Lookahead": "lookahead",
    "Medusa": "medusa",
    "EAGLE": "eagle",
    "EAGLE2": "eagle2",
}
"""The paper's name of a method -> its spec here."""
ROOM = 512
"""New tokens that there is room for behind a prompt: drafts of 100 tokens are seldom accepted."""
LONG, SHORT = "k_min=20,k_max=30,delta=10,share=1", ""
"""The paper's draft lengths, and the method's defaults."""
RELAXED = {LONG: (LONG.replace("share=1", "share=0.8"), LONG), SHORT: (SHORT, "share=1")}
"""Draft lengths that grow at .8, and as in the paper."""
NAMES = {LONG: "20 to 30 tokens", SHORT: "4 to 8 tokens"}
FIXED = {LONG: "k=20", SHORT: "k=6"}
"""The length of drafts without ADL."""
SIZES = {LONG: (10, 20, 30, 50, 100), SHORT: (2, 3, 4, 6, 8, 12)}
"""Fixed lengths that ADL is compared with."""
ARGMAX = "beams=1,lam=1"
"""The path of the best token at every position."""
LAMS = (0, 0.3, 0.7, 0.9, 1)
USUAL = {LONG: "ngram=own", SHORT: "ngram=both"}
"""The usual n-gram; the paper's is counted beforehand."""
NGRAMS = {
    "ngram=none": "none",
    "ngram=own": "counted beforehand",
    "ngram=online": "of the text so far",
    "ngram=both": "both",
    "order=1": "order 1",
    "order=2": "order 2",
    "smoothing=kn": "Kneser-Ney",
}
BLOCKS = (5, 10, 15, 20, 30, 50, 100)
"""Draft lengths of figure 5."""
SAMPLED = (
    "",
    ARGMAX,
    "tree=true",
    "draw=sample",
    "draw=sample,rule=block",
    "draw=sample,paths=2",
    "draw=sample,paths=4",
)
"""Options that are measured at T = 1."""


def diffuspec(*options: str, temperature: float = 0.0) -> Cell:
    """Make the cell of DiffuSpec with these options, the draft length first.

    The paper's lengths go with the paper's n-gram, unless another is named.
    """
    long = [*RELAXED[LONG], *(f"k={k}" for k in SIZES[LONG])]
    names_ngram = any(option.startswith("ngram=") for option in options)
    ngram = ""
    if options and options[0] in long and not names_ngram:
        ngram = USUAL[LONG]
    text = ",".join(filter(None, [*options, ngram]))
    return Cell(f"diffuspec:{text}" if text else "diffuspec", temperature=temperature)


def sweeps() -> dict[str, dict[Any, tuple[Cell, dict[str, Any]]]]:
    """Return figure 7: option -> value -> the cell here and the paper's row."""
    usual = published("diffuspec")["constants"]

    def cell(name: str, value: float) -> Cell:
        return diffuspec(LONG, "" if value == usual[name] else f"{name}={value:g}")

    return {
        name: {r["value"]: (cell(name, r["value"]), r) for r in figure(7)[name]}
        for name in ("steps", "beams", "top", "mass")
    }


def cells(_: Document | None = None) -> list[Cell]:
    """List all settings that are measured."""
    out = [Cell(name) for name in ("ar", *HERE.values())]
    for constants in (LONG, SHORT):
        out += [
            diffuspec(a, b)
            for a in (constants, *(f"k={k}" for k in SIZES[constants]))
            for b in ("", ARGMAX)
            if not b or a in (constants, FIXED[constants])
        ]
        out += [diffuspec(constants, f"lam={lam}") for lam in LAMS]
        out += [diffuspec(constants, name) for name in NGRAMS if name != USUAL[constants]]
        out += [diffuspec(constants, "tree=true"), diffuspec(constants, "beams=15")]
        out += map(diffuspec, RELAXED[constants])
        out += [diffuspec(FIXED[constants], "ngram=own")]
    out += [cell for rows in sweeps().values() for cell, _ in rows.values()]
    out += [diffuspec(f"k={k}", ARGMAX) for k in BLOCKS]
    out += [
        diffuspec("steps=2"),
        diffuspec("beams=1"),
        diffuspec("k=12,chunk=4,confidence=0.5"),
        diffuspec("k=3", ARGMAX),
    ]
    out += [diffuspec("k_min=4,k_max=32,delta=4"), diffuspec("k_min=4,k_max=32,delta=4,share=1")]
    out += [diffuspec(f"k={k}", "ngram=online") for k in (3, 4)]
    out += [Cell(name, temperature=1.0) for name in ("ar", "sps", "eagle")]
    out += [diffuspec(option, temperature=1.0) for option in SAMPLED]
    return list(dict.fromkeys(out))


def options(cell: Cell, models: Models) -> dict[str, Any]:
    """The diffusion model that a cell drafts with."""
    return {"head": models.head} if cell.kind == "diffuspec" and models.head is not None else {}


def figure(number: int) -> dict[str, Any]:
    """Return a published figure."""
    return published("diffuspec")["figures"][str(number)]


def rows_of(number: int, *names: str) -> dict[Any, dict[str, Any]]:
    """Return a table's rows by the values in these columns."""
    rows = table_rows("diffuspec", str(number))
    return {tuple(r[name] for name in names) if len(names) > 1 else r[names[0]]: r for r in rows}
