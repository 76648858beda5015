"""EasySpec, beside its cells: cosines, the drift of the cache, and the times of a step's parts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from statistics import fmean
from typing import Any

import torch

from specwb.core.options import spell
from specwb.engine.decoding import decode
from specwb.engine.methods import method
from specwb.lab.evaluation import fuzzy
from specwb.lab.papers.results import SavedResults
from specwb.lab.papers.run import Models
from specwb.models.fuzzy import grouping
from specwb.models.questions import Question
from specwb.models.target import Target

NS, WIDTHS = (1, 2, 3, 4, 5, 6), (1, 4, 8, 12)
"""Layers of a group, and widths of trees."""
DEPTH, TEXTS, PLACES, DRIFT = 5, 12, 64, 12
"""Depth of the drafts; texts, their tokens, and decoding steps of what is measured."""


def probe(
    models: Models, questions: Sequence[Question], document: SavedResults, _: int
) -> Iterator[tuple[float, str]]:
    """Measure cosines by N, the drift of the cache, and the times of the parts of a step.

    They are ``cosines``, ``drift``, ``stages`` and ``times`` of the document.
    """
    target, draft = models.target, models.draft
    assert draft is not None
    texts = models.texts(questions, 40 * (DEPTH + 1) + PLACES, TEXTS)
    specs = [f"easyspec:n={n}" for n in NS if n < len(draft.backbone.layers)]
    specs = ["easyspec:n=1,calibrate=false", *specs, "easyspec:n=4,execution=simulation"]
    if target.device.type == "cuda":
        specs.append("easyspec:n=4,execution=streams")

    def drift() -> dict[str, Any]:
        every = {on: method(f"easyspec:n=4,calibrate={on}", target, draft=draft) for on in ON}
        return {on: fuzzy.drift(target, texts, one, DRIFT) for on, one in every.items()}

    def stages() -> dict[str, Any]:
        methods = {spec: method(spec, target, draft=draft) for spec in specs}
        return fuzzy.draft_times(target, methods, max(texts, key=len))

    parts: dict[str, Callable[[], dict[str, Any]]] = {
        "cosines": lambda: _cosines(target, draft, texts),
        "drift": drift,
        "stages": stages,
        "times": lambda: {str(m): fuzzy.layer_times(draft, m) for m in WIDTHS},
    }
    for i, name in enumerate(parts, 1):
        if name not in document:
            document[name] = _five_digits(parts[name]())
            yield i / len(parts), name


ON = tuple(map(spell, (True, False)))


def _cosines(target: Target, draft: Target, texts: list[list[int]]) -> dict[str, Any]:
    """Cosines between exact and fuzzy execution, by N, and of consecutive layers.

    They are taken over the last tokens of every text, with the target's own continuation.
    """
    layers = len(draft.backbone.layers)
    new = decode(target, texts, max_new_tokens=PLACES, eos=()).tokens
    windows = torch.tensor([(text + more)[-PLACES:] for text, more in zip(texts, new, strict=True)])
    by_n = {
        str(n): fuzzy.similarity(draft, windows, grouping(layers, n)) for n in NS if 1 < n < layers
    }
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
    plain = document.get("stages", {}).get("easyspec:n=1,calibrate=false", {})
    stages = [
        {
            "method": spec,
            **{how: f"{ms:.3f} ms, {plain[how] / ms:.2f}x" for how, ms in ways.items()},
        }
        for spec, ways in document.get("stages", {}).items()
    ]
    times = [
        {"tokens": tokens, **{part: f"{value:.3f}" for part, value in ms.items()}}
        for tokens, ms in document.get("times", {}).items()
    ]
    titled = {
        "Mean cosine (of the lowest layer), exact against one fuzzy pass; the paper's text: above "
        "0.8 for N from 2 to 4, those of q and k near 1": cosines,
        "Drift at N = 4: relative error of the draft's keys and values, the worst layer's; "
        "drafted tokens kept": drift,
        "Drafting alone, milliseconds per step, and the plain drafter's over it": stages,
        "Milliseconds of a layer's attention and MLP, the head, all layers, groups of 4": times,
    }
    return list(titled.items())
