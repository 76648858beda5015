"""EasySpec, beside its cells: cosines, and the drift of the cache."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import fmean
from typing import Any

import torch

from specwb.engine.decoding import decode
from specwb.engine.methods import method
from specwb.lab.evaluation import fuzzy
from specwb.lab.papers.results import SavedResults
from specwb.lab.papers.run import Models
from specwb.models.fuzzy import grouping
from specwb.models.questions import Question
from specwb.models.target import Target

NS = (2, 3, 4, 5, 6)
"""Layers of a group."""
ON = ("true", "false")
"""Whether the cache is calibrated."""
DEPTH, TEXTS, PLACES, DRIFT = 5, 12, 64, 12
"""Depth of the drafts; texts, their tokens, and decoding steps of what is measured."""


def probe(
    models: Models, questions: Sequence[Question], document: SavedResults, _: int
) -> Iterator[tuple[float, str]]:
    """Measure ``cosines`` by N and the ``drift`` of the cache, keys of the document."""
    target, draft = models.target, models.draft
    assert draft is not None
    texts = models.texts(questions, 40 * (DEPTH + 1) + PLACES, TEXTS)
    if "cosines" not in document:
        document["cosines"] = _five_digits(_cosines(target, draft, texts))
        yield 0.5, "cosines"
    if "drift" not in document:
        ways = {on: method(f"easyspec:n=4,calibrate={on}", target, draft=draft) for on in ON}
        drift = {on: fuzzy.drift(target, texts, way, DRIFT) for on, way in ways.items()}
        document["drift"] = _five_digits(drift)
        yield 1.0, "drift"


def _cosines(target: Target, draft: Target, texts: list[list[int]]) -> dict[str, Any]:
    """Cosines between exact and fuzzy execution, by N, and of consecutive layers.

    They are taken over the last tokens of every text, with the target's own continuation.
    """
    layers = len(draft.backbone.layers)
    new = decode(target, texts, max_new_tokens=PLACES, eos=()).tokens
    windows = torch.tensor([(text + more)[-PLACES:] for text, more in zip(texts, new, strict=True)])
    by_n = {str(n): fuzzy.similarity(draft, windows, grouping(layers, n)) for n in NS if n < layers}
    return {**by_n, "consecutive": fuzzy.consecutive(draft, windows)}


def _five_digits(x: Any) -> Any:
    """The same with all numbers rounded."""
    if isinstance(x, dict):
        return {name: _five_digits(value) for name, value in x.items()}
    return [_five_digits(value) for value in x] if isinstance(x, list) else float(f"{x:.5g}")


def tables(document: SavedResults) -> list[tuple[str, list[dict[str, str]]]]:
    """What is printed of it."""
    cosines = [
        {"N": n, **{kind: f"{fmean(x):.3f} ({min(x):.2f})" for kind, x in by_kind.items()}}
        for n, by_kind in document.get("cosines", {}).items()
        if n != "consecutive"
    ]
    drift = []
    for step, both in enumerate(zip(*document.get("drift", {}).values(), strict=True), 1):
        line = {"step": str(step)}
        for words, r in zip(("calibrated", "not"), both, strict=True):
            for what in ("key", "value"):
                line[f"{what}s, {words}"] = f"{max(r[f'{what}_error']):.1e}"
            line[f"kept, {words}"] = f"{r['accepted']:.2f}"
        drift.append(line)
    titled = {
        "Mean cosine (of the lowest layer), exact against one fuzzy pass; the paper's text: above "
        "0.8 for N from 2 to 4, those of q and k near 1": cosines,
        "Drift at N = 4: relative error of the draft's keys and values, the worst layer's; "
        "drafted tokens kept": drift,
    }
    return list(titled.items())
