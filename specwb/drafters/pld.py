"""Prompt lookup decoding: proposes the tokens that followed the last few tokens earlier in the
text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor
from torch.nn import functional as F

from specwb.core.flow import Draft, State
from specwb.core.noise import Noise
from specwb.core.options import Option
from specwb.core.tree import MOST, Tree
from specwb.drafters.base import Drafter, Entry, Preset, chain
from specwb.models.target import Target


def agreement(text: Tensor, length: Tensor, ngram: int) -> Tensor:
    """The number of tokens, at most ``ngram``, that agree backwards from each place s and from the
    end of the text: the largest n with ``text[s-n:s] == text[length-n:length]``, 0 for s >= length.

    Returns ``[B,T]``, for ``text [B,T]`` of ids >= 0 and ``length [B]``.
    """
    last = length[:, None] + torch.arange(-ngram, 0, device=text.device)
    suffix = text.gather(1, last.clamp_min(0))
    # window s is text[s-ngram:s]; before the text stands -1, which no token equals
    windows = F.pad(text, (ngram, 0), value=-1).unfold(1, ngram, 1)[:, : text.shape[1]]
    matched = (windows == suffix[:, None]).flip(-1).cumprod(-1, dtype=torch.uint8).sum(-1)
    beyond = torch.arange(text.shape[1], device=text.device) >= length[:, None]
    return matched.masked_fill(beyond, 0)


def lookup(text: Tensor, length: Tensor, ngram: int) -> tuple[Tensor, Tensor]:
    """The first occurrence of the longest of the last n-grams: of n = ngram..1 the largest n for
    which ``text[s-n:s] == text[length-n:length]`` for an s < length, and of those s the smallest.

    Returns ``s [B]``, the position of the first token that followed, and ``n [B]``, 0 where there
    is none, for ``text [B,T]`` of ids >= 0 and ``length [B]``.
    """
    longest, start = agreement(text, length, ngram).max(1)  # the first of equals
    return start, longest


class PromptLookup(Drafter):
    """Proposes up to ``gamma`` tokens that followed the first earlier occurrence of the last n
    tokens of the text, n = ngram..1.

    The first n with an occurrence that at least one token follows decides; the proposal is a chain,
    cut where the text ends. Without a match the step is one of plain decoding. The candidates are a
    function of the text alone (point masses), so the result is greedy decoding at T = 0 and exact
    sampling at T > 0. A step is one comparison of all positions with the last ``ngram`` tokens, for
    all rows together.

    A draft is cut to the longest proposal of the step (one host read); where steps are recorded, to
    nothing or not at all.

    Source: Saxena, "Prompt Lookup Decoding" (2023, github.com/apoorvumang/prompt-lookup-decoding).
    Differs from the published code in: the code requires a full continuation of ``gamma`` tokens,
    and otherwise tries the next occurrence and then a shorter n-gram. Here shorter continuations
    are proposed too, as by the transformers library's ``PromptLookupCandidateGenerator``. The
    library also cuts candidates before an end of text token; here the engine trims what is
    accepted, with the same result.
    """

    host_reads = 1
    captured = True
    staged = True
    least = 1  # tokens that have to agree

    def __init__(self, gamma: int = 10, ngram: int = 3) -> None:
        self.gamma, self.ngram = gamma, ngram
        self.tree = Tree.chain(gamma)

    def open(self, state: State, target: Target) -> None:
        self.tree = self.tree.to(target.device)

    def propose(self, state: State, noise: Noise) -> Draft:
        tokens, valid, longest = state.stage("lookup", lambda: self._copied(state))
        length = self.largest(state, longest, self.gamma)
        if state.static and length:  # a graph for every length is more than reading it saves
            length = self.gamma
        tree = self.tree if length == self.gamma else chain(length, self.tree.device)

        def draft() -> Draft:
            return self.candidates(state, tokens[:, :length], valid[:, :length], tree)

        return state.stage(("draft", length), draft)

    def _copied(self, state: State) -> tuple[Tensor, Tensor, Tensor]:
        """The proposed tokens and which of them there are, each ``[B,gamma]``, and the number of
        tokens of the longest proposal."""
        start, matched = lookup(state.tokens[:, : state.horizon], state.length, self.ngram)
        at = start[:, None] + torch.arange(self.gamma, device=start.device)
        valid = ((matched > 0) & ~state.done)[:, None] & (at < state.length[:, None])
        tokens = state.tokens.gather(1, at.clamp_max(state.capacity - 1))
        return tokens, valid, valid.sum(1).max()


@dataclass(frozen=True)
class Options:
    gamma: Annotated[int, Option("draft tokens per step, at most", low=1)] = 10
    ngram: Annotated[
        int,
        Option("length of the suffix that is looked up; shorter without a match", low=1, high=MOST),
    ] = 3


def pld(target: Target, options: Options) -> Drafter:
    """Prompt lookup: what followed the same last tokens earlier in the text is the draft. It costs
    next to nothing, and pays where an answer repeats its question: edits, summaries, code.

    The draft is of at most ``gamma`` tokens, and the last ``ngram`` tokens or fewer are compared.
    """
    return PromptLookup(options.gamma, options.ngram)


ENTRY = Entry(
    "pld",
    pld,
    Options,
    paper="Saxena 2023",
    presets={"published": Preset({"gamma": 10, "ngram": 3}, "the code and Spec-Bench's script")},
    bibtex="""@misc{saxena2023prompt,
  title={Prompt Lookup Decoding}, author={Saxena, Apoorv}, year={2023}, \
url={https://github.com/apoorvumang/prompt-lookup-decoding}}""",
)
