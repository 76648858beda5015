"""Suffix decoding: copies what followed most often where the text had the same last tokens before,
for as long as enough of those places agree."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import torch
from torch import Tensor
from torch.nn import functional as F

from specwb.core.files import home
from specwb.core.flow import State
from specwb.core.options import MethodError, Option
from specwb.core.tree import MOST
from specwb.drafters.base import Drafter, Entry
from specwb.drafters.pld import PromptLookup, agreement
from specwb.models.prompts import PromptError, token_rows
from specwb.models.target import Target

MOST_TOKENS = 200_000
"""Tokens of a pool, at most: every step compares all of them with the end of every row."""
MOST_BYTES = 32 * MOST_TOKENS
"""Bytes of a pool's file, at most; a longer one is not split into tokens."""


class SuffixDecoding(PromptLookup):
    """Proposes a chain of up to ``gamma`` tokens by a vote of all earlier places of the text that
    had its last token.

    A pool of tokens, the same for all rows, stands before the text: its places vote too.

    Place s agrees with the end of the text for ``m_s`` tokens, at most ``ngram``. After j drafted
    tokens, the places with ``m_s > 0`` that were followed by exactly these tokens vote, each for
    its next token with the weight ``m_s + j``, the number of tokens by which it agrees by now. The
    token x with the largest sum ``W_x`` is drafted; of equals, that of the latest place. The chain
    ends before the token at which its estimated probability of being accepted, the product of

        W_x / (W + 1),  W the sum of all weights,

    falls below ``confidence``: sooner where places are few, short or of different opinions. A place
    alone with m tokens gives ``m / (m + j)`` for j tokens, so one that agrees twice as far is
    copied twice as far. Without a place the step is one of plain decoding.

    The candidates are a function of pool and text alone (point masses), so the result is greedy
    decoding at T = 0 and exact sampling at T > 0. A step compares all positions of the T tokens of
    pool and text with the last ``ngram`` of the text, which takes T x ngram operations, and each
    draft token takes about ten operations of T numbers. At the lengths of a model's context this is
    little next to the target's forward pass, so there is no suffix tree or automaton to be kept up
    to date. Steps that are not recorded end the vote once no row goes on (a host read per token); a
    draft is cut as prompt lookup's.

    Source: Oliaro et al., "SuffixDecoding: Extreme Speculative Decoding for Emerging AI
    Applications" (NeurIPS 2025, arXiv 2411.04975); Hu et al., "SAM Decoding: Speculative Decoding
    via Suffix Automaton" (arXiv 2411.10666).
    Differs from the papers in: earlier answers are not collected; all that is known besides the
    prompt and its answer is the pool, which stays as it is. SuffixDecoding drafts from the places
    of one match length at a time and chooses the length with the best score; here all take part,
    and a longer match weighs more. Its limit of ``alpha m`` draft tokens and its threshold on a
    token's share are the one threshold here. It drafts trees, this a chain, as SAM Decoding, which
    copies from one place of the longest match.
    """

    def __init__(
        self,
        gamma: int = 16,
        ngram: int = 8,
        confidence: float = 0.15,
        pool: tuple[int, ...] = (),
    ) -> None:
        super().__init__(gamma, ngram)
        self.host_reads = gamma + 1
        self.confidence = confidence
        self.pool = torch.tensor(pool, dtype=torch.long)

    def open(self, state: State, target: Target) -> None:
        super().open(state, target)
        self.vocabulary = target.vocabulary
        self.pool = self.pool.to(target.device)
        if len(self.pool):  # no token has this id, so that no match and no draft goes past it
            self.pool = F.pad(self.pool, (0, 1), value=self.vocabulary)

    def tensors(self) -> dict[str, Tensor]:
        return {**super().tensors(), "pool": self.pool}

    def _copied(self, state: State) -> tuple[Tensor, Tensor, Tensor]:
        pool = self.pool.expand(state.rows, -1)
        text = torch.cat([pool, state.tokens[:, : state.horizon]], 1)
        length = state.length + len(self.pool)
        rows, size = text.shape
        place = torch.arange(size, device=text.device)
        weight = agreement(text, length, self.ngram)  # 0 for a place that does not vote
        # invalid nodes have tokens of the vocabulary too
        following = F.pad(text.clamp_max(self.vocabulary - 1), (0, self.gamma))
        there = (place < length[:, None]) & (text < self.vocabulary)
        there = F.pad(there, (0, self.gamma))
        # only the entries of tokens that are voted for are cleared and read
        votes = text.new_empty(rows, self.vocabulary)
        survival = torch.ones(rows, 1, dtype=torch.float64, device=text.device)
        tokens = text.new_zeros(rows, self.gamma)
        valid = torch.zeros_like(tokens, dtype=torch.bool)
        for j in range(self.gamma):
            upcoming = following[:, j : j + size]
            weight = weight * there[:, j : j + size]
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
    pool: Annotated[
        str | Path | None,
        Option(
            "a text whose places vote too, such as documentation or earlier answers; each step "
            f"reads all of it, at most {MOST_TOKENS} tokens",
            kind="a file of UTF-8 text",
        ),
    ] = None


def pool_of(target: Target, path: Path) -> tuple[int, ...]:
    """The target's tokens of a text file.

    Raises:
        MethodError: it is no file of UTF-8 text, is empty or too large, or its tokens are not the
            target's.
    """
    if not path.is_file():
        raise MethodError(f"pool: there is no file {path}")
    if target.tokenizer is None:
        raise MethodError(f"pool {path} is text, and {target.name!r} has no tokenizer")
    large = f"pool {path} is too large: it may have {MOST_TOKENS} tokens and {MOST_BYTES} bytes"
    if path.stat().st_size > MOST_BYTES:
        raise MethodError(large)
    try:
        text = path.read_text("utf-8")
        if not text.strip():
            raise MethodError(f"pool {path} is empty")
        (ids,) = token_rows(target, [text])
    except (OSError, UnicodeDecodeError, PromptError) as error:
        raise MethodError(f"pool {path} cannot be read: {error}") from error
    if len(ids) > MOST_TOKENS:
        raise MethodError(f"{large}, and has {len(ids)} tokens")
    return tuple(ids)


def suffix(target: Target, options: Options) -> Drafter:
    """Suffix decoding: what most often followed the same last tokens earlier in the text, longer
    matches counting more, is the draft. Like prompt lookup it costs next to nothing, and it
    drafts less where the text gives little reason to.

    The draft is of at most ``gamma`` tokens, and ends where the estimated probability that all are
    accepted falls below ``confidence``. With ``pool=notes.txt`` what followed the same tokens in
    that file counts too.
    """
    if options.pool is None:
        return SuffixDecoding(options.gamma, options.ngram, options.confidence)
    path = home(options.pool)
    pool = target.loaded("pool", path, lambda: pool_of(target, path))
    drafter = SuffixDecoding(options.gamma, options.ngram, options.confidence, pool)
    drafter.files = (path,)
    return drafter


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
