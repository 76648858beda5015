"""What is decoded for Kangaroo, and what is measured beside it: costs and traces."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from specwb.lab.cost import passes
from specwb.lab.cost.passes import ExitCost
from specwb.lab.evaluation import exits
from specwb.lab.studies.grid import Cell
from specwb.lab.studies.study import MEDUSA, Document, Models
from specwb.models.questions import Question

HERE = {
    "Lookahead": "lookahead",
    "Medusa, chain": "medusa:tree=1-1-1",
    "SpS": "sps",
    "Medusa": "medusa",
}
"""The paper's name of a method -> its spec here."""
ETAS, GAMMAS, USUAL = (0, 0.1, 0.3, 0.5, 0.6, 0.7, 0.9), (4, 6, 8), 0.6
"""Thresholds, largest numbers of draft tokens, and the usual threshold."""
INSIDE = (0.5, 0.6, 0.7)
"""Thresholds between .3 and .9."""
TOPS, TREE_ETAS = (2, 4, 10), (0.2, 0.4, 0.6)
"""Widths and thresholds of dynamic trees."""
STATIC = ("3-2-1", "3-1-1-1-1")
"""Static trees of as many nodes as the dynamic trees may have."""
ENTROPIES = (0.1, 0.2, 0.3, 0.4, 0.6)
"""Thresholds of stopping by entropy; exp(-H) is below the largest probability."""
TEMPERATURES = (0.2, 0.5, 1.0)
PARTS = 12
EXITS = (0, 1, 2, 3, 4, 6)
"""Exit layers, in parts of the target's layers, ``n / PARTS``: of the lab's target they are its own
numbers."""
REFERENCE = "exit3"
ABLATION_ETAS = (0, 0.3, USUAL)
"""Thresholds of the ablation: adapters with little training are seldom confident."""
ADAPTERS = ("own_head", "layer", "mlp")
"""The ablation's adapters that differ from :data:`REFERENCE` in their parts."""
VARIANTS = {
    **{f"exit{n}": f"exit={n}/{PARTS}" for n in EXITS},
    "own_head": f"exit=3/{PARTS},own_head=1",
    "layer": f"exit=3/{PARTS},adapter=layer",
    "mlp": f"exit=3/{PARTS},adapter=mlp",
}
"""The ablation's adapters: name -> what differs, as ``specwb train kangaroo --set`` takes it, but
for the exit layer, which is a part of the target's layers."""
TEXTS, PLACES, DEPTH = 12, 48, 8
"""Of the traces: texts, positions of each, and depth of the drafts."""


def chain(
    eta: float, gamma: int = 6, stop: str = "top", temperature: float = 0.0, variant: str = ""
) -> Cell:
    """Make the cell of a chain."""
    stopping = f",stop={stop}" if stop != "top" else ""
    return Cell(f"kangaroo:gamma={gamma},eta={eta:g}{stopping}", variant, temperature)


def tree(top: int, eta: float) -> Cell:
    """Make the cell of a dynamic tree, with room for every beam of six levels.

    The paper does not say how large its trees may be.
    """
    return Cell(f"kangaroo:tree=true,top={top},nodes={1 + 6 * top},eta={eta:g}")


def own_cells(_: Document | None = None) -> list[Cell]:
    """List the settings that are decoded with the target's own heads."""
    cells = [Cell(name) for name in ("ar", *HERE.values(), "pld", "eagle")] + [MEDUSA]
    cells += [chain(eta, gamma) for gamma in GAMMAS for eta in ETAS]
    cells += [tree(top, eta) for top in TOPS for eta in TREE_ETAS]
    cells += [Cell(f"kangaroo:tree={shape}") for shape in STATIC]
    cells += [chain(eta, stop="entropy") for eta in ENTROPIES]
    for t in TEMPERATURES:
        cells += [Cell("ar", temperature=t)]
        cells += [chain(USUAL, stop=stop, temperature=t) for stop in ("top", "scaled")]
    return cells


def ablation_cells(variants: Sequence[str] = tuple(VARIANTS)) -> list[Cell]:
    """List the settings that are decoded with the adapters of the ablation."""
    return [Cell("ar"), *(chain(eta, variant=name) for name in variants for eta in ABLATION_ETAS)]


def options(cell: Cell, models: Models) -> dict[str, Any]:
    """The adapter that a cell's method is built with."""
    adapter = models.variant(cell) if cell.kind == "kangaroo" else None
    return {} if adapter is None else {"head": adapter}


def probe(
    models: Models, questions: Sequence[Question], cells: Sequence[Cell], document: Document, _: int
) -> Iterator[tuple[float, str]]:
    """Measure the costs of every adapter's steps, and record a trace of every exit layer."""
    target = models.target
    costs, traces = document.setdefault("costs", {}), document.setdefault("traces", {})
    texts = models.texts(questions, PLACES + 2 * DEPTH, TEXTS)
    adapters = {c.variant: models.variant(c) for c in cells if c.kind == "kangaroo"}
    for i, (name, adapter) in enumerate(adapters.items(), 1):
        if name not in costs:
            costs[name] = costs_to_json(passes.exit_cost(target, adapter))
        if (not name or name.startswith("exit")) and name not in traces:
            method = Cell(f"kangaroo:gamma={DEPTH},eta=0").method(target, adapter)
            trace = exits.every_round(target, texts, method, tokens=PLACES)
            traces[name] = trace_to_json(trace)
        yield i / len(adapters), f"costs and traces: {name}"


def costs_to_json(costs: ExitCost) -> dict[str, Any]:
    """Write costs in milliseconds."""
    parts = {
        name: round(1000 * getattr(costs, name), 4) for name in ("plain", "shallow", "adapter")
    }
    return {**parts, "round": {str(d): round(1000 * s, 4) for d, s in costs.round.items()}}


def costs_of(saved: dict[str, Any]) -> ExitCost:
    """Read what :func:`costs_to_json` wrote."""
    return ExitCost(
        plain=saved["plain"] / 1000,
        shallow=saved["shallow"] / 1000,
        adapter=saved["adapter"] / 1000,
        round={int(d): ms / 1000 for d, ms in saved["round"].items()},
    )


def trace_to_json(trace: exits.Rounds) -> dict[str, Any]:
    """Write a trace as it is shipped.

    Confidence is in thousandths, rounded down, so that the same levels as before reach a threshold
    in thousandths.
    """
    return {
        "sure": np.floor(1000 * trace.sure["top"].astype(float)).astype(int).tolist(),
        "kept": trace.kept.tolist(),
        "text": trace.text.tolist(),
    }


def rounds_of(trace: dict[str, Any]) -> exits.Rounds:
    """Read what :func:`trace_to_json` wrote."""
    sure = np.array(trace["sure"]) / 1000
    return exits.Rounds(
        {"top": sure},
        np.array(trace["kept"]),
        np.array(trace["text"]),
        tuple(range(1, sure.shape[1] + 3)),
    )
