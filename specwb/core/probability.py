"""From logits to the probabilities that tokens are sampled from, and sampling by inverse CDF."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from transformers import (
    LogitsProcessorList,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from specwb.core.errors import ArgumentError
from specwb.core.inputs import as_int, real

COLDEST = 1e-4
"""The smallest temperature that is not greedy decoding. Below it a softmax shows rounding, not the
model: two ways to compute one logit in float32 differ by about 1e-5, which moves a log-probability
by 1e-5 / T, more than a tenth."""


@dataclass(frozen=True)
class Sampling:
    """Temperature, top-k and top-p, applied in this order by the transformers library's warpers.

    Numbers of numpy and torch are taken and turned into Python's.

    Args:
        temperature: 0 is greedy decoding, and so is anything below :data:`COLDEST` (1e-4), which
            becomes 0: clients send 1e-6 or 1e-9 for "greedy".
        top_k: 0 switches the filter off. The library's own generation default of 50 never applies
            here.
        top_p: 1 switches the filter off.
        exact_text: at T > 0 the next token is ``argmax over x of log p(x) + G(x)``, with Gumbel
            noise G that belongs to the place of the text (:meth:`specwb.core.noise.Noise.gumbel`);
            nothing is drawn. At T = 0 it changes nothing, and becomes False.

    Raises:
        ArgumentError: temperature < 0, top_k < 0, top_p outside (0, 1], or something that is no
            number (a text, a bool, NaN); exact_text is no bool.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    exact_text: bool = False

    def __post_init__(self) -> None:
        for name, value in (
            ("temperature", real("temperature", self.temperature)),
            ("top_k", as_int(self.top_k)),
            ("top_p", real("top_p", self.top_p)),
        ):
            if value is not None:
                object.__setattr__(self, name, value)  # the class is frozen
        if not (self.temperature >= 0 and self.temperature < float("inf")):
            raise ArgumentError(f"temperature must be >= 0 and finite, got {self.temperature}")
        if self.temperature < COLDEST:
            object.__setattr__(self, "temperature", 0.0)
        if type(self.top_k) is not int or self.top_k < 0:
            raise ArgumentError(f"top_k must be an integer >= 0 (0 = off), got {self.top_k!r}")
        if not 0 < self.top_p <= 1:
            raise ArgumentError(f"top_p must be in (0, 1], got {self.top_p}")
        if not isinstance(self.exact_text, bool):
            raise ArgumentError(f"exact_text must be True or False, got {self.exact_text!r}")
        if self.temperature == 0:
            object.__setattr__(self, "exact_text", False)

    @property
    def greedy(self) -> bool:
        """Whether the next token is an argmax: at T = 0, or of perturbed logits."""
        return self.temperature == 0 or self.exact_text

    @property
    def for_confidence(self) -> Sampling:
        """The settings that a model's confidence is read under.

        They are these settings, or plain sampling at T = 1 where these are greedy (of logits that
        are perturbed it is a confidence in their argmax).
        """
        return Sampling(1.0) if self.greedy else self

    @cached_property
    def _warpers(self) -> LogitsProcessorList:
        warpers = LogitsProcessorList()
        if self.temperature not in (0.0, 1.0):
            warpers.append(TemperatureLogitsWarper(float(self.temperature)))
        if self.top_k:
            warpers.append(TopKLogitsWarper(self.top_k))
        if self.top_p < 1:
            warpers.append(TopP(float(self.top_p)))
        return warpers

    def probabilities(self, logits: Tensor) -> Tensor:
        """Turns logits into the probabilities that tokens are sampled from.

        Greedy settings give a one-hot row, at the lowest of the tokens with the highest logit.

        Args:
            logits: ``[..., V]``.

        Returns:
            ``[..., V]``, float32; logits in float64 give float64.
        """
        if self.greedy:
            x = logits if logits.dtype == torch.float64 else logits.float()
            return torch.zeros_like(x).scatter_(-1, most_probable(x)[..., None], 1.0)
        return self.warped(logits).softmax(-1)

    def warped(self, logits: Tensor) -> Tensor:
        """Logits ``[..., V]`` after temperature and filters, float32 or float64; what is filtered
        out is -inf."""
        x = logits if logits.dtype == torch.float64 else logits.float()
        if not len(self._warpers):
            return x
        ids: Any = None  # these warpers look at the scores only
        return self._warpers(ids, x.reshape(-1, x.shape[-1])).view(x.shape)


class TopP(TopPLogitsWarper):
    """The library's filter. On a CPU the ``HEAD`` most probable tokens are looked at first: to sort
    all of a large vocabulary takes some twenty times as long. Rows whose head has too little
    probability are sorted."""

    HEAD = 512

    def __call__(self, input_ids: Any, scores: Tensor) -> Tensor:
        if not scores.is_cpu or scores.shape[-1] < WIDE:
            return super().__call__(input_ids, scores)
        best = scores.topk(self.HEAD)
        p = (best.values - scores.logsumexp(-1, keepdim=True)).exp()
        mass = p.cumsum(-1)
        kept = best.values.masked_fill(mass - p >= self.top_p, self.filter_value)
        filtered = torch.full_like(scores, self.filter_value).scatter_(-1, best.indices, kept)
        flat = ~(mass[:, -1] >= self.top_p)  # of NaN too
        if flat.any():
            filtered[flat] = super().__call__(input_ids, scores[flat])
        return filtered


BLOCK = 128  # tokens that are looked at together
WIDE = 16384  # the vocabulary from which looking at blocks first pays


def most_probable(logits: Tensor) -> Tensor:
    """``[..., V] -> [...]``: the token with the highest logit, the lowest index on ties.

    On a CPU torch's ``argmax`` takes longer than its ``max``, both do in half precision, and both
    take many times as long as ``amax``, by which the block with the highest logit is found first.
    """
    if not logits.is_cpu:
        return logits.max(-1).indices
    logits = logits.float() if logits.dtype in (torch.bfloat16, torch.float16) else logits
    width = logits.shape[-1]
    if width < WIDE or width % BLOCK:
        return logits.max(-1).indices
    blocks = logits.unflatten(-1, (-1, BLOCK))
    block = blocks.amax(-1).max(-1, keepdim=True).indices
    best = blocks.gather(-2, block[..., None].expand(*block.shape, BLOCK)).squeeze(-2)
    return (block * BLOCK).squeeze(-1) + best.max(-1).indices


def inverse_cdf(p: Tensor, u: Tensor) -> Tensor:
    """Draws one token ``[...]`` from each row of ``p [..., V]`` with ``u [...]`` in (0, 1): the
    first x with ``cumsum(p)[x] > u * sum(p)``; a row need not sum to 1.

    So a token of probability 0 is never drawn while sum(p) > 0. Wide rows are summed by blocks
    first, and only the block that u falls into is cumulated.
    """
    width = p.shape[-1]
    if width >= WIDE and width % BLOCK == 0:
        return _inverse_cdf_by_blocks(p, u)
    cdf = p.cumsum(-1, dtype=torch.float64)
    return _first_above(cdf, u.unsqueeze(-1) * cdf[..., -1:])


def _inverse_cdf_by_blocks(p: Tensor, u: Tensor) -> Tensor:
    """:func:`inverse_cdf` where the vocabulary is a multiple of ``BLOCK``."""
    blocks = p.unflatten(-1, (-1, BLOCK))
    sums = blocks.sum(-1)
    cdf = sums.cumsum(-1, dtype=torch.float64)
    point = (u * cdf[..., -1]).unsqueeze(-1)
    block = torch.searchsorted(cdf, point, right=True).clamp_(max=sums.shape[-1] - 1)
    mass_before = cdf.gather(-1, block) - sums.gather(-1, block)
    chosen = block.unsqueeze(-1).expand(*block.shape, BLOCK)
    inside = blocks.gather(-2, chosen).squeeze(-2)
    # sums and cumulations differ in the last bits; below 0 a token of probability 0 could be drawn
    rest = (point - mass_before).clamp_min_(0)
    return block.squeeze(-1) * BLOCK + _first_above(inside.cumsum(-1, dtype=torch.float64), rest)


def _first_above(cdf: Tensor, point: Tensor) -> Tensor:
    """``[...]``, the first x with ``cdf[x] > point``; where there is none, the first x that has all
    the mass."""
    total = cdf[..., -1:]
    point = torch.minimum(point, torch.nextafter(total, torch.zeros_like(total)))
    return torch.searchsorted(cdf, point, right=True).squeeze(-1).clamp_(max=cdf.shape[-1] - 1)


def draw_without_replacement(q: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
    """Draws K tokens from each row of ``q [..., V]`` with ``u [..., K]``, without replacement: each
    draw renormalises by the sum of what remains. Returns the tokens in order, and False for draws
    after the support of q had ended, both ``[..., K]``."""
    left = q.clone()
    tokens, ok = [], []
    for j in range(u.shape[-1]):
        x = inverse_cdf(left, u[..., j])
        ok.append(left.gather(-1, x.unsqueeze(-1)).squeeze(-1) > 0)
        left.scatter_(-1, x.unsqueeze(-1), 0.0)
        tokens.append(x)
    return torch.stack(tokens, -1), torch.stack(ok, -1)


def entropy(logq: Tensor) -> Tensor:
    """The entropy in nats, ``[...]``, of log-probabilities ``[..., V]``; a token without
    probability counts nothing."""
    return -(logq.exp() * logq.clamp_min(torch.finfo(logq.dtype).min)).sum(-1)
