"""Suffix decoding: copies what followed most often where the text had the same last tokens before,
for as long as enough of those places agree."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor
from torch.nn import functional as F

from specwb.core.flow import State
from specwb.core.options import Option
from specwb.core.tree import MOST
from specwb.drafters.base import Drafter, Entry
from specwb.drafters.pld import PromptLookup, agreement
from specwb.models.target import Target


class SuffixDecoding(PromptLookup):
    """Proposes a chain of up to ``gamma`` tokens by a vote of all earlier places of the text that
    had its last token.

    Place s agrees with the end of the text for ``m_s`` tokens, at most ``ngram``. After j drafted
    tokens, the places with ``m_s > 0`` that were followed by exactly these tokens vote, each for
    its next token with the weight ``m_s + j``, the number of tokens by which it agrees by now. The
    token x with the largest sum ``W_x`` is drafted; of equals, that of the latest place. The chain
    ends before the token at which its estimated probability of being accepted, the product of

        W_x / (W + 1),  W the sum of all weights,

    falls below ``confidence``: sooner where places are few, short or of different opinions. A place
    alone with m tokens gives ``m / (m + j)`` for j tokens, so one that agrees twice as far is
    copied twice as far. Without a place the step is one of plain decoding.

    The candidates are a function of the text alone (point masses), so the result is greedy decoding
    at T = 0 and exact sampling at T > 0. A step compares all positions of the T tokens of a text
    with its last ``ngram``, which takes T x ngram operations, and each draft token takes about ten
    operations of T numbers. At the lengths of a model's context this is little next to the target's
    forward pass, so there is no suffix tree or automaton to be kept up to date. Steps that are not
    recorded end the vote once no row goes on (a host read per token); a draft is cut as prompt
    lookup's.

    Source: Oliaro et al., "SuffixDecoding: Extreme Speculative Decoding for Emerging AI
    Applications" (NeurIPS 2025, arXiv 2411.04975); Hu et al., "SAM Decoding: Speculative Decoding
    via Suffix Automaton" (arXiv 2411.10666).
    Differs from the papers in: the text is the prompt and its answer, without a store of earlier
    answers. SuffixDecoding drafts from the places of one match length at a time and chooses the
    length with the best score; here all take part, and a longer match weighs more. Its limit of
    ``alpha m`` draft tokens and its threshold on a token's share are the one threshold here. It
    drafts trees, this a chain, as SAM Decoding, which copies from one place of the longest match.
    """

    def __init__(self, gamma: int = 16, ngram: int = 8, confidence: float = 0.15) -> None:
        super().__init__(gamma, ngram)
        self.host_reads = gamma + 1
        self.confidence = confidence

    def open(self, state: State, target: Target) -> None:
        super().open(state, target)
        self.vocabulary = target.vocabulary

    def _copied(self, state: State) -> tuple[Tensor, Tensor, Tensor]:
        text = state.tokens[:, : state.horizon]
        rows, size = text.shape
        place = torch.arange(size, device=text.device)
        weight = agreement(text, state.length, self.ngram)  # 0 for a place that does not vote
        following = F.pad(text, (0, self.gamma))
        # only the entries of tokens that are voted for are cleared and read
        votes = text.new_empty(rows, self.vocabulary)
        survival = torch.ones(rows, 1, dtype=torch.float64, device=text.device)
        tokens = text.new_zeros(rows, self.gamma)
        valid = torch.zeros_like(tokens, dtype=torch.bool)
        for j in range(self.gamma):
            upcoming = following[:, j : j + size]
            weight = weight * (place + j < state.length[:, None])
            votes.scatter_(1, upcoming, 0).scatter_add_(1, upcoming, weight)
            total = votes.gather(1, upcoming)
            # integers in the order of (total, place); 0 where nothing votes
            order = (total * size + place).masked_fill(weight == 0, 0)
            best = order.argmax(1, keepdim=True)
            survival = survival * total.gather(1, best) / (weight.sum(1, keepdim=True) + 1)
            token = upcoming.gather(1, best)
            weight = (weight + 1) * ((upcoming == token) & (weight > 0))
            tokens[:, j] = token[:, 0]
            valid[:, j] = (survival[:, 0] >= self.confidence) & ~state.done
            if not state.static and not valid[:, j].any():
                break
        return tokens, valid, valid.sum(1).max()


@dataclass(frozen=True)
class Options:
    gamma: Annotated[int, Option("draft tokens per step, at most", low=1, high=MOST)] = 16
    ngram: Annotated[
        int, Option("number of last tokens that are compared, at most", low=1, high=MOST)
    ] = 8
    confidence: Annotated[
        float,
        Option(
            "stop drafting before the estimated probability that all draft tokens are accepted "
            "falls below this",
            within="(0, 1)",
        ),
    ] = 0.15


def suffix(target: Target, options: Options) -> Drafter:
    """Suffix decoding: what most often followed the same last tokens earlier in the text, longer
    matches counting more, is the draft. Like prompt lookup it costs next to nothing, and it
    drafts less where the text gives little reason to.

    The draft is of at most ``gamma`` tokens, and ends where the estimated probability that all are
    accepted falls below ``confidence``.
    """
    return SuffixDecoding(options.gamma, options.ngram, options.confidence)


ENTRY = Entry(
    "suffix",
    suffix,
    Options,
    paper="Oliaro et al. 2025, arXiv 2411.04975",
    bibtex="""@inproceedings{oliaro2025suffixdecoding,
  title={{SuffixDecoding}: Extreme Speculative Decoding for Emerging {AI} Applications},
  author={Oliaro, Gabriele and Jia, Zhihao and Campos, Daniel and Qiao, Aurick},
  booktitle={NeurIPS}, year={2025}, url={https://arxiv.org/abs/2411.04975}}""",
)
