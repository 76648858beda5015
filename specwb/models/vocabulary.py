"""A draft model whose vocabulary has the target's tokens, but another number of rows.

Published models of one family pad their embeddings to different sizes (Qwen2.5-0.5B to 151,936
rows, Qwen2.5-7B to 152,064, of a tokenizer of some 151,700). No text has the rows behind the
tokenizer's last token, and the draft model's q gives those that only one of them has probability 0.
The target's distribution stays what it is.
"""

from __future__ import annotations

import copy
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn import functional as F

from specwb.models.backbone import Backbone
from specwb.models.target import Target


class Fitted:
    """A backbone that reads and writes the ids of another ``vocabulary``; the rest is its own."""

    def __init__(self, backbone: Any, vocabulary: int) -> None:
        self.backbone, self.vocabulary = backbone, vocabulary

    def __getattr__(self, name: str) -> Any:
        if name == "backbone":  # while it is copied it has none
            raise AttributeError(name)
        return getattr(self.backbone, name)

    def embed(self, ids: Tensor) -> Tensor:
        """Embeddings of the target's ids; the draft model's last row for one that it has not, which
        the target may write with whatever probability it gives its padding."""
        return self.backbone.embed(ids.clamp_max(self.backbone.vocabulary - 1))

    def head(self, hidden: Tensor) -> Tensor:
        """Logits ``[..., V]`` of the target's ids: minus infinity of those the draft has not."""
        logits = self.backbone.head(hidden)[..., : self.vocabulary]
        return F.pad(logits, (0, self.vocabulary - logits.shape[-1]), value=-torch.inf)


def is_padding(target: Target, draft: Target) -> bool:
    """Whether two vocabularies differ in rows that no token has: a tokenizer is known, and all ids
    of those that are known are ids of both models."""
    known = [t.get_vocab() for t in (target.tokenizer, draft.tokenizer) if t is not None]
    last = max((max(vocabulary.values()) for vocabulary in known), default=None)
    return last is not None and last < min(target.vocabulary, draft.vocabulary)


def fitted(draft: Target, vocabulary: int) -> Target:
    """The draft model in the terms of a target with so many ids; it shares everything else."""
    other = copy.copy(draft)
    other.backbone = cast(Backbone, Fitted(draft.backbone, vocabulary))
    return other
