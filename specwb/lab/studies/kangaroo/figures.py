"""Kangaroo's figures: what the paper has of each, and what measures the same here."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from statistics import fmean
from typing import Any

from specwb.lab.studies.curves import (
    THESE,
    Curve,
    Figures,
    Point,
    Seen,
    how_sure,
    in_domain,
    over_prompts,
    share,
)
from specwb.lab.studies.grid import SHOWN, Cell, cell_record
from specwb.lab.studies.kangaroo.cells import (
    ABLATION_ETAS,
    ETAS,
    EXITS,
    GAMMAS,
    HERE,
    PARTS,
    USUAL,
    chain,
    tree,
)
from specwb.lab.studies.kangaroo.claims import depths, etas, exit_chain
from specwb.lab.studies.study import Document, figure_rows, published, table_rows

PANELS = (("CR", "cr", "tau"), ("speedup", "speedup", "speedup"))
"""A panel, its column in the paper and in our rows."""
SPECS = {**HERE, "Kangaroo, chain": chain(USUAL).spec, "Kangaroo": tree(10, 0.4).spec}
"""The paper's name of a method -> its spec here."""
TASKS_HERE = {"Math": "math", "MT-Bench": ""}
"""A task -> the domain of our prompts that is likest it, all of them for the mixed one."""
BINS = 10
"""Of the densities of the top probability."""
SURE = partial(how_sure, published("kangaroo"))
MAIN = SURE("tables", "main")
SMALL_BUDGET = "our adapters are the ablation's, of a small budget"
OF_LAYERS = "part of the layers"
FIGURES = Figures()


@FIGURES.add("eta", "Kangaroo: threshold and steps, chains at T = 0", SURE("figures", "eta"), "eta")
def _etas(_: Document) -> Iterator[Curve]:
    points = etas()
    for panel, column, what in PANELS:
        for g in GAMMAS:
            line = (Point(x, points.get((x, g), {}).get(column), chain(x, g)) for x in ETAS)
            yield Curve(panel, f"gamma {g}", what, line)


@FIGURES.add(
    "depth",
    "Kangaroo: exit layer, chains of 6",
    SURE("figures", "depth"),
    OF_LAYERS,
    differs=SMALL_BUDGET,
)
def _depths(_: Document) -> Iterator[Curve]:
    """Over the part of all layers that is run before the exit."""
    for panel, column, what in PANELS:
        for target, layers in published("kangaroo")["constants"]["layers"].items():
            points = (Point(n / layers, r[column]) for n, r in depths(target).items())
            yield Curve(panel, target, what, points)
        yield from _exits(panel, what)


@FIGURES.add(
    "ratio",
    "Kangaroo: speedup by exit layer, four targets",
    SURE("figures", "ratio"),
    OF_LAYERS,
    differs=SMALL_BUDGET,
)
def _ratios(_: Document) -> Iterator[Curve]:
    for target, layers in published("kangaroo")["constants"]["layers"].items():
        rows = [r for r in figure_rows("kangaroo", "ratio") if r["target"] == target]
        points = (Point(r["exit"] / layers, r["speedup"]) for r in rows)
        yield Curve("speedup", target, "speedup", points)
    yield from _exits("speedup", "speedup")


def _exits(panel: str, what: str) -> Iterator[Curve]:
    """Ours over the exit layer."""
    for eta in ABLATION_ETAS:
        here = (Point(n / PARTS, None, exit_chain(n, eta)) for n in EXITS)
        yield Curve(panel, f"lab, eta {eta:g}", what, here)


def _share(cell: Cell, w: int, document: Document, _: Any) -> Seen | None:
    """CTAR(w) of a cell whose drafts may be so deep."""
    if w > document["shapes"].get(cell.key, {}).get("depth", 0):
        return None
    accepted = cell_record(document["cells"], cell.key)["accepted"]
    return over_prompts([fmean(a >= w for a in steps) for steps in accepted])


@FIGURES.add(
    "ctar",
    "Kangaroo: accepted tokens by step, math there, all prompts here",
    SURE("figures", "ctar"),
    "w",
    differs="REST is not implemented",
)
def _ctars(_: Document) -> Iterator[Curve]:
    for r in figure_rows("kangaroo", "ctar"):
        spec = SPECS.get(r["method"])
        points = (
            Point(w, value, ours=partial(_share, Cell(spec), w) if spec else None)
            for w, value in enumerate(r["ctar"], 1)
        )
        yield Curve("share of steps with at least w accepted", r["method"], "ctar", points)


def _share_of_bin(accepted: bool, index: int, document: Document, _: Any) -> Seen | None:
    """The share of a bin among the first draft tokens that are accepted, or among the others."""
    trace = document.get("traces", {}).get("", {"text": (), "sure": (), "kept": ()})
    pairs = dict.fromkeys(trace["text"], (0, 0))  # of every text, in the bin and in all
    for text, sure, kept in zip(trace["text"], trace["sure"], trace["kept"], strict=True):
        if (kept > 0) == accepted:
            inside, all_ = pairs[text]
            pairs[text] = inside + (min(sure[0] * BINS // 1000, BINS - 1) == index), all_ + 1
    return share(list(pairs.values()))


@FIGURES.add(
    "density",
    "Kangaroo: top probability of first draft tokens",
    "none could be read off the paper's plot",
    "top probability",
)
def _densities(_: Document) -> Iterator[Curve]:
    for accepted, name in ((True, "accepted"), (False, "rejected")):
        points = (
            Point((i + 0.5) / BINS, None, ours=partial(_share_of_bin, accepted, i))
            for i in range(BINS)
        )
        yield Curve("share of first draft tokens", name, "", points)


@FIGURES.add(
    "methods", "Kangaroo: main table, mean of Vicuna 7B", MAIN, bars=True, differs="there on a GPU"
)
def _methods(_: Document) -> Iterator[Curve]:
    """The main table's means by method, of Vicuna 7B."""
    rows = {r["method"]: r for r in table_rows("kangaroo", "main") if r["target"] == "Vicuna 7B"}
    for panel, what in (("speedup", "speedup"), ("mean CR", "tau")):
        points = (
            Point(
                name,
                r["mean"] if what == "speedup" else fmean(r["cr"].values()),
                Cell(SPECS[name]) if name in SPECS else None,
            )
            for name, r in rows.items()
        )
        yield Curve(panel, "T = 0", what, points)


def _tasks(column: str, what: str, _: Document) -> Iterator[Curve]:
    """The main table by task, a panel each."""
    rows = table_rows("kangaroo", "main")
    for task in rows[0][column]:
        for target in dict.fromkeys(r["target"] for r in rows):
            points = (Point(r["method"], r[column][task]) for r in rows if r["target"] == target)
            yield Curve(task, target, what, points)
        if task in TASKS_HERE:
            here = (
                Point(name, None, ours=in_domain(Cell(spec), what, TASKS_HERE[task]))
                for name, spec in SPECS.items()
            )
            yield Curve(task, THESE, what, here)


BY_TASK = (
    "here Math is our math, MT-Bench all prompts, and the other tasks are lacking; there on a GPU"
)
for _name, _shown, _column, _what in (
    ("tasks", SHOWN["speedup"], "speedup", "speedup"),
    ("tasks_cr", "CR", "cr", "tau"),
):
    _title = f"Kangaroo: main table by task, {_shown}"
    FIGURES.add(_name, _title, MAIN, bars=True, differs=BY_TASK)(partial(_tasks, _column, _what))
