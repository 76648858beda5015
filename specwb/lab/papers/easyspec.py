"""EasySpec, beside its cells: what running layers side by side changes
(:mod:`specwb.models.fuzzy`).

Compared are states, queries, keys and values, and a drafter's cache over decoding steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice, pairwise
from statistics import fmean
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from specwb.core.noise import row_seeds
from specwb.core.probability import Sampling
from specwb.drafters.level import LevelDrafter
from specwb.engine.decoding import decode
from specwb.engine.loop import Decoding
from specwb.engine.methods import Method
from specwb.engine.methods import method as make_method
from specwb.lab.papers.figures import Printed, SavedResults
from specwb.lab.papers.run import Models
from specwb.models.backbone import ForwardPass, Stack
from specwb.models.fuzzy import Groups, LayerIndices, grouping
from specwb.models.place import Place
from specwb.models.products import product
from specwb.models.questions import Question
from specwb.models.target import Target

NS = (2, 3, 4, 5, 6)
"""Layers of a group."""
ON = ("true", "false")
"""Whether the cache is calibrated."""
DEPTH, TEXTS, PLACES, DRIFT = 5, 12, 64, 12
"""Depth of the drafts; texts, their tokens, and decoding steps of what is measured."""
KINDS = ("hidden", "attention", "q", "k", "v")
"""What is compared in every layer."""


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
        ways = {on: make_method(f"easyspec:n=4,calibrate={on}", target, draft=draft) for on in ON}
        steps = {on: drift(target, texts, way, DRIFT) for on, way in ways.items()}
        document["drift"] = _five_digits(steps)
        yield 1.0, "drift"


def _cosines(target: Target, draft: Target, texts: list[list[int]]) -> dict[str, Any]:
    """Cosines between exact and fuzzy execution, by N, and of consecutive layers.

    They are taken over the last tokens of every text, with the target's own continuation.
    """
    layers = len(draft.backbone.layers)
    new = decode(target, texts, max_new_tokens=PLACES, eos=()).tokens
    windows = torch.tensor([(text + more)[-PLACES:] for text, more in zip(texts, new, strict=True)])
    by_n = {str(n): similarity(draft, windows, grouping(layers, n)) for n in NS if n < layers}
    return {**by_n, "consecutive": consecutive(draft, windows)}


def _five_digits(x: Any) -> Any:
    """The same with all numbers rounded."""
    if isinstance(x, dict):
        return {name: _five_digits(value) for name, value in x.items()}
    return [_five_digits(value) for value in x] if isinstance(x, list) else float(f"{x:.5g}")


def tables(document: SavedResults) -> Printed:
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


class _RecordingGroups(Groups):
    """The simulation, which records what every layer's attention computes."""

    def __init__(self, layers: LayerIndices, whole: bool = False) -> None:
        super().__init__(layers, whole)
        self.records: dict[str, list[Tensor]] = {kind: [] for kind in KINDS}

    def attend(
        self, stack: Stack, group: tuple[int, ...], x: Tensor, at: ForwardPass
    ) -> list[Tensor]:
        outputs = super().attend(stack, group, x, at)
        for i, output in zip(group, outputs, strict=True):
            tensors = (output, *_query_key_value(stack, i, x))
            for kind, tensor in zip(KINDS[1:], tensors, strict=True):
                self.records[kind].append(tensor)
        return outputs


def _query_key_value(stack: Stack, i: int, x: Tensor) -> list[Tensor]:
    """q, k and v of layer i from its attention's input ``[B,m,H]``, before rotation.

    All heads of a position are one vector.
    """
    layer, query_heads, kv_heads = stack.layers[i], stack.heads, stack.kv_heads
    dim = stack.head_dim
    fused = product(stack.inputs(i, x), layer.qkv, layer.qkv_bias)
    heads = fused.unflatten(-1, (query_heads + 2 * kv_heads, dim))
    if layer.qk_norm is not None:
        queries_keys, values = heads.split((query_heads + kv_heads, kv_heads), -2)
        norms = F.rms_norm(queries_keys, (dim,), eps=layer.qk_eps) * layer.qk_norm
        heads = torch.cat([norms, values], -2)
    return [part.flatten(-2) for part in heads.split((query_heads, kv_heads, kv_heads), -2)]


def _single_layers(draft: Target) -> LayerIndices:
    """Every layer as a group of its own, which is exact execution."""
    return tuple((i,) for i in range(len(draft.backbone.layers)))


@torch.inference_mode()
def _pass(
    draft: Target, windows: Tensor, groups: LayerIndices, whole: bool = False
) -> dict[str, list[Tensor]]:
    """One causal forward of texts ``[B,m]`` over a fresh cache.

    Returns:
        Each of :data:`KINDS` -> one tensor ``[B,m,..]`` a layer; ``hidden`` has the last layer's
        output too.
    """
    stack, (rows, m) = draft.backbone, windows.shape
    windows, recording = windows.to(draft.device), _RecordingGroups(groups, whole)
    numbers, place = range(len(stack.layers) + 1), Place.text(rows, m, draft.device)
    _, states = recording.run(
        stack, stack.embed(windows), place, stack.cache(rows, m), features=numbers
    )
    assert states is not None
    return {**recording.records, "hidden": list(states.chunk(len(numbers), -1))}


def _cosine(a: Tensor, b: Tensor) -> float:
    return F.cosine_similarity(a.double(), b.double(), dim=-1).mean().item()


def similarity(
    draft: Target, windows: Tensor, groups: LayerIndices, whole: bool = False
) -> dict[str, list[float]]:
    """Compare exact with fuzzy execution: the mean cosine over positions, by layer.

    Both execute one pass over the same texts.

    Args:
        draft: the draft model.
        windows: ``[B,m]`` token ids, each row a text of its own.
        groups: as :func:`specwb.models.fuzzy.grouping` makes them.
        whole: MLPs run side by side too; inside a group ``hidden`` is then a partial sum.
    Returns:
        One cosine a layer for each of

        - hidden: the residual stream that enters the layer. It is not what its attention reads:
          that is the group's input.
        - attention: its attention's output.
        - q, k, v: all heads of a position as one vector, before rotation. Both sides are turned by
          the same angle, so after it the cosine is the same.

    Source: Wu et al. 2025, table 4.
    """
    exact = _pass(draft, windows, _single_layers(draft))
    fuzzy = _pass(draft, windows, groups, whole)
    return {
        kind: [_cosine(exact[kind][i], fuzzy[kind][i]) for i in range(len(draft.backbone.layers))]
        for kind in KINDS
    }


def consecutive(draft: Target, windows: Tensor) -> list[float]:
    """Compare what enters layer i with what leaves it: the mean cosine in exact execution.

    Fuzzy execution relies on it.
    """
    states = _pass(draft, windows, _single_layers(draft))["hidden"]
    return [_cosine(a, b) for a, b in pairwise(states)]


def drift(
    target: Target, prompts: Sequence[Sequence[int]], method: str | Method, rounds: int = 12
) -> list[dict[str, Any]]:
    """Measure how far a draft model's cache is from a fresh exact forward, by decoding step.

    The cache is the one that the model drafts with; the forward is over the same text. Compared are
    the positions from the prompt's last token, the first that the prompt's exact forward leaves
    out, to the step's pending one, at T = 0. All heads of a position are one vector.

    Args:
        target: the target model.
        prompts: token ids.
        method: of one draft model with a cache, such as ``easyspec:calibrate=false``.
        rounds: how many decoding steps, >= 1.
    Returns:
        One dict a step, means over prompts, with

        - accepted: accepted draft tokens.
        - key_error, value_error: by layer the mean of ``|a - b| / |b|``.
    """
    method = make_method(method, target) if isinstance(method, str) else method
    assert isinstance(method.drafter, LevelDrafter)
    steps: list[list[tuple[int, np.ndarray]]] = [[] for _ in range(rounds)]
    room, seeds = rounds * (method.drafter.limits.depth + 1), row_seeds(0, 1, target.device)
    for prompt in prompts:
        run = Decoding(target, method, Sampling(), [list(prompt)], [room], seeds)
        caches = []
        for step in islice(run, rounds):
            length = int(step.length)
            cache = run.drafter.cache.data[:, 0, :length]  # type: ignore[attr-defined]
            caches.append((int(step.verdict.accepted), cache.clone()))
            text = run.state.tokens[0, :length].clone()
        fresh, first = _exact_cache(method.drafter.draft, text), len(prompt) - 1
        for records, (accepted, cache) in zip(steps, caches, strict=True):
            end = cache.shape[1]
            records.append((accepted, _errors(cache[:, first:], fresh[:, first:end])))
    means = [(fmean(a for a, _ in rows), np.mean([e for _, e in rows], 0)) for rows in steps]
    return [
        {"accepted": accepted, "key_error": keys.tolist(), "value_error": values.tolist()}
        for accepted, (keys, values) in means
    ]


@torch.inference_mode()
def _exact_cache(draft: Target, text: Tensor) -> Tensor:
    """``[layers, m, 2 * kv_heads, head_dim]`` keys and values of a text ``[m]``, exact."""
    stack, m = draft.backbone, len(text)
    cache = stack.cache(1, m)
    stack.run(stack.embed(text[None].to(draft.device)), Place.text(1, m, draft.device), cache)
    return cache.data[:, 0]


def _errors(cache: Tensor, fresh: Tensor) -> np.ndarray:
    """``[2,layers]``: of the keys and the values ``[layers, m, 2 * kv_heads, head_dim]``."""
    halves = zip(cache.double().chunk(2, 2), fresh.double().chunk(2, 2), strict=True)
    errors = [((a - b).flatten(2).norm(dim=-1) / b.flatten(2).norm(dim=-1)) for a, b in halves]
    return torch.stack(errors).mean(2).cpu().numpy()
