"""What running layers side by side changes (:mod:`specwb.models.fuzzy`): states, queries, keys, values; a drafter's cache over rounds; time."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import islice, pairwise
from statistics import fmean, median
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from specwb.drafters.level import LevelDrafter
from specwb.engine import Clock, Decoding
from specwb.engine import rounds as decoding
from specwb.graphs import RECORDERS
from specwb.mask import causal_mask
from specwb.methods import Method
from specwb.methods import method as make_method
from specwb.models.backbone import Pass, Stack, rms
from specwb.models.fuzzy import FusedGroups, Groups, Layers, StreamGroups, grouping
from specwb.models.products import product
from specwb.models.target import Target
from specwb.noise import row_seeds
from specwb.probability import Sampling

KINDS = ("hidden", "attention", "q", "k", "v")


class _Watched(Groups):
    """The simulation, which keeps what every layer's attention makes."""

    def __init__(self, layers: Layers, whole: bool = False) -> None:
        super().__init__(layers, whole)
        self.found: dict[str, list[Tensor]] = {kind: [] for kind in KINDS}
        self.at: Pass | None = None

    def attend(self, stack: Stack, group: tuple[int, ...], x: Tensor, at: Pass) -> list[Tensor]:
        self.at, outs = at, super().attend(stack, group, x, at)
        h, kv, dim = stack.heads, stack.kv_heads, stack.head_dim
        for i, out in zip(group, outs, strict=True):
            layer = stack.layers[i]
            heads = product(rms(x, layer.norm1), layer.qkv, layer.qkv_bias).unflatten(-1, (h + 2 * kv, dim))
            if layer.qk_norm is not None:
                heads = torch.cat([F.rms_norm(heads[..., : h + kv, :], (dim,), eps=layer.qk_eps) * layer.qk_norm, heads[..., h + kv :, :]], -2)
            parts = (out, *(part.flatten(-2) for part in heads.split((h, kv, kv), -2)))
            for kind, part in zip(KINDS[1:], parts, strict=True):
                self.found[kind].append(part)
        return outs


def _alone(draft: Target) -> Layers:
    return tuple((i,) for i in range(len(draft.backbone.layers)))


@torch.inference_mode()
def _pass(draft: Target, windows: Tensor, groups: Layers, whole: bool = False) -> dict[str, list[Tensor]]:
    """One causal forward of texts ``[B,m]`` over a fresh cache: of every layer ``[B,m,..]`` of each of :data:`KINDS`, ``hidden`` has the last layer's
    output too."""
    stack, (rows, m) = draft.backbone, windows.shape
    windows, watched = windows.to(draft.device), _Watched(groups, whole)
    at = torch.arange(m, device=draft.device).expand(rows, m)
    numbers = range(len(stack.layers) + 1)
    cache = stack.cache(rows, m)
    x = stack.embed(windows)
    _, states = watched.run(stack, x, at, at, cache, m, None, causal=True, features=numbers)
    assert states is not None
    return {**watched.found, "hidden": list(states.chunk(len(numbers), -1))}


def _cosine(a: Tensor, b: Tensor) -> float:
    return F.cosine_similarity(a.double(), b.double(), dim=-1).mean().item()


def similarity(draft: Target, windows: Tensor, groups: Layers, whole: bool = False) -> dict[str, list[float]]:
    """By layer, the mean cosine over places between what exact execution makes and what one pass of fuzzy execution makes of the same texts.

    ``hidden``: the residual stream that enters the layer (not what its attention reads: that is the group's input). ``attention``: its attention's
    output. ``q``, ``k``, ``v``: all heads of a place as one vector, before rotation; both sides are turned by the same angle, so after it the cosine
    is the same.

    Args:
        windows: ``[B,m]`` token ids, each a text of its own. groups: as :func:`specwb.models.fuzzy.grouping` makes them.
        whole: MLPs side by side too; inside a group ``hidden`` is then a partial sum.
    Source: Wu et al. 2025, table 4.
    """
    exact, fuzzy = _pass(draft, windows, _alone(draft)), _pass(draft, windows, groups, whole)
    return {kind: [_cosine(exact[kind][i], fuzzy[kind][i]) for i in range(len(draft.backbone.layers))] for kind in KINDS}


def consecutive(draft: Target, windows: Tensor) -> list[float]:
    """Mean cosine between what enters layer i and what leaves it, exact execution: what fuzzy execution relies on. ``windows [B,m]`` token ids."""
    states = _pass(draft, windows, _alone(draft))["hidden"]
    return [_cosine(a, b) for a, b in pairwise(states)]


def drift(
    target: Target, prompts: Sequence[Sequence[int]], method: str | Method, rounds: int = 12, *, temperature: float = 0.0, seed: int = 0
) -> list[dict[str, Any]]:
    """By round, how far the cache that a draft model drafts with is from a fresh exact forward over the same text; means over prompts.

    Compared are the places from the prompt's last token, the first that the prompt's exact forward leaves out, to the round's pending one; all heads
    of a place are one vector.

    Args: method: of one draft model with a cache, such as ``easyspec:calibrate=false``. prompts: token ids.
    Returns: one a round, with ``round`` (from 1), ``accepted`` (drafted tokens kept), ``places`` (compared, a prompt), and by layer ``key_error``,
        ``value_error`` (mean of ``|a - b| / |b|``), ``key_cosine`` and ``value_cosine``.
    Raises:
        ValueError: another kind of method, or rounds < 1.
    """
    made = make_method(method, target) if isinstance(method, str) else method
    if not isinstance(made.drafter, LevelDrafter) or rounds < 1:
        raise ValueError(f"drift is of methods with one draft model, in rounds >= 1; got {made.key}, {rounds}")
    opened: list[LevelDrafter] = []
    watched = _opening(made, opened)
    found: list[list[dict[str, Any]]] = [[] for _ in range(rounds)]
    for i, prompt in enumerate(prompts):
        room = rounds * (made.drafter.limits.depth + 1)
        loop = decoding(target, [list(prompt)], watched, max_new_tokens=room, temperature=temperature, seed=[seed + i], eos=(), graphs=False)
        kept = []
        for step in islice(loop, rounds):
            known = int(step.known)
            assert step.state is not None
            kept.append((opened[-1].cache.data[:, 0, len(prompt) - 1 : known].clone(), int(step.verdict.accepted)))
            text = step.state.tokens[0, :known].clone()
        loop.close()  # type: ignore[attr-defined]
        fresh = _entries(made.drafter.draft, text)[:, len(prompt) - 1 :]
        for into, (cache, accepted) in zip(found, kept, strict=True):
            into.append({"accepted": accepted, "places": cache.shape[1], **_apart(cache, fresh[:, : cache.shape[1]])})
    return [{"round": r, **_means(each)} for r, each in enumerate(found, 1)]


def _opening(method: Method, opened: list[LevelDrafter]) -> Method:
    """The same method; every decoding's own drafter is put into ``opened``."""
    drafter = copy.copy(method.drafter)
    kind: Any = type(drafter)

    def open(self, state, target):
        kind.open(self, state, target)
        opened.append(self)

    drafter.__class__ = type(kind.__name__, (kind,), {"open": open})
    return replace(method, drafter=drafter)


@torch.inference_mode()
def _entries(draft: Target, text: Tensor) -> Tensor:
    """``[layers, m, 2 * kv_heads, head_dim]`` keys and values of a text ``[m]``, exact."""
    stack, m = draft.backbone, len(text)
    at, cache = torch.arange(m, device=draft.device)[None], stack.cache(1, m)
    stack.run(stack.embed(text[None].to(draft.device)), at, at, cache, m, None, causal=True)
    return cache.data[:, 0]


def _apart(cache: Tensor, fresh: Tensor) -> dict[str, list[float]]:
    """By layer, of entries ``[layers, m, 2 * kv_heads, head_dim]``."""
    out = {}
    for name, a, b in zip(("key", "value"), cache.double().chunk(2, 2), fresh.double().chunk(2, 2), strict=True):
        a, b = a.flatten(2), b.flatten(2)
        out[f"{name}_error"] = ((a - b).norm(dim=-1) / b.norm(dim=-1)).mean(1).tolist()
        out[f"{name}_cosine"] = F.cosine_similarity(a, b, dim=-1).mean(1).tolist()
    return out


def _means(each: list[dict[str, Any]]) -> dict[str, Any]:
    one = each[0]
    return {
        name: [fmean(xs) for xs in zip(*(e[name] for e in each), strict=True)] if isinstance(one[name], list) else fmean(e[name] for e in each)
        for name in one
    }


@torch.inference_mode()
def layer_times(draft: Target, tokens: int = 1, extent: int = 256, groups: Layers | None = None, repeats: int = 50) -> dict[str, float]:
    """Median milliseconds on this device, nothing recorded as a graph, all taking turns: of one layer's ``attention`` and ``mlp`` with their norms
    (each time the next layer's), of the ``head``, and of all layers without the head: ``plain``, with the groups ``fused``, as ``simulation``, and
    on CUDA as ``streams``.

    Args: tokens: fed at once, a chain. extent: of the text, these included. groups: default the paper's of 4, or as many as there may be.
    Raises:
        ValueError: tokens outside 1..extent, or repeats < 1.
    """
    stack = draft.backbone
    count = len(stack.layers)
    if not 1 <= tokens <= extent or repeats < 1:
        raise ValueError(f"tokens must be in 1..extent, repeats >= 1; got tokens={tokens}, extent={extent}, repeats={repeats}")
    parts = grouping(count, max(1, min(4, count - 2))) if groups is None else groups
    x = stack.embed(torch.arange(tokens, device=draft.device)[None] % draft.vocabulary)
    positions = torch.arange(extent - tokens, extent, device=draft.device)[None]
    cache = stack.cache(1, extent)
    mask = None if tokens == 1 else causal_mask(positions, extent, stack.dtype)

    def run(groups: Groups | None) -> object:
        forward = stack.run if groups is None else groups.on(stack)
        return forward(x, positions, positions, cache, extent, mask)

    watched = _Watched(_alone(draft))
    run(watched)
    at, turn = watched.at, 0
    assert at is not None
    asked: dict[str, Callable[[], object]] = {
        "attention": lambda: stack.attention(turn % count, rms(x, stack.layers[turn % count].norm1), at),
        "mlp": lambda: stack.mlp(turn % count, x),
        "head": lambda: stack.head(x),
        "plain": lambda: run(None),
    }
    kinds = (FusedGroups, Groups, *((StreamGroups,) if draft.device.type == "cuda" else ()))
    for made in [kind(parts) for kind in kinds]:
        asked[made.name] = lambda made=made: run(made)  # type: ignore[misc]
    spent: dict[str, list[float]] = {name: [] for name in asked}
    for turn in range(-3, repeats):
        for name, one in asked.items():
            began = _now(draft)
            one()
            if turn >= 0:
                spent[name].append(1000 * (_now(draft) - began))
    return {name: median(each) for name, each in spent.items()}


def draft_times(target: Target, methods: Mapping[str, Method], prompt: Sequence[int], repeats: int = 30) -> dict[str, dict[str, float]]:
    """By name, median milliseconds of drafting alone in a round at T = 0, all methods taking turns: ``eager``, in rounds of a decoding, and where
    the device records graphs and the drafter may be recorded, ``graph``, one replay of a round's drafting.

    Args: prompt: token ids. repeats: rounds each time is a median of.
    Raises:
        ValueError: repeats < 1.
    """
    if repeats < 1:
        raise ValueError(f"repeats must be >= 1, got {repeats}")
    spent: dict[str, dict[str, list[float]]] = {name: {"eager": []} for name in methods}
    clocks = {name: Clock(target.device) for name in methods}
    loops = {
        name: decoding(target, [list(prompt)], made, max_new_tokens=(repeats + 3) * (made.drafter.limits.depth + 1), eos=(), clock=clocks[name])
        for name, made in methods.items()
    }
    recorded = {name: _recorded(target, made, prompt) for name, made in methods.items() if made.drafter.captured} if _records(target) else {}
    for turn in range(-2, repeats):
        for name, loop in loops.items():
            before = clocks[name].seconds["draft"]
            next(iter(loop))
            if turn >= 0:
                spent[name]["eager"].append(1000 * (clocks[name].seconds["draft"] - before))
        for name, (_, graph) in recorded.items():
            began = _now(target)
            with torch.inference_mode():
                graph.replay()
            if turn >= 0:
                spent[name].setdefault("graph", []).append(1000 * (_now(target) - began))
    for loop in loops.values():
        loop.close()  # type: ignore[attr-defined]
    return {name: {how: median(each) for how, each in mine.items()} for name, mine in spent.items()}


def _records(target: Target) -> bool:
    return target.device.type in RECORDERS


@torch.inference_mode()
def _recorded(target: Target, method: Method, prompt: Sequence[int]) -> tuple[Decoding, Any]:
    """The drafting of the round behind the prompt, as a graph that may be replayed as often as one likes, and the tensors that it reads and writes:
    they must live as long."""
    decoding = Decoding(
        target,
        method,
        Sampling(0.0),
        [list(prompt)],
        [method.drafter.limits.depth + 1],
        row_seeds(0, 1, target.device),
        static=True,
    ).open()
    state, drafter, noise = decoding.state, decoding.drafter, decoding.noise
    noise.renew(state.known)

    def draft() -> object:
        return drafter.propose(state, noise)

    draft()  # makes every table that is made lazily
    return decoding, RECORDERS[target.device.type](draft, target.device, None)


def _now(draft: Target) -> float:
    if draft.device.type == "cuda":
        torch.cuda.synchronize(draft.device)
    return time.perf_counter()
