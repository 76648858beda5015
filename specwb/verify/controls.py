"""Wrong rules that decode: what a check of verifiers must not let pass.

Each is one slip away from a rule of ``RULES``; several have been shipped. They claim to be
lossless, so nothing stops them before a check does. Over fractions the same and more: ``mutants``.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from specwb.flow import Law
from specwb.verify.rrs import RRS
from specwb.verify.rrsw import RRSw
from specwb.verify.rule import Rule


class AcceptAlways(RRSw):
    """Wrong: the first candidate is taken untested."""

    name = "accept_always"

    def node(self, p: Tensor, q: Tensor | None, tokens: Tensor, ok: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
        return torch.where(ok.any(1), ok.int().argmax(1), -1), p


class ResidualFromP(RRSw):
    """Wrong: after a rejection the closing token is drawn from p and not from what is left of
    it."""

    name = "residual_from_p"

    def node(self, p: Tensor, q: Tensor | None, tokens: Tensor, ok: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
        return super().node(p, q, tokens, ok, u)[0], p


class OtherTemperature(RRSw):
    """Wrong: the test uses q at half the temperature that the candidates were drawn at."""

    name = "other_temperature"

    def node(self, p: Tensor, q: Tensor | None, tokens: Tensor, ok: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
        assert q is not None
        sharp = q * q
        return super().node(p, sharp / sharp.sum(1, keepdim=True), tokens, ok, u)


class ReplacementForgotten(RRS):
    """Wrong: candidates drawn without replacement are tested by the rule for independent ones."""

    name = "replacement_forgotten"
    laws = frozenset({Law.WITHOUT_REPLACEMENT})


class DuplicatesDropped(RRS):
    """Wrong: of equal independent candidates one is kept, and the rest is tested as if it were
    all."""

    name = "duplicates_dropped"
    laws = frozenset({Law.IID})

    def node(self, p: Tensor, q: Tensor | None, tokens: Tensor, ok: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
        same = (tokens[:, :, None] == tokens[:, None, :]) & ok[:, None, :]
        return super().node(p, q, tokens, ok & ~torch.tril(same, -1).any(2), u)


@dataclass(frozen=True)
class Control:
    """A wrong rule, the method that it is put into, the right rule that it is made from."""

    rule: type[Rule]
    spec: str
    of: str

    @property
    def name(self) -> str:
        return self.rule.name

    @property
    def wrong(self) -> str:
        return (self.rule.__doc__ or "").removeprefix("Wrong: ").rstrip(".")


CONTROLS: tuple[Control, ...] = (
    Control(AcceptAlways, "mcsd:tree=3-2-1", "rrsw"),
    Control(ResidualFromP, "mcsd:tree=3-2-1", "rrsw"),
    Control(OtherTemperature, "sps:gamma=3", "rrsw"),
    Control(ReplacementForgotten, "mcsd:tree=3-2-1", "rrs"),
    Control(DuplicatesDropped, "mcsd:tree=4-2-1,draw=with", "rrs"),
)
