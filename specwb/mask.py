"""Who sees whom, as additive float masks. Every query sees at least itself."""

from __future__ import annotations

import torch
from torch import Tensor

from specwb.tree import Tree


def tree_mask(tree: Tree, known: Tensor, horizon: int, dtype: torch.dtype) -> Tensor:
    """``[B, n, horizon - 1 + n]``: each node sees the committed slots below known - 1 and its ancestors and itself."""
    return table_mask(tree.table(dtype), known, horizon)


def table_mask(table: Tensor, known: Tensor, horizon: int) -> Tensor:
    """``[B, n, horizon - 1 + n]`` from ``table [R, n, n + 2]``: what each of n nodes at slots known - 1, known, .. sees of the committed slots below
    them, of the n, and of what lies beyond."""
    n = table.shape[1]
    extent = horizon - 1 + n
    relative = torch.arange(extent, device=known.device) - (known[:, None] - 1)
    column = relative.clamp_(-1, n).add_(1)
    if len(table) == 1:
        return table[0].index_select(1, column.flatten()).view(n, len(known), extent).transpose(0, 1)
    return table.gather(2, column[:, None].expand(-1, n, -1))


def sight_mask(ends: Tensor, extent: int, dtype: torch.dtype) -> Tensor:
    """``[B, m, extent]``: each of m queries sees the slots up to ``ends [B,m]``."""
    hidden = torch.arange(extent, device=ends.device) > ends[:, :, None]
    return torch.zeros(hidden.shape, dtype=dtype, device=ends.device).masked_fill_(hidden, torch.finfo(dtype).min)


def block_ends(positions: Tensor, last: Tensor, k: int, align: str) -> Tensor:
    """Where the block of k that each place is in ends, for ``last`` the last place there is: ``right``, counted backwards from it; ``left``, forwards
    from place 0, the last block being cut."""
    if align == "left":
        return torch.minimum((positions // k) * k + k - 1, last.expand_as(positions)).maximum(positions)
    return last - (last - positions).div(k, rounding_mode="floor") * k


def causal_mask(positions: Tensor, extent: int, dtype: torch.dtype) -> Tensor:
    """``[B, m, extent]``: a query at position i sees slots 0..i."""
    return sight_mask(positions, extent, dtype)
