"""How many tokens a row drafts: decided between rounds from what was accepted, and within one from how sure the drafter is."""

from __future__ import annotations

import torch
from torch import Tensor


class Length:
    """Always ``k`` tokens; the others change ``tokens [B]`` between rounds.

    Within a round a row goes on below what it has drafted while it has drafted fewer than ``tokens`` and was at least as sure as ``confidence`` of
    what it drafted since it was asked last (:meth:`onward`). What "sure" is the drafter says, see :mod:`specwb.drafters.stopping`.

    Attributes: most: no row ever drafts more. tokens ``[B]``: how many each row drafts now.
    """

    def __init__(self, k: int, most: int | None = None, confidence: float = 0.0) -> None:
        self.k, self.most, self.confidence = k, most or k, confidence

    def open(self, rows: int, device: torch.device | str) -> None:
        """Before the first round of a decoding."""
        self.tokens = torch.full((rows,), self.k, dtype=torch.long, device=device)

    def tensors(self) -> dict[str, Tensor]:
        """What :meth:`open` has made, by name; see :meth:`specwb.drafters.base.Drafter.tensors`."""
        return {"length.tokens": self.tokens}

    def onward(self, drafted: int, sure: Tensor | None = None) -> Tensor:
        """``[B]``: rows that draft on below ``drafted`` tokens; ``sure [B]``: see the class."""
        go = self.tokens > drafted
        return go if sure is None or not self.confidence else go & (sure >= self.confidence)

    def observe(self, drafted: Tensor, accepted: Tensor) -> None:
        """After a round: ``drafted [B]`` tokens that a row meant (up to an end of text), ``accepted [B]`` of them kept."""


class Heuristic(Length):
    """2 more after a round in which all was accepted, otherwise 1 less, within 1..``most``: the transformers library's schedule."""

    def observe(self, drafted: Tensor, accepted: Tensor) -> None:
        self.tokens.copy_(torch.where(accepted == drafted, self.tokens + 2, self.tokens - 1).clamp_(1, self.most))


class Adaptive(Length):
    """Adaptive draft length (ADL): ``k = clip(ceil(g + delta [a >= share g]), k_min, k_max)`` with g and a the moving averages
    ``(1 - rho) old + rho new`` of the tokens generated before the first end of text and of those accepted. The first k is ``k_max``.

    Both averages begin at 0 and are not corrected for it: with rho = .5 the first observation counts half, so after a first block of k_max
    tokens without an end g is k_max / 2. A block without an end counts as k generated tokens, so that k then feeds on itself; with share = 1 it never
    grows again after a token was rejected (theorem 11.6).

    Source: DiffuSpec (arXiv 2510.02358), eqs. 9-11, with its constants as defaults. ``share`` = 1 is the paper's condition; its only published
    reproduction takes the floor where the paper has the ceiling.
    """

    def __init__(self, k_min: int = 20, k_max: int = 30, delta: float = 10, rho: float = 0.5, share: float = 1.0, confidence: float = 0.0) -> None:
        super().__init__(k_max, confidence=confidence)
        self.k_min, self.delta, self.rho, self.share = k_min, delta, rho, share

    def open(self, rows: int, device: torch.device | str) -> None:
        super().open(rows, device)
        self.generated, self.accepted = torch.zeros(2, rows, dtype=torch.float64, device=device).unbind()

    def tensors(self) -> dict[str, Tensor]:
        averages = {"length.generated": self.generated, "length.accepted": self.accepted}
        return {**super().tensors(), **averages}

    def observe(self, drafted: Tensor, accepted: Tensor) -> None:
        # in place: a recorded round knows addresses
        self.generated.mul_(1 - self.rho).add_(self.rho * drafted)
        self.accepted.mul_(1 - self.rho).add_(self.rho * accepted)
        more = self.delta * (self.accepted >= self.share * self.generated)
        self.tokens.copy_((self.generated + more).ceil().long().clamp_(self.k_min, self.most))
