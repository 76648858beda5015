"""One way to run every Llama-like Hugging Face decoder: layer by layer, with explicit positions, slots, masks and cache.

The weights, norms and activation are the library's; what is ours is the order of the calls. Compared with calling the library's
attention modules this fuses q/k/v and gate/up into one product each (the modules' weights become views of the fused ones, so
nothing is stored twice), rotates q and k together and never repeats grouped keys; see docs/log.md for what that gained.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn import functional as F

from specwb.models.cache import KVCache
from specwb.models.products import product, refresh

if TYPE_CHECKING:
    from specwb.models.fuzzy import Groups

SUPPORTED = ("llama", "mistral", "qwen2", "qwen3")


class UnsupportedModel(ValueError):
    """An architecture the backbone does not run, refused by name before any work."""


def check_supported(config) -> None:
    kind = getattr(config, "model_type", "?")
    if kind not in SUPPORTED:
        raise UnsupportedModel(f"model type {kind!r} is not supported; supported: {', '.join(SUPPORTED)}")
    layers = getattr(config, "layer_types", None) or []
    sliding = getattr(config, "sliding_window", None) is not None and getattr(config, "use_sliding_window", True)
    if "sliding_attention" in layers or (kind == "mistral" and sliding):
        raise UnsupportedModel(f"{kind} with a sliding attention window is not supported (sliding_window={config.sliding_window})")
    rope = (getattr(config, "rope_parameters", None) or {}).get("rope_type", "default")
    if rope in ("dynamic", "longrope"):
        raise UnsupportedModel(f"rope type {rope!r} changes with the length of the text and is not supported")


class _Layer:
    """One decoder layer's weights, as the run below wants them."""

    def __init__(self, layer: Any) -> None:
        attention, mlp = layer.self_attn, getattr(layer, "mlp", None)
        self.qkv, self.qkv_bias = _fuse([attention.q_proj, attention.k_proj, attention.v_proj])
        self.o, self.norm1, self.scale = attention.o_proj, layer.input_layernorm, attention.scaling
        _check_plain(self.o)
        self.feeds_forward = mlp is not None  # an adapter's layer may be attention alone
        if mlp is not None:
            self.gate_up, self.gate_up_bias = _fuse([mlp.gate_proj, mlp.up_proj])
            self.down, self.norm2, self.act = mlp.down_proj, layer.post_attention_layernorm, mlp.act_fn
            _check_plain(self.down)
        self.qk_norm: Tensor | None = None
        if getattr(attention, "q_norm", None) is not None:
            q, k = attention.q_norm, attention.k_norm
            heads = [len(local(p.weight)) // attention.head_dim for p in (attention.q_proj, attention.k_proj)]
            self.qk_norm = torch.cat([local(q.weight).expand(heads[0], -1), local(k.weight).expand(heads[1], -1)])
            self.qk_eps = q.variance_epsilon


def _fuse(parts: Sequence[nn.Linear]) -> tuple[Tensor, Tensor | None]:
    """One weight for several products of the same input; the parts become views of it."""
    _check_plain(*parts)
    weight = torch.cat([local(p.weight) for p in parts])
    bias = None if parts[0].bias is None else torch.cat([local(p.bias) for p in parts])
    at = 0
    for p in parts:
        rows = len(local(p.weight))
        _view(p, "weight", weight[at : at + rows])
        if bias is not None:
            _view(p, "bias", bias[at : at + rows])
        at += rows
    return weight, bias


def _view(module: nn.Module, name: str, data: Tensor) -> None:
    """Makes a module's parameter one that shares its memory with ``data``, this process' part of it."""
    old = getattr(module, name)
    if isinstance(old, DTensor):
        made = DTensor.from_local(data, old.device_mesh, old.placements, run_check=False, shape=old.shape, stride=old.stride())
        setattr(module, name, nn.Parameter(made, requires_grad=False))
    else:
        old.data = data


def local(weight: Tensor) -> Tensor:
    """What this process holds of a weight."""
    return weight.to_local().detach() if isinstance(weight, DTensor) else weight.data


def check_unhooked(model: Any, name: str = "model") -> None:
    """Only weights are read from a model's modules, or they are called in another order than the
    library does: what a hook, a patched ``forward`` or a parametrisation adds would be ignored.

    Raises:
        UnsupportedModel: the module is named by its path.
    """
    left = [model]
    while left:  # every decoding asks, and model.modules() takes longer
        module = left.pop()
        left += filter(None, module._modules.values())
        if what := _addition(module):
            path = next(path for path, one in model.named_modules() if one is module)
            which = f"module {path!r} has" if path else "module itself has"
            way_out = "which would be ignored; remove it, or decode with the model's own generate"
            raise UnsupportedModel(f"{name}: {which} {what}, {way_out}")


def _addition(module: nn.Module) -> str | None:
    """What a module computes beyond its class, in words."""
    kept = module.__dict__
    for hook in (*kept["_forward_pre_hooks"].values(), *kept["_forward_hooks"].values()):
        if not _from(hook, _TRANSPARENT):
            return f"a forward hook ({getattr(hook, '__qualname__', type(hook).__name__)})"
    if "forward" in kept and not _from(kept["forward"], _PARTS):
        return "a forward of its own, put over its class's"
    if "parametrizations" in kept["_modules"]:
        return "a parametrised weight"
    return None


# what parts a module among devices does so where the module is called, and the backbone calls it
_PARTS = ("transformers.distributed.", "torch.distributed.")
_TRANSPARENT = ("transformers.", "torch.distributed.")  # the library's hooks copy outputs


def _from(added: Any, places: tuple[str, ...]) -> bool:
    return str(getattr(added, "__module__", None)).startswith(places)


def _check_plain(*parts: nn.Module) -> None:
    """Only weights are read from these layers: one that computes something else would be ignored silently."""
    other = next((p for p in parts if type(p) is not nn.Linear), None)
    if other is not None:
        raise UnsupportedModel(f"layers of type {type(other).__name__} (adapters, quantisation) are not supported; merge or dequantise them first")


def through(x: Tensor, module: Any) -> Tensor:
    """``[..., K] -> [..., N]`` by a module's weight; where the weight is one part of it on several devices, by the module, which adds the parts."""
    return module(x) if isinstance(module.weight, DTensor) else product(x, module.weight, module.bias)


def rms(x: Tensor, norm: Any) -> Tensor:
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
    """What all layers of one forward share: ``cos``, ``sin [B,m,1,head_dim]`` of the positions, ``index [B * m]`` where their keys and values go,
    the ``mask`` of queries folded by groups of heads, and what is looked at: ``keys`` and ``values [layers,B,kv_heads,extent,head_dim]``."""

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

    Args: layers: the library's decoder layers; rotary: its rotary embedding; config: of their sizes.
    """

    norm: Any = None

    def __init__(self, config: Any, layers: Sequence[Any], rotary: Any) -> None:
        self.config, self.rotary = config, rotary
        self.layers = [_Layer(layer) for layer in layers]
        self.head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        attention = layers[0].self_attn  # of a model that is parted among devices: the heads that this one has
        self.heads, self.kv_heads = (len(local(p.weight)) // self.head_dim for p in (attention.q_proj, attention.k_proj))
        self._ropes: list[tuple[Tensor, Tensor]] = []  # the last is the longest; captured graphs may still read the others

    @classmethod
    def of(cls, head: Any) -> Stack:
        """Of a trained head (``config``, ``blocks``, ``rotary_emb``): one for all that draft with it, made anew where its weights were moved."""
        kept = head.__dict__.get("_stack")
        shared = kept is not None and all(
            layer.qkv.untyped_storage().data_ptr() == block.self_attn.q_proj.weight.untyped_storage().data_ptr()
            for layer, block in zip(kept.layers, head.blocks, strict=True)
        )
        if not shared:
            head.__dict__["_stack"] = kept = cls(head.config, head.blocks, head.rotary_emb)
        return kept

    @property
    def dtype(self) -> torch.dtype:
        return self.layers[0].qkv.dtype

    @property
    def device(self) -> torch.device:
        return self.layers[0].qkv.device

    def cache(self, rows: int, capacity: int) -> KVCache:
        refresh()
        return KVCache(len(self.layers), rows, capacity, self.kv_heads, self.head_dim, self.dtype, self.device)

    def _rotation(self, positions: Tensor, capacity: int) -> tuple[Tensor, Tensor]:
        """cos and signed sin ``[B,m,1,head_dim]``; rotate_half(x) * sin == roll(x, head_dim / 2) * signed sin."""
        if not self._ropes or self._ropes[-1][0].shape[0] < capacity:
            length = max(capacity, 2 * self._ropes[-1][0].shape[0] if self._ropes else 0)
            table = torch.arange(length, device=self.device)[None]
            cos, sin = self.rotary(torch.empty(0, dtype=self.dtype, device=self.device), table)
            half = self.head_dim // 2
            self._ropes.append((cos[0].unsqueeze(1), torch.cat([-sin[0, :, :half], sin[0, :, half:]], -1).unsqueeze(1)))
        cos, sin = self._ropes[-1]
        return cos[positions], sin[positions]

    def attention(self, i: int, inward: Tensor, at: Pass, held: int | None = None) -> Tensor:
        """Layer i's attention over what it reads, ``inward [B,m,H]`` behind its norm: ``[B,m,H]``. Keys and values go to the cache's layer ``held``,
        default i."""
        layer, (rows, m, _) = self.layers[i], inward.shape
        h, kv, dim = self.heads, self.kv_heads, self.head_dim
        group, held = h // kv, i if held is None else held
        heads = product(inward, layer.qkv, layer.qkv_bias).view(rows, m, h + 2 * kv, dim)
        qk = heads[:, :, : h + kv]
        if layer.qk_norm is not None:
            qk = F.rms_norm(qk, (dim,), eps=layer.qk_eps) * layer.qk_norm
        turned = torch.addcmul(qk * at.cos, qk.roll(dim // 2, -1), at.sin)
        heads[:, :, : h + kv] = turned
        at.cache.flat[held].index_copy_(0, at.index, heads[:, :, h:].reshape(rows * m, 2 * kv, dim))
        key, value = at.keys[held], at.values[held]
        if at.causal:
            q = turned[:, :, :h].transpose(1, 2)
            out = F.scaled_dot_product_attention(q, key, value, is_causal=True, scale=layer.scale, enable_gqa=group > 1)
            out = out.transpose(1, 2).reshape(rows, m, h * dim)
        else:
            # heads of one group become queries of one head: keys are read once and never repeated
            q = turned[:, :, :h].view(rows, m, kv, group, dim).permute(0, 2, 3, 1, 4).reshape(rows, kv, group * m, dim)
            out = F.scaled_dot_product_attention(q, key, value, attn_mask=at.mask, scale=layer.scale)
            out = out.view(rows, kv, group, m, dim).permute(0, 3, 1, 2, 4).reshape(rows, m, h * dim)
        return through(out, layer.o)

    def mlp(self, i: int, x: Tensor) -> Tensor:
        """Layer i's MLP with its norm, ``[B,m,H] -> [B,m,H]``."""
        layer = self.layers[i]
        gate, up = product(rms(x, layer.norm2), layer.gate_up, layer.gate_up_bias).chunk(2, -1)
        return through(layer.act(gate) * up, layer.down)

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
        groups: Groups | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Layers ``first..last`` over ``x [B,m,H]`` (hidden states, or embeddings when ``first`` is 0).

        Args:
            positions [B,m]: for the rotary embedding. slots [B,m]: where keys and values go.
            extent: slots below it are looked at. mask [B,m,extent] additive, None = everything is seen.
            causal: plain causal attention over a fresh cache (extent == m), no mask needed.
            features: layer numbers whose hidden states are wanted, concatenated; 0 is the embedding, i the output of layer i, before the
                final norm, and -1 what the head reads, after it; of layers before ``first`` there are none.
            attended: what the first layer's attention reads instead of its norm of ``x``; ``x`` stays the residual stream.
            groups: run the attentions of some layers on one input (see :mod:`specwb.models.fuzzy`), all layers in order otherwise; not with first,
                last or attended.
        Returns: hidden states ``[B,m,H]`` before the final norm; features ``[B,m,len(features) * H]`` or None.
        """
        whole = groups is None or (not first and last is None and attended is None and sum(map(len, groups.layers)) == len(self.layers))
        if not whole:
            raise ValueError("groups are of all layers: first, last and attended do not go with them, and every layer is in one")
        group = self.heads // self.kv_heads
        cos, sin = self._rotation(positions, cache.capacity)
        if mask is not None:
            mask = (mask if group == 1 else mask.repeat(1, group, 1)).unsqueeze(1)
        seen = cache.data[:, :, :extent].transpose(2, 3)
        keys, values = seen[:, :, : self.kv_heads], seen[:, :, self.kv_heads :]
        at = Pass(cos, sin, cache.index(slots), cache, extent, mask, causal, keys, values)
        wanted: dict[int, Tensor] = {first: x}
        parts = [(i,) for i in range(first, len(self.layers) if last is None else last)] if groups is None else groups.layers
        for part in parts:
            if groups is not None and groups.takes(part):
                outs = groups.attend(self, part, x, at)
            else:
                i = part[0]
                outs = [self.attention(i, attended if i == first and attended is not None else rms(x, self.layers[i].norm1), at)]
            beside = groups is not None and groups.whole and len(part) > 1
            if beside:
                outs = [out + self.mlp(i, x + out) for i, out in zip(part, outs, strict=True)]
            for i, out in zip(part, outs, strict=True):
                x = x + out
                if self.layers[i].feeds_forward and not beside:
                    x = x + self.mlp(i, x)
                if i + 1 in features:
                    wanted[i + 1] = x
        if -1 in features:
            wanted[-1] = rms(x, self.norm)
        return x, torch.cat([wanted[f] for f in features], -1) if features else None


class Backbone(Stack):
    """``run`` gives hidden states, ``head`` logits; equal to the library model's forward up to rounding (4e-7 relative in float32).

    Raises:
        UnsupportedModel: see :func:`check_supported`.
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
        """``[..., H]`` hidden states before the final norm -> ``[..., V]`` logits."""
        return through(rms(hidden, self.norm), self.lm_head)
