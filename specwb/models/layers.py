"""The parts of one decoder layer, in the form that the fast backbone computes with."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn import functional as F
from transformers.activations import SiLUActivation

from specwb.models.architectures import Architecture, UnsupportedModel
from specwb.models.products import fused_int8, product

MOST_PARTS = 16
"""Parts of a text's keys that are attended to side by side on a GPU, at most."""
LEAST_PARTED = 640
"""Keys that are worth parting: on an H100 512 in parts gain next to nothing, 1,024 a half."""


class Layer:
    """One decoder layer's weights, in the form that a stack computes with.

    The layer's own q, k, v, gate and up projections become views of the fused weights made here,
    unless the library has them fused already.

    Attributes:
        norm1, norm2: the norms before attention and MLP, or None where these read ``x`` itself.
        behind: the norms of what they put out, or None each.
        qk_norm: gains ``[heads + kv_heads, head_dim]`` of norms of each head, or None: a copy, see
            :meth:`refresh`. qk_eps: their epsilon.
        all_norm: norms of all queries and of all keys as one vector each, or None.
        called: the library's module in the place of a gated MLP, or None.
        routes: tokens go to experts there, of which the library asks the device which are hit.
        is_bare: nothing acts in it but what is in Llama's layers and in norms of each head, except
            that the norm before attention may be another or None. is_plain: that one is Llama's
            too.
    """

    def __init__(self, layer: Any, kind: Architecture, config: Any) -> None:
        attention, mlp = layer.self_attn, getattr(layer, kind.mlp, None)

        def norm(name: str | None) -> Any:
            module = None if name is None else getattr(layer, name)
            return None if isinstance(module, nn.Identity) else module

        self._modules = list(layer.modules())
        self._fused: list[tuple[Any, Tensor, Tensor | None]] = []  # modules, and what they lie in
        self.norm1, self.o = norm(kind.before_attention), attention.o_proj
        self.scale: float = attention.scaling
        check_plain(self.o)
        if hasattr(attention, "qkv_proj"):
            self.qkv, self.qkv_bias = self._fuse([attention.qkv_proj])
        else:
            parts = [attention.q_proj, attention.k_proj, attention.v_proj]
            self.qkv, self.qkv_bias = self._fuse(parts)
        self.behind = norm(kind.after_attention), norm(kind.after_mlp)
        self.residual = getattr(config, kind.residual) if kind.residual else 1.0
        self.cap = getattr(config, kind.attention_cap) if kind.attention_cap else None
        self.sinks: nn.Parameter | None = getattr(attention, "sinks", None)
        self.feeds_forward = mlp is not None  # an adapter's layer may be attention alone
        self.called: Any = None
        self.routes = hasattr(mlp, "experts")
        self.norm2 = norm(kind.before_mlp if self.feeds_forward else None)
        if mlp is not None:
            self._read_mlp(mlp)
        self.rotated_first = kind.rotated_first
        self.qk_norm: Tensor | None = None
        self.qk_eps: float | None = None
        self._head_norms: list[tuple[Any, int]] = []  # and how many heads each is of
        self.all_norm: tuple[Any, Any] | None = None
        if getattr(attention, kind.q_norm, None) is not None:
            self._read_norms(attention, getattr(attention, kind.q_norm), kind)
        self.is_bare = (
            (is_rms(self.norm2) or not self.feeds_forward)
            and self.behind == (None, None)
            and self.residual == 1.0
            and self.cap is self.sinks is self.all_norm is None
            and not self.rotated_first
        )
        self.is_plain = self.is_bare and is_rms(self.norm1)

    def _fuse(self, parts: Sequence[nn.Linear]) -> tuple[Tensor, Tensor | None]:
        """One weight (and bias, of zeros where a part has none) for several products of the same
        input; the parts' parameters become views of it."""
        check_plain(*parts)
        weight, bias = _joined([local(p.weight) for p in parts]), None
        weight.int8 = fused_int8([p.weight for p in parts])  # type: ignore[attr-defined]
        if any(p.bias is not None for p in parts):
            zeros = [weight.new_zeros(len(local(p.weight))) for p in parts]
            biases = zip(parts, zeros, strict=True)
            bias = _joined([zero if p.bias is None else local(p.bias) for p, zero in biases])
        start = 0
        for p in parts:
            stop = start + len(local(p.weight))
            _view(p, "weight", weight[start:stop])
            if bias is not None and p.bias is not None:
                _view(p, "bias", bias[start:stop])
            self._fused.append((p, weight, None if p.bias is None else bias))
            start = stop
        return weight, bias

    def holds(self, layer: Any) -> bool:
        """Whether a module of the library is the one that was read: with the same modules in it,
        and the weights of fused products where they lay then.

        They do not after they were replaced, moved, cast or copied."""

        def lies(part: Tensor | None, whole: Tensor | None) -> bool:
            if part is None or whole is None:
                return part is whole
            memory = local(part).untyped_storage().data_ptr()
            return memory == whole.untyped_storage().data_ptr()

        if list(layer.modules()) != self._modules:
            return False
        return all(lies(p.weight, weight) and lies(p.bias, bias) for p, weight, bias in self._fused)

    def _read_mlp(self, mlp: Any) -> None:
        if isinstance(getattr(mlp, "gate_up_proj", None), nn.Module):
            self.gate_up, self.gate_up_bias = self._fuse([mlp.gate_up_proj])
        elif isinstance(getattr(mlp, "gate_proj", None), nn.Module):
            self.gate_up, self.gate_up_bias = self._fuse([mlp.gate_proj, mlp.up_proj])
        else:
            self.called = mlp
            return
        check_plain(mlp.down_proj)
        self.down = mlp.down_proj
        act = mlp.act_fn if hasattr(mlp, "act_fn") else mlp.activation_fn
        self.act = F.silu if isinstance(act, nn.SiLU | SiLUActivation) else act

    def _read_norms(self, attention: Any, q_norm: Any, kind: Architecture) -> None:
        k_norm, dim = getattr(attention, kind.k_norm), attention.head_dim
        if len(q_norm.weight) != dim:
            self.all_norm = q_norm, k_norm
            return
        for norm in (q_norm, k_norm):
            name = type(norm).__name__
            if not (is_rms(norm) or name.startswith("Gemma")):
                raise UnsupportedModel(f"norms of heads of type {name} have no fast path here")
        self.qk_eps = epsilon(q_norm)
        if epsilon(k_norm) != self.qk_eps:
            raise UnsupportedModel(
                "norms of queries and keys with two epsilons have no fast path here"
            )
        for norm, projection in ((q_norm, attention.q_proj), (k_norm, attention.k_proj)):
            self._head_norms.append((norm, len(local(projection.weight)) // dim))
        self.qk_norm = self._gains()

    def _gains(self) -> Tensor:
        return torch.cat([gain(norm).expand(heads, -1) for norm, heads in self._head_norms])

    def refresh(self) -> None:
        """Copies the gains of queries' and keys' norms again, which may have been edited since; in
        place, since recorded graphs read them."""
        if self.qk_norm is not None:
            with torch.inference_mode():
                self.qk_norm.copy_(self._gains())

    def output(self, x: Tensor, part: int) -> Tensor:
        """What the attention (part 0) or the MLP (1) adds to the residual stream."""
        norm = self.behind[part]
        x = x if norm is None else rms(x, norm)
        return x if self.residual == 1.0 else x * self.residual

    def normed(self, heads: Tensor, h: int, kv: int) -> Tensor:
        """Queries and keys after their norms, ``[B,m,h + kv,head_dim]``, of all ``heads``."""
        qk = heads[:, :, : h + kv]
        if self.qk_norm is not None:
            return F.rms_norm(qk, qk.shape[-1:], eps=self.qk_eps) * self.qk_norm
        if self.all_norm is not None:
            q, k = (part.flatten(2) for part in qk.split((h, kv), 2))
            both = torch.cat([rms(q, self.all_norm[0]), rms(k, self.all_norm[1])], -1)
            return both.view_as(qk)
        return qk


def _joined(parts: Sequence[Tensor]) -> Tensor:
    """Weights one behind the other, as one: where they lie so already, since another stack fused
    them, in that memory, which both then share."""
    first, width = parts[0], parts[0][0].numel()
    place, begin = first.untyped_storage().data_ptr(), first.storage_offset()
    for part in parts:
        lies_behind = part.untyped_storage().data_ptr() == place and part.storage_offset() == begin
        if not (lies_behind and part.is_contiguous() and part.dtype == first.dtype):
            return torch.cat(list(parts))
        begin += len(part) * width
    return first.as_strided((sum(map(len, parts)), *first.shape[1:]), first.stride())


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


def check_plain(*parts: Any) -> None:
    """Checks that layers are plain linear ones: only their weights are read, so that whatever else
    one of them computes would be ignored."""
    other = next((p for p in parts if type(p) is not nn.Linear), None)
    if other is not None:
        raise UnsupportedModel(
            f"layers of type {type(other).__name__} (adapters, quantisation) have no fast path here"
        )


def through(x: Tensor, module: Any) -> Tensor:
    """Multiplies ``x [..., K]`` with a linear module's weight: ``[..., N]``.

    Where several devices hold one part of the weight each, the module is called, which adds up
    their products.
    """
    if isinstance(module.weight, DTensor):
        return module(x)
    return product(x, module.weight, module.bias)


def is_rms(norm: Any) -> bool:
    """Whether a norm is Llama's, ``x / sqrt(mean(x^2) + variance_epsilon) * weight``."""
    return (
        getattr(norm, "variance_epsilon", None) is not None
        and isinstance(getattr(norm, "weight", None), Tensor)
        and getattr(norm, "bias", None) is None
    )


def gain(norm: Any) -> Tensor:
    """What a norm of the library multiplies with, ``[H]``: its weight w, or ``1 + w``, Gemma's."""
    weight = local(norm.weight)
    return weight if hasattr(norm, "variance_epsilon") else 1 + weight


def epsilon(norm: Any) -> float:
    """The number that keeps a norm of the library from dividing by zero."""
    return norm.variance_epsilon if hasattr(norm, "variance_epsilon") else norm.eps


def rms(x: Tensor, norm: Any) -> Tensor:
    """``x / sqrt(mean(x^2) + epsilon) * gain`` by a norm module of the library, ``[..., H]``.

    A norm of another kind (Gemma's, whose gain is ``1 + w``) is called as the library does.
    """
    eps = getattr(norm, "variance_epsilon", None)
    if eps is None:
        return norm(x)
    return F.rms_norm(x, (x.shape[-1],), norm.weight.to(x.dtype), eps)


def capped(x: Tensor, cap: float | None) -> Tensor:
    """``cap * tanh(x / cap)``, or x where there is no cap."""
    return x if cap is None else (x / cap).tanh() * cap


def attend(
    layer: Layer, q: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, parts: int = 1
) -> Tensor:
    """Attention of queries ``q [B,kv,per_key * m,dim]`` (the heads that share a key one behind the
    other) over keys and values ``[B,kv,extent,dim]``, with the layer's cap and sinks; the additive
    mask broadcasts to ``[B,1,per_key * m,extent]``. ``parts``: see :func:`in_parts`.

    A sink is a further key of its own score and no value, one per head."""
    if layer.cap is None and layer.sinks is None:
        if parts > 1 and mask is not None:
            return in_parts(q, key, value, mask, layer.scale, parts)
        return F.scaled_dot_product_attention(q, key, value, attn_mask=mask, scale=layer.scale)
    scores = capped(q @ key.transpose(2, 3) * layer.scale, layer.cap)
    scores = scores if mask is None else scores + mask
    if layer.sinks is None:
        return scores.softmax(-1) @ value
    kv, queries = q.shape[1:3]
    sinks = layer.sinks.detach().view(kv, -1).repeat_interleave(queries * kv // len(layer.sinks), 1)
    scores = torch.cat([scores, sinks[None, :, :, None].expand(len(q), -1, -1, 1)], -1)
    return scores.softmax(-1)[..., :-1] @ value


def in_parts(
    q: Tensor, key: Tensor, value: Tensor, mask: Tensor, scale: float, parts: int
) -> Tensor:
    """Attention of one text's queries ``[1,kv,n,dim]`` in ``parts`` equal parts of its keys, whose
    results are joined by their shares of the softmax's sum.

    torch's masked kernel gives a head's 64 queries to one of a GPU's processors, which reads all
    keys alone while the others are idle; with parts, each reads its own.

    Source: Dao et al. 2023, "Flash-Decoding for long-context inference".
    """
    keys, values = (x[0].unflatten(1, (parts, -1)).transpose(0, 1) for x in (key, value))
    q = q.expand(parts, -1, -1, -1)
    seen = mask[0, 0].unflatten(-1, (parts, -1)).transpose(0, 1)[:, None]
    seen = seen.expand(-1, q.shape[1], -1, -1)
    if q.is_cuda:
        fused = torch.ops.aten._scaled_dot_product_efficient_attention
        outs, logs, *_ = fused(q, keys, values, seen, True, 0.0, False, scale=scale)
        logs = logs[:, :, : q.shape[2]]  # of which there are a multiple of 32
    else:
        fused = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
        outs, logs = fused(q, keys, values, 0.0, False, attn_mask=seen, scale=scale)
    shares = logs.softmax(0)
    return (outs * shares[..., None]).sum(0, keepdim=True).to(q.dtype)


@cache
def processors(device: torch.device, dtype: torch.dtype) -> int:
    """How many blocks of threads a device computes side by side; 0 where keys are never parted,
    since no kernel there is masked and says how large its sum was."""
    if device.type != "cuda" or dtype == torch.float64:
        return 0
    if dtype == torch.bfloat16 and torch.cuda.get_device_capability(device) < (8, 0):
        return 0
    return torch.cuda.get_device_properties(device).multi_processor_count


def parts_of(extent: int, heads: int, queries: int, processors: int) -> int:
    """How many parts of the keys fill a GPU: a power of two, of which each has 128 keys or more.
    ``queries`` of each of ``heads`` heads come in blocks of 64. Fewer than ``LEAST_PARTED`` keys
    stay whole, since joining the parts takes four kernels more."""
    if extent < LEAST_PARTED:
        return 1
    free = processors // (heads * -(-queries // 64))
    return 1 << max(0, min(free, extent // 128, MOST_PARTS).bit_length() - 1)


def causal(q: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
    """Attention over a text from its beginning, ``[B,h,m,dim]``; keys and values have fewer heads
    where several queries share one.

    Which of torch's kernels know groups of heads depends on the number type: on CUDA only those
    for half precision do. In float32 the keys are repeated, since torch would otherwise compute and
    hold the scores of all of a text, ``[B,h,m,m]``.
    """
    groups = q.shape[1] // key.shape[1]
    if groups > 1 and repeats_keys(q.device.type, q.dtype):
        key, value = (x.repeat_interleave(groups, 1) for x in (key, value))
        groups = 1
    fused = F.scaled_dot_product_attention
    return fused(q, key, value, is_causal=True, scale=scale, enable_gqa=groups > 1)


def repeats_keys(device: str, dtype: torch.dtype) -> bool:
    """Whether no kernel of torch for this device and type knows groups of heads."""
    return device == "cuda" and dtype not in (torch.float16, torch.bfloat16)
