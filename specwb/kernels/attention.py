"""Attention in two parts in two launches a layer: the text by many programs, then the draft and the
merge.

For one head of keys, its queries x (nodes times the query heads that share the head) and a set S of
slots a program holds, for every query, ``top = max s``, ``mass = sum exp(s - top)`` and
``acc = sum exp(s - top) v`` over S, with scores ``s = cap(x k scale)``. Those of two disjoint sets
merge by

    top = max(top_1, top_2),   mass = sum_i exp(top_i - top) mass_i,   acc likewise,

and the attention over both is ``acc / mass``: the merge by log-sum-exp of
:mod:`specwb.models.attention`, with ``lse = top + log mass``. A set that a query sees nothing of
has top -inf and mass 0, and weighs nothing.

1. ``prefix``: the committed slots in stretches of ``STRETCH``, one program a head of keys, stretch
   and tile of queries. How many slots are committed it reads from the device; stretches beyond do
   nothing, so that the launch can be recorded for the longest text of a bucket. No mask is read. A
   window is the first slot that each query sees.
2. ``merge``: the few slots of the draft, dense and with their mask, then all stretches, then the
   sink, which adds ``exp(sink - top)`` to the mass and nothing to acc.

Products are of the model's type and summed in float32.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from specwb.kernels.launch import jit, launch, power, tl

STRETCH = 256  # slots of one program
MOST = 128  # slots of the draft, and numbers of a head, that a program looks at at once
TILE = 64  # queries of one program


@jit
def times(a, b, WIDE: tl.constexpr):
    """A product, summed in float32; ``WIDE`` for the interpreter, which has no products of
    bfloat16."""
    if WIDE:
        a, b = a.to(tl.float32), b.to(tl.float32)
    return tl.dot(a, b, input_precision="ieee")


@jit
def scored(x, k, seen, scale, cap, CAP: tl.constexpr, WIDE: tl.constexpr):
    """Scores of queries ``[Q,D]`` to keys ``[D,S]``; -inf where they do not see them."""
    s = times(x, k, WIDE) * scale
    if CAP:
        s = cap * (2.0 * tl.sigmoid(2.0 * s / cap) - 1.0)  # cap tanh(s / cap)
    return tl.where(seen, s, float("-inf"))


@jit
def added(top, mass, acc, s, v, WIDE: tl.constexpr):
    """A set of slots with its scores ``[Q,S]`` and values ``[S,D]`` added to another one."""
    higher = tl.maximum(top, tl.max(s, 1))
    finite = tl.where(higher == float("-inf"), 0.0, higher)
    weight, kept = tl.exp(s - finite[:, None]), tl.exp(top - finite)
    mass = mass * kept + tl.sum(weight, 1)
    acc = acc * kept[:, None] + times(weight.to(v.dtype), v, WIDE)
    return higher, mass, acc


@jit
def prefix_kernel(
    q,
    key,
    value,
    base,
    low,
    tops,
    masses,
    accs,
    M,
    m,
    KV,
    SIZE,
    stride_b,
    stride_h,
    stride_s,
    scale,
    cap,
    LOW: tl.constexpr,
    CAP: tl.constexpr,
    LENGTH: tl.constexpr,
    QUERIES: tl.constexpr,
    DIM: tl.constexpr,
    KEYS: tl.constexpr,
    WIDE: tl.constexpr,
):
    """One program a row and head of keys, stretch, and tile of queries."""
    pair, stretch = tl.program_id(0).to(tl.int64), tl.program_id(1)
    b, h = pair // KV, pair % KV
    rows = tl.program_id(2) * QUERIES + tl.arange(0, QUERIES)
    dims, lanes = tl.arange(0, DIM), tl.arange(0, KEYS)
    inside = (rows < M)[:, None] & (dims < SIZE)[None, :]
    x = tl.load(q + (pair * M + rows[:, None]) * SIZE + dims[None, :], mask=inside, other=0.0)
    start = stretch * LENGTH
    stop = tl.minimum(tl.load(base + b), start + LENGTH)
    first = tl.zeros((QUERIES,), tl.int64)
    if LOW:
        first = tl.load(low + b * m + rows % m, mask=rows < M, other=0)
    top = tl.full((QUERIES,), float("-inf"), tl.float32)
    mass = tl.zeros((QUERIES,), tl.float32)
    acc = tl.zeros((QUERIES, DIM), tl.float32)
    at = b * stride_b + h * stride_h
    for begin in range(0, LENGTH, KEYS):
        if start + begin < stop:
            slots = (start + begin + lanes).to(tl.int64)
            there = (slots < stop)[:, None] & (dims < SIZE)[None, :]
            place = at + slots[:, None] * stride_s + dims[None, :]
            k = tl.load(key + place, mask=there, other=0.0)
            v = tl.load(value + place, mask=there, other=0.0)
            seen = (slots < stop)[None, :] & (slots[None, :] >= first[:, None])
            s = scored(x, tl.trans(k), seen, scale, cap, CAP, WIDE)
            top, mass, acc = added(top, mass, acc, s, v, WIDE)
    line = (pair * tl.num_programs(1) + stretch) * M + rows
    tl.store(tops + line, top, mask=rows < M)
    tl.store(masses + line, mass, mask=rows < M)
    tl.store(accs + line[:, None] * SIZE + dims[None, :], acc, mask=inside)


@jit
def merge_kernel(
    q,
    flat,
    slots,
    mask,
    sinks,
    tops,
    masses,
    accs,
    out,
    M,
    m,
    KV,
    SIZE,
    width,
    stretches,
    scale,
    cap,
    CAP: tl.constexpr,
    SINKS: tl.constexpr,
    QUERIES: tl.constexpr,
    DIM: tl.constexpr,
    KEYS: tl.constexpr,
    WIDE: tl.constexpr,
):
    """One program a row and head of keys, and tile of queries."""
    pair = tl.program_id(0).to(tl.int64)
    b, h = pair // KV, pair % KV
    rows = tl.program_id(1) * QUERIES + tl.arange(0, QUERIES)
    dims, lanes = tl.arange(0, DIM), tl.arange(0, KEYS)
    asked = rows < M
    inside = asked[:, None] & (dims < SIZE)[None, :]
    x = tl.load(q + (pair * M + rows[:, None]) * SIZE + dims[None, :], mask=inside, other=0.0)
    slot = tl.load(slots + b * width + lanes, mask=lanes < width, other=0)
    place = (slot[:, None] * 2 * KV + h) * SIZE + dims[None, :]
    there = (lanes < width)[:, None] & (dims < SIZE)[None, :]
    k = tl.load(flat + place, mask=there, other=0.0)
    v = tl.load(flat + place + KV * SIZE, mask=there, other=0.0)
    of = mask + (b * m + rows[:, None] % m) * width + lanes[None, :]
    added_to = tl.load(of, mask=asked[:, None] & (lanes < width)[None, :], other=-1.0)
    s = scored(x, tl.trans(k), added_to == 0, scale, cap, CAP, WIDE)
    top = tl.full((QUERIES,), float("-inf"), tl.float32)
    mass = tl.zeros((QUERIES,), tl.float32)
    acc = tl.zeros((QUERIES, DIM), tl.float32)
    top, mass, acc = added(top, mass, acc, s, v, WIDE)
    for i in range(stretches):
        line = (pair * stretches + i) * M + rows
        other = tl.load(tops + line, mask=asked, other=float("-inf"))
        higher = tl.maximum(top, other)
        finite = tl.where(higher == float("-inf"), 0.0, higher)
        kept, come = tl.exp(top - finite), tl.exp(other - finite)
        mass = mass * kept + tl.load(masses + line, mask=asked, other=0.0) * come
        more = tl.load(accs + line[:, None] * SIZE + dims[None, :], mask=inside, other=0.0)
        acc = acc * kept[:, None] + more * come[:, None]
        top = higher
    if SINKS:
        per_key = M // m
        sink = tl.load(sinks + h * per_key + rows // m, mask=asked, other=0.0).to(tl.float32)
        higher = tl.maximum(top, sink)
        mass = mass * tl.exp(top - higher) + tl.exp(sink - higher)
        acc = acc * tl.exp(top - higher)[:, None]
    acc = acc / tl.where(mass > 0, mass, 1.0)[:, None]
    at = out + (pair * M + rows[:, None]) * SIZE + dims[None, :]
    tl.store(at, acc.to(out.dtype.element_ty), mask=inside)


def attend(
    q: Tensor,
    key: Tensor,
    value: Tensor,
    flat: Tensor,
    base: Tensor,
    low: Tensor | None,
    slots: Tensor,
    mask: Tensor,
    scale: float,
    cap: float | None,
    sinks: Tensor | None,
) -> Tensor:
    """Attention in two parts, ``[B,kv,q,dim]``.

    Args:
        q: ``[B,kv,per_key * m,dim]``.
        key: ``[B,kv,extent,dim]``, a view of the cache.
        value: of the same shape and strides.
        flat: the layer's keys and values, ``[slots,2 * kv,dim]``.
        base: ``[B]``, how many slots are committed.
        low: ``[B,m]``, the first of them that each query sees; None: all.
        slots: flat indices of the draft's slots, ``[B * width]``.
        mask: additive, of the queries to these, ``[B,m,width]``.
        scale: what scores are multiplied with.
        cap: the soft cap, or None.
        sinks: one score a query head, or None.
    """
    q, mask = q.contiguous(), mask.contiguous()
    rows, kv, queries, dim = q.shape
    m, width = mask.shape[1:]
    stretches = -(-key.shape[2] // STRETCH)
    single: dict[str, Any] = {"dtype": torch.float32, "device": q.device}
    tops, masses = torch.empty(2, rows * kv, stretches, queries, **single)
    accs = torch.empty(rows * kv, stretches, queries, dim, **single)
    out = torch.empty_like(q)
    tile = min(TILE, max(16, power(queries)))
    tiles, pairs = -(-queries // tile), rows * kv
    sizes: dict[str, Any] = {"QUERIES": tile, "DIM": max(16, power(dim)), "num_warps": 4}
    sizes["WIDE"] = q.device.type == "cpu"
    limits = float(scale), float(cap or 0.0)
    arguments = q, key, value, base, base if low is None else low.contiguous(), tops, masses, accs
    strides = key.stride(0), key.stride(1), key.stride(2)
    launch(
        prefix_kernel,
        (pairs, stretches, tiles),
        (*arguments, queries, m, kv, dim, *strides, *limits),
        LOW=low is not None,
        CAP=cap is not None,
        LENGTH=STRETCH,
        KEYS=32,
        **sizes,
    )
    given = q, flat, slots, mask, q if sinks is None else sinks, tops, masses, accs, out
    launch(
        merge_kernel,
        (pairs, tiles),
        (*given, queries, m, kv, dim, width, stretches, *limits),
        CAP=cap is not None,
        SINKS=sinks is not None,
        KEYS=max(16, power(width)),
        **{**sizes, "num_warps": 8},  # with four, registers do not suffice on sm_80
    )
    return out
