"""Key/value storage without a length: slot = position, and node i of a draft at slot known - 1 + i."""

from __future__ import annotations

import torch
from torch import Tensor


class KVCache:
    """``data [layers, B, T, 2 * kv_heads, head_dim]``: keys then values of every slot. Written before it is read, never grown."""

    def __init__(self, layers: int, rows: int, capacity: int, kv_heads: int, head_dim: int, dtype: torch.dtype, device: torch.device) -> None:
        self.data = torch.zeros(layers, rows, capacity, 2 * kv_heads, head_dim, dtype=dtype, device=device)
        self.rows, self.capacity, self.kv_heads = rows, capacity, kv_heads
        self.flat = self.data.flatten(1, 2)
        self.offset = torch.arange(rows, device=device)[:, None] * capacity

    def index(self, slots: Tensor) -> Tensor:
        """``[B,m]`` slots -> flat indices of :attr:`flat`, made once a forward."""
        return (slots + self.offset).flatten()

    def keep(self, base: Tensor, path: Tensor, layers: int | None = None) -> None:
        """Move the entries of the accepted path's nodes to the slots of their positions; of the first ``layers``, default all.

        ``base [B]`` is the root's slot, ``path [B,D+1]`` node indices. What lies past the accepted part is copied too:
        those slots are beyond the new pending token and are written again before anything sees them.
        """
        source = self.index(base[:, None] + path)
        target = self.index(base[:, None] + torch.arange(path.shape[1], device=path.device))
        flat = self.flat[:layers]
        flat.index_copy_(1, target, flat.index_select(1, source))
