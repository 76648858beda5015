"""Plain autoregressive decoding, as a draft of nothing: every round is one target forward and its closing token."""

from __future__ import annotations

from specwb.drafters.base import Drafter
from specwb.flow import Draft, State
from specwb.models.target import Target
from specwb.noise import Noise
from specwb.tree import Tree


class Autoregressive(Drafter):
    """The reference all others are compared with; tau is exactly 1."""

    captured = True

    def __init__(self) -> None:
        self.tree = Tree.chain(0)

    def open(self, state: State, target: Target) -> None:
        self.tree = self.tree.to(target.device)

    def propose(self, state: State, noise: Noise) -> Draft:
        return self.candidates(state, state.tokens[:, :0])
