"""The drafter's side of a round."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from specwb.flow import Draft, Exactness, Law, Scores, State, Verdict
from specwb.noise import Noise
from specwb.probability import Sampling
from specwb.tree import Tree

if TYPE_CHECKING:
    from specwb.models.target import Target


class Drafter:
    """Proposes a token tree each round. Subclass it and ``specwb.register`` the subclass: it is then decoded with, compared and tested.

    An instance is a description and may be shared; the engine copies it and calls ``open`` once for every decoding, so whatever
    ``open`` and ``propose`` set on ``self`` belongs to that decoding.

    Attributes:
        tree: the largest tree it proposes (its root is the pending token).
        window: how many known positions it feeds again at the start of a round.
        host_reads: tensor-to-Python conversions a round it needs beyond the engine's one.
        features: target layers whose hidden states it wants in ``state.features``.
        rule: key of the verification rule it is used with unless another is named, or None for the law's usual one.
    """

    tree: Tree
    window = 1
    host_reads = 0
    features: tuple[int, ...] = ()
    exactness = Exactness.LOSSLESS
    rule: str | None = None

    def law(self, sampling: Sampling) -> Law:
        """How the candidates are drawn under these sampling settings."""
        return Law.POINT

    def uniforms(self, sampling: Sampling) -> int:
        """How many drafting uniforms a row needs a round."""
        return 0

    def open(self, state: State, target: Target) -> None:
        """Called once before the first round."""

    def propose(self, state: State, noise: Noise) -> Draft:
        raise NotImplementedError

    def observe(self, state: State, draft: Draft, verdict: Verdict, scores: Scores) -> None:
        """Called after the target's commit, before the text grows; move caches here."""

    def candidates(self, state: State, tokens: Tensor, valid: Tensor | None = None) -> Draft:
        """A point-mass draft of ``self.tree`` from the tokens of nodes 1..n-1 ``[B,n-1]``."""
        if tokens.shape != (state.rows, self.tree.n - 1):
            raise ValueError(f"candidates must be [rows, nodes - 1] = {[state.rows, self.tree.n - 1]} tokens, got {list(tokens.shape)}")
        pending = state.tokens.gather(1, (state.known - 1)[:, None])
        tokens = torch.cat([pending, tokens], 1)
        ok = torch.ones_like(tokens, dtype=torch.bool) if valid is None else torch.cat([torch.ones_like(pending, dtype=torch.bool), valid], 1)
        return Draft(self.tree, tokens, ok, Law.POINT)
