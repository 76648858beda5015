"""Parts of a decoder layer that torch computes in many small launches, in one each.

- ``rotate``: ``x cos + x[partners] sin`` of every query and key head, after its norm where the
  layer has norms of each head; queries go to where attention reads them, keys and values to their
  slots of the cache. Torch takes six launches, and two more for the norms.
- ``gated``: ``silu(gate) * up`` of the fused product ``[gate, up]``.
- ``add_norm``: ``s = x + a`` and ``s / sqrt(mean(s^2) + eps) * gain``.

All compute in float32 (float64 where the model does) and round to the model's type where torch's
path does, so that they differ from it by the last bit of a sum or an exponential at most.
"""

from __future__ import annotations

import torch
from torch import Tensor

from specwb.kernels.launch import block_of, jit, launch, power, real, tl, warps_of


@jit
def rotate_kernel(
    heads,
    cos,
    sin,
    partners,
    gains,
    slots,
    queries,
    cache,
    m,
    H,
    KV,
    DIM,
    eps,
    NORM: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """One program a token and head; m of a row stand behind each other."""
    token, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    i = tl.arange(0, WIDTH)
    inside = i < DIM
    kind: tl.constexpr = heads.dtype.element_ty
    row = heads + (token * (H + 2 * KV) + head) * DIM
    x = real(tl.load(row + i, mask=inside, other=0.0))
    if head < H + KV:
        other = tl.load(partners + i, mask=inside, other=0)
        y = real(tl.load(row + other, mask=inside, other=0.0))
        if NORM:
            scale = 1.0 / tl.sqrt(tl.sum(x * x, 0) / DIM + eps)
            gain = real(tl.load(gains + head * DIM + i, mask=inside, other=0.0))
            x = real((real((x * scale).to(kind)) * gain).to(kind))
            gain = real(tl.load(gains + head * DIM + other, mask=inside, other=0.0))
            y = real((real((y * scale).to(kind)) * gain).to(kind))
        c = real(tl.load(cos + token * DIM + i, mask=inside, other=0.0))
        s = real(tl.load(sin + token * DIM + i, mask=inside, other=0.0))
        x = real((x * c).to(kind)) + y * s
    if head < H:
        b, t = token // m, token % m
        at = queries + ((b * H + head) * m + t) * DIM
    else:
        at = cache + (tl.load(slots + token) * (2 * KV) + head - H) * DIM
    tl.store(at + i, x.to(kind), mask=inside)


def rotate(
    heads: Tensor,
    cos: Tensor,
    sin: Tensor,
    partners: Tensor,
    gains: Tensor | None,
    eps: float,
    slots: Tensor,
    cache: Tensor,
) -> Tensor:
    """Rotates queries and keys and writes keys and values to the cache.

    Args:
        heads: ``[B,m,H + 2 KV,dim]``, queries, keys and values as the product gives them.
        cos: ``[B,m,1,dim]``.
        sin: of the same shape, signed.
        partners: ``[dim]``, which number of a head each one is rotated with.
        gains: ``[H + KV,dim]`` of the norms of each head, or None.
        eps: of these norms.
        slots: ``[B m]``, where in ``cache`` each token goes.
        cache: ``[slots,2 KV,dim]``, one layer's keys and values; changed in place.
    Returns:
        the queries ``[B,H,m,dim]``.
    """
    rows, m, every, dim = heads.shape
    kv = cache.shape[1] // 2
    h = every - 2 * kv
    queries = torch.empty(rows, h, m, dim, dtype=heads.dtype, device=heads.device)
    read = heads.contiguous(), cos.contiguous(), sin.contiguous()
    norms = heads if gains is None else gains.contiguous()
    launch(
        rotate_kernel,
        (rows * m, every),
        (*read, partners, norms, slots, queries, cache, m, h, kv, dim, float(eps)),
        NORM=gains is not None,
        WIDTH=power(dim),
        num_warps=1,
    )
    return queries


@jit
def gated_kernel(product, out, WIDTH, BLOCK: tl.constexpr):
    """One program a token and block of numbers."""
    token = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < WIDTH
    kind: tl.constexpr = product.dtype.element_ty
    row = product + token * 2 * WIDTH
    gate = real(tl.load(row + at, mask=inside, other=0.0))
    up = real(tl.load(row + WIDTH + at, mask=inside, other=0.0))
    active = real((gate / (1.0 + tl.exp(-gate))).to(kind))
    tl.store(out + token * WIDTH + at, (active * up).to(kind), mask=inside)


def gated(product: Tensor) -> Tensor:
    """``silu(gate) * up`` of ``[..., 2 I]``, whose first half is the gate: ``[..., I]``."""
    product = product.contiguous()
    width = product.shape[-1] // 2
    out = torch.empty(*product.shape[:-1], width, dtype=product.dtype, device=product.device)
    block = min(1024, block_of(width))
    grid = out.numel() // width, -(-width // block)
    launch(gated_kernel, grid, (product, out, width), BLOCK=block, num_warps=warps_of(block))
    return out


@jit
def add_norm_kernel(x, a, gain, total, normed, WIDTH, eps, BLOCK: tl.constexpr):
    """One program a token."""
    token = tl.program_id(0).to(tl.int64)
    i = tl.arange(0, BLOCK)
    inside = i < WIDTH
    kind: tl.constexpr = x.dtype.element_ty
    left = real(tl.load(x + token * WIDTH + i, mask=inside, other=0.0))
    s = (left + real(tl.load(a + token * WIDTH + i, mask=inside, other=0.0))).to(kind)
    tl.store(total + token * WIDTH + i, s, mask=inside)
    s = real(s)
    scale = 1.0 / tl.sqrt(tl.sum(s * s, 0) / WIDTH + eps)
    g = real(tl.load(gain + i, mask=inside, other=0.0))
    tl.store(normed + token * WIDTH + i, (s * scale * g).to(kind), mask=inside)


def add_norm(x: Tensor, a: Tensor, gain: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """``x + a [..., H]`` and its RMS norm with ``gain [H]``."""
    x, a = x.contiguous(), a.contiguous()
    total, normed = torch.empty_like(x), torch.empty_like(x)
    width = x.shape[-1]
    block = power(width)
    launch(
        add_norm_kernel,
        (x.numel() // width,),
        (x, a, gain, total, normed, width, float(eps)),
        BLOCK=block,
        num_warps=warps_of(block),
    )
    return total, normed
