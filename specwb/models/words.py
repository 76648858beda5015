"""Drafting among the words that a target writes most, where its vocabulary is large.

An output layer of 49,152 tokens is a fifth of what a model of 135 M parameters reads for one token,
and nearly all of what a head of one layer reads. The 8,192 tokens that such a model writes most are
nearly all that it writes. So a head may have *words*, the ids ``[d]`` of those that it drafts,
ascending. What is outside them has q = 0, and verification is exact as it stands. The rows of the
output layer are the target's, which a head shares and does not store.

Source: Zhao et al. 2025, "FR-Spec", arXiv 2502.14856; EAGLE-3's heads have had words before.
"""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from specwb.models.products import Int8, product, quantized

_rows: WeakKeyDictionary[nn.Module, dict[bytes, tuple[tuple, nn.Linear]]] = WeakKeyDictionary()


def rows_of(lm_head: nn.Linear, words: Tensor | None, in_int8: bool = False) -> nn.Linear:
    """An output layer for these words only, ``[d]`` ids; of None it is the layer itself.

    ``in_int8``: its rows are rounded to int8, as the matrices of a head are that is stored so.
    Drafters with the same words share one copy, which is made anew where the layer was changed."""
    if words is None:
        return lm_head
    parts = [x for x in (lm_head.weight, lm_head.bias) if x is not None]
    # numbers made in inference mode have no version
    versions = (None if x.is_inference() else x._version for x in parts)
    state = tuple((x.data_ptr(), v, x.dtype) for x, v in zip(parts, versions, strict=True))
    cached = _rows.setdefault(lm_head, {})
    key = words.cpu().numpy().tobytes() + bytes([in_int8])
    if key not in cached or cached[key][0] != state:
        with torch.no_grad(), torch.inference_mode(False):
            ids = words.to(lm_head.weight.device)
            weight, bias = lm_head.weight.detach()[ids], lm_head.bias
            form = Int8.of(*quantized(weight)) if in_int8 else None
            if form is not None:
                weight = form.numbers.to(weight.dtype)
            rows = nn.Linear(weight.shape[1], len(ids), bias is not None, device="meta")
            rows.weight = nn.Parameter(weight, requires_grad=False)
            rows.weight.int8 = form  # type: ignore[attr-defined]
            if bias is not None:
                rows.bias = nn.Parameter(bias.detach()[ids], requires_grad=False)
        cached[key] = state, rows
    return cached[key][1]


def spread(values: Tensor, words: Tensor | None, vocabulary: int, other: float) -> Tensor:
    """``[..,d] -> [..,V]``: the values of words at their tokens, ``other`` everywhere else."""
    if words is None:
        return values
    every = values.new_full((*values.shape[:-1], vocabulary), other)
    return every.index_copy_(-1, words, values)


class Worded:
    """A head that may draft some of the target's tokens only: ``words [d]``, ascending; None for
    all. ``card``: what was measured when it was trained, where that is known."""

    words: Tensor | None
    card: dict[str, Any]

    def size(self, target: Any) -> int:
        """How many tokens it drafts: its words, or the target's."""
        return target.vocabulary if self.words is None else len(self.words)

    def rows(self, lm_head: nn.Linear) -> nn.Linear:
        """The target's output layer for its words, in int8 where the head is stored so."""
        return rows_of(lm_head, self.words, self.card.get("store") == "int8")


class HeadOutput(Worded):
    """What heads say their words by: the target's output layer, its rows of the head's words, or a
    layer of its own (``lm_head``)."""

    lm_head: nn.Linear | None

    def output(self, lm_head: nn.Linear) -> nn.Linear:
        """The layer that reads :meth:`last`, ``[d,H]``; ``lm_head``: the target's."""
        return self.rows(lm_head) if self.lm_head is None else self.lm_head

    def last(self, hidden: Tensor) -> Tensor:
        """``[.., H]`` hidden states -> ``[.., H]`` what the output layer reads."""
        return hidden

    def logits(self, hidden: Tensor, output: nn.Linear) -> Tensor:
        """``[.., H]`` hidden states -> ``[.., d]``, over the words, by the layer :meth:`output`."""
        return product(self.last(hidden), output.weight, output.bias)
