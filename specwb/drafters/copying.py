"""Copying in front of a head or a draft model: what followed the same tokens earlier in the text is
drafted, and only elsewhere does the head draft."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from specwb.core.flow import Draft, Scheme, Scores, State, Verdict
from specwb.core.noise import Noise
from specwb.core.options import MethodError
from specwb.core.probability import Sampling
from specwb.core.tree import GrownTree, Limits
from specwb.drafters.base import Drafter, InFront, chain
from specwb.drafters.level import Levels
from specwb.drafters.pld import lookup
from specwb.models.target import Target

MOST = 10
"""Draft tokens that are copied, at most."""
SCHEMES = (Scheme.POINT, Scheme.IID, Scheme.WITHOUT_REPLACEMENT)
"""The sampling schemes of drafters that it may stand before: a copied token is a point mass, which
is a single draw from a distribution q that is 1 there."""


class Copying(InFront):
    """In a row whose last ``match`` or more tokens occur earlier in the text, drafts the 10 tokens
    that followed the longest such match, the first of several; elsewhere the drafter behind it
    drafts.

    Which of the two drafts is a function of the text before the step, so the step is lossless
    wherever both are.

    In a single row whose steps are not recorded, the drafter behind does not run where tokens are
    copied; what it has missed it processes with its next draft. In batches it runs in every step,
    and rows that copy verify a chain in place of its tree. Its catch-up window is as much longer as
    a step may copy. (What Falcon drafts depends on the steps in which it drafted, so its sampled
    text is then not that of the same row in a batch; its distribution is the same.) Steps that copy
    count for a draft length that depends on earlier steps. The confidence in a copied token is
    ``n / (n + 1)``, n the tokens before it that match if those copied before it are right.

    Sources: the combination is that of Hu et al., "SAM Decoding" (2024), arXiv 2411.10666, whose
    suffix automaton, matches of the output alone and static corpus are not here.
    """

    ngram = MOST  # tokens that are looked up
    idle = False  # whether the next step drafts nothing but copies

    def __init__(self, behind: Drafter, match: int) -> None:
        super().__init__(behind)
        self.least = match
        scheme = behind.scheme(Sampling(1.0))
        if scheme not in SCHEMES:
            raise MethodError(f"copy= is not for drafts that are {scheme.value}")
        limits = behind.limits
        self.limits = Limits(
            max(limits.nodes, MOST + 1), max(limits.depth, MOST), max(limits.children, 1)
        )
        self.window, self.host_reads = self.longer(MOST), behind.host_reads + 1

    def open(self, state: State, target: Target) -> None:
        super().open(state, target)
        self.vocabulary, self.alone = target.vocabulary, state.rows == 1 and not state.static

    def propose(self, state: State, noise: Noise) -> Draft:
        at, valid, matched = state.stage("lookup", lambda: self._found(state))
        copied = MOST if state.static else int(valid.sum(1).max())  # a host read
        self.copied = copied > 0
        self.drafts = not (self.idle or (self.copied and self.alone))
        if self.confident:
            self.copies = valid[:, :1]
            self.sure = F.pad(matched / (matched + 1), (1, 0), value=1.0)[:, : copied + 1]
        if not self.drafts:
            tree = chain(copied, at.device)
            if not state.sampling.greedy and self.limits.children > 1:
                # a rule takes the uniforms of a node by its place and the tree's number of children
                tree = GrownTree(tree.parent, tree.depth, copied, self.limits.children)
            tokens = state.tokens.gather(1, at[:, :copied])
            draft = self.candidates(state, tokens, valid[:, :copied], tree)
            draft.confidence = self.sure if self.confident else None
            return self._drawn(draft, state.sampling)
        # what it has missed since its last draft, or of rows that copied
        missed = MOST if state.static else min(self.missed, state.horizon)
        self.behind.window = self.longer(missed) if missed else self.own_window
        draft = self.behind.propose(state, noise)
        self.missed = 0
        if not self.copied:
            return draft
        return state.stage(
            ("copied", draft.tree.n, copied),
            lambda: self._joined(state, draft, at[:, :copied], valid[:, :copied]),
        )

    def _found(self, state: State) -> tuple[Tensor, Tensor, Tensor]:
        """Where the tokens lie that are copied, which there are, and how many tokens before each
        of them match, if those copied before it are right, each ``[B,MOST]``."""
        start, matched = lookup(state.tokens[:, : state.horizon], state.length, self.ngram)
        step = torch.arange(MOST, device=start.device)
        at = start[:, None] + step
        copies = (matched >= self.least) & ~state.done
        valid = copies[:, None] & (at < state.length[:, None])
        return at.clamp_max(state.capacity - 1), valid, matched[:, None] + step

    def _drawn(self, draft: Draft, sampling: Sampling) -> Draft:
        """A chain of point masses, as a draft of the scheme of the drafter behind."""
        draft.scheme = self.scheme(sampling)
        if draft.scheme is not Scheme.POINT:
            draft.q = self._points(draft.tokens[:, 1:])
            draft.q_row = F.pad(torch.arange(draft.tree.D, device=draft.tokens.device), (0, 1))[
                None
            ]
            draft.q_row[:, -1] = -1
        return draft

    def _points(self, tokens: Tensor) -> Tensor:
        return F.one_hot(tokens, self.vocabulary).float()

    def _joined(self, state: State, draft: Draft, at: Tensor, valid: Tensor) -> Draft:
        """The draft in which rows that copy have a chain, and the others their tree."""
        rows, most, device = state.rows, at.shape[1], at.device
        n = max(draft.tree.n, most + 1)
        copies = valid[:, :1]
        tokens = torch.cat([state.pending, state.tokens.gather(1, at)], 1)
        valid = torch.cat([torch.ones_like(copies), valid], 1)
        step = torch.arange(most + 1, device=device).expand(rows, -1)

        def either(copied: Tensor, drafted: Tensor, other: int) -> Tensor:
            ours, theirs = (F.pad(x, (0, n - x.shape[1]), value=other) for x in (copied, drafted))
            return torch.where(copies, ours, theirs)

        tree = draft.tree
        parent = either(step - 1, tree.parent.expand(rows, -1), -1)
        depth = either(step, tree.depth.expand(rows, -1), 0)
        grown = GrownTree(parent, depth, min(self.limits.depth, n - 1), self.limits.children)
        joined = Draft(
            grown, either(tokens, draft.tokens, 0), either(valid, draft.valid, 0), draft.scheme
        )
        if draft.confidence is not None:
            joined.confidence = either(self.sure, draft.confidence, 1)
        if draft.scheme is not Scheme.POINT and draft.q_row is not None:
            copied, q = self._points(tokens[:, 1:]), draft.q
            q = copied[:, :0] if q is None else q  # a draft of nothing has none
            joined.q = torch.cat([q, copied], 1)
            points = (step + q.shape[1]).masked_fill(step == most, -1)
            joined.q_row = either(points, draft.q_row.expand(rows, -1), -1)
        return joined

    def observe(self, state: State, draft: Draft, verdict: Verdict, scores: Scores) -> None:
        if not self.drafts:
            self.missed += draft.tree.D + 1
            if self.copied and self.alone and isinstance(self.behind, Levels):
                # its length alone, as in a batch
                Levels.observe(self.behind, state, draft, verdict, scores)
            return
        self.missed = MOST if self.copied else 0
        self.behind.observe(state, draft, verdict, scores)
