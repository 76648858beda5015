"""Where decoder layers run by fused kernels, and the kernels' checks against torch's path."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from specwb import kernels
from specwb.models.layers import Layer, local, rms

if TYPE_CHECKING:
    from specwb.models.backbone import Pass, Stack

WIDEST = 16384
"""Numbers of a hidden state that one program adds up."""


def _kernels() -> Any:
    return import_module("specwb.kernels.layers")


def rotated(stack: Stack, layer: Layer, heads: Tensor, at: Pass, stored: int) -> Tensor | None:
    """Rotates and writes to the cache: the queries ``[B,m,H,dim]``, None where torch's path is to
    be taken.

    Args:
        stack: the layers.
        layer: one of them.
        heads: what its fused product gave, ``[B,m,H + 2 KV,dim]``.
        at: what the layers of this forward share.
        stored: the layer of the cache.
    """
    usual = not layer.rotated_first and layer.all_norm is None and at.cos.dtype == heads.dtype
    if at.causal or not usual or not kernels.ready("rotate", heads, check_rotate):
        return None
    cache = at.cache.flat[stored]
    gains, eps = (None, 0.0) if layer.qk_norm is None else (layer.qk_norm, layer.qk_eps)
    queries = _kernels().rotate(heads, at.cos, at.sin, stack.order, gains, eps, at.index, cache)
    return queries.transpose(1, 2)


def gated(layer: Layer, product: Tensor) -> Tensor | None:
    """``act(gate) * up`` of the fused product ``[..., 2 I]``; None where torch's path is to be
    taken."""
    if layer.act is not F.silu or not kernels.ready("gated", product, check_gated):
        return None
    return _kernels().gated(product)


def add_norm(x: Tensor, a: Tensor, norm: Any) -> tuple[Tensor, Tensor] | None:
    """``x + a`` and its norm; None where torch's path is to be taken."""
    eps = getattr(norm, "variance_epsilon", None)
    if eps is None or x.shape[-1] > WIDEST or not kernels.ready("add_norm", x, check_add_norm):
        return None
    return _kernels().add_norm(x, a, local(norm.weight), eps)


# ------------------------------------------------------------------------------------------- checks


def _close(a: Tensor, b: Tensor) -> None:
    loose = {torch.float16: 2e-3, torch.bfloat16: 2e-2, torch.float32: 1e-5}
    rtol = loose.get(a.dtype, 1e-9)
    torch.testing.assert_close(a, b, atol=rtol, rtol=rtol)


def _random(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(len(shape)))


def check_rotate(device: torch.device, dtype: torch.dtype) -> None:
    """Two rows of three tokens, with norms of each head and without; half of a head turned, or
    numbers that stand side by side.

    Raises:
        AssertionError: the kernel differs from torch.
    """
    rows, m, h, kv, dim = 2, 3, 4, 2, 24
    heads, cos, sin, gains = (
        t.to(device, dtype)
        for t in (
            _random(rows, m, h + 2 * kv, dim),
            _random(rows, m, 1, dim),
            _random(rows, m, 1, dim),
            _random(h + kv, dim),
        )
    )
    slots = torch.tensor([3, 4, 5, 11, 10, 9], device=device)
    order = torch.arange(dim, device=device)
    for partners in (order.roll(dim // 2), order.view(-1, 2).flip(-1).flatten()):
        for gain in (None, gains):
            cache = torch.zeros(12, 2 * kv, dim, dtype=dtype, device=device)
            got = _kernels().rotate(heads, cos, sin, partners, gain, 1e-6, slots, cache)
            qk = heads[:, :, : h + kv]
            qk = qk if gain is None else F.rms_norm(qk, (dim,), eps=1e-6) * gain
            qk = torch.addcmul(qk * cos, qk.index_select(-1, partners), sin)
            wanted = torch.zeros_like(cache)
            entries = torch.cat([qk[:, :, h:], heads[:, :, h + kv :]], 2)
            wanted[slots] = entries.flatten(0, 1)
            _close(got, qk[:, :, :h].transpose(1, 2))
            _close(cache, wanted)


def check_gated(device: torch.device, dtype: torch.dtype) -> None:
    """Raises AssertionError where the kernel differs from torch."""
    product = 4 * _random(3, 2 * 1500).to(device, dtype)
    gate, up = product.chunk(2, -1)
    _close(_kernels().gated(product), F.silu(gate) * up)


def check_add_norm(device: torch.device, dtype: torch.dtype) -> None:
    """Raises AssertionError where the kernel differs from torch."""
    x, a = (t.to(device, dtype) for t in (_random(3, 5, 300), _random(5, 3, 300).view(3, 5, 300)))
    norm: Any = nn.RMSNorm(300, eps=1e-5, device=device, dtype=dtype)
    norm.variance_epsilon = 1e-5
    with torch.no_grad():
        norm.weight.copy_(_random(300))
    total, normed = _kernels().add_norm(x, a, norm.weight.detach(), 1e-5)
    _close(total, x + a)
    _close(normed, rms(x + a, norm).detach())
