"""Kangaroo, beside its cells: what a step costs, and traces from which a decoding at T = 0 with any
threshold can be simulated."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from specwb.engine.methods import method
from specwb.lab.cost.calibrate import step_times
from specwb.lab.evaluation import exits
from specwb.lab.papers.results import SavedResults
from specwb.lab.papers.run import Models
from specwb.models.questions import Question
from specwb.models.target import Target

GAMMAS, ETAS = (4, 6, 8), (0, 0.1, 0.3, 0.5, 0.6, 0.7, 0.9)
"""The largest numbers of draft tokens and the thresholds that are measured."""
TEXTS, PLACES, DEPTH = 12, 48, 8
"""Of the traces: texts, positions of each, and depth of the drafts."""
DRAFTED, BEFORE, STEPS, REPEATS = (1, 2, 3, 4, 6, 8), 128, 16, 3
"""Of the costs: lengths of chains, tokens before, and steps of each of so many turns."""


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
            costs[name] = _costs(target, options)
        if (not name or name.startswith("exit")) and name not in traces:
            chains = method(f"kangaroo:gamma={DEPTH},eta=0", target, **options)
            trace = exits.every_round(target, texts, chains, tokens=PLACES)
            traces[name] = trace_to_json(trace)
        yield i / len(names), f"costs and traces: {name or 'own adapter'}"


def _costs(target: Target, options: Mapping[str, Any]) -> dict[str, Any]:
    """Milliseconds of a step of plain decoding, and of one that drafts a chain, by its length."""
    # a threshold that is never missed, so that the test for it is paid for
    methods = {d: method("kangaroo", target, gamma=d, eta=1e-9, **options) for d in DRAFTED}
    methods[0] = method("ar", target)
    steps = step_times(target, methods, [1] * BEFORE, STEPS, REPEATS)
    plain, *chains = (round(1000 * steps[d], 4) for d in (0, *DRAFTED))
    return {"plain": plain, "round": dict(zip(map(str, DRAFTED), chains, strict=True))}


def costs_of(saved: Mapping[str, Any]) -> dict[int, float]:
    """Read saved costs: the milliseconds of a step by its drafted tokens, 0 of a plain one."""
    return {0: saved["plain"], **{int(d): ms for d, ms in saved["round"].items()}}


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
