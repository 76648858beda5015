"""Verification in four launches: rejection sampling, rrs, rrsw and the point-mass rule.

Notation of theory/04_several_candidates.md. At one node, with candidates x_1 .. x_K in drawing
order, let C_0 = 0, m_1 = 1, s_1 = 1. Candidate x_j is accepted iff

    u_j (m_j q(x_j))  <  (p(x_j) - C_{j-1} q(x_j)) s_j,

strictly and without a division. After a rejection C' = C_{j-1} + m_j / s_j, and if the mass
``sum_x (p(x) - C' q(x))+`` is above 0, then C_j = C' and m_{j+1} is that mass; otherwise the
distribution in force stays, C_j = C_{j-1}. With replacement (rrs) s stays 1. Without (rrsw) s_{j+1}
is the sum of q over the tokens that have not been rejected, and a rejected token is subtracted from
no more: its coefficient stays at C_j. A candidate with q = 0, or (rrsw) one that was rejected
before, is not tested.

This is what :class:`specwb.verify.rrs.RRS` and :class:`specwb.verify.rrsw.RRSw` compute. They hold
the residual as a row, ``r_j = (r_{j-1} - (m_j / s_j) q_j)+``. As no coefficient is negative,
``((p - a q)+ - b q)+ = (p - (a + b) q)+``, so that one number a node is enough and no row is
written before the end. Single-draft rejection is K = 1. All masses are float64 sums over what
remains. The same uniform tests the same candidate as in torch's path.

The point-mass rule goes on below the child in whose stretch of the children's cumulated p the one
uniform of the level lies; its residual is p without the children.

Launches:

1. ``statistics``: largest logit and sum of exponentials at every node, in one pass over the logits;
   ``p(x) = exp(logit(x) / T - top) / mass`` wherever a later launch needs it. A row with NaN, or
   without a finite logit, has NaN there, and so has p: no test passes, and the distribution is NaN.
2. ``rejections`` or ``point``: the walk of one row by one program. It reads whole rows only where
   a candidate was rejected *and another one is to be tested* at the same node; a chain needs none.
3. ``left``: the mass that the last rejection leaves, by parts of the row.
4. ``residual``: the distribution that the closing token is drawn from; the one in force where the
   mass is 0.

At temperature 0 see :mod:`specwb.kernels.greedy`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from specwb.kernels.launch import block_of, jit, launch, power, real, tl, warps_of

NARROW, WARPS = 2048, 8
"""Tokens that the walk of rejections looks at at once, and its warps: it holds much beside them in
registers, of which 16 warps would have 128 a thread."""


@jit
def scaled(x, T):
    """``x / T``, rounded as torch rounds it."""
    if x.dtype == tl.float64:
        y = x / T
    else:
        y = tl.div_rn(real(x), tl.full((), T, tl.float32))
    return y


@jit
def probability(logit, top, mass, T):
    """p of a logit, at a node with this largest logit and sum of exponentials."""
    return tl.exp(scaled(logit, T) - top) / mass


@jit
def statistics_kernel(
    logits, tops, masses, V, v, stride_b, stride_n, T: tl.float64, BLOCK: tl.constexpr
):
    """One program a node: its largest scaled logit, and the sum of ``exp(x - largest)``."""
    node = tl.program_id(0).to(tl.int64)
    logits += (node // v) * stride_b + (node % v) * stride_n
    kind: tl.constexpr = tops.dtype.element_ty
    lanes = tl.arange(0, BLOCK)
    top = tl.full((BLOCK,), float("-inf"), kind)
    mass = tl.zeros((BLOCK,), tl.float64)
    for start in range(0, V, BLOCK):
        x = tl.load(logits + start + lanes, mask=start + lanes < V, other=float("-inf"))
        x = scaled(x, T)
        higher = tl.maximum(top, x)
        # where nothing but -inf was met yet, exp(-inf - 0) = 0 is added, not exp(-inf + inf)
        finite = tl.where(higher == float("-inf"), 0.0, higher)
        mass = mass * tl.exp(top - finite).to(tl.float64) + tl.exp(x - finite).to(tl.float64)
        top = higher
    highest = tl.max(top, 0)
    finite = tl.where(highest == float("-inf"), 0.0, highest)
    mass = mass * tl.exp(top - finite).to(tl.float64)
    tl.store(tops + node, highest)
    tl.store(masses + node, tl.sum(mass, 0).to(kind))


@jit
def coefficients(at, c, count, listed, frozen, LISTED: tl.constexpr):
    """What q is multiplied with at tokens ``at``: c, or a listed token's own; and 1 where a token
    is listed, otherwise 0."""
    spots = tl.arange(0, LISTED)
    of_q = tl.zeros_like(at).to(tl.float64) + c
    gone = tl.zeros_like(at).to(tl.int32)
    for i in range(count):
        here = at == tl.sum(tl.where(spots == i, listed, 0), 0)
        of_q = tl.where(here, tl.sum(tl.where(spots == i, frozen, 0.0), 0), of_q)
        gone = tl.where(here, 1, gone)
    return of_q, gone


@jit
def positive(p, c, q):
    """``(p - c q)+`` in float64; NaN stays NaN, and where c is 0 it is p whatever q is."""
    r = tl.where(c == 0, p.to(tl.float64), p.to(tl.float64) - c * q)
    return tl.where(r <= 0, 0.0, r)


@jit
def what_remains(
    logits,
    q,
    top,
    mass,
    T,
    c,
    pending,
    count,
    listed,
    frozen,
    V,
    LISTED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Sums over the vocabulary: the residual's mass, and q's on tokens that are not rejected."""
    lanes = tl.arange(0, BLOCK)
    left, rest = tl.zeros((BLOCK,), tl.float64), tl.zeros((BLOCK,), tl.float64)
    for start in range(0, V, BLOCK):
        at = (start + lanes).to(tl.int64)
        x = tl.load(logits + at, mask=at < V, other=float("-inf"))
        b = tl.load(q + at, mask=at < V, other=0.0).to(tl.float64)
        p = tl.where(at < V, probability(x, top, mass, T), 0.0)
        of_q, gone = coefficients(at, c, count, listed, frozen, LISTED)
        left += positive(p, of_q, b)
        rest += tl.where((gone == 1) | (at == pending), 0.0, b)
    return tl.sum(left, 0), tl.sum(rest, 0)


@jit
def rejections_kernel(
    logits,
    tops,
    masses,
    q,
    q_row,
    kids,
    tokens,
    valid,
    u,
    trail,
    stops,
    amounts,
    path,
    V,
    v,
    n,
    stride_b,
    stride_n,
    T: tl.float64,
    q_b,
    q_r,
    q_row_b,
    kids_b,
    trail_b,
    D,
    K,
    draws,
    steps,
    WITHOUT: tl.constexpr,
    LISTED: tl.constexpr,
    PATH: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One program a row: the walk from the root down, see the module's text."""
    b = tl.program_id(0).to(tl.int64)
    spots = tl.arange(0, LISTED)
    none, nothing = b * 0 - 1, tl.sum(tl.zeros((LISTED,), tl.float64), 0)
    node, accepted, source, count = b * 0, b * 0, b * 0, b * 0
    old, new = nothing, nothing
    listed = tl.full((LISTED,), -1, tl.int64)
    frozen = tl.zeros((LISTED,), tl.float64)
    alive = b >= 0
    for d in range(D):
        if alive:
            top, mass = tl.load(tops + b * v + node), tl.load(masses + b * v + node)
            row_p = logits + b * stride_b + node * stride_n
            source = tl.maximum(tl.load(q_row + b * q_row_b + node), 0)
            row_q = q + b * q_b + source * q_r
            chosen, pending = none, none
            m, s = nothing + 1.0, nothing + 1.0
            for j in range(K):
                kid = tl.load(kids + b * kids_b + node * K + j)
                safe = tl.maximum(kid, 0)
                x = tl.load(tokens + b * n + safe)
                there = (kid >= 0) & (tl.load(valid + b * n + safe) != 0) & (chosen < 0)
                qx = tl.load(row_q + x).to(tl.float64)
                if WITHOUT:
                    times = tl.sum(tl.where(listed == x, 1, 0), 0)
                    there = there & (times == 0) & (pending != x)
                if there & (qx > 0):
                    if pending >= 0:  # rejected before: what does that leave?
                        left, rest = what_remains(
                            row_p,
                            row_q,
                            top,
                            mass,
                            T,
                            new,
                            pending,
                            count,
                            listed,
                            frozen,
                            V,
                            LISTED,
                            BLOCK,
                        )
                        old = tl.where(left > 0, new, old)
                        m = tl.where(left > 0, left, m)
                        if WITHOUT:
                            s = rest
                            listed = tl.where(spots == count, pending, listed)
                            frozen = tl.where(spots == count, old, frozen)
                            count += 1
                        pending = none
                    px = probability(tl.load(row_p + x), top, mass, T).to(tl.float64)
                    uniform = tl.load(u + (b * D + d) * draws + j)
                    hit = uniform * (m * qx) < (px - old * qx) * s
                    chosen = tl.where(hit, kid, chosen)
                    pending = tl.where(hit, pending, x)
                    new = tl.where(hit, new, old + m / s)
            if chosen >= 0:
                node = chosen
                accepted += 1
                count = count * 0
                old, new = nothing, nothing
                listed = tl.full((LISTED,), -1, tl.int64)
            else:
                alive = chosen >= 0
    tl.store(stops + b * (4 + LISTED), node)
    tl.store(stops + b * (4 + LISTED) + 1, accepted)
    tl.store(stops + b * (4 + LISTED) + 2, source)
    tl.store(stops + b * (4 + LISTED) + 3, count)
    tl.store(stops + b * (4 + LISTED) + 4 + spots, listed)
    tl.store(amounts + b * (2 + LISTED), old)
    tl.store(amounts + b * (2 + LISTED) + 1, new)
    tl.store(amounts + b * (2 + LISTED) + 2 + spots, frozen)
    place = tl.arange(0, PATH)
    nodes = tl.load(trail + b * trail_b + node * steps + place, mask=place < steps, other=0)
    tl.store(path + b * steps + place, nodes, mask=place < steps)


@jit
def point_kernel(
    logits,
    tops,
    masses,
    kids,
    tokens,
    valid,
    u,
    trail,
    stops,
    path,
    v,
    n,
    stride_b,
    stride_n,
    T: tl.float64,
    kids_b,
    trail_b,
    D,
    K,
    draws,
    steps,
    LISTED: tl.constexpr,
    PATH: tl.constexpr,
):
    """One program a row: the walk of the point-mass rule; ``stops`` lists the last node's children
    where it has accepted none of them."""
    b = tl.program_id(0).to(tl.int64)
    spots = tl.arange(0, LISTED)
    none, nothing = b * 0 - 1, tl.sum(tl.zeros((LISTED,), tl.float64), 0)
    node, accepted, count = b * 0, b * 0, b * 0
    listed = tl.full((LISTED,), -1, tl.int64)
    alive = b >= 0
    for d in range(D):
        if alive:
            top, mass = tl.load(tops + b * v + node), tl.load(masses + b * v + node)
            row_p = logits + b * stride_b + node * stride_n
            uniform = tl.load(u + (b * D + d) * draws)
            chosen, total = none, nothing
            for j in range(K):
                kid = tl.load(kids + b * kids_b + node * K + j)
                safe = tl.maximum(kid, 0)
                x = tl.load(tokens + b * n + safe)
                there = (kid >= 0) & (tl.load(valid + b * n + safe) != 0)
                # a repeated sibling counts once
                if there & (tl.sum(tl.where(listed == x, 1, 0), 0) == 0):
                    p = probability(tl.load(row_p + x), top, mass, T)
                    total += p.to(tl.float64)
                    chosen = tl.where((chosen < 0) & (uniform < total), kid, chosen)
                    listed = tl.where(spots == count, x, listed)
                    count += 1
            if chosen >= 0:
                node = chosen
                accepted += 1
                count = count * 0
                listed = tl.full((LISTED,), -1, tl.int64)
            else:
                alive = chosen >= 0
    tl.store(stops + b * (4 + LISTED), node)
    tl.store(stops + b * (4 + LISTED) + 1, accepted)
    tl.store(stops + b * (4 + LISTED) + 2, b * 0)
    tl.store(stops + b * (4 + LISTED) + 3, count)
    tl.store(stops + b * (4 + LISTED) + 4 + spots, listed)
    place = tl.arange(0, PATH)
    nodes = tl.load(trail + b * trail_b + node * steps + place, mask=place < steps, other=0)
    tl.store(path + b * steps + place, nodes, mask=place < steps)


@jit
def residual_kernel(
    logits,
    tops,
    masses,
    q,
    stops,
    amounts,
    parts,
    distribution,
    V,
    v,
    stride_b,
    stride_n,
    T: tl.float64,
    q_b,
    q_r,
    PARTS: tl.constexpr,
    LISTED: tl.constexpr,
    POINT: tl.constexpr,
    WRITE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One program a row and part of the vocabulary. ``left`` (not WRITE) stores the mass of the
    residual in its part; ``residual`` (WRITE) the residual, or, where all parts together have no
    mass, the distribution in force."""
    b, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    stops += b * (4 + LISTED)
    node, source, count = tl.load(stops), tl.load(stops + 2), tl.load(stops + 3)
    spots = tl.arange(0, LISTED)
    listed = tl.load(stops + 4 + spots)
    top, mass = tl.load(tops + b * v + node), tl.load(masses + b * v + node)
    at = (part * BLOCK + tl.arange(0, BLOCK)).to(tl.int64)
    x = tl.load(logits + b * stride_b + node * stride_n + at, mask=at < V, other=float("-inf"))
    p = tl.where(at < V, probability(x, top, mass, T), 0.0)
    moved = True
    if WRITE:
        every = tl.arange(0, PARTS)
        count_parts = tl.num_programs(1)
        sums = tl.load(parts + b * count_parts + every, mask=every < count_parts, other=0.0)
        moved = tl.sum(sums, 0) > 0  # False where there is NaN
    if POINT:
        _, gone = coefficients(at, 0.0, count, listed, tl.zeros((LISTED,), tl.float64), LISTED)
        r = tl.where(gone == 1, 0.0, p.to(tl.float64))
        r = tl.where(moved, r, p.to(tl.float64))
    else:
        amounts += b * (2 + LISTED)
        frozen = tl.load(amounts + 2 + spots)
        c = tl.where(moved, tl.load(amounts + 1), tl.load(amounts))
        weight = tl.load(q + b * q_b + source * q_r + at, mask=at < V, other=0.0).to(tl.float64)
        of_q, _ = coefficients(at, c, count, listed, frozen, LISTED)
        r = positive(p, of_q, weight)
    if WRITE:
        tl.store(distribution + b * V + at, r.to(distribution.dtype.element_ty), mask=at < V)
    else:
        tl.store(parts + b * tl.num_programs(1) + part, tl.sum(r, 0))


@dataclass
class Tables:
    """What verification needs of a draft; R is 1 or B.

    Attributes:
        tokens: ``[B,n]``.
        valid: ``[B,n]``, which nodes may be accepted.
        kids: ``[R,v,K]``, children, -1 where there is none.
        trail: ``[R,v,D+1]``.
        depth: of the tree, D.
        q: ``[B,r,V]``, or None.
        q_row: ``[R,n]``, which row of q a node's children were drawn from, or None.
    """

    tokens: Tensor
    valid: Tensor
    kids: Tensor
    trail: Tensor
    depth: int
    q: Tensor | None = None
    q_row: Tensor | None = None


def each(table: Tensor) -> int:
    """How far the tables of two rows lie apart: 0 where all rows share one."""
    return table.stride(0) if len(table) > 1 else 0


def verify(
    kind: str, tables: Tables, logits: Tensor, temperature: float, u: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Verifies a draft.

    Args:
        kind: ``"rrs"``, ``"rrsw"`` or ``"point"``; ``"rrs"`` with one child a node is
            single-draft rejection.
        tables: the draft.
        logits: ``[B,v,V]`` of the verified nodes.
        temperature: what they are divided by.
        u: ``[B,D,draws]`` uniforms, float64; child j of a level is tested by column j.
    Returns:
        path ``[B,D+1]``, accepted ``[B]``, and the closing token's distribution ``[B,V]``.
    """
    logits = logits if logits.stride(-1) == 1 else logits.contiguous()
    rows, v, width = logits.shape
    device = logits.device
    precise = logits.dtype if logits.dtype == torch.float64 else torch.float32
    kids, trail = tables.kids.contiguous(), tables.trail.contiguous()
    tokens, valid = tables.tokens.contiguous(), tables.valid.contiguous().view(torch.int8)
    children, steps, slots = kids.shape[-1], trail.shape[-1], power(kids.shape[-1])
    block = block_of(width)
    sizes: dict[str, Any] = {"BLOCK": block, "num_warps": warps_of(block)}
    tops, masses = torch.empty(2, rows, v, dtype=precise, device=device)
    given = logits.stride(0), logits.stride(1), float(temperature)
    launch(statistics_kernel, (rows * v,), (logits, tops, masses, width, v, *given), **sizes)
    stops = torch.empty(rows, 4 + slots, dtype=torch.long, device=device)
    amounts = torch.empty(rows, 2 + slots, dtype=torch.float64, device=device)
    path = torch.empty(rows, steps, dtype=torch.long, device=device)
    u = u.contiguous()
    counts = tables.depth, children, u.shape[-1], steps
    pads: dict[str, Any] = {"LISTED": slots, "PATH": power(steps)}
    n = tokens.shape[1]
    if kind == "point":
        q = masses  # not read
        q_strides = 0, 0
        inputs = (logits, tops, masses, kids, tokens, valid, u, trail, stops, path, v, n)
        every: tuple[Any, ...] = (*inputs, *given, each(kids), each(trail), *counts)
        launch(point_kernel, (rows,), every, num_warps=1, **pads)
    else:
        assert tables.q is not None
        assert tables.q_row is not None
        q, q_row = tables.q, tables.q_row.contiguous()
        q = q if q.stride(-1) == 1 else q.contiguous()
        q_strides = q.stride(0), q.stride(1)
        drafted = (logits, tops, masses, q, q_row, kids, tokens, valid, u, trail)
        results = stops, amounts, path, width, v, n
        apart = *q_strides, each(q_row), each(kids), each(trail)
        every = (*drafted, *results, *given, *apart, *counts)
        narrow = {"BLOCK": min(block, NARROW), "num_warps": min(sizes["num_warps"], WARPS)}
        launch(rejections_kernel, (rows,), every, WITHOUT=kind == "rrsw", **pads, **narrow)
    parts = -(-width // block)
    sums = torch.empty(rows, parts, dtype=torch.float64, device=device)
    distribution = torch.empty(rows, width, dtype=precise, device=device)
    read = logits, tops, masses, q
    for write in (False, True):
        launch(
            residual_kernel,
            (rows, parts),
            (*read, stops, amounts, sums, distribution, width, v, *given, *q_strides),
            PARTS=power(parts),
            LISTED=slots,
            POINT=kind == "point",
            WRITE=write,
            **sizes,
        )
    return path, stops[:, 1], distribution
