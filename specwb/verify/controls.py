"""Wrong rules that decode, which a check of verifiers must reject.

Each is one slip away from a rule of ``RULES``; several have been shipped. They claim to be
lossless, so nothing stops them before a check does. ``mutants`` has more of them, over fractions.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from specwb.flow import Scheme
from specwb.verify.rrs import RRS
from specwb.verify.rrsw import RRSw
from specwb.verify.rule import Decision, Rule


class AcceptAlways(RRSw):
    """Wrong: the first candidate is taken untested."""

    name = "accept_always"

    def node(self, p: Tensor, q: Tensor | None, tokens: Tensor, ok: Tensor, u: Tensor) -> Decision:
        return torch.where(ok.any(1), ok.int().argmax(1), -1), p


class ResidualFromP(RRSw):
    """Wrong: after a rejection the bonus token is drawn from p and not from what is left of it."""

    name = "residual_from_p"

    def node(self, p: Tensor, q: Tensor | None, tokens: Tensor, ok: Tensor, u: Tensor) -> Decision:
        return super().node(p, q, tokens, ok, u)[0], p


class OtherTemperature(RRSw):
    """Wrong: the test uses q at half the temperature that the candidates were drawn at."""

    name = "other_temperature"

    def node(self, p: Tensor, q: Tensor | None, tokens: Tensor, ok: Tensor, u: Tensor) -> Decision:
        assert q is not None
        squared = q * q
        return super().node(p, squared / squared.sum(1, keepdim=True), tokens, ok, u)


class ReplacementForgotten(RRS):
    """Wrong: candidates drawn without replacement are tested by the rule for independent ones."""

    name = "replacement_forgotten"
    schemes = frozenset({Scheme.WITHOUT_REPLACEMENT})


class DuplicatesDropped(RRS):
    """Wrong: of equal independent candidates one is kept, and what remains is tested as if it
    were all."""

    name = "duplicates_dropped"
    schemes = frozenset({Scheme.IID})

    def node(self, p: Tensor, q: Tensor | None, tokens: Tensor, ok: Tensor, u: Tensor) -> Decision:
        same = (tokens[:, :, None] == tokens[:, None, :]) & ok[:, None, :]
        repeats = torch.tril(same, -1).any(2)
        return super().node(p, q, tokens, ok & ~repeats, u)


@dataclass(frozen=True)
class Control:
    """A wrong rule that must be detected, with the method that uses it."""

    rule: type[Rule]
    spec: str
    original: str  # the name of the right rule that it is made from

    @property
    def name(self) -> str:
        return self.rule.name

    @property
    def wrong(self) -> str:
        """The error, which is the rule's docstring."""
        summary = " ".join((self.rule.__doc__ or "").split())
        return summary.removeprefix("Wrong: ").rstrip(".")


CONTROLS: tuple[Control, ...] = (
    Control(AcceptAlways, "mcsd:tree=3-2-1", "rrsw"),
    Control(ResidualFromP, "mcsd:tree=3-2-1", "rrsw"),
    Control(OtherTemperature, "sps:gamma=3", "rrsw"),
    Control(ReplacementForgotten, "mcsd:tree=3-2-1", "rrs"),
    Control(DuplicatesDropped, "mcsd:tree=4-2-1,draw=with", "rrs"),
)
