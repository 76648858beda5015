"""Key/value storage without a length: slot = position, and node i of a draft lies at slot
length - 1 + i."""

from __future__ import annotations

import torch
from torch import Tensor


class KVCache:
    """The keys and values of several layers and rows. A slot is written before it is read, and the
    storage never grows.

    Args:
        layers: how many layers it has.
        rows: how many texts (B).
        capacity: how many slots a text has (T).
        kv_heads: key heads of a layer, as many as its value heads.
        head_dim: the size of a head.
        dtype: number type.
        device: device.

    Attributes:
        data: keys, then values of every slot: ``[layers, B, T, 2 * kv_heads, head_dim]``.
        flat: the same memory with rows and slots in one dimension.
        offset: ``[B, 1]``, where each row begins in that dimension.
    """

    def __init__(
        self,
        layers: int,
        rows: int,
        capacity: int,
        kv_heads: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        shape = (layers, rows, capacity, 2 * kv_heads, head_dim)
        self.data = torch.zeros(*shape, dtype=dtype, device=device)
        self.rows, self.capacity, self.kv_heads = rows, capacity, kv_heads
        self.flat = self.data.flatten(1, 2)
        self.offset = torch.arange(rows, device=device)[:, None] * capacity

    def index(self, slots: Tensor) -> Tensor:
        """Flat indices ``[B * m]`` into :attr:`flat` of slots ``[B,m]``; made once a forward."""
        return (slots + self.offset).flatten()

    def keep(self, base: Tensor, path: Tensor, layers: int | None = None) -> None:
        """Moves the entries of the accepted path's nodes to the slots of their positions.

        What lies past the accepted part is copied too: those slots are beyond the new pending token
        and are written again before anything sees them.

        Args:
            base: the root's slot, ``[B]``.
            path: node indices, ``[B,D+1]``.
            layers: how many layers, from the first on; default all.
        """
        source = self.index(base[:, None] + path)
        target = self.index(base[:, None] + torch.arange(path.shape[1], device=path.device))
        flat = self.flat[:layers]
        flat.index_copy_(1, target, flat.index_select(1, source))
