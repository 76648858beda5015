"""Who sees whom, as additive float masks. Every query sees at least itself."""

from __future__ import annotations

import torch
from torch import Tensor

from specwb.tree import Tree


def tree_mask(tree: Tree, known: Tensor, horizon: int, dtype: torch.dtype) -> Tensor:
    """``[B, n, horizon - 1 + n]``: each node sees the committed slots below known - 1 and its ancestors and itself."""
    extent = horizon - 1 + tree.n
    relative = torch.arange(extent, device=known.device) - (known[:, None] - 1)
    column = relative.clamp_(-1, tree.n).add_(1)
    table = tree.table(dtype)
    if tree.R == 1:
        return table[0].index_select(1, column.flatten()).view(tree.n, len(known), extent).transpose(0, 1)
    return table.gather(2, column[:, None].expand(-1, tree.n, -1))


def causal_mask(positions: Tensor, extent: int, dtype: torch.dtype) -> Tensor:
    """``[B, m, extent]``: a query at position i sees slots 0..i."""
    hidden = torch.arange(extent, device=positions.device) > positions[:, :, None]
    return torch.zeros(hidden.shape, dtype=dtype, device=positions.device).masked_fill_(hidden, torch.finfo(dtype).min)
