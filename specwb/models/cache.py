"""Key/value storage without a length: slot = position, and node i of a draft lies at slot
length - 1 + i."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from specwb.models.device import check_room
from specwb.models.layers import MOST_PARTS, processors

EQUAL = 8 * MOST_PARTS
"""A text's slots on a GPU are a multiple of this."""


class KVCache:
    """The keys and values of several layers and rows. A slot is written before it is read, and the
    storage never grows: it has as many slots as a decoding's longest text may need, its prompt,
    ``max_new_tokens`` and a draft, whatever the model's context is.

    Attributes:
        data: keys, then values of every slot: ``[layers, B, T, 2 * kv_heads, head_dim]``.
        flat: the same memory with rows and slots in one dimension.
        offset: ``[B, 1]``, where each row begins in that dimension.
        parts: the caches of the devices that it lies on; this one alone.

    Raises:
        MemoryShortage: the device has not so much memory free.
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
        if rows == 1 and processors(device, dtype):  # keys are attended to in equal parts
            capacity += -capacity % EQUAL
        shape = (layers, rows, capacity, 2 * kv_heads, head_dim)
        check_room(shape, dtype, device)
        self.data = torch.zeros(*shape, dtype=dtype, device=device)
        self.rows, self.capacity, self.kv_heads = rows, capacity, kv_heads
        self.flat = self.data.flatten(1, 2)
        self.offset = torch.arange(rows, device=device)[:, None] * capacity

    @property
    def parts(self) -> Sequence[KVCache]:
        return (self,)

    def layer(self, i: int) -> tuple[KVCache, int]:
        """The cache that holds layer i, and the layer's number there."""
        return self, i

    def index(self, slots: Tensor) -> Tensor:
        """Flat indices ``[B * m]`` into :attr:`flat` of slots ``[B,m]``; made once a forward."""
        return (slots + self.offset).flatten()

    def keep_rows(self, rows: Tensor) -> None:
        """Drops all rows but these."""
        for part in self.parts:
            part.data = part.data.index_select(1, rows.to(part.data.device))
            part.flat = part.data.flatten(1, 2)
            part.offset = part.offset[: len(rows)]
            part.rows = len(rows)
        self.rows = len(rows)

    def keep(self, base: Tensor, path: Tensor, layers: int | None = None) -> None:
        """Moves the entries of the accepted path's nodes (``path [B,D+1]``, below the roots' slots
        ``base [B]``) to the slots of their positions, in the first ``layers`` layers.

        What lies past the accepted part is copied too: those slots are beyond the new pending token
        and are written again before anything sees them."""
        source = self.index(base[:, None] + path)
        target = self.index(base[:, None] + torch.arange(path.shape[1], device=path.device))
        flat = self.flat[:layers]
        flat.index_copy_(1, target, flat.index_select(1, source))


class SpreadCache(KVCache):
    """A cache whose layers lie on several devices, each where its layer computes."""

    def __init__(
        self,
        rows: int,
        capacity: int,
        kv_heads: int,
        head_dim: int,
        dtype: torch.dtype,
        devices: Sequence[torch.device],
    ) -> None:
        self.rows, self.capacity, self.kv_heads = rows, capacity, kv_heads
        places = list(dict.fromkeys(devices))
        self._parts = [
            KVCache(devices.count(place), rows, capacity, kv_heads, head_dim, dtype, place)
            for place in places
        ]
        self._layers = [
            (self._parts[places.index(place)], devices[:i].count(place))
            for i, place in enumerate(devices)
        ]

    @property
    def parts(self) -> Sequence[KVCache]:
        return self._parts

    def layer(self, i: int) -> tuple[KVCache, int]:
        return self._layers[i]

    def index(self, slots: Tensor) -> Tensor:
        raise NotImplementedError("slots are indexed on each device: see parts")

    def keep(self, base: Tensor, path: Tensor, layers: int | None = None) -> None:
        for part in self._parts:
            device = part.data.device
            part.keep(base.to(device), path.to(device))
