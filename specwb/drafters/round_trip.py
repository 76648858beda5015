"""Drafting through the text, with a draft model of any tokenizer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from specwb.drafters.base import Drafter, chain
from specwb.flow import Draft, State
from specwb.mask import causal_mask
from specwb.models.cache import KVCache
from specwb.models.load import check_device
from specwb.models.place import Place
from specwb.models.target import Target
from specwb.noise import Noise
from specwb.probability import most_probable
from specwb.tree import Tree

TAIL = 8  # tokens before the draft that are read with it: where a word began decides its tokens


class RoundTrip(Drafter):
    """A chain that a draft model with another tokenizer writes as text.

    In every step the text is decoded, tokenized by the draft model's tokenizer and continued
    greedily by ``gamma`` of its tokens. The target's tokenizer tokenizes the continuation, and its
    tokens, at most gamma, are the draft: point masses, lossless whatever the draft model is. The
    cache keeps what the old and the new tokens of the text have in common. A step decodes and
    encodes the whole text on the host.

    Source: universal assisted generation of the transformers library; Timor et al. 2025, arXiv
    2502.05202, algorithm 2 (string-level exact match). Differs from it in: the draft model is
    greedy at every temperature.
    """

    host_reads = 3
    draft_vocabulary = "text"

    def __init__(self, draft: Target, gamma: int) -> None:
        self.draft, self.backbone, self.gamma = draft, draft.backbone, gamma
        self.tree = Tree.chain(gamma)

    def open(self, state: State, target: Target) -> None:
        check_device(target, self.draft)
        self.tokenizer = target.tokenizer
        self.read: list[list[int]] = [[] for _ in range(state.rows)]  # what the cache holds
        self.store = self.backbone.cache(state.rows, 2 * state.capacity)

    def exact_until(self, before: Tensor, length: Tensor) -> Tensor:
        """None: its slots are not positions of the text."""
        return torch.zeros_like(length)

    def propose(self, state: State, noise: Noise) -> Draft:
        lengths, table = state.length.tolist(), state.tokens.tolist()
        texts = [row[:n] for row, n in zip(table, lengths, strict=True)]
        said = self._continued([_text(self.tokenizer, ids) for ids in texts])
        drafts = [
            self._tokens(ids, more)[: self.gamma] for ids, more in zip(texts, said, strict=True)
        ]
        tree = chain(max(1, *map(len, drafts)))
        padded = torch.zeros(state.rows, tree.D, dtype=torch.long)
        valid = torch.zeros(state.rows, tree.D, dtype=torch.bool)
        for row, ids in enumerate(drafts):
            padded[row, : len(ids)] = torch.tensor(ids, dtype=torch.long)
            valid[row, : len(ids)] = True
        device = state.tokens.device
        return self.candidates(state, padded.to(device), valid.to(device), tree)

    def _continued(self, texts: list[str]) -> list[str]:
        """What the draft model writes behind each text."""
        own = self.draft.tokenizer
        rows = [list(own(text, verbose=False)["input_ids"]) for text in texts]
        full = [len(ids) == 0 or len(ids) + self.gamma > self.draft.context for ids in rows]
        rows = [[0] if no else ids for ids, no in zip(rows, full, strict=True)]
        # at least the last token is fed, for what comes after it
        shared = [
            min(common(ids, old), len(ids) - 1) for ids, old in zip(rows, self.read, strict=True)
        ]
        width = max(len(ids) - p for ids, p in zip(rows, shared, strict=True))
        extent = max(max(shared) + width, max(map(len, rows)) + self.gamma)
        self._grow(extent)
        device = self.draft.device
        tokens = torch.zeros(len(rows), width, dtype=torch.long)
        for row, (ids, p) in enumerate(zip(rows, shared, strict=True)):
            tokens[row, : len(ids) - p] = torch.tensor(ids[p:])
        first = torch.tensor(shared, device=device)[:, None]
        ends = torch.tensor(list(map(len, rows)), device=device)[:, None]
        # what is fed past a row's end is written again before it is seen
        hidden = self._run(tokens.to(device), first + torch.arange(width, device=device), extent)
        last = (ends - 1 - first)[:, :, None].expand(-1, -1, hidden.shape[-1])
        hidden, drafted = hidden.gather(1, last), []
        for j in range(self.gamma):
            drafted.append(most_probable(self.backbone.head(hidden)))
            if j + 1 < self.gamma:
                hidden = self._run(drafted[-1], ends + j, extent)
        new = torch.cat(drafted, 1).tolist()
        self.read = [ids + more[:-1] for ids, more in zip(rows, new, strict=True)]
        return [
            "" if no else _added(own, ids, more)
            for ids, more, no in zip(rows, new, full, strict=True)
        ]

    def _run(self, tokens: Tensor, slots: Tensor, extent: int) -> Tensor:
        mask = causal_mask(slots, extent, self.backbone.dtype)
        positions = slots.clamp_max(self.draft.context - 1)  # of what is fed past a row's end
        place = Place(positions, slots, extent, mask)
        return self.backbone.run(self.backbone.embed(tokens), place, self.store)[0]

    def _grow(self, slots: int) -> None:
        """Makes room in the cache: how many of its tokens a text has is not known before."""
        old: KVCache = self.store
        if slots > old.capacity:
            self.store = self.backbone.cache(old.rows, 2 * slots)
            self.store.data[:, :, : old.capacity] = old.data

    def _tokens(self, ids: list[int], said: str) -> list[int]:
        """The target's tokens of what was said behind its text."""
        before = _decoded(self.tokenizer, ids[-TAIL:])
        if not said or before.endswith("\ufffd"):  # in the midst of a character
            return []
        head = self.tokenizer(before, add_special_tokens=False)["input_ids"]
        whole = self.tokenizer(before + said, add_special_tokens=False)["input_ids"]
        if whole[: len(head)] == head:
            return whole[len(head) :]
        return self.tokenizer(said, add_special_tokens=False)["input_ids"]


def _decoded(tokenizer: Any, ids: list[int]) -> str:
    return tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)


def _text(tokenizer: Any, ids: list[int]) -> str:
    """A text, without a last character that is not there in whole."""
    return _decoded(tokenizer, ids).rstrip("\ufffd")


def _added(tokenizer: Any, ids: list[int], more: list[int]) -> str:
    """What ``more`` tokens add to a text; nothing where they change what was there."""
    before, whole = _text(tokenizer, ids), _text(tokenizer, ids + more)
    return whole[len(before) :] if whole.startswith(before) else ""


def common(a: Sequence[int], b: Sequence[int]) -> int:
    """How many tokens both begin with."""
    pairs = enumerate(zip(a, b, strict=False))
    return next((i for i, (x, y) in pairs if x != y), min(len(a), len(b)))
