"""Where the tokens of one forward stand, and what they see."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from specwb.core.mask import causal_mask


@dataclass(frozen=True)
class Place:
    """Where the m tokens of one forward stand in each of B texts, and which slots of the cache they
    see. It is made once, and read by all layers.

    Attributes:
        positions: of the rotary embedding, ``[B,m]``.
        slots: where in a cache their keys and values go, ``[B,m]``.
        extent: slots below it are attended to.
        mask: additive, ``[B,m,extent]``; None: everything is seen.
        causal: plain causal attention over a fresh cache (extent == m), which needs no mask.
        computed: the tokens whose hidden states are wanted, as indices into ``[B m]``; None for
            all. The compiled pass computes no others: theirs are zero.
    """

    positions: Tensor
    slots: Tensor
    extent: int
    mask: Tensor | None = None
    causal: bool = False
    computed: Tensor | None = None

    @classmethod
    def text(cls, rows: int, m: int, device: torch.device | None = None) -> Place:
        """The first m tokens of every text, over a fresh cache."""
        positions = torch.arange(m, device=device).expand(rows, m)
        return cls(positions, positions, m, causal=True)

    @classmethod
    def behind(cls, positions: Tensor, extent: int, dtype: torch.dtype) -> Place:
        """Tokens at the slots of their ``positions [B,m]`` behind a text that was fed before: each
        sees what is before it, and itself."""
        return cls(positions, positions, extent, causal_mask(positions, extent, dtype))
