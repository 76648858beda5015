"""What running layers side by side changes (:mod:`specwb.models.fuzzy`).

Compared are states, queries, keys and values, a drafter's cache over decoding steps, and time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import cycle, islice, pairwise
from statistics import fmean, median
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from specwb.core.mask import causal_mask
from specwb.core.noise import row_seeds
from specwb.core.probability import Sampling
from specwb.drafters.level import LevelDrafter
from specwb.engine.graphs import RECORDERS
from specwb.engine.loop import Clock, Decoding
from specwb.engine.methods import Method
from specwb.engine.methods import method as make_method
from specwb.lab.bench.measure import seconds_of
from specwb.models.backbone import ForwardPass, Stack
from specwb.models.fuzzy import FusedGroups, Groups, LayerIndices, StreamGroups, grouping
from specwb.models.place import Place
from specwb.models.products import product
from specwb.models.target import Target

KINDS = ("hidden", "attention", "q", "k", "v")
"""What is compared in every layer."""


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
    for prompt in prompts:
        run, caches = _greedy(target, method, prompt, rounds), []
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


def _greedy(
    target: Target, method: Method, prompt: Sequence[int], steps: int, **how: Any
) -> Decoding:
    """A decoding of a prompt at T = 0 with room for so many steps, which no end of text ends."""
    room, seeds = steps * (method.drafter.limits.depth + 1), row_seeds(0, 1, target.device)
    return Decoding(target, method, Sampling(), [list(prompt)], [room], seeds, **how)


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


@torch.inference_mode()
def layer_times(
    draft: Target,
    tokens: int = 1,
    extent: int = 256,
    repeats: int = 50,
) -> dict[str, float]:
    """Time the parts of a draft model on this device, in median milliseconds.

    Nothing is recorded as a graph, and all parts take turns.

    Args:
        draft: the draft model.
        tokens: fed at once, as a chain.
        extent: length of the text, these tokens included.
        repeats: turns.
    Returns:
        Milliseconds of

        - attention, mlp: of one layer with their norms, each time the next layer's.
        - head.
        - plain: all layers without the head, one after the other.
        - fused, simulation, on CUDA streams: the same with the paper's groups of 4 layers, or as
          many as there may be.
    """
    stack = draft.backbone
    count = len(stack.layers)
    parts = grouping(count, max(1, min(4, count - 2)))
    x = stack.embed(torch.arange(tokens, device=draft.device)[None] % draft.vocabulary)
    positions = torch.arange(extent - tokens, extent, device=draft.device)[None]
    cache = stack.cache(1, extent)
    mask = None if tokens == 1 else causal_mask(positions, extent, stack.dtype)
    place = Place(positions, positions, extent, mask)

    def run(groups: Groups | None) -> object:
        forward = stack.run if groups is None else groups.on(stack)
        return forward(x, place, cache)

    at = stack.shared(place, cache)
    numbers = {name: cycle(range(count)) for name in ("attention", "mlp")}

    def attention() -> object:
        i = next(numbers["attention"])
        return stack.attention(i, stack.inputs(i, x), at)

    calls: dict[str, Callable[[], object]] = {
        "attention": attention,
        "mlp": lambda: stack.mlp(next(numbers["mlp"]), x),
        "head": lambda: stack.head(x),
        "plain": lambda: run(None),
    }
    kinds = (FusedGroups, Groups, *((StreamGroups,) if draft.device.type == "cuda" else ()))
    for execution in [kind(parts) for kind in kinds]:
        calls[execution.name] = lambda execution=execution: run(execution)  # type: ignore[misc]
    return {name: 1000 * s for name, s in seconds_of(calls, draft.device, repeats).items()}


def draft_times(
    target: Target, methods: Mapping[str, Method], prompt: Sequence[int], repeats: int = 30
) -> dict[str, dict[str, float]]:
    """Time only the drafting of a decoding step at T = 0, in median milliseconds.

    All methods take turns.

    Returns:
        For every method ``eager``, in the steps of a decoding; and where the device records graphs
        and the drafter may be recorded ``graph``, one replay of a step's drafting.
    """
    eager: dict[str, list[float]] = {name: [] for name in methods}
    decodings = {
        name: _greedy(target, method, prompt, repeats + 3, clock=Clock(target.device))
        for name, method in methods.items()
    }
    steps = {name: iter(decoding) for name, decoding in decodings.items()}
    for turn in range(-2, repeats):
        for name, decoding in decodings.items():
            assert decoding.clock is not None
            before = decoding.clock.seconds["draft"]
            next(steps[name])
            if turn >= 0:
                eager[name].append(1000 * (decoding.clock.seconds["draft"] - before))
    times = {name: {"eager": median(values)} for name, values in eager.items()}
    if target.device.type in RECORDERS:
        recorded = [name for name, method in methods.items() if method.drafter.captured]
        drafts = {name: _recording(target, methods[name], prompt) for name in recorded}
        replays = {name: graph.replay for name, (_, graph) in drafts.items()}
        with torch.inference_mode():
            for name, seconds in seconds_of(replays, target.device, repeats).items():
                times[name]["graph"] = 1000 * seconds
    return times


@torch.inference_mode()
def _recording(target: Target, method: Method, prompt: Sequence[int]) -> tuple[Decoding, Any]:
    """The drafting of the step behind the prompt as a graph, which can be replayed at will.

    It is returned with the decoding that owns the tensors it reads and writes: they must live as
    long as the graph.
    """
    decoding = _greedy(target, method, prompt, 1, static=True).open()
    state, drafter, noise = decoding.state, decoding.drafter, decoding.noise
    noise.renew(state.length)

    def draft() -> object:
        return drafter.propose(state, noise)

    draft()  # makes every table that is made lazily
    return decoding, RECORDERS[target.device.type](draft, target.device, None)
