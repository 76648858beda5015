"""Layers side by side: which they are, and every execution of them against Algorithm 2 in the
library's own modules."""

from __future__ import annotations

import copy
import gc
import weakref
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import pytest
import tiny
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

from specwb.models.backbone import Backbone, Stack
from specwb.models.cache import KVCache
from specwb.models.fuzzy import (
    FusedGroups,
    Groups,
    LayerIndices,
    StreamGroups,
    grouping,
    listed,
)
from specwb.models.place import Place

LAYERS = 6
MODELS: dict[str, tuple[str, dict]] = {
    "grouped heads": ("llama", {}),
    "as many keys as heads": ("llama", {"num_key_value_heads": 4}),
    "biases everywhere": ("llama", {"attention_bias": True}),
    "biases": ("qwen2", {}),
    "q and k norms": ("qwen3", {}),
}
WINDOWS = {
    "use_sliding_window": True,
    "sliding_window": 3,
    "layer_types": ["full_attention", *["sliding_attention"] * (LAYERS - 1)],
}
PARTS: dict[str, LayerIndices] = {
    **{f"n={n}": grouping(LAYERS, n) for n in (3, 4)},
    "with the last": grouping(LAYERS, 3, last=False),
    "all at once": listed(LAYERS, [range(LAYERS)]),
    "pairs": listed(LAYERS, [[0, 1], [2, 3], [4, 5]]),
}
every_model = pytest.mark.parametrize("name", MODELS)
every_part = pytest.mark.parametrize("parts", PARTS.values(), ids=PARTS)


@cache
def model(name: str) -> nn.Module:
    kind, changes = MODELS.get(name, ("qwen2", WINDOWS))
    return tiny.build(kind, seed=4, num_hidden_layers=LAYERS, **changes)


@cache
def stack(name: str) -> Backbone:
    return Backbone(model(name))


# ----------------------------------------------------------------------------------- which layers


def test_by_hand():
    assert grouping(8, 3) == ((0,), (1, 2), (3, 4, 5), (6,), (7,))
    assert grouping(8, 4, first=False) == ((0, 1, 2, 3), (4, 5, 6), (7,))
    assert grouping(8, 4, last=False) == ((0,), (1, 2, 3), (4, 5, 6, 7))
    # pairs are counted from layer 0, so these two are not one
    assert grouping(4, 2) == ((0,), (1,), (2,), (3,))
    assert listed(5, [(1, 2)]) == ((0,), (1, 2), (3,), (4,))
    # Wu et al. 2025, 4.2: Llama-3-8B has 32 layers
    assert [len(grouping(32, n)) for n in (2, 3, 4, 5)] == [18, 13, 10, 9]


# ---------------------------------------------------------------------- Algorithm 2, written anew


@torch.no_grad()
def algorithm(
    net: nn.Module, tokens: Tensor, parts: LayerIndices, whole: bool = False
) -> tuple[Tensor, Tensor]:
    """Of texts ``[B,m]`` hidden states behind every layer ``[B,m,L * H]``, keys and values
    ``[L,B,m,2 * kv,dim]``: the library's modules."""
    inner = net.model
    h, places = inner.embed_tokens(tokens), torch.arange(tokens.shape[1])[None]
    rotary = inner.rotary_emb(h, places)
    unseen = torch.full((tokens.shape[1],) * 2, torch.finfo(h.dtype).min).triu(1)[None, None]
    states, stored = [], []
    for group in parts:
        layers, outs, given = [inner.layers[i] for i in group], [], h
        for layer in layers:
            normed = layer.input_layernorm(given)
            outs.append(
                layer.self_attn(
                    hidden_states=normed, position_embeddings=rotary, attention_mask=unseen
                )[0]
            )
            stored.append(entries(layer.self_attn, normed, rotary))
        for layer, out in zip(layers, outs, strict=True):
            if whole and len(group) > 1:
                h = h + out + layer.mlp(layer.post_attention_layernorm(given + out))
            else:
                r = h + out
                h = r + layer.mlp(layer.post_attention_layernorm(r))
            states.append(h)
    return torch.cat(states, -1), torch.stack(stored)


def entries(attention: nn.Module, normed: Tensor, rotary: tuple[Tensor, Tensor]) -> Tensor:
    key, value = (
        part(normed).unflatten(-1, (-1, attention.head_dim))
        for part in (attention.k_proj, attention.v_proj)
    )
    if hasattr(attention, "k_norm"):
        key = attention.k_norm(key)
    return torch.cat([apply_rotary_pos_emb(key, key, *rotary, unsqueeze_dim=2)[1], value], 2)


def ids(rows: int, m: int) -> Tensor:
    return torch.randint(
        tiny.VOCABULARY, (rows, m), generator=torch.Generator().manual_seed(rows + m)
    )


def run(
    on: Stack, tokens: Tensor, groups: Groups | None, steps: list[int], device: str = "cpu"
) -> tuple[Tensor, KVCache]:
    """Texts fed in blocks of ``steps`` tokens: hidden states behind every layer."""
    rows, m = tokens.shape
    store, at, found = on.cache(rows, m), 0, []
    tokens = tokens.to(device)
    for step in steps:
        positions = torch.arange(at, at + step, device=device).expand(rows, -1)
        place = Place.behind(positions, at + step, on.dtype)
        x = on.embed(tokens[:, at : at + step])
        forward = on.run if groups is None else groups.on(on)
        found.append(forward(x, place, store, features=range(1, LAYERS + 1))[1])
        at += step
    assert at == m
    return torch.cat(found, 1), store


def near(found: Tensor, wanted: Tensor) -> None:
    torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("whole", [False, True], ids=["sequence", "parallel"])
@every_part
@every_model
def test_both_executions_are_the_algorithm(name, parts, whole):
    """A text block by block with its keys and values kept: they are those of the group's input
    too."""
    tokens, on = ids(2, 17), stack(name)
    wanted, stored = algorithm(model(name), tokens, parts, whole)
    for kind in (Groups, FusedGroups):
        with torch.inference_mode():
            found, store = run(on, tokens, kind(parts, whole), [5, 1, 11])
        scale = float(wanted.abs().max())
        near(found / scale, wanted / scale)
        near(store.data, stored)


@every_model
def test_groups_of_one_are_the_plain_backbone(name):
    """Up to rounding: the backbone's pass is compiled on the CPU."""
    tokens, on = ids(3, 14), stack(name)
    alone = grouping(LAYERS, 1)
    with torch.inference_mode():
        wanted, plain = run(on, tokens, None, [6, 1, 4, 3])
        for groups in (Groups(alone), FusedGroups(alone), StreamGroups(alone)):
            found, store = run(on, tokens, groups, [6, 1, 4, 3])
            torch.testing.assert_close(found, wanted, atol=1e-4, rtol=1e-4)
            torch.testing.assert_close(store.data, plain.data, atol=1e-4, rtol=1e-4)


def test_stacked_weights_are_made_once():
    """One copy a group however many methods use it."""
    on, parts = stack("q and k norms"), PARTS["n=4"]
    with torch.inference_mode():
        first, other = FusedGroups(parts), FusedGroups(parts)
        run(on, ids(1, 3), first, [3])
        made = first.weights(on, (1, 2, 3))
        run(on, ids(1, 3), FusedGroups(PARTS["n=3"]), [3])
        run(on, ids(1, 3), other, [3])
        assert other.weights(on, (1, 2, 3)) is made
        gone = weakref.ref(made)
        del first, other, made
        gc.collect()
        assert gone() is None, "a copy of the weights that nobody uses is kept"


# ---------------------------------------------------------------------------------------- streams


class Streams(TorchDispatchMode):
    """CUDA's streams on the CPU, where operators run one after the other: it notes which stream
    each belongs to, and fails where one writes what another stream touched, or reads what another
    one wrote, and is not ordered behind it by ``wait_stream``. It does not see what the allocator
    gives out again, nor what runs on CUDA alone."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.Stream()
        self.touched: list[tuple[range, bool, Streams.Stream, int]] = []
        self.kept: list[Tensor] = []  # so that no memory is used twice

    class Stream:
        """``seen``: of every stream up to which of its operators this one is behind."""

        def __init__(self, *_: object) -> None:
            self.seen: Counter[Streams.Stream] = Counter()

        def wait_stream(self, other: Streams.Stream) -> None:
            self.seen |= other.seen

    @contextmanager
    def on(self, stream: Stream) -> Iterator[None]:
        before, self.now = self.now, stream
        try:
            yield
        finally:
            self.now = before

    def __torch_dispatch__(self, op, types, args=(), kwargs=None):
        out = op(*args, **(kwargs or {}))
        given, made = (
            [x for x in tree_leaves(some) if isinstance(x, Tensor)]
            for some in ((args, kwargs), out)
        )
        self.kept += given + made
        named = {a.name: value for a, value in zip(op._schema.arguments, args, strict=False)}
        written = [
            id(x)
            for a in op._schema.arguments
            if a.alias_info is not None and a.alias_info.is_write
            for x in tree_leaves((named | (kwargs or {})).get(a.name))
        ]
        # by memory and not by the schema: reshape may copy
        there = {x.untyped_storage().data_ptr() for x in given}
        new = [x for x in made if x.untyped_storage().data_ptr() not in there]
        if written or new or not made:
            self.now.seen[self.now] += 1
            for tensor in given:
                self.touch(tensor, id(tensor) in written)
            for tensor in new:
                self.touch(tensor, True)
        return out

    def touch(self, tensor: Tensor, writes: bool) -> None:
        if not tensor.numel():
            return
        steps = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
        where = range(tensor.data_ptr(), tensor.data_ptr() + (steps + 1) * tensor.itemsize)
        for other, wrote, stream, at in self.touched:
            apart = other.stop <= where.start or where.stop <= other.start
            if not apart and (writes or wrote):
                assert self.now.seen[stream] >= at, "two streams, and nothing orders them"
        self.touched.append((where, writes, self.now, self.now.seen[self.now]))


@pytest.mark.parametrize("whole", [False, True], ids=["sequence", "parallel"])
@pytest.mark.parametrize(
    ("name", "part"),
    [
        *(("biases", part) for part in PARTS),
        *((name, "n=4") for name in (*MODELS, "some windows") if name != "biases"),
    ],
)
def test_streams_are_ordered_where_they_share_something(name, part, whole, monkeypatch):
    """Which streams there are follows from the parts, what they share from the model."""
    parts = PARTS[part]
    tokens, on, streams = ids(2, 7), stack(name), Streams()
    monkeypatch.setattr(torch.cuda, "Stream", streams.Stream)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: streams.now)
    monkeypatch.setattr(torch.cuda, "stream", streams.on)
    with torch.inference_mode():
        wanted, _ = run(on, tokens, Groups(parts, whole), [5, 1, 1])
        with streams:
            found, _ = run(on, tokens, StreamGroups(parts, whole), [5, 1, 1])
    near(found, wanted)
    used = len({id(stream) for _, _, stream, _ in streams.touched})
    assert used == max(map(len, parts))


# ------------------------------------------------------------------------------------------- CUDA


@pytest.mark.cuda
@pytest.mark.parametrize("whole", [False, True], ids=["sequence", "parallel"])
@every_part
@every_model
def test_all_executions_are_the_algorithm_on_cuda(name, parts, whole):
    """Tensors that streams work on are made, freed and made again while they run."""
    net, tokens = model(name), ids(2, 17)
    on = Backbone(copy.deepcopy(net).to("cuda"))
    wanted, stored = algorithm(net, tokens, parts, whole)
    scale = float(wanted.abs().max())
    for groups in (Groups(parts, whole), FusedGroups(parts, whole), StreamGroups(parts, whole)):
        for _ in range(3):
            with torch.inference_mode():
                found, store = run(on, tokens, groups, [5, 1, 11], "cuda")
            torch.testing.assert_close(found.cpu() / scale, wanted / scale, atol=1e-4, rtol=1e-4)
            torch.testing.assert_close(store.data.cpu(), stored, atol=1e-3, rtol=1e-3)
