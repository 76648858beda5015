"""Lookahead decoding: n-grams from a Jacobi iteration that runs in the same forward pass as their
verification."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated

import torch
from torch import Tensor

from specwb.core.flow import Draft, Scores, State, Verdict
from specwb.core.noise import Noise, philox
from specwb.core.options import Option
from specwb.core.probability import most_probable
from specwb.core.tree import MOST, Tree
from specwb.drafters.base import Drafter, Entry, Preset
from specwb.models.target import Target


@lru_cache(maxsize=256)
def lookahead_tree(
    window: int, level: int, guesses: int, device: torch.device | str = "cpu"
) -> Tree:
    """The published mask and positions as a tree: the root, ``guesses`` chains of level - 1
    candidates, then the window, which is not verified.

    The window has ``level`` - 1 levels of ``window`` columns, row by row; column 0 of level 0 is
    the root. Level 0 is causal, and a token of level r sees level 0 up to its column and levels
    1..r of its own column: parent(0, c) = (0, c - 1), parent(r, c) = (r - 1, c).
    """
    length = level - 1
    chains = [[0, *range(1 + g * length, (g + 1) * length)] for g in range(guesses)]
    parents = [-1, *(parent for chain in chains for parent in chain)]
    row = [0]
    for _ in range(window - 1):
        row.append(len(parents))
        parents.append(row[-2])
    for _ in range(length - 1):
        parents += row
        row = list(range(len(parents) - window, len(parents)))
    return Tree([parents], device, unverified=window * length - 1)


def remember(pool: Tensor, key: Tensor, gram: Tensor, ok: Tensor) -> None:
    """Puts the n-grams ``gram [B,m,L]`` behind their first tokens ``key [B,m]`` into ``pool
    [B,V,G,L]`` (-1 where empty), in place and one after another: each moves to the front of its
    key's list, where it leaves its old place or pushes out the last one. Those not ``ok [B,m]`` are
    ignored.

    Such a list holds the last G distinct n-grams in order of their last use, so all can be put in
    at once: the new ones and the old ones, newest first, without repetitions and cut to G.
    """
    row = torch.arange(len(pool), device=pool.device)[:, None]
    before = pool[row, key]  # [B,m,G,L]
    newest = gram.to(pool.dtype).flip(1)[:, None].expand(-1, key.shape[1], -1, -1)
    entries = torch.cat([newest, before], 2)
    of_key = (key[:, :, None] == key.flip(1)[:, None]) & ok.flip(1)[:, None]
    there = torch.cat([of_key, before[..., 0] >= 0], 2)
    same = (entries[:, :, :, None] == entries[:, :, None]).all(-1) & there[:, :, None]
    keep = there & ~same.tril(-1).any(-1)
    order = keep.int().argsort(dim=-1, descending=True, stable=True)[..., : pool.shape[2], None]
    entries = entries.masked_fill(~keep[..., None], -1)
    # equal keys of a row write equal lists
    pool[row, key] = entries.gather(2, order.expand(-1, -1, -1, pool.shape[3]))


def remember_prompts(pool: Tensor, state: State) -> None:
    """Puts all n-grams of each row's prompt into ``pool [B,V,G,L]``, the first of them first."""
    level = pool.shape[3] + 1
    if state.horizon < level:
        return
    grams = state.tokens[:, : state.horizon].unfold(1, level, 1)
    inside = torch.arange(grams.shape[1], device=pool.device) <= state.start[:, None] - level
    for some, ok in zip(grams.split(32, 1), inside.split(32, 1), strict=True):
        remember(pool, some[:, :, 0], some[:, :, 1:], ok)


class Lookahead(Drafter):
    """Proposes up to G n-grams of the pool for the pending token, while W columns of guesses
    produce new ones.

    A step is one forward pass over the root, G chains of N - 1 candidates and a window of W (N - 1)
    - 1 tokens: N - 1 levels of W columns, with the pending token as the first slot of level 0. The
    argmax after the last level gives W new tokens. Column c then yields an n-gram: its key is the
    token of level 0, its value the tokens of levels 1..N-2 and the new one; the pool keeps the G
    values of a key that were used last. Then the levels move up by one: level r becomes level r +
    1, and the new tokens become the last level.

    Candidates and window are functions of the text alone (point masses; the window is greedy at
    every temperature), so the result is greedy decoding at T = 0 and exact sampling at T > 0.
    N-grams with a common beginning are verified as a trie (``Tree.merged``), so that E[accepted] =
    sum over distinct beginnings of p(beginning).

    On the CPU, where the cost of a forward pass grows with its nodes, a draft is cut to the largest
    number of candidates of the step (one host read).

    Attributes:
        levels: ``[B, N-1, W]`` the window (column 0 of level 0 is not used, the pending token is
            there).
        pool: ``[B, V, G, N-1]`` int32, newest first, -1 where empty: 4 V G (N - 1) bytes per row,
            3.6 MB for 32000 tokens and the defaults.

    Source: Fu et al., "Break the Sequential Dependency of LLM Inference Using Lookahead Decoding"
    (2024), arXiv 2402.02057, and its code (github.com/hao-ai-lab/LookaheadDecoding), whose
    parameters are LEVEL = N, WINDOW_SIZE = W, GUESS_SET_SIZE = G. Differs from the published code
    in: the code fills one level per step, from a wider level 0; here all levels start as random
    tokens of the prompt, and n-grams are collected only after as many steps, so that shapes never
    change. The code's sampling also replaces end of text tokens in the window.
    """

    host_reads = 1
    captured = True

    def __init__(
        self, window: int = 7, level: int = 5, guesses: int = 7, prompt: bool = False
    ) -> None:
        self.columns, self.level, self.guesses, self.prompt = window, level, guesses, prompt
        self.tree = lookahead_tree(window, level, guesses)

    def open(self, state: State, target: Target) -> None:
        device, rows, length = target.device, state.rows, self.level - 1
        self.tree = lookahead_tree(self.columns, self.level, self.guesses, device)
        self.row = torch.arange(rows, device=device)
        # the same for every seed and place in a batch: the window decides about speed only
        index = torch.arange(length * self.columns, device=device)
        zero = torch.zeros_like(index)
        bits = philox(torch.zeros((), dtype=torch.long, device=device), index, zero, zero)[:, 0]
        places = bits * state.start[:, None] >> 32
        self.levels = state.tokens.gather(1, places).view(rows, length, self.columns)
        self.rounds = torch.zeros((), dtype=torch.long, device=device)
        sizes = (rows, target.vocabulary, self.guesses, length)
        self.pool = torch.full(sizes, -1, dtype=torch.int32, device=device)
        if self.prompt:
            remember_prompts(self.pool, state)

    def tensors(self) -> dict[str, Tensor]:
        window = {"row": self.row, "levels": self.levels, "rounds": self.rounds}
        return {**super().tensors(), **window, "pool": self.pool}

    def propose(self, state: State, noise: Noise) -> Draft:
        pending = state.pending
        grams = self.pool[self.row, pending[:, 0]]  # [B,G,N-1]
        filled = (grams[:, :, 0] >= 0) & ~state.done[:, None]
        guesses = self.largest(state, filled.sum(1), self.guesses)
        window = self.levels.flatten(1)[:, 1:]
        tokens = torch.cat([grams[:, :guesses].flatten(1).clamp_min(0), window], 1)
        valid = filled[:, :guesses, None].expand(-1, -1, self.level - 1).flatten(1)
        valid = torch.cat([valid, torch.zeros_like(window, dtype=torch.bool)], 1)
        tree = lookahead_tree(self.columns, self.level, guesses, self.tree.device)
        draft = self.candidates(state, tokens, valid, tree)
        # the greedy walk looks at all paths and takes the longest
        if guesses > 1 and not state.sampling.greedy:
            draft.tree = tree.merged(draft.tokens, draft.valid)
        return draft

    def observe(self, state: State, draft: Draft, verdict: Verdict, scores: Scores) -> None:
        new = most_probable(scores.logits[:, -self.columns :])
        levels = torch.cat([self.levels[:, 1:], new[:, None]], 1)
        key = torch.cat([draft.tokens[:, :1], self.levels[:, 0, 1:]], 1)
        gram = levels.transpose(1, 2)
        ok = (self.rounds >= self.level - 2).expand(key.shape)
        if self.prompt:
            more = self._emitted(state, verdict)
            key, gram, ok = (torch.cat(x, 1) for x in zip((key, gram, ok), more, strict=True))
        remember(self.pool, key, gram, ok)
        self.levels.copy_(levels)
        self.rounds.add_(1)

    def _emitted(self, state: State, verdict: Verdict) -> tuple[Tensor, Tensor, Tensor]:
        """The n-grams that end with a token of this step: keys ``[B,D+1]``, values
        ``[B,D+1,N-1]``, and which of them lie
        in the text."""
        assert verdict.emitted is not None
        first = state.length[:, None] - (self.level - 1)
        last = torch.arange(self.level - 1, device=first.device)
        before = state.tokens.gather(1, (first + last).clamp_min(0))
        grams = torch.cat([before, verdict.emitted], 1).unfold(1, self.level, 1)
        place = torch.arange(grams.shape[1], device=first.device)
        ok = (place < verdict.count[:, None]) & (first + place >= 0)
        return grams[:, :, 0], grams[:, :, 1:], ok


@dataclass(frozen=True)
class Options:
    window: Annotated[
        int, Option("columns of guesses that generate new n-grams", low=1, high=MOST)
    ] = 7
    level: Annotated[
        int, Option("tokens per n-gram, including the pending token", low=3, high=MOST)
    ] = 5
    guesses: Annotated[
        int, Option("n-grams stored per token, and verified per step, at most", low=1, high=MOST)
    ] = 7
    prompt: Annotated[
        bool, Option("also collect the n-grams of the prompt and of the text so far")
    ] = False


def lookahead(target: Target, options: Options) -> Drafter:
    """Lookahead decoding: the target guesses several places at once beside the text, collects
    n-grams of its guesses, and verifies those that begin with the last token. It needs no other
    model, but arithmetic to spare: each forward pass computes dozens of tokens.

    N-grams of ``level`` tokens come from ``window`` columns; at most ``guesses`` of them are
    verified per step.
    """
    return Lookahead(options.window, options.level, options.guesses, options.prompt)


ENTRY = Entry(
    "lookahead",
    lookahead,
    Options,
    paper="Fu et al. 2024, arXiv 2402.02057",
    presets={
        "published": Preset(
            {"window": 15, "level": 5, "guesses": 15}, "the code's script for MT-bench, 7B"
        ),
        "spec_bench": Preset(
            {"window": 7, "level": 5, "guesses": 7}, "Spec-Bench's script; the code's readme, 7B"
        ),
    },
    bibtex="""@inproceedings{fu2024break,
  title={Break the Sequential Dependency of {LLM} Inference Using Lookahead Decoding},
  author={Fu, Yichao and Bailis, Peter and Stoica, Ion and Zhang, Hao}, booktitle={ICML}, \
year={2024}}""",
)
