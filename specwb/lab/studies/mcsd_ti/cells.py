"""What is decoded for improved MCSD, and how far several roots move the output."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from specwb.lab.evaluation import roots as root_shifts
from specwb.lab.studies import grid
from specwb.lab.studies.grid import Cell, Setting
from specwb.lab.studies.study import Document, Models, table_rows
from specwb.models.questions import Question

PAIR = "Llama-2 + 68M"
"""A pair of the paper's whose draft model is much smaller than its target."""
DEPTH, WIDTHS, WIDTH, THRESHOLD = 5, (1, 2, 3, 4, 6, 8), 4, 0.4
"""Depth of chains, numbers of chains, the usual number, and the usual threshold."""
THRESHOLDS = {
    "soft": (0.2, 0.4, 0.6, 0.8),
    "hard": (0.2, 0.4, 0.6, 0.8),
    "top": (0.2, 0.4, 0.6, 0.8),
    "entropy": (0.1, 0.2, 0.4, 0.6),
}
"""What stops drafting -> its thresholds."""
TEMPERATURES, STATIC = (0.0, 1.0), 0.7
"""Temperatures, and the one of static trees."""
ROOTS, FIRST_VERSION = (1, 2, 3, 4), 16
"""Numbers of roots, and that of the paper's first version."""
WIDE = (4, 6, 8, 12, 16)
"""Numbers of roots with chains below, which are the paper's widths."""
TI, MCSD, EQUALS = (4, 4, 1, 1), (4, 2, 2, 1), ((4, 2, 2), (4, 2, 2, 1))
"""The paper's tree below a root, MCSD's, and MCSD's trees of about as many nodes as the chains."""
NEW = 32
"""Tokens of the texts that several roots are judged by."""


def cut(
    width: int = WIDTH, stop: str = "soft", threshold: float = THRESHOLD, temperature: float = 0.0
) -> Cell:
    """Make the cell of ``width`` chains of ``DEPTH`` tokens, which stop together."""
    threshold_option = "" if stop == "none" else f",threshold={threshold:g}"
    shape = spelling((width, *[1] * (DEPTH - 1)))
    return Cell(f"mcsd_ti:tree={shape},stop={stop}{threshold_option}", temperature=temperature)


def static(shape: Sequence[int], temperature: float = STATIC) -> Cell:
    """Make the cell of one root and a full tree: it is lossless, and what MCSD does."""
    return Cell(f"mcsd_ti:tree={spelling(shape)},stop=none", temperature=temperature)


def rooted(
    roots: int, below: Sequence[int], temperature: float = STATIC, stop: str = "none"
) -> Cell:
    """Make the cell of several roots with a tree below each; of one root, :func:`static`."""
    if roots == 1:
        return static(below, temperature)
    threshold_option = "" if stop == "none" else f",threshold={THRESHOLD:g}"
    options = f"roots={roots},lossy=true,tree={spelling(below)},stop={stop}{threshold_option}"
    return Cell(f"mcsd_ti:{options}", temperature=temperature)


def preset(name: str, temperature: float = STATIC, **changed: Any) -> Cell:
    """Make the cell of a preset, with options that differ from it."""
    options = {"preset": name, **changed}
    text = ",".join(f"{option}={value}" for option, value in options.items())
    return Cell(f"mcsd_ti:{text}", temperature=temperature)


def as_published(shape: Sequence[int] = (2, *TI), temperature: float = STATIC) -> Cell:
    """Make the cell of the paper's static tree, or of another shape (the number of roots, and the
    tree below each), verified as its code does."""
    roots, *below = shape
    if (roots, *below) == (2, *TI):
        return preset("published", temperature)
    return preset("published", temperature, roots=roots, tree=spelling(below))


def wide(roots: int, stop: str, temperature: float = 0.0) -> Cell:
    """Make the cell of the paper's width: chains below so many roots, verified as its code does."""
    if (roots, stop) == (FIRST_VERSION, "soft"):
        return preset("first_version", temperature)
    return preset("first_version", temperature, roots=roots, stop=stop)


def mcsd(shape: Sequence[int], temperature: float = STATIC) -> Cell:
    """Make the cell of MCSD with a tree."""
    return Cell(f"mcsd:tree={spelling(shape)}", temperature=temperature)


def lossy(cell: Setting) -> bool:
    """Tell whether a cell's output is not the target's."""
    return "lossy=true" in cell.spec or "preset=" in cell.spec  # all presets have several roots


def values(cells: dict[str, Any], cell: Setting, what: str) -> list[float]:
    """:func:`specwb.lab.studies.grid.values`; of several roots the first level is not drafted."""
    if not lossy(cell) or what not in ("levels", "depth_fraction"):
        return grid.values(cells, cell, what)
    levels = [n - 1 for n in grid.values(cells, cell, "levels")]
    if what == "levels":
        return levels
    accepted = grid.values(cells, cell, "accepted")
    return [a / n if n else 0.0 for a, n in zip(accepted, levels, strict=True)]


def spelling(shape: Sequence[int]) -> str:
    return "-".join(map(str, shape))


def first_version(temperature: float, repaired: bool = False) -> Cell:
    """Make the cell of the paper's first version: 16 roots, chains below, the decision model;
    ``repaired``: verified without loss below each root."""
    if repaired:
        return rooted(FIRST_VERSION, [1] * DEPTH, temperature, "soft")
    return wide(FIRST_VERSION, "soft", temperature)


def cells(_: Document | None = None) -> list[Cell]:
    """List all settings that are measured."""
    out = []
    for t in TEMPERATURES:
        out += [Cell("ar", temperature=t), Cell("sps", temperature=t)]
        out += [mcsd(shape, t) for shape in (*EQUALS, (*MCSD, 1))]
        out += [cut(width, stop, temperature=t) for width in WIDTHS for stop in ("soft", "none")]
        out += [cut(WIDTH, stop, x, t) for stop, xs in THRESHOLDS.items() for x in xs]
        out += [rooted(n, [1] * DEPTH, t) for n in ROOTS]
        out += [first_version(t, repaired) for repaired in (False, True)]
    out += [wide(n, stop) for n in WIDE for stop in ("soft", "none")]
    out += [Cell("ar", temperature=STATIC), Cell("sps", temperature=STATIC)]
    out += [mcsd(MCSD), static(TI), as_published()]
    for r in table_rows("mcsd_ti", "shapes"):
        root, *below = r["shape"]
        out += [static(r["shape"]), rooted(root, below), as_published(r["shape"])]
    return list(dict.fromkeys(out))


def options(cell: Cell, models: Models) -> dict[str, Any]:
    """The draft model that a cell drafts with, and the decision model that stops it."""
    if cell.kind == "ar":
        return {}
    decides = "stop=soft" in cell.spec or "stop=hard" in cell.spec
    head = {"head": models.head} if decides and models.head is not None else {}
    return {"draft": models.draft, **head}


def probe(
    models: Models,
    questions: Sequence[Question],
    cells: Sequence[Cell],
    document: Document,
    seed: int,
) -> Iterator[tuple[float, str]]:
    """Measure how far several roots move the output."""
    target = models.target
    texts = models.texts(questions, NEW)
    results = document.setdefault("moved", {})
    for t in TEMPERATURES:
        missing = [n for n in ROOTS if f"T={t:g} roots={n}" not in results]
        if not missing:
            continue
        shifts = root_shifts.output_shifts(
            target, models.draft, texts, missing, t, depth=DEPTH, max_new_tokens=NEW, seed=seed
        )
        for shift in shifts:
            results[f"T={t:g} roots={shift.roots}"] = {
                name: round(x, 5) if isinstance(x, float) else x
                for name, x in asdict(shift).items()
            }
            done = len(results) / len(TEMPERATURES) / len(ROOTS)
            yield done, f"how far {shift.roots} roots move the output"
