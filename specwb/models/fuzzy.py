"""Layers side by side: the attentions of a group of layers on the group's input (EasySpec's fuzzy execution), in several executions of one data flow.

For a group of N consecutive layers and its input h: ``A_i = Attention_i(Norm_i(h))`` for every layer i of the group, with i's own keys and values;
then in order, from ``h_1 = h``: ``r_i = h_i + A_i``, ``h_{i+1} = r_i + MLP_i(r_i)``. Only what attentions read is not what they would read; groups
of one layer are that layer.

Source: Wu et al. 2025, arXiv 2502.02493, Algorithm 2. The norm before each attention is not written there; it is the decoder's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.nn import functional as F

from specwb.models.backbone import Pass, Stack, inverse_rms, rms
from specwb.models.cache import KVCache
from specwb.models.products import product

Layers = tuple[tuple[int, ...], ...]


class GroupError(ValueError):
    """Layers that cannot be grouped as asked for."""


def grouping(layers: int, n: int, first: bool = True, last: bool = True) -> Layers:
    """The paper's groups of at most ``n`` of ``layers`` layers, numbered from 0: ``[1..n-1], [n..2n-1], ..``, the last group what remains.

    Args: first, last: the first and the last layer stand alone; the paper's choice is True.
    Raises:
        GroupError: n is no number >= 1, or larger than the layers that may be grouped allow.
    """
    alone = int(first) + int(last)
    inner, most = range(int(first), layers - int(last)), max(1, layers - int(last))
    if isinstance(n, bool) or not isinstance(n, int) or n < 1:
        raise GroupError(f"n must be an integer >= 1, got {n!r}")
    if n > 1 and len(inner) < 2:
        few = f"of its {layers} layer{'s'[: layers - 1]} {min(layers, alone)} stand alone"
        raise GroupError(f"{few}, so there are none to run side by side; use n=1, or a deeper draft model")
    if n > most:
        raise GroupError(
            f"n={n} is more than its {layers} layers allow: n={most} has all that do not stand alone in one group, {inner[0]}-{inner[-1]}"
        )
    chunks = [tuple(i for i in range(at, at + n) if i in inner) for at in range(0, layers, n)]
    return tuple(sorted([chunk for chunk in chunks if chunk] + [(i,) for i in range(layers) if i not in inner]))


def listed(layers: int, groups: Sequence[Sequence[int]]) -> Layers:
    """Groups given as lists of layers, such as ``[[1, 2, 3], [4, 5]]``; layers that are in none stand alone.

    Raises:
        GroupError: a layer that is not there or there twice, or a group that is not consecutive layers in order.
    """
    for group in groups:
        numbers = all(isinstance(i, int) and not isinstance(i, bool) for i in group)
        if not group or not numbers or list(group) != list(range(group[0], group[0] + len(group))):
            raise GroupError(f"a group is consecutive layers in order, such as 1-3; got {list(group)}")
        if group[0] < 0 or group[-1] >= layers:
            raise GroupError(f"there are layers 0..{layers - 1}; got the group {group[0]}-{group[-1]}")
    named = [i for group in groups for i in group]
    if len(set(named)) < len(named):
        raise GroupError(f"a layer is in one group; layer {next(i for i in named if named.count(i) > 1)} is in two")
    return tuple(sorted([*(tuple(group) for group in groups), *((i,) for i in range(layers) if i not in named)]))


class Groups:
    """*Simulation*: the data flow as it is written, one attention after the other; what the other executions are compared with.

    ``layers``: all layers in order, as groups. ``whole``: MLPs side by side too, ``h + sum_i (A_i + MLP_i(h + A_i))``; the paper advises against it.
    """

    name = "simulation"
    captured = True

    def __init__(self, layers: Layers, whole: bool = False) -> None:
        self.layers, self.whole = layers, whole

    def check(self, stack: Stack, n: int) -> None:
        """Raises GroupError where this execution cannot run these layers, of which ``n`` are to be side by side, here."""
        if isinstance(stack.layers[0].o.weight, DTensor):
            raise GroupError("it is parted among ranks itself; the draft model must be one that every rank holds whole")

    def exact(self) -> Groups | None:
        """How all layers run in order on the same devices; None: as every model's do."""
        return None

    def cache(self, stack: Stack, rows: int, capacity: int) -> KVCache:
        return stack.cache(rows, capacity)

    def agreed(self, logits: Tensor) -> Tensor:
        """What all processes draw from."""
        return logits

    def takes(self, group: tuple[int, ...]) -> bool:
        """Whether :meth:`attend` runs this group; one layer alone is otherwise run as every model's is."""
        return len(group) > 1

    def attend(self, stack: Stack, group: tuple[int, ...], x: Tensor, at: Pass) -> list[Tensor]:
        """The attentions of the group's layers, each ``[B,m,H]``; ``x`` is the group's input."""
        return [stack.attention(i, rms(x, stack.layers[i].norm1), at) for i in group]


@dataclass
class Stacked:
    """The attention weights of a group as one: ``qkv [n * (h + 2 kv) * dim, H]`` with the norms' gains folded in, ``o [n, h * dim, H]``."""

    qkv: Tensor
    qkv_bias: Tensor | None
    o: Tensor
    o_bias: Tensor | None
    qk_norm: Tensor | None

    @classmethod
    def of(cls, stack: Stack, group: tuple[int, ...]) -> Stacked:
        layers = [stack.layers[i] for i in group]

        def together(parts: list[Tensor | None]) -> Tensor | None:
            return None if parts[0] is None else torch.stack([p for p in parts if p is not None])

        gains = [layer.norm1.weight.detach() for layer in layers]
        bias = together([layer.qkv_bias for layer in layers])
        o_bias = together([layer.o.bias for layer in layers])
        return cls(
            torch.cat([layer.qkv * gain for layer, gain in zip(layers, gains, strict=True)]),
            None if bias is None else bias.flatten(),
            torch.stack([layer.o.weight.detach().t() for layer in layers]).contiguous(),
            None if o_bias is None else o_bias.detach()[:, None],
            together([layer.qk_norm for layer in layers]),
        )


class FusedGroups(Groups):
    """*Fused group*: one product for all q, k and v of a group, one rotation, one attention with the group in its batch, one batched output product:
    few large operators where the simulation has many small ones. The stacked weights are a copy of those of the grouped attentions.

    Equal to the simulation up to rounding: the gain of a layer's norm is multiplied into its weights before the product.
    """

    name = "fused"

    def __init__(self, layers: Layers, whole: bool = False) -> None:
        super().__init__(layers, whole)
        self._made: dict[tuple[Stack, tuple[int, ...]], Stacked] = {}

    def weights(self, stack: Stack, group: tuple[int, ...]) -> Stacked:
        """Made when first asked for, one for all methods of a model that have this group, for as long as one of them is there."""
        if (stack, group) not in self._made:
            shared = stack.__dict__.setdefault("_stacked", WeakValueDictionary())
            found = shared.get(group)
            if found is None:
                shared[group] = found = Stacked.of(stack, group)
            self._made[stack, group] = found
        return self._made[stack, group]

    def attend(self, stack: Stack, group: tuple[int, ...], x: Tensor, at: Pass) -> list[Tensor]:
        # a text at once, whose mask is none: not what drafting does
        return super().attend(stack, group, x, at) if at.causal else self.together(stack, group, x, at, group[0])

    def together(self, stack: Stack, group: tuple[int, ...], x: Tensor, at: Pass, held: int) -> list[Tensor]:
        """As :meth:`attend`, keys and values in the cache's layers from ``held`` on."""
        weights, n, (rows, m, width) = self.weights(stack, group), len(group), x.shape
        h, kv, dim, share = stack.heads, stack.kv_heads, stack.head_dim, stack.heads // stack.kv_heads
        layer, cache = stack.layers[group[0]], at.cache
        heads = product(unit(x, layer.norm1), weights.qkv, weights.qkv_bias).view(rows, m, n, h + 2 * kv, dim)
        qk = heads[:, :, :, : h + kv]
        if weights.qk_norm is not None:
            qk = F.rms_norm(qk, (dim,), eps=layer.qk_eps) * weights.qk_norm
        turned = torch.addcmul(qk * at.cos[:, :, None], qk.roll(dim // 2, -1), at.sin[:, :, None])
        heads[:, :, :, : h + kv] = turned
        place = (torch.arange(n, device=x.device)[:, None] * (cache.rows * cache.capacity) + at.index).flatten()
        fresh = heads[:, :, :, h:].permute(2, 0, 1, 3, 4).reshape(n * rows * m, 2 * kv, dim)
        cache.data[held : held + n].flatten(0, 2).index_copy_(0, place, fresh)
        stored = cache.data[held : held + n, :, : at.extent].flatten(0, 1)
        key, value = stored[:, :, :kv].transpose(1, 2), stored[:, :, kv:].transpose(1, 2)
        q = turned[:, :, :, :h].view(rows, m, n, kv, share, dim).permute(2, 0, 3, 4, 1, 5).reshape(n * rows, kv, share * m, dim)
        mask = at.mask if at.mask is None or rows == 1 else at.mask.repeat(n, 1, 1, 1)
        out = F.scaled_dot_product_attention(q, key, value, attn_mask=mask, scale=layer.scale)
        out = out.view(n, rows, kv, share, m, dim).permute(0, 1, 4, 2, 3, 5).reshape(n, rows * m, h * dim)
        out = torch.bmm(out, weights.o) if weights.o_bias is None else torch.baddbmm(weights.o_bias, out, weights.o)
        return list(out.view(n, rows, m, width).unbind())


def unit(x: Tensor, norm: Any) -> Tensor:
    """``x`` over its root mean square, without a gain."""
    if x.device.type != "cpu" or x.dtype != torch.float32:
        return F.rms_norm(x, (x.shape[-1],), None, norm.variance_epsilon)
    return x * inverse_rms(x, norm.variance_epsilon)


class StreamGroups(Groups):
    """*Streams*: every attention of a group on a CUDA stream of its own, forked before and joined behind it; recorded with the round's graph, the
    branches become the graph's. A gain only where one attention alone does not fill the device."""

    name = "streams"

    def __init__(self, layers: Layers, whole: bool = False) -> None:
        super().__init__(layers, whole)
        self._streams: list[torch.cuda.Stream] = []

    def check(self, stack: Stack, n: int) -> None:
        super().check(stack, n)
        if stack.device.type != "cuda":
            raise GroupError(f"execution=streams needs a CUDA device, the draft model is on {stack.device}; use fused or simulation")

    def attend(self, stack: Stack, group: tuple[int, ...], x: Tensor, at: Pass) -> list[Tensor]:
        here = torch.cuda.current_stream(x.device)
        while len(self._streams) < len(group) - 1:
            self._streams.append(torch.cuda.Stream(x.device))
        # the first one stays where it is; the others see what is done so far
        beside = self._streams[: len(group) - 1]
        outs: list[Tensor] = []
        for stream in beside:
            stream.wait_stream(here)
        for i, stream in zip(group[1:], beside, strict=True):
            with torch.cuda.stream(stream):
                outs.append(stack.attention(i, rms(x, stack.layers[i].norm1), at))
        outs.insert(0, stack.attention(group[0], rms(x, stack.layers[group[0]].norm1), at))
        for stream in beside:  # so nothing that is freed from here on is still in use, and the allocator need not be told
            here.wait_stream(stream)
        return outs


EXECUTIONS: dict[str, type[Groups]] = {kind.name: kind for kind in (FusedGroups, Groups, StreamGroups)}
