"""One way to run every Llama-like Hugging Face decoder: layer by layer, with explicit positions,
slots, masks and cache.

The weights, the norms and the activation are the library's; the order of the calls is ours. In
comparison with calls of the library's attention modules this fuses q, k and v into one product and
gate and up into another (the modules' weights become views of the fused ones, so that nothing is
stored twice), rotates q and k together, and never repeats grouped keys. docs/log.md says what that
gained.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn import functional as F

from specwb.errors import SpecwbError
from specwb.models.cache import KVCache
from specwb.models.products import product, refresh

SUPPORTED = ("llama", "mistral", "qwen2", "qwen3")

Run = Callable[..., tuple[Tensor, Tensor | None]]
"""A forward through all layers, with the parameters and the results of :meth:`Stack.run`."""


class UnsupportedModel(SpecwbError, ValueError):
    """The backbone does not run this architecture; it is refused by name before any work."""


def check_supported(config: Any) -> None:
    """Checks that the backbone runs models of this library config.

    Raises:
        UnsupportedModel: another model type, a sliding attention window, or a rotary embedding that
            changes with the length of the text.
    """
    kind = getattr(config, "model_type", "?")
    if kind not in SUPPORTED:
        supported = ", ".join(SUPPORTED)
        raise UnsupportedModel(f"model type {kind!r} is not supported; supported: {supported}")
    layers = getattr(config, "layer_types", None) or []
    window = getattr(config, "sliding_window", None)
    sliding = window is not None and getattr(config, "use_sliding_window", True)
    if "sliding_attention" in layers or (kind == "mistral" and sliding):
        raise UnsupportedModel(
            f"{kind} with a sliding attention window is not supported (sliding_window={window})"
        )
    rope = (getattr(config, "rope_parameters", None) or {}).get("rope_type", "default")
    if rope in ("dynamic", "longrope"):
        raise UnsupportedModel(
            f"rope type {rope!r} changes with the length of the text and is not supported"
        )


class _Layer:
    """One decoder layer's weights, in the form that :class:`Stack` computes with.

    The layer's own q, k, v, gate and up projections become views of the fused weights made here.
    """

    def __init__(self, layer: Any) -> None:
        attention, mlp = layer.self_attn, getattr(layer, "mlp", None)
        self.qkv, self.qkv_bias = _fuse([attention.q_proj, attention.k_proj, attention.v_proj])
        self.o, self.norm1, self.scale = attention.o_proj, layer.input_layernorm, attention.scaling
        _check_plain(self.o)
        self.feeds_forward = mlp is not None  # an adapter's layer may be attention alone
        if mlp is not None:
            self.gate_up, self.gate_up_bias = _fuse([mlp.gate_proj, mlp.up_proj])
            self.down, self.norm2 = mlp.down_proj, layer.post_attention_layernorm
            self.act = mlp.act_fn
            _check_plain(self.down)
        self.qk_norm: Tensor | None = None
        if getattr(attention, "q_norm", None) is not None:
            gains = []
            for norm, projection in (
                (attention.q_norm, attention.q_proj),
                (attention.k_norm, attention.k_proj),
            ):
                heads = len(local(projection.weight)) // attention.head_dim
                gains.append(local(norm.weight).expand(heads, -1))
            self.qk_norm = torch.cat(gains)
            self.qk_eps = attention.q_norm.variance_epsilon


def _fuse(parts: Sequence[nn.Linear]) -> tuple[Tensor, Tensor | None]:
    """Makes one weight (and bias) for several products of the same input.

    The parts' parameters become views of it.
    """
    _check_plain(*parts)
    weight = torch.cat([local(p.weight) for p in parts])
    bias = None if parts[0].bias is None else torch.cat([local(p.bias) for p in parts])
    start = 0
    for p in parts:
        stop = start + len(local(p.weight))
        _view(p, "weight", weight[start:stop])
        if bias is not None:
            _view(p, "bias", bias[start:stop])
        start = stop
    return weight, bias


def _view(module: nn.Module, name: str, data: Tensor) -> None:
    """Lets a module's parameter share its memory with ``data``, this process' part of it."""
    old = getattr(module, name)
    if isinstance(old, DTensor):
        shared = DTensor.from_local(
            data,
            old.device_mesh,
            old.placements,
            run_check=False,
            shape=old.shape,
            stride=old.stride(),
        )
        setattr(module, name, nn.Parameter(shared, requires_grad=False))
    else:
        old.data = data


def local(weight: Tensor) -> Tensor:
    """The part of a weight that this process holds: all of it, unless ranks share the model."""
    return weight.to_local().detach() if isinstance(weight, DTensor) else weight.data


def check_unhooked(model: Any, name: str = "model") -> None:
    """Checks that no hook, patched ``forward`` or parametrisation was put on a model's modules.

    Only weights are read from the modules, or they are called in another order than the library
    does: whatever such an addition computes would be ignored.

    Args:
        model: the library's model.
        name: what the message calls it.
    Raises:
        UnsupportedModel: the module is named by its path.
    """
    remaining = [model]
    while remaining:  # every decoding asks, and model.modules() takes longer
        module = remaining.pop()
        remaining += filter(None, module._modules.values())
        if addition := _addition(module):
            path = next(path for path, one in model.named_modules() if one is module)
            which = f"module {path!r} has" if path else "module itself has"
            way_out = "which would be ignored; remove it, or decode with the model's own generate"
            raise UnsupportedModel(f"{name}: {which} {addition}, {way_out}")


def _addition(module: nn.Module) -> str | None:
    """Says in words what a module computes beyond its class; None where that is nothing."""
    attributes = module.__dict__
    hooks = (*attributes["_forward_pre_hooks"].values(), *attributes["_forward_hooks"].values())
    for hook in hooks:
        if not _is_from(hook, _TRANSPARENT):
            return f"a forward hook ({getattr(hook, '__qualname__', type(hook).__name__)})"
    if "forward" in attributes and not _is_from(attributes["forward"], _PARTS):
        return "a forward of its own, put over its class's"
    if "parametrizations" in attributes["_modules"]:
        return "a parametrised weight"
    return None


# what parts a module among devices does so where the module is called, and the backbone calls it
_PARTS = ("transformers.distributed.", "torch.distributed.")
_TRANSPARENT = ("transformers.", "torch.distributed.")  # the library's hooks copy outputs


def _is_from(function: Any, packages: tuple[str, ...]) -> bool:
    return str(getattr(function, "__module__", None)).startswith(packages)


def _check_plain(*parts: nn.Module) -> None:
    """Checks that layers are plain linear ones: only their weights are read, so that whatever else
    one of them computes would be ignored silently."""
    other = next((p for p in parts if type(p) is not nn.Linear), None)
    if other is not None:
        raise UnsupportedModel(
            f"layers of type {type(other).__name__} (adapters, quantisation) are not supported; "
            "merge or dequantise them first"
        )


def through(x: Tensor, module: Any) -> Tensor:
    """Multiplies ``x [..., K]`` with a linear module's weight: ``[..., N]``.

    Where several devices hold one part of the weight each, the module is called, which adds up
    their products.
    """
    if isinstance(module.weight, DTensor):
        return module(x)
    return product(x, module.weight, module.bias)


def rms(x: Tensor, norm: Any) -> Tensor:
    """``x / sqrt(mean(x^2) + epsilon) * gain`` by a norm module of the library, ``[..., H]``."""
    if x.device.type != "cpu" or x.dtype != torch.float32:
        return F.rms_norm(x, (x.shape[-1],), norm.weight, norm.variance_epsilon)
    # half the operators of the library's one call, which a few tokens feel
    return x * inverse_rms(x, norm.variance_epsilon) * norm.weight


def inverse_rms(x: Tensor, epsilon: float) -> Tensor:
    """``1 / sqrt(mean(x^2) + epsilon)``, ``[..., H] -> [..., 1]``."""
    length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return torch.addcmul(x.new_full((), epsilon), length, length, value=1 / x.shape[-1]).rsqrt_()


@dataclass
class Pass:
    """What all layers of one forward share.

    Attributes:
        cos: of the positions, ``[B,m,1,head_dim]``.
        sin: of the positions, signed, of the same shape.
        index: where in the cache the keys and values go, ``[B * m]``.
        cache: the cache.
        extent: slots below it are attended to.
        mask: of the queries, folded by groups of heads; None: everything is seen.
        causal: plain causal attention over a fresh cache, without a mask.
        keys: the keys attended to, ``[layers,B,kv_heads,extent,head_dim]``, a view of the cache.
        values: the values, of the same shape.
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


class Stack:
    """Decoder layers over a cache: what a model and a trained head have in common.

    Args:
        config: the library's config of the layers, for their sizes.
        layers: the library's decoder layers.
        rotary: their rotary embedding.
    """

    norm: Any = None
    # copies that others make of these weights, for as long as one of them holds them; weights that
    # change in place afterwards are not seen in them
    copies: WeakValueDictionary[Hashable, Any] | None = None

    def __init__(self, config: Any, layers: Sequence[Any], rotary: Any) -> None:
        self.config, self.rotary = config, rotary
        self.layers = [_Layer(layer) for layer in layers]
        width = config.hidden_size // config.num_attention_heads
        self.head_dim = getattr(config, "head_dim", None) or width
        # of a model that is parted among devices these are the heads that this device has
        attention = layers[0].self_attn
        self.heads = len(local(attention.q_proj.weight)) // self.head_dim
        self.kv_heads = len(local(attention.k_proj.weight)) // self.head_dim
        # the last table is the longest; recorded graphs may still read the others
        self._ropes: list[tuple[Tensor, Tensor]] = []

    @classmethod
    def of(cls, head: Any) -> Stack:
        """The stack of a trained head: one for all that draft with it, kept in ``head.stack``.

        Args:
            head: a module with ``config``, ``blocks``, ``rotary_emb`` and ``stack``.
        """
        if head.stack is None or not head.stack.holds(head.blocks):
            head.stack = cls(head.config, head.blocks, head.rotary_emb)
        return head.stack

    def holds(self, layers: Sequence[Any]) -> bool:
        """Whether the weights of these layers still lie in this stack's memory.

        They do not after they were moved, cast or copied, nor after another stack was made of the
        same layers. This one must then be made anew.
        """

        def memory(weight: Tensor) -> int:
            return weight.untyped_storage().data_ptr()

        return all(
            memory(layer.qkv) == memory(module.self_attn.q_proj.weight)
            for layer, module in zip(self.layers, layers, strict=True)
        )

    @property
    def dtype(self) -> torch.dtype:
        return self.layers[0].qkv.dtype

    @property
    def device(self) -> torch.device:
        return self.layers[0].qkv.device

    def cache(self, rows: int, capacity: int) -> KVCache:
        """An empty cache of ``capacity`` slots for ``rows`` texts."""
        refresh()
        sizes = (len(self.layers), rows, capacity, self.kv_heads, self.head_dim)
        return KVCache(*sizes, self.dtype, self.device)

    def _rotation(self, positions: Tensor, capacity: int) -> tuple[Tensor, Tensor]:
        """cos and signed sin of positions below ``capacity``, each ``[B,m,1,head_dim]``.

        ``rotate_half(x) * sin == roll(x, head_dim / 2) * signed sin``.
        """
        longest = self._ropes[-1][0].shape[0] if self._ropes else 0
        if longest < capacity:
            every = torch.arange(max(capacity, 2 * longest), device=self.device)[None]
            empty = torch.empty(0, dtype=self.dtype, device=self.device)
            cos, sin = self.rotary(empty, every)
            half = self.head_dim // 2
            signed = torch.cat([-sin[0, :, :half], sin[0, :, half:]], -1)
            self._ropes.append((cos[0].unsqueeze(1), signed.unsqueeze(1)))
        cos, sin = self._ropes[-1]
        return cos[positions], sin[positions]

    def shared(
        self,
        positions: Tensor,
        slots: Tensor,
        cache: KVCache,
        extent: int,
        mask: Tensor | None,
        causal: bool = False,
    ) -> Pass:
        """Makes what all layers of one forward share; arguments as of :meth:`run`."""
        cos, sin = self._rotation(positions, cache.capacity)
        if mask is not None:
            per_key = self.heads // self.kv_heads
            mask = (mask if per_key == 1 else mask.repeat(1, per_key, 1)).unsqueeze(1)
        visible = cache.data[:, :, :extent].transpose(2, 3)
        keys, values = visible[:, :, : self.kv_heads], visible[:, :, self.kv_heads :]
        return Pass(cos, sin, cache.index(slots), cache, extent, mask, causal, keys, values)

    def attention(self, i: int, inputs: Tensor, at: Pass, cache_layer: int | None = None) -> Tensor:
        """Layer i's attention, without its norm and its residual stream: ``[B,m,H]``.

        Args:
            i: the layer, counted from 0.
            inputs: what the attention reads, behind the norm, ``[B,m,H]``.
            at: what the layers of this forward share.
            cache_layer: the layer of the cache that keys and values go to; default i.
        """
        layer, (rows, m, _) = self.layers[i], inputs.shape
        h, kv, dim = self.heads, self.kv_heads, self.head_dim
        per_key = h // kv  # query heads that share one key head
        stored = i if cache_layer is None else cache_layer
        heads = product(inputs, layer.qkv, layer.qkv_bias).view(rows, m, h + 2 * kv, dim)
        qk = heads[:, :, : h + kv]
        if layer.qk_norm is not None:
            qk = F.rms_norm(qk, (dim,), eps=layer.qk_eps) * layer.qk_norm
        rotated = torch.addcmul(qk * at.cos, qk.roll(dim // 2, -1), at.sin)
        heads[:, :, : h + kv] = rotated
        flat = at.cache.flat[stored]
        flat.index_copy_(0, at.index, heads[:, :, h:].reshape(rows * m, 2 * kv, dim))
        key, value = at.keys[stored], at.values[stored]
        attend = F.scaled_dot_product_attention
        if at.causal:
            q = rotated[:, :, :h].transpose(1, 2)
            grouped = per_key > 1
            out = attend(q, key, value, is_causal=True, scale=layer.scale, enable_gqa=grouped)
            out = out.transpose(1, 2).reshape(rows, m, h * dim)
        else:
            # heads that share a key become queries of one head: keys are read once, never repeated
            q = rotated[:, :, :h].view(rows, m, kv, per_key, dim).permute(0, 2, 3, 1, 4)
            q = q.reshape(rows, kv, per_key * m, dim)
            out = attend(q, key, value, attn_mask=at.mask, scale=layer.scale)
            out = out.view(rows, kv, per_key, m, dim).permute(0, 3, 1, 2, 4)
            out = out.reshape(rows, m, h * dim)
        return through(out, layer.o)

    def mlp(self, i: int, x: Tensor) -> Tensor:
        """Layer i's MLP with its norm, without its residual stream: ``[B,m,H] -> [B,m,H]``."""
        layer = self.layers[i]
        gate, up = product(rms(x, layer.norm2), layer.gate_up, layer.gate_up_bias).chunk(2, -1)
        return through(layer.act(gate) * up, layer.down)

    def layer(self, i: int, x: Tensor, at: Pass, attended: Tensor | None = None) -> Tensor:
        """Layer i: ``r = x + attention``, then ``r + mlp(r)`` where it has an MLP.

        Args:
            i: the layer, counted from 0.
            x: the residual stream, ``[B,m,H]``.
            at: what the layers of this forward share.
            attended: what the attention reads instead of the layer's norm of ``x``.
        """
        inputs = rms(x, self.layers[i].norm1) if attended is None else attended
        x = x + self.attention(i, inputs, at)
        return x + self.mlp(i, x) if self.layers[i].feeds_forward else x

    def run(
        self,
        x: Tensor,
        positions: Tensor,
        slots: Tensor,
        cache: KVCache,
        extent: int,
        mask: Tensor | None,
        *,
        causal: bool = False,
        first: int = 0,
        last: int | None = None,
        features: Sequence[int] = (),
        attended: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Runs layers ``first..last`` in order.

        Args:
            x: hidden states, or embeddings when ``first`` is 0, ``[B,m,H]``.
            positions: of the rotary embedding, ``[B,m]``.
            slots: where in the cache the keys and values go, ``[B,m]``.
            cache: the cache.
            extent: slots below it are attended to.
            mask: additive, ``[B,m,extent]``; None: everything is seen.
            causal: plain causal attention over a fresh cache (extent == m), which needs no mask.
            first: the first layer that runs, counted from 0.
            last: the layer before which the forward stops; default none.
            features: the numbers of the layers whose hidden states are wanted: 0 is the
                embedding, i the output of layer i from 1 on, before the final norm, and -1 what
                the head reads, after it; of layers before ``first`` there are none.
            attended: what the first layer's attention reads instead of its norm of ``x``; ``x``
                stays the residual stream.
        Returns:
            hidden states ``[B,m,H]`` before the final norm, and the features
            ``[B,m,len(features) * H]`` or None.
        """
        at = self.shared(positions, slots, cache, extent, mask, causal)
        states = {first: x}
        for i in range(first, len(self.layers) if last is None else last):
            x = self.layer(i, x, at, attended if i == first else None)
            if i + 1 in features:
                states[i + 1] = x
        return x, self.selected(states, x, features)

    def selected(
        self, states: dict[int, Tensor], x: Tensor, features: Sequence[int]
    ) -> Tensor | None:
        """The wanted features of a forward, one behind the other in the last dimension, or None.

        Args:
            states: hidden states by layer number; those that are wanted must be among them.
            x: the last layer's output, from which feature -1 is made.
            features: the numbers that are wanted, see :meth:`run`.
        """
        if -1 in features:
            states[-1] = rms(x, self.norm)
        return torch.cat([states[f] for f in features], -1) if features else None


class Backbone(Stack):
    """A whole model: ``run`` gives hidden states, ``head`` logits.

    They equal those of the library model's forward up to rounding (4e-7 relative in float32).

    Raises:
        UnsupportedModel: see :func:`check_supported` and :func:`check_unhooked`.
    """

    def __init__(self, model: Any) -> None:
        check_supported(model.config)
        inner = model.model
        check_unhooked(model, type(model).__name__)
        _check_plain(model.lm_head)
        super().__init__(model.config, inner.layers, inner.rotary_emb)
        self.embed, self.norm, self.lm_head = inner.embed_tokens, inner.norm, model.lm_head
        self.vocabulary = self.embed.num_embeddings

    def head(self, hidden: Tensor) -> Tensor:
        """Logits ``[..., V]`` of hidden states ``[..., H]`` before the final norm."""
        return through(rms(hidden, self.norm), self.lm_head)
