"""One way to run Llama-like Hugging Face decoders fast: layer by layer, with explicit positions,
slots, masks and cache.

The weights, the norms and the activation are the library's; the order of the calls is ours. In
comparison with calls of the library's attention modules this fuses q, k and v into one product and
gate and up into another (the modules' weights become views of the fused ones, so that nothing is
stored twice), rotates q and k together, and never repeats grouped keys. How architectures differ is
said in :mod:`specwb.models.architectures`; what has no entry there runs by
:mod:`specwb.models.generic`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import Tensor
from torch.nn import functional as F

from specwb.core.mask import aligned, causal_mask, last_seen
from specwb.models.architectures import architecture_of, text_config, unchanged_below, windows
from specwb.models.cache import KVCache
from specwb.models.hooks import check_unhooked
from specwb.models.layers import (
    Layer,
    attend,
    capped,
    causal,
    check_plain,
    local,
    parts_of,
    processors,
    rms,
    through,
)
from specwb.models.place import Place
from specwb.models.products import of_decoding, product

LayerRunner = Callable[..., tuple[Tensor, Tensor | None]]
"""A forward through all layers, with the parameters and the results of :meth:`Stack.run`."""
UNROTATED = "none"
"""The kind of layers without a rotation."""


Kind = tuple[int | None, str | None]
"""How a layer looks at positions: its window, and by which rotation of the model's; None where the
model has one rotation."""


@dataclass
class ForwardPass:
    """What all layers of one forward share.

    Attributes:
        cos, sin: of the positions, ``[B,m,1,head_dim]``; sin is signed.
        index: where in the cache the keys and values go, ``[B * m]``.
        mask: of the queries, folded by groups of heads; None: everything is seen.
        causal: plain causal attention over a fresh cache, without a mask.
        keys, values: those attended to, ``[layers,B,kv_heads,extent,head_dim]``, in the cache.
        every: cos and sin of queries, keys and values, ``[B,m,heads + 2 * kv_heads,head_dim]``,
            which leave values as they are; None until they are needed.
        parts: in how many parts the keys are attended to, see
            :func:`specwb.models.layers.in_parts`.
        others: what layers of other kinds than the first one have instead of this.
    """

    cos: Tensor
    sin: Tensor
    index: Tensor
    cache: KVCache
    extent: int
    mask: Tensor | None
    causal: bool
    keys: Tensor
    values: Tensor
    every: tuple[Tensor, Tensor] | None = None
    parts: int = 1
    others: dict[Kind, ForwardPass] = field(default_factory=dict)


class Stack:
    """Decoder layers over a cache: what a model and a trained head have in common."""

    norm: Any = None
    # copies that others make of these weights, for as long as one of them holds them; weights that
    # change in place afterwards are not seen in them
    copies: WeakValueDictionary[Hashable, Any] | None = None

    def __init__(self, config: Any, layers: Sequence[Any], rotary: Any) -> None:
        self.config, self.rotary = config, rotary
        self.kind = architecture_of(config)
        self.layers: list[Layer] = []
        for layer in layers:
            self.layers.append(Layer(layer, self.kind, config))
            # parts that were fused lie in segments that no larger product fits into: unless they go
            # back to the device layer by layer, half as much again is reserved as the weights take
            if self.device.type == "cuda":
                torch.cuda.empty_cache()
        width = config.hidden_size // config.num_attention_heads
        self.head_dim = getattr(config, "head_dim", None) or width
        # of a model that is parted among devices these are the heads that this device has
        first = self.layers[0]
        self.heads = local(first.o.weight).shape[1] // self.head_dim
        self.kv_heads = (len(first.qkv) // self.head_dim - self.heads) // 2
        self.kinds = self._kinds([layer.self_attn for layer in layers])
        self._other_kinds = set(self.kinds) - {self.kinds[0]}
        self.turned, self.partners = self._turning()
        every = torch.arange(self.head_dim, device=self.device)
        self.order = every.roll(self.head_dim // 2) if self.partners is None else self.partners
        self._unchanged = unchanged_below(config)
        # no kernel of torch computes them over a text from its beginning
        self._is_special = any(
            layer.cap is not None or layer.sinks is not None for layer in self.layers
        )
        # making its tables takes what a layer or two would save
        self._at_once = len(self.layers) > 2 and all(
            layer.qk_norm is layer.all_norm is None for layer in self.layers
        )
        # of each rotation; the last table is the longest; recorded graphs may read the others
        self._ropes: dict[str | None, list[tuple[Tensor, Tensor]]] = {}
        self.compiled: Any = None

    def _kinds(self, attentions: Sequence[Any]) -> list[Kind]:
        seen = windows(self.config, len(attentions))
        by_type = "layer_type" in inspect.signature(self.rotary.forward).parameters
        types = self.config.layer_types if by_type else [None] * len(attentions)
        rotates = map(self.kind.rotates, attentions)
        return [
            (window, name if turns else UNROTATED)
            for window, name, turns in zip(seen, types, rotates, strict=True)
        ]

    def _turning(self) -> tuple[int, Tensor | None]:
        """How many pairs of a head's numbers the rotation turns, and each number's partner; None:
        every number is turned, with the one half a head away."""
        sizes = [b.shape[-1] for name, b in self.rotary.named_buffers() if "inv_freq" in name]
        pairs = sizes[0]
        if 2 * pairs == self.head_dim and not self.kind.adjacent:
            return pairs, None
        order = torch.arange(self.head_dim, device=self.device)
        if self.kind.adjacent:
            order[: 2 * pairs] = order[: 2 * pairs].view(-1, 2).flip(-1).flatten()
        else:
            order[: 2 * pairs] = order[: 2 * pairs].roll(pairs)
        return pairs, order

    @property
    def is_plain(self) -> bool:
        """Whether all layers are of one kind without a window, and as Llama's, with the same
        scale of attention and the same epsilons."""
        kinds = set(self.kinds)
        plain = kinds == {(None, None)} and self.partners is None
        if not plain or not all(layer.is_plain for layer in self.layers):
            return False
        numbers = {
            (layer.scale, layer.norm1.variance_epsilon, layer.qk_eps) for layer in self.layers
        }
        return len(numbers) == 1

    @classmethod
    def of(cls, head: Any) -> Stack:
        """The stack of a trained head: one for all that draft with it, kept in ``head.stack``."""
        if head.stack is None or not head.stack.holds(head.blocks):
            head.stack = cls(head.config, head.blocks, head.rotary_emb)
        return head.stack

    def holds(self, layers: Sequence[Any]) -> bool:
        """Whether this stack is still that of these layers (:meth:`Layer.holds`); where it is not
        it must be made anew."""
        return len(layers) == len(self.layers) and all(
            layer.holds(module) for layer, module in zip(self.layers, layers, strict=True)
        )

    @property
    def dtype(self) -> torch.dtype:
        return self.layers[0].qkv.dtype

    @property
    def device(self) -> torch.device:
        return self.layers[0].qkv.device

    def cache(self, rows: int, capacity: int) -> KVCache:
        """An empty cache of ``capacity`` slots for ``rows`` texts."""
        self.compiled = None  # norms and biases may have changed since
        for layer in self.layers:
            layer.refresh()
        sizes = (len(self.layers), rows, capacity, self.kv_heads, self.head_dim)
        return KVCache(*sizes, self.dtype, self.device)

    def _table(self, rotation: str | None, capacity: int) -> tuple[Tensor, Tensor]:
        """cos and signed sin of the positions below ``capacity`` or more, ``[T,1,head_dim]``.

        ``rotate_half(x) * sin == x[partners] * signed sin``; what is not rotated has cos 1, sin 0.
        """
        tables = self._ropes.setdefault(rotation, [])
        longest = tables[-1][0].shape[0] if tables else 0
        if longest < capacity:
            every = torch.arange(max(capacity, 2 * longest), device=self.device)
            # what lies past the context is never kept, and must not change the frequencies
            every = every.clamp_max(self._unchanged - 1)[None]
            empty = torch.empty(0, dtype=self.dtype, device=self.device)
            names = () if rotation in (None, UNROTATED) else (rotation,)
            cos, sin = (table[0] for table in self.rotary(empty, every, *names))
            cos, sin = cos[:, : self.turned], sin[:, : self.turned]
            if self.kind.adjacent:
                cos = cos.repeat_interleave(2, -1)
                signed = torch.stack([-sin, sin], -1).flatten(1)
            else:
                cos, signed = torch.cat([cos, cos], -1), torch.cat([-sin, sin], -1)
            rest = self.head_dim - 2 * self.turned
            cos, signed = F.pad(cos, (0, rest), value=1.0), F.pad(signed, (0, rest))
            if rotation == UNROTATED:
                cos, signed = torch.ones_like(cos), torch.zeros_like(signed)
            tables.append((cos.unsqueeze(1), signed.unsqueeze(1)))
        return tables[-1]

    def shared(self, place: Place, cache: KVCache) -> ForwardPass:
        """What all layers of one forward share, made once.

        Rotations are looked up at the positions; the mask is folded by groups of heads, narrowed by
        windows, and on a GPU padded so that the keys can be attended to in equal parts.

        Args:
            place: where the tokens stand and what they see.
            cache: where their keys and values go, and those that they attend to lie.
        Returns:
            the pass of layers of the first kind; those of other kinds are in ``others``.
        """
        extent, causal, mask, parts = place.extent, place.causal, place.mask, 1
        per_key = self.heads // self.kv_heads
        if causal and (
            self._is_special or any(w is not None and w < extent for w, _ in self.kinds)
        ):
            mask, causal = causal_mask(place.positions, extent, self.dtype), False
        if cache.rows == 1 and mask is not None and self.head_dim % 8 == 0:
            queries = per_key * place.positions.shape[1]
            free = processors(cache.data.device, cache.data.dtype)
            parts = parts_of(extent, self.kv_heads, queries, free)
            # slots behind the extent make parts equal, each a multiple of 8 slots; nobody sees them
            extent += -extent % (8 * parts) if parts > 1 else 0
        visible = cache.data[:, :, :extent].transpose(2, 3)
        keys, values = visible[:, :, : self.kv_heads], visible[:, :, self.kv_heads :]
        index = cache.index(place.slots)

        def of(kind: Kind) -> ForwardPass:
            (window, rotation), seen, k, v = kind, mask, keys, values
            cos, sin = self._table(rotation, cache.capacity)
            cos, sin = cos[place.positions], sin[place.positions]
            if window is not None and window < extent:
                if seen is None:
                    k, v = k[:, :, :, -window:], v[:, :, :, -window:]
                else:
                    seen = last_seen(seen, window)
            if seen is not None:
                if parts > 1:
                    # a part may lie in the dark altogether: its scores stay finite
                    hidden = torch.finfo(seen.dtype).min
                    seen = F.pad(seen, (0, extent - place.extent), value=hidden)
                    seen = seen.clamp_min(hidden / 2)
                seen = (seen if per_key == 1 else seen.repeat(1, per_key, 1)).unsqueeze(1)
                seen = aligned(seen) if seen.is_cuda else seen
            return ForwardPass(cos, sin, index, cache, extent, seen, causal, k, v, parts=parts)

        at = of(self.kinds[0])
        for kind in self._other_kinds:
            at.others[kind] = of(kind)
        return at

    def attention(
        self, i: int, inputs: Tensor, at: ForwardPass, cache_layer: int | None = None
    ) -> Tensor:
        """What layer i's attention adds to the residual stream, of ``inputs [B,m,H]``
        (:meth:`inputs`); keys and values go to the cache's layer ``cache_layer``, default i."""
        layer, (rows, m, _) = self.layers[i], inputs.shape
        at = at.others.get(self.kinds[i], at)
        h, kv, dim = self.heads, self.kv_heads, self.head_dim
        per_key = h // kv  # query heads that share one key head
        stored = i if cache_layer is None else cache_layer
        heads = product(inputs, layer.qkv, layer.qkv_bias).view(rows, m, h + 2 * kv, dim)
        if self._at_once and at.cos.dtype == heads.dtype:
            heads = self._turn(heads, *self._every(at))
        elif layer.rotated_first:
            heads[:, :, : h + kv] = self.rotated(heads[:, :, : h + kv], at)
            heads[:, :, : h + kv] = layer.normed(heads, h, kv)
        else:  # what some rotate in float32 is rounded here
            heads[:, :, : h + kv] = self.rotated(layer.normed(heads, h, kv), at)
        entries = heads.narrow(2, h, 2 * kv).reshape(rows * m, 2 * kv, dim)
        at.cache.flat[stored].index_copy_(0, at.index, entries)
        queries = heads.narrow(2, 0, h)
        key, value = at.keys[stored], at.values[stored]
        if at.causal:
            out = causal(queries.transpose(1, 2), key, value, layer.scale).transpose(1, 2)
        else:
            # heads that share a key become queries of one head: keys are read once, never repeated
            q = (queries if m == 1 else queries.transpose(1, 2)).reshape(rows, kv, -1, dim)
            out = attend(layer, q, key, value, at.mask, at.parts)
            if m > 1:
                out = out.view(rows, kv, per_key, m, dim).permute(0, 3, 1, 2, 4)
        return layer.output(through(out.reshape(rows, m, h * dim), layer.o), 0)

    def rotated(self, qk: Tensor, at: ForwardPass) -> Tensor:
        """Queries and keys ``[B,m,heads,dim]`` after the rotation of their positions."""
        return self._turn(qk, at.cos, at.sin)

    def _turn(self, heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        if self.partners is None:
            return torch.addcmul(heads * cos, heads.roll(self.head_dim // 2, -1), sin)
        return torch.addcmul(heads * cos, heads.index_select(-1, self.partners), sin)

    def _every(self, at: ForwardPass) -> tuple[Tensor, Tensor]:
        """:attr:`ForwardPass.every`. One rotation of all heads leaves nothing to be copied back."""
        if at.every is None:
            turned, values = (-1, -1, self.heads + self.kv_heads, -1), (-1, -1, self.kv_heads, -1)
            at.every = (
                torch.cat([at.cos.expand(turned), torch.ones_like(at.cos).expand(values)], 2),
                torch.cat([at.sin.expand(turned), torch.zeros_like(at.sin).expand(values)], 2),
            )
        return at.every

    def share_rotation(self, at: ForwardPass, dtype: torch.dtype) -> None:
        """Makes :attr:`ForwardPass.every`, for states of this type, before any layer needs it."""
        for one in (at, *at.others.values()):
            if self._at_once and one.cos.dtype == dtype:
                self._every(one)

    def inputs(self, i: int, x: Tensor) -> Tensor:
        """What layer i's attention reads of the residual stream ``x [B,m,H]``."""
        norm = self.layers[i].norm1
        return x if norm is None else rms(x, norm)

    def mlp(self, i: int, x: Tensor) -> Tensor:
        """Returns what layer i's MLP adds to the residual stream ``x [B,m,H]``."""
        layer = self.layers[i]
        if layer.norm2 is not None:
            x = rms(x, layer.norm2)
        if layer.called is not None:
            out = layer.called(x)
            return layer.output(out[0] if isinstance(out, tuple) else out, 1)
        both = product(x, layer.gate_up, layer.gate_up_bias)
        gate, up = both.view(*both.shape[:-1], 2, -1).unbind(-2)
        return layer.output(through(layer.act(gate) * up, layer.down), 1)

    def layer(self, i: int, x: Tensor, at: ForwardPass, attended: Tensor | None = None) -> Tensor:
        """Layer i: ``r = x + attention``, then ``r + mlp(r)`` where it has an MLP; ``attended`` is
        what the attention reads instead of the layer's norm of ``x [B,m,H]``."""
        x = x + self.attention(i, self.inputs(i, x) if attended is None else attended, at)
        return x + self.mlp(i, x) if self.layers[i].feeds_forward else x

    def run(
        self,
        x: Tensor,
        place: Place,
        cache: KVCache,
        *,
        first: int = 0,
        last: int | None = None,
        features: Sequence[int] = (),
        attended: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Runs layers ``first..last`` in order over hidden states, or embeddings when ``first`` is
        0, ``x [B,m,H]``.

        Args:
            features: the numbers of the layers whose hidden states are wanted: 0 is the embedding,
                i the output of layer i from 1 on, before the final norm, and -1 what the head
                reads, after it; of layers before ``first`` there are none.
            attended: what the first layer's attention reads instead of its norm of ``x``; ``x``
                stays the residual stream.
        Returns:
            hidden states ``[B,m,H]`` before the final norm, and the features
            ``[B,m,len(features) * H]`` or None.
        """
        stop = len(self.layers) if last is None else last
        if (layers := self.compiled_layers(x, cache, first, attended)) is not None:
            wanted = [number for number in features if number > first]
            hidden, parts = layers(x, place, cache, first, stop, wanted, attended)
            states = {first: x} | {number: parts[:, :, i] for i, number in enumerate(wanted)}
            return hidden, self.selected(states, hidden, features)
        at = self.shared(place, cache)
        states = {first: x}
        for i in range(first, stop):
            x = self.layer(i, x, at, attended if i == first else None)
            if i + 1 in features:
                states[i + 1] = x
        return x, self.selected(states, x, features)

    def compiled_layers(
        self, x: Tensor, cache: KVCache, first: int, attended: Tensor | None
    ) -> Any:
        """The compiled pass, or None where these layers do not run by it now."""
        kernels = of_decoding(x, self.layers[0].qkv)
        if kernels is None or type(cache) is not KVCache or cache.data.dtype != self.dtype:
            return None
        layers = self.compiled
        if layers is None:  # also where another thread has opened a cache meanwhile
            layers = self.compiled = kernels.Layers(self) if kernels.fits(self) else False
        reads_x = self.layers[first].qkv.shape[1] == x.shape[-1]
        return layers if layers and (reads_x or attended is not None) else None

    def selected(
        self, states: dict[int, Tensor], x: Tensor, features: Sequence[int]
    ) -> Tensor | None:
        """The wanted features of a forward, one behind the other in the last dimension, or None."""
        if -1 in features:
            states[-1] = rms(x, self.norm)
        return torch.cat([states[f].to(self.dtype) for f in features], -1) if features else None


class Scaled:
    """Embeddings times a number, where the library multiplies them outside their module."""

    def __init__(self, module: Any, factor: float) -> None:
        self.module, self.factor = module, factor
        self.weight, self.num_embeddings = module.weight, module.num_embeddings

    def __call__(self, ids: Tensor) -> Tensor:
        return self.module(ids) * self.factor


class Backbone(Stack):
    """A whole model: ``run`` gives hidden states, ``head`` logits, which equal those of the library
    model's forward up to rounding (4e-7 relative in float32).

    Attributes:
        whole, reason: whether its layers run only together, and why.
        inner: the library's module of all layers and the final norm.
        captured: its forwards wait for no value of the device, so that graphs can hold them.
    """

    whole = False
    reason = ""

    def __init__(self, model: Any) -> None:
        config = text_config(model.config)
        architecture_of(config)
        inner = getattr(model.model, "language_model", model.model)
        check_unhooked(model, type(model).__name__)
        check_plain(model.lm_head)
        super().__init__(config, inner.layers, inner.rotary_emb)
        self.inner: Any = inner
        self.embed, self.norm, self.lm_head = inner.embed_tokens, inner.norm, model.lm_head
        self.vocabulary = self.embed.num_embeddings
        if self.kind.embedding:
            self.embed = Scaled(self.embed, getattr(config, self.kind.embedding))
        self._divisor = getattr(config, self.kind.logits) if self.kind.logits else 1.0
        self._cap = getattr(config, self.kind.logit_cap) if self.kind.logit_cap else None
        self.captured = not any(layer.routes for layer in self.layers)
        self._outer = inner.embed_tokens, inner.norm, model.lm_head

    def is_of(self, model: Any) -> bool:
        """Whether a model's modules, and the weights of fused products, are those that were read
        when this was made."""
        outer = self.inner.embed_tokens, self.inner.norm, model.lm_head
        return outer == self._outer and self.holds(self.inner.layers)

    def head(self, hidden: Tensor) -> Tensor:
        """Logits ``[..., V]`` of hidden states ``[..., H]`` before the final norm."""
        head = self.lm_head
        kernels = of_decoding(hidden, head.weight)
        if kernels is not None and kernels.projects(self.norm, head):
            return self._scaled(kernels.product(hidden, head.weight, self.norm))
        return self._scaled(through(rms(hidden, self.norm), self.lm_head))

    def called_head(self, normed: Tensor) -> Tensor:
        """Logits of hidden states behind the final norm, by the library's module: where they are
        computed in another number type than the weights are stored in."""
        return self._scaled(self.lm_head(normed))

    def _scaled(self, logits: Tensor) -> Tensor:
        logits = logits if self._divisor == 1.0 else logits / self._divisor
        return capped(logits, self._cap)
