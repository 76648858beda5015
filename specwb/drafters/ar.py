"""Plain autoregressive decoding as a method with an empty draft: every step is one forward pass of
the target, whose token is the bonus token."""

from __future__ import annotations

from dataclasses import dataclass

from specwb.core.flow import Draft, State
from specwb.core.noise import Noise
from specwb.core.tree import Tree
from specwb.drafters.base import Drafter, Entry
from specwb.models.target import Target


class Autoregressive(Drafter):
    """The reference that all other methods are compared with; its tau is exactly 1."""

    captured = True

    def __init__(self) -> None:
        self.tree = Tree.chain(0)

    def open(self, state: State, target: Target) -> None:
        self.tree = self.tree.to(target.device)

    def propose(self, state: State, noise: Noise) -> Draft:
        return self.candidates(state, state.tokens[:, :0])


@dataclass(frozen=True)
class Options:
    """Plain decoding has no options."""


def ar(target: Target, options: Options) -> Drafter:
    """Plain decoding: one token per forward pass."""
    return Autoregressive()


ENTRY = Entry("ar", ar, Options, paper="plain decoding, the reference")
