"""Drafting for a target whose vocabulary is not the draft model's.

**The same tokens, more rows or fewer.** Published models of one family pad their embeddings to
different sizes (Qwen2.5-0.5B to 151,936 rows, Qwen2.5-7B to 152,064, of a tokenizer of some
151,700). No text has the rows behind the tokenizer's last token, and the draft model's q gives
those that only one of them has probability 0. The target's distribution stays what it is.

**Other tokens.** :func:`shared` drafts among the tokens that both tokenizers have, those that stand
for the same bytes: q is the draft model's distribution given that its token is one of them, so the
verification is lossless as it stands. The text is read by the draft model token for token; a
token of the target's that it has not enters as the mean of the embeddings of its pieces.

Source: Timor et al., "Accelerating LLM Inference with Lossless Speculative Decoding Algorithms for
Heterogeneous Vocabularies" (2025), arXiv 2502.05202, algorithm 4 (token-level intersection).
Differs from it in: the text keeps the target's parting into tokens, where the paper's code writes
it in the draft model's.
"""

from __future__ import annotations

import copy
import re
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn import functional as F

from specwb.models.backbone import Backbone
from specwb.models.folder import LoadError
from specwb.models.target import Target

WAYS = ("same", "shared", "text")
"""How a draft model's tokens become the target's: they are the same, those that both have are
drafted, or text is (:mod:`specwb.drafters.round_trip`)."""
PIECES = 4  # of a token that the draft model has not, how many are read

_BYTE = re.compile(r"<0x([0-9A-F]{2})>")


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


class Shared(Fitted):
    """A backbone that reads all ids of a target with another tokenizer, and writes those whose
    token it has too.

    ``ids [V]``: the draft model's id of every target id, -1 where it has none; ``pieces [V,
    PIECES]``: the ids that are read in a target id's place; ``share``: the weight of each in the
    mean of their embeddings."""

    def __init__(self, backbone: Any, ids: Tensor, pieces: Tensor, share: Tensor) -> None:
        super().__init__(backbone, len(ids))
        self.unknown, self.ids = ids < 0, ids.clamp_min(0)
        self.pieces, self.share = pieces, share

    def embed(self, ids: Tensor) -> Tensor:
        pieces = self.backbone.embed(self.pieces[ids].flatten(-2)).unflatten(-2, (-1, PIECES))
        return (pieces * self.share[ids][..., None]).sum(-2)

    def head(self, hidden: Tensor) -> Tensor:
        logits = self.backbone.head(hidden).index_select(-1, self.ids)
        return logits.masked_fill(self.unknown, -torch.inf)


def token_bytes(tokenizer: Any) -> dict[int, bytes | str]:
    """What every id of a tokenizer stands for: bytes; of a special token its part (``bos``,
    ``eos``) or its name."""
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    vocabulary = tokenizer.get_vocab()
    parts = {getattr(tokenizer, f"{part}_token_id", None): part for part in ("bos", "eos")}
    special = {*getattr(tokenizer, "all_special_ids", ()), *parts}
    marks = [sum(token.startswith(mark) for token in vocabulary) for mark in "Ġ▁"]
    of_characters = {c: b for b, c in bytes_to_unicode().items()} if marks[0] > marks[1] else {}
    meaning: dict[int, bytes | str] = {}
    for token, i in vocabulary.items():
        one = _BYTE.fullmatch(token)
        if i in special:
            meaning[i] = parts.get(i, token)
        elif of_characters and all(c in of_characters for c in token):
            meaning[i] = bytes(of_characters[c] for c in token)
        elif one is not None and not of_characters:
            meaning[i] = bytes([int(one[1], 16)])
        else:
            meaning[i] = token.replace("▁", " ").encode()
    return meaning


def shared_tokens(ours: Any, theirs: Any) -> dict[int, int]:
    """The ids of a tokenizer whose token another one has too, with the other's id of it."""
    ids: dict[bytes | str, int] = {}
    for i, token in sorted(token_bytes(theirs).items(), reverse=True):
        ids[token] = i  # a byte and a character may be the same: the lower id stays
    return {i: ids[token] for i, token in token_bytes(ours).items() if token in ids}


def check_tokenizers(target: Target, tokenizer: Any, name: str) -> None:
    for model, known in ((target.name, target.tokenizer), (name, tokenizer)):
        if known is None:
            raise LoadError(
                f"draft_vocabulary: {target.name!r} and {name!r} must both have a tokenizer, and "
                f"that of {model!r} is not known; give it by specwb.load(.., tokenizer=..), that "
                "of specwb.hf's model by specwb.hf(.., tokenizer=..)"
            )


def check_shared(target: Target, tokenizer: Any, name: str) -> dict[int, int]:
    """:func:`shared_tokens` of a target's tokenizer and a draft model's, which must have some."""
    check_tokenizers(target, tokenizer, name)
    ids = shared_tokens(target.tokenizer, tokenizer)
    meaning = token_bytes(target.tokenizer)
    if not any(isinstance(meaning[i], bytes) for i in ids):
        raise LoadError(
            f"draft_vocabulary=shared: the tokenizers of {target.name!r} and {name!r} have no "
            "token in common; draft_vocabulary=text goes through the text"
        )
    return ids


def shared(draft: Target, target: Target) -> Target:
    """The draft model in the terms of a target with another tokenizer; it shares everything
    else."""
    known = check_shared(target, draft.tokenizer, draft.name)
    size, device = target.vocabulary, draft.device
    ids = torch.full((size,), -1)
    pieces, share = torch.zeros(size, PIECES, dtype=torch.long), torch.zeros(size, PIECES)
    share[:, 0] = 1.0
    for i, other in known.items():
        if i < size and other < draft.vocabulary:
            ids[i] = pieces[i, 0] = other
    others = {
        i: token.decode(errors="ignore")
        for i, token in token_bytes(target.tokenizer).items()
        if i < size and ids[i] < 0 and isinstance(token, bytes)
    }
    texts = list(others.values())
    read = draft.tokenizer(texts, add_special_tokens=False)["input_ids"] if texts else []
    for i, whole in zip(others, read, strict=True):
        for place, piece in enumerate(whole[-PIECES:]):
            pieces[i, place], share[i, place] = piece, 1 / min(len(whole), PIECES)
    fitting = copy.copy(draft)
    tables = ids.to(device), pieces.to(device), share.to(device, draft.dtype)
    fitting.backbone = cast(Backbone, Shared(draft.backbone, *tables))
    fitting.tokenizer = target.tokenizer
    return fitting
