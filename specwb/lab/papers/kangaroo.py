"""Kangaroo, beside its cells: what a step costs, and traces from which a decoding at T = 0 with any
threshold can be simulated."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from specwb.engine.methods import method
from specwb.lab.cost import passes
from specwb.lab.cost.passes import ExitCost
from specwb.lab.evaluation import exits
from specwb.lab.papers.results import SavedResults
from specwb.lab.papers.run import Models
from specwb.models.questions import Question

GAMMAS, ETAS = (4, 6, 8), (0, 0.1, 0.3, 0.5, 0.6, 0.7, 0.9)
"""The largest numbers of draft tokens and the thresholds that are measured."""
TEXTS, PLACES, DEPTH = 12, 48, 8
"""Of the traces: texts, positions of each, and depth of the drafts."""


def chain(eta: float, gamma: int = 6, head: str = "") -> str:
    """Name the cell of a chain at T = 0, see :mod:`specwb.lab.papers.paper`."""
    return f"T=0 kangaroo:gamma={gamma},eta={eta:g}" + (f" [{head}]" if head else "")


def probe(
    models: Models, questions: Sequence[Question], document: SavedResults, _: int
) -> Iterator[tuple[float, str]]:
    """Measure the costs of every adapter's steps, and record a trace of every exit layer.

    They are ``document["costs"]`` and ``document["traces"]``, by the name of the adapter, "" for
    the target's own.
    """
    target = models.target
    costs, traces = document.setdefault("costs", {}), document.setdefault("traces", {})
    texts = models.texts(questions, PLACES + 2 * DEPTH, TEXTS)
    names = {name.partition("[")[2].rstrip("]") for name in document["cells"]}
    names = names - {""} if models.heads else {""}
    for i, name in enumerate(sorted(names), 1):
        adapter = str(models.heads / name) if models.heads else None
        options = {"head": adapter} if adapter else {}
        if name not in costs:
            costs[name] = costs_to_json(passes.exit_cost(target, adapter))
        if (not name or name.startswith("exit")) and name not in traces:
            chains = method(f"kangaroo:gamma={DEPTH},eta=0", target, **options)
            trace = exits.every_round(target, texts, chains, tokens=PLACES)
            traces[name] = trace_to_json(trace)
        yield i / len(names), f"costs and traces: {name or 'own adapter'}"


def costs_to_json(costs: ExitCost) -> dict[str, Any]:
    """Write costs in milliseconds."""
    rounds = {str(d): round(1000 * s, 4) for d, s in costs.round.items()}
    return {"plain": round(1000 * costs.plain, 4), "round": rounds}


def costs_of(saved: Mapping[str, Any]) -> ExitCost:
    """Read what :func:`costs_to_json` wrote."""
    rounds = {int(d): ms / 1000 for d, ms in saved["round"].items()}
    return ExitCost(saved["plain"] / 1000, rounds)


def trace_to_json(trace: exits.Rounds) -> dict[str, Any]:
    """Write a trace as it is shipped.

    Confidence is in thousandths, rounded down, so that the same levels as before reach a threshold
    in thousandths.
    """
    return {
        "sure": np.floor(1000 * trace.sure.astype(float)).astype(int).tolist(),
        "kept": trace.kept.tolist(),
        "text": trace.text.tolist(),
    }


def rounds_of(trace: Mapping[str, Any]) -> exits.Rounds:
    """Read what :func:`trace_to_json` wrote."""
    sure = np.array(trace["sure"]) / 1000
    return exits.Rounds(sure, np.array(trace["kept"]), np.array(trace["text"]))
