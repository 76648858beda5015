"""The walk at temperature 0 in two launches.

``best`` takes the argmax after every node, the lowest index of equals; of a row with NaN the first
NaN, which is no sound choice. ``follow`` finds, for every row, the nodes whose token is the argmax
after their parent and all of whose ancestors are such nodes, and ends at the deepest of them, the
first of equals. That is :class:`specwb.verify.greedy.Greedy`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from specwb.kernels.launch import block_of, jit, launch, power, real, tl, warps_of
from specwb.kernels.verification import Tables, each

MOST = 128
"""Nodes of a tree that the walk looks at at once."""


@jit
def best_kernel(logits, best, sound, V, v, stride_b, stride_n, BLOCK: tl.constexpr):
    """One program a node: the argmax of its logits, the lowest index of equals, the first NaN where
    there is one; and whether the largest logit is finite."""
    node = tl.program_id(0).to(tl.int64)
    logits += (node // v) * stride_b + (node % v) * stride_n
    lanes = tl.arange(0, BLOCK)
    top = tl.where(lanes < 0, real(tl.load(logits + lanes * 0)), float("-inf"))
    index = lanes
    broken = tl.full((BLOCK,), V, tl.int32)
    for start in range(0, V, BLOCK):
        x = real(tl.load(logits + start + lanes, mask=start + lanes < V, other=float("-inf")))
        broken = tl.where((x != x) & (broken == V), start + lanes, broken)
        index = tl.where(x > top, start + lanes, index)
        top = tl.where(x > top, x, top)
    highest = tl.max(top, 0)
    first = tl.min(tl.where(top == highest, index, V - 1), 0)
    nan = tl.min(broken, 0)
    finite = (nan == V) & (highest < float("inf")) & (highest > float("-inf"))
    tl.store(best + node, tl.where(nan < V, nan, first).to(tl.int64))
    tl.store(sound + node, finite.to(tl.int8))


@jit
def follow_kernel(
    best,
    sound,
    tokens,
    valid,
    parent,
    depth,
    mask,
    trail,
    path,
    accepted,
    bonus,
    v,
    n,
    parent_b,
    mask_b,
    mask_n,
    trail_b,
    steps,
    NODES: tl.constexpr,
    PATH: tl.constexpr,
):
    """One program a row: a node agrees where its token is the argmax after its parent; the row ends
    at the deepest node that agrees and whose ancestors do, the first of equals."""
    b = tl.program_id(0).to(tl.int64)
    nodes = tl.arange(0, NODES)
    there = nodes < v
    above = tl.load(parent + b * parent_b + nodes, mask=there, other=-1)
    safe = tl.maximum(above, 0)
    wanted = tl.load(best + b * v + safe, mask=there, other=-1)
    agrees = (tl.load(tokens + b * n + nodes, mask=there, other=-2) == wanted) & (above >= 0)
    agrees = agrees & (tl.load(valid + b * n + nodes, mask=there, other=0) != 0)
    agrees = agrees & (tl.load(sound + b * v + safe, mask=there, other=0) != 0)
    agrees = agrees | (nodes == 0)
    both = there[:, None] & there[None, :]
    on_path = tl.load(
        mask + b * mask_b + nodes[:, None] * mask_n + nodes[None, :], mask=both, other=0
    )
    stray = tl.where(agrees[None, :], 0, on_path.to(tl.int32))
    reached = (tl.sum(stray, 1) == 0) & there
    level = tl.load(depth + b * parent_b + nodes, mask=there, other=0)
    deepest = tl.max(tl.where(reached, level, -1), 0)
    node = tl.min(tl.where(reached & (level == deepest), nodes, NODES), 0).to(tl.int64)
    tl.store(accepted + b, deepest.to(tl.int64))
    tl.store(bonus + b, tl.load(best + b * v + node))
    place = tl.arange(0, PATH)
    way = tl.load(trail + b * trail_b + node * steps + place, mask=place < steps, other=0)
    tl.store(path + b * steps + place, way, mask=place < steps)


def greedy(
    tables: Tables, parent: Tensor, depth: Tensor, mask: Tensor, logits: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The walk at temperature 0.

    Args:
        tables: the draft; its tree has at most ``MOST`` verified nodes.
        parent: ``[R,n]``, of the tree.
        depth: ``[R,n]``.
        mask: ``[R,n,n]``, true at a node's ancestors and itself.
        logits: ``[B,v,V]``.
    Returns:
        path ``[B,D+1]``, accepted ``[B]`` and the closing token ``[B]``.
    """
    logits = logits if logits.stride(-1) == 1 else logits.contiguous()
    rows, v, width = logits.shape
    device, block = logits.device, block_of(width)
    best = torch.empty(rows, v, dtype=torch.long, device=device)
    sound = torch.empty(rows, v, dtype=torch.int8, device=device)
    strides = logits.stride(0), logits.stride(1)
    sizes: dict[str, Any] = {"BLOCK": block, "num_warps": warps_of(block)}
    launch(best_kernel, (rows * v,), (logits, best, sound, width, v, *strides), **sizes)
    trail, parent, depth, mask = (x.contiguous() for x in (tables.trail, parent, depth, mask))
    tokens, valid = tables.tokens.contiguous(), tables.valid.contiguous().view(torch.int8)
    steps = trail.shape[-1]
    path = torch.empty(rows, steps, dtype=torch.long, device=device)
    accepted, bonus = torch.empty(2, rows, dtype=torch.long, device=device)
    inputs = best, sound, tokens, valid, parent, depth, mask.view(torch.int8), trail
    outputs = path, accepted, bonus, v, tokens.shape[1]
    apart = each(parent), each(mask), mask.stride(1), each(trail), steps
    pads = {"NODES": power(v), "PATH": power(steps)}
    launch(follow_kernel, (rows,), (*inputs, *outputs, *apart), **pads)
    return path, accepted, bonus
