"""Drawing tokens without replacement in one launch; one token is a draw by inverse CDF.

For a row of probabilities q and the uniforms ``u_1 .. u_K`` draw j takes the first token x with

    q_j(1) + .. + q_j(x)  >  u_j * sum q_j,

where q_j is q without the tokens drawn before (they have probability 0, nothing is renormalised).
That is :func:`specwb.probability.draw_without_replacement`, and with K = 1
:func:`specwb.probability.inverse_cdf`. A row is summed by blocks once. A draw then finds its block
by the blocks' sums and its token inside the block, and the block's sum is taken anew *over what
remains*: one pass over the row and K blocks, where torch takes some twenty launches and a pass a
draw. All sums are float64.

A parallel sum need not grow from token to token in its last bits, so that the token is the first
one *with probability above 0* whose sum lies above the point, and the last such one where rounding
leaves none. A token of probability 0 is therefore never drawn while there is mass. A row without
mass, or with NaN, gives the last token, which is not ok.
"""

from __future__ import annotations

import torch
from torch import Tensor

from specwb.kernels.launch import block_of, jit, launch, power, tl, warps_of


@jit
def draw_kernel(
    q,
    u,
    tokens,
    ok,
    V,
    stride,
    K,
    BLOCK: tl.constexpr,
    BLOCKS: tl.constexpr,
    DRAWS: tl.constexpr,
):
    """One program a row; ``BLOCKS`` blocks of ``BLOCK`` tokens, up to ``DRAWS`` draws."""
    row = tl.program_id(0).to(tl.int64)
    q += row * stride
    blocks, lanes, ranks = tl.arange(0, BLOCKS), tl.arange(0, BLOCK), tl.arange(0, DRAWS)
    sums = tl.zeros((BLOCKS,), tl.float64)
    for i in range(tl.cdiv(V, BLOCK)):
        at = i * BLOCK + lanes
        x = tl.load(q + at, mask=at < V, other=0.0).to(tl.float64)
        sums = tl.where(blocks == i, tl.sum(x, 0), sums)
    drawn = tl.full((DRAWS,), -1, tl.int64)
    for j in range(K):
        point = tl.load(u + row * K + j) * tl.sum(sums, 0)
        above = (tl.cumsum(sums, 0) > point) & (sums > 0)
        block = tl.min(tl.where(above, blocks, BLOCKS), 0)
        block = tl.where(block < BLOCKS, block, tl.max(tl.where(sums > 0, blocks, 0), 0))
        rest = point - tl.sum(tl.where(blocks < block, sums, 0.0), 0)
        at = (block * BLOCK + lanes).to(tl.int64)
        x = tl.load(q + at, mask=at < V, other=0.0).to(tl.float64)
        for i in range(j):
            x = tl.where(at == tl.sum(tl.where(ranks == i, drawn, 0), 0), 0.0, x)
        above = (tl.cumsum(x, 0) > rest) & (x > 0)
        lane = tl.min(tl.where(above, lanes, BLOCK), 0)
        lane = tl.where(lane < BLOCK, lane, tl.max(tl.where(x > 0, lanes, -1), 0))
        there = (tl.sum(sums, 0) > 0) & (lane >= 0)  # False where there is NaN
        token = tl.where(there, (block * BLOCK + lane).to(tl.int64), V - 1)
        tl.store(tokens + row * K + j, token)
        tl.store(ok + row * K + j, there.to(tl.int8))
        drawn = tl.where(ranks == j, token, drawn)
        # a sum over what remains, never one minus what is gone
        left = tl.sum(tl.where(lanes == lane, 0.0, x), 0)
        sums = tl.where(blocks == block, left, sums)


def draw(q: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
    """As :func:`specwb.probability.draw_without_replacement`.

    Args:
        q: ``[..., V]``, the probabilities.
        u: ``[..., K]``, in (0, 1), float64.
    Returns:
        tokens ``[..., K]`` in drawing order, and which of them are there ``[..., K]``.
    """
    shape, k, width = u.shape, u.shape[-1], q.shape[-1]
    q, u = q.reshape(-1, width).contiguous(), u.reshape(-1, k).contiguous()
    tokens = torch.empty(u.shape, dtype=torch.long, device=q.device)
    ok = torch.empty(u.shape, dtype=torch.bool, device=q.device)
    block = block_of(width)
    launch(
        draw_kernel,
        (len(q),),
        (q, u, tokens, ok.view(torch.int8), width, q.stride(0), k),
        BLOCK=block,
        BLOCKS=power(-(-width // block)),
        DRAWS=power(k),
        num_warps=warps_of(block),
    )
    return tokens.view(shape), ok.view(shape)
