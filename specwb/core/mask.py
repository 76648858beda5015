"""Attention masks: floats that are added to the scores.

They are 0 where a query sees a slot, and the lowest finite number where it does not. Every query
sees at least itself.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from specwb.core.tree import Tree


def tree_mask(tree: Tree, length: Tensor, horizon: int, dtype: torch.dtype) -> Tensor:
    """``[B, n, horizon - 1 + n]``: each of a tree's n nodes sees the committed slots (those below
    ``length - 1``, where the root lies), its ancestors and itself; ``horizon`` bounds ``length
    [B]``."""
    return table_mask(tree.table(dtype), length, horizon)


def table_mask(table: Tensor, length: Tensor, horizon: int) -> Tensor:
    """Spreads a table of who sees whom over the slots of each row: ``[B, n, horizon - 1 + n]``.

    ``table [R, n, n + 2]`` states for each of the n nodes, which lie at the slots ``length - 1``,
    ``length`` and so on, what it sees of the committed slots below them (column 0), of the n nodes,
    and of what lies beyond (the last column). R is 1, one table for all rows, or B.
    """
    n = table.shape[1]
    extent = horizon - 1 + n
    relative = torch.arange(extent, device=length.device) - (length[:, None] - 1)
    column = relative.clamp_(-1, n).add_(1)
    if len(table) == 1:
        columns = table[0].index_select(1, column.flatten())
        return columns.view(n, len(length), extent).transpose(0, 1)
    return table.gather(2, column[:, None].expand(-1, n, -1))


def sight_mask(ends: Tensor, extent: int, dtype: torch.dtype) -> Tensor:
    """``[B, m, extent]``: each of m queries sees the slots from 0 up to its own end, ``ends [B,
    m]``."""
    hidden = torch.arange(extent, device=ends.device) > ends[:, :, None]
    mask = torch.zeros(hidden.shape, dtype=dtype, device=ends.device)
    return mask.masked_fill_(hidden, torch.finfo(dtype).min)


def aligned(mask: Tensor) -> Tensor:
    """The same mask ``[..., m, extent]``, its rows at distances that are multiples of 8 numbers:
    CUDA's attention kernels read masks in such pieces, and one that lies otherwise is copied in
    every layer."""
    if mask.stride(-1) == 1 and not any(step % 8 for step in mask.stride()[:-1]):
        return mask
    extent = mask.shape[-1]
    return F.pad(mask, (0, -extent % 8)).contiguous()[..., :extent]


def last_seen(mask: Tensor, window: int) -> Tensor:
    """Lets each query see only the last ``window`` of the slots that it sees, its own included.

    A node of a tree sees one slot for every position up to its own, in order of their positions, so
    that these are the last ``window`` positions on its path.
    """
    seen = mask == 0
    # how many a query sees from a slot on
    behind = seen.flip(-1).cumsum(-1).flip(-1)
    return mask.masked_fill(behind > window, torch.finfo(mask.dtype).min)


def block_ends(positions: Tensor, last: Tensor, k: int, align: str) -> Tensor:
    """The end of the block of k positions that each position lies in. ``right`` counts blocks
    backwards from ``last``; ``left`` forwards from position 0, and the last block is cut short."""
    if align == "left":
        block_end = (positions // k) * k + k - 1
        return torch.minimum(block_end, last.expand_as(positions)).maximum(positions)
    return last - (last - positions).div(k, rounding_mode="floor") * k


def causal_mask(positions: Tensor, extent: int, dtype: torch.dtype) -> Tensor:
    """``[B, m, extent]``: a query at position i, ``positions [B, m]``, sees the slots 0..i."""
    return sight_mask(positions, extent, dtype)
