"""Layers side by side: the attentions of a group of layers read the group's input (EasySpec's
fuzzy execution), in several executions of one data flow.

For a group of n consecutive layers and its input z: ``A_i = Attention_i(Norm_i(z))`` for every
layer i of the group, with i's own keys and values; then in order, from ``z_1 = z``:
``r_i = z_i + A_i``, ``z_{i+1} = r_i + MLP_i(r_i)``. The only difference is what the attentions
read: in order, each would read the output of the layer before it. A group of one layer is that
layer.

Source: Wu et al. 2025, arXiv 2502.02493, Algorithm 2. The norm before each attention is not written
there; it is the decoder's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from weakref import WeakValueDictionary

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.nn import functional as F

from specwb.core.errors import SpecwbError
from specwb.models.backbone import ForwardPass, LayerRunner, Stack
from specwb.models.cache import KVCache
from specwb.models.place import Place
from specwb.models.products import product

LayerIndices = tuple[tuple[int, ...], ...]


class GroupError(SpecwbError, ValueError):
    """Layers cannot be grouped in the way that was asked for."""


def grouping(layers: int, n: int, first: bool = True, last: bool = True) -> LayerIndices:
    """The paper's groups of at most ``n`` layers, numbered from 0: ``[1..n-1], [n..2n-1], ..``, and
    in the last group what remains. ``first``, ``last``: these layers are groups by themselves, as
    in the paper."""
    inner, largest = range(int(first), layers - int(last)), max(1, layers - int(last))
    if isinstance(n, bool) or not isinstance(n, int) or n < 1:
        raise GroupError(f"n must be an integer >= 1, got {n!r}")
    if n > 1 and len(inner) < 2:
        few = f"its {layers} layer{'s'[: layers - 1]} make no group of two by the paper's rule"
        raise GroupError(f"{few}; name groups, use n=1, or a deeper draft model")
    if n > largest:
        raise GroupError(
            f"n={n} is more than its {layers} layers allow: n={largest} has all that do not stand "
            f"alone in one group, {inner[0]}-{inner[-1]}"
        )
    chunks = [tuple(i for i in range(at, at + n) if i in inner) for at in range(0, layers, n)]
    single = [(i,) for i in range(layers) if i not in inner]
    return tuple(sorted([*(chunk for chunk in chunks if chunk), *single]))


def listed(layers: int, groups: Sequence[Sequence[int]]) -> LayerIndices:
    """The groups of lists of layers, such as ``[[1, 2, 3], [4, 5]]``; a layer that is in no list is
    a group by itself.
    """
    for group in groups:
        numbers = all(isinstance(i, int) and not isinstance(i, bool) for i in group)
        if not group or not numbers or list(group) != list(range(group[0], group[0] + len(group))):
            raise GroupError(
                f"a group is consecutive layers in order, such as 1-3; got {list(group)}"
            )
        if group[0] < 0 or group[-1] >= layers:
            last = layers - 1
            raise GroupError(f"there are layers 0..{last}; got the group {group[0]}-{group[-1]}")
    named = [i for group in groups for i in group]
    if len(set(named)) < len(named):
        twice = next(i for i in named if named.count(i) > 1)
        raise GroupError(f"a layer is in one group; layer {twice} is in two")
    single = [(i,) for i in range(layers) if i not in named]
    return tuple(sorted([*(tuple(group) for group in groups), *single]))


class Groups:
    """*Simulation*: the data flow as it is written, one attention after the other. The other
    executions are compared with it.

    ``layers`` are all layers in order, as groups. With ``parallel_mlp`` the MLPs of a group read
    the group's input too, ``z + sum_i (A_i + MLP_i(z + A_i))``; the paper advises against it."""

    name = "simulation"
    captured = True

    def __init__(self, layers: LayerIndices, parallel_mlp: bool = False) -> None:
        self.layers, self.parallel_mlp = layers, parallel_mlp

    def check(self, stack: Stack, n: int) -> None:
        """Checks that this execution can run these layers here."""
        if getattr(stack, "whole", False):
            raise GroupError(
                "its layers run only together, by the library's own forward; name a draft model "
                "that has a fast path"
            )
        if isinstance(stack.layers[0].o.weight, DTensor):
            raise GroupError(
                "it is parted among ranks itself; the draft model must be one that every rank "
                "holds whole"
            )

    def exact(self, stack: Stack) -> LayerRunner | None:
        """How all layers run in order on the same devices; None: as those of every model do."""
        return None

    def cache(self, stack: Stack, rows: int, capacity: int) -> KVCache:
        """An empty cache of what this execution's process computes."""
        return stack.cache(rows, capacity)

    def agreed(self, logits: Tensor) -> Tensor:
        """The logits that all processes draw from."""
        return logits

    def on(self, stack: Stack) -> LayerRunner:
        """:meth:`run` of one stack."""
        return partial(self.run, stack)

    def run(
        self, stack: Stack, x: Tensor, place: Place, cache: KVCache, *, features: Sequence[int] = ()
    ) -> tuple[Tensor, Tensor | None]:
        """Runs all layers of a stack in these groups, as :meth:`specwb.models.backbone.Stack.run`
        does."""
        grouped, layers = sum(map(len, self.layers)), len(stack.layers)
        if grouped != layers:
            raise GroupError(
                f"groups are of all layers; these are of {grouped}, there are {layers}"
            )
        at = stack.shared(place, cache)
        states = {0: x}
        for group in self.layers:
            side_by_side = self.parallel_mlp and len(group) > 1
            outs = self.attend(stack, group, x, at)
            if side_by_side:
                outs = [out + stack.mlp(i, x + out) for i, out in zip(group, outs, strict=True)]
            for i, out in zip(group, outs, strict=True):
                x = x + out
                if not side_by_side:
                    x = x + stack.mlp(i, x)
                if i + 1 in features:
                    states[i + 1] = x
        return x, stack.selected(states, x, features)

    def attend(
        self, stack: Stack, group: tuple[int, ...], x: Tensor, at: ForwardPass
    ) -> list[Tensor]:
        """The attentions of the group's layers, each ``[B,m,H]``; ``x`` is the group's input."""
        return [stack.attention(i, stack.inputs(i, x), at) for i in group]


@dataclass
class Stacked:
    """The attention weights of a group of n layers as one, a copy.

    Attributes:
        qkv: ``[n * (h + 2 kv) * dim, H]``, with the norms' gains folded in.
        qkv_bias: ``[n * (h + 2 kv) * dim]`` or None.
        o: ``[n, h * dim, H]``.
        o_bias: ``[n, 1, H]`` or None.
        qk_norm: ``[n, h + kv, dim]`` or None.
    """

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
    """*Fused group*: one product for all q, k and v of a group, one rotation, one attention with
    the group in its batch and one batched output product: few large operators where the simulation
    has many small ones. The stacked weights are a copy of those of the grouped attentions.

    It equals the simulation up to rounding: the gain of a layer's norm is multiplied into its
    weights before the product.
    """

    name = "fused"

    def __init__(self, layers: LayerIndices, parallel_mlp: bool = False) -> None:
        super().__init__(layers, parallel_mlp)
        self._stacked: dict[tuple[Stack, tuple[int, ...]], Stacked] = {}

    def check(self, stack: Stack, n: int) -> None:
        super().check(stack, n)
        if not stack.is_plain:
            raise GroupError(
                f"execution={self.name} stacks the weights of layers like Llama's, those of "
                f"{stack.config.model_type} are not; use execution=simulation"
            )

    def weights(self, stack: Stack, group: tuple[int, ...]) -> Stacked:
        """A group's stacked weights: made when first asked for, one copy for all methods of a model
        that have this group, for as long as one of them exists."""
        if (stack, group) not in self._stacked:
            if stack.copies is None:
                stack.copies = WeakValueDictionary()
            weights = stack.copies.get(group)
            if weights is None:
                stack.copies[group] = weights = Stacked.of(stack, group)
            self._stacked[stack, group] = weights
        return self._stacked[stack, group]

    def attend(
        self, stack: Stack, group: tuple[int, ...], x: Tensor, at: ForwardPass
    ) -> list[Tensor]:
        # a whole text has no mask here and is not what drafting does; one layer has nothing to fuse
        if at.causal or len(group) == 1:
            return super().attend(stack, group, x, at)
        return self.together(stack, group, x, at, group[0])

    def together(
        self, stack: Stack, group: tuple[int, ...], x: Tensor, at: ForwardPass, cache_layer: int
    ) -> list[Tensor]:
        """As :meth:`attend`; keys and values go to the cache's layers from ``cache_layer`` on."""
        weights, n, (rows, m, width) = self.weights(stack, group), len(group), x.shape
        h, kv, dim = stack.heads, stack.kv_heads, stack.head_dim
        per_key = h // kv  # query heads that share one key head
        layer, cache = stack.layers[group[0]], at.cache
        heads = product(
            F.rms_norm(x, x.shape[-1:], eps=layer.norm1.variance_epsilon),
            weights.qkv,
            weights.qkv_bias,
        )
        heads = heads.view(rows, m, n, h + 2 * kv, dim)
        qk = heads[:, :, :, : h + kv]
        if weights.qk_norm is not None:
            qk = F.rms_norm(qk, (dim,), eps=layer.qk_eps) * weights.qk_norm
        rotated = torch.addcmul(qk * at.cos[:, :, None], qk.roll(dim // 2, -1), at.sin[:, :, None])
        heads[:, :, :, : h + kv] = rotated
        first = torch.arange(n, device=x.device)[:, None] * (cache.rows * cache.capacity)
        index = (first + at.index).flatten()
        entries = heads[:, :, :, h:].permute(2, 0, 1, 3, 4).reshape(n * rows * m, 2 * kv, dim)
        layers = slice(cache_layer, cache_layer + n)
        cache.data[layers].flatten(0, 2).index_copy_(0, index, entries)
        stored = cache.data[layers, :, : at.extent].flatten(0, 1)
        key, value = stored[:, :, :kv].transpose(1, 2), stored[:, :, kv:].transpose(1, 2)
        q = rotated[:, :, :, :h].view(rows, m, n, kv, per_key, dim).permute(2, 0, 3, 4, 1, 5)
        q = q.reshape(n * rows, kv, per_key * m, dim)
        mask = at.mask if at.mask is None or rows == 1 else at.mask.repeat(n, 1, 1, 1)
        out = F.scaled_dot_product_attention(q, key, value, attn_mask=mask, scale=layer.scale)
        out = out.view(n, rows, kv, per_key, m, dim).permute(0, 1, 4, 2, 3, 5)
        out = out.reshape(n, rows * m, h * dim)
        o, bias = weights.o, weights.o_bias
        out = torch.bmm(out, o) if bias is None else torch.baddbmm(bias, out, o)
        return list(out.view(n, rows, m, width).unbind())


class StreamGroups(Groups):
    """*Streams*: every attention of a group on a CUDA stream of its own, forked before the group
    and joined behind it. Where a decoding step is recorded, the branches become the graph's. It
    gains only where one attention alone does not fill the device."""

    name = "streams"

    def __init__(self, layers: LayerIndices, parallel_mlp: bool = False) -> None:
        super().__init__(layers, parallel_mlp)
        self._streams: list[torch.cuda.Stream] = []

    def check(self, stack: Stack, n: int) -> None:
        super().check(stack, n)
        if stack.device.type != "cuda":
            raise GroupError(
                f"execution=streams needs a CUDA device, the draft model is on {stack.device}; "
                "use fused or simulation"
            )

    def attend(
        self, stack: Stack, group: tuple[int, ...], x: Tensor, at: ForwardPass
    ) -> list[Tensor]:
        if len(group) == 1:
            return super().attend(stack, group, x, at)
        here = torch.cuda.current_stream(x.device)
        while len(self._streams) < len(group) - 1:
            self._streams.append(torch.cuda.Stream(x.device))
        # made on a branch at its first use, it would be read on the others before it is there
        stack.share_rotation(at, x.dtype)
        # the first attention stays on the stream it is on; the others see what is done so far
        others = self._streams[: len(group) - 1]
        outs: list[Tensor] = []
        for stream in others:
            stream.wait_stream(here)
        for i, stream in zip(group[1:], others, strict=True):
            with torch.cuda.stream(stream):
                outs.append(stack.attention(i, stack.inputs(i, x), at))
        outs.insert(0, stack.attention(group[0], stack.inputs(group[0], x), at))
        # so nothing that is freed from here on is still in use, and the allocator need not be told
        for stream in others:
            here.wait_stream(stream)
        return outs


EXECUTIONS: dict[str, type[Groups]] = {
    kind.name: kind for kind in (FusedGroups, Groups, StreamGroups)
}
