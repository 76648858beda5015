"""How many tokens a row drafts.

It is decided between steps, from what was accepted, and within a step, from how sure the drafter
is of what it has drafted.
"""

from __future__ import annotations

import torch
from torch import Tensor


class Length:
    """Always ``k`` tokens; subclasses change ``tokens`` between steps.

    Within a step a row goes on below what it has drafted while it has drafted fewer than ``tokens``
    and was at least as sure as ``confidence`` of what it drafted since the last question
    (:meth:`onward`). What "sure" means the drafter says, see :mod:`specwb.drafters.stopping`.

    Args:
        k: draft tokens at first.
        most: no row ever drafts more; default k.
        confidence: how sure a row must be to go on; 0: it need not be.

    Attributes:
        tokens: ``[B]`` how many each row drafts now.
    """

    def __init__(self, k: int, most: int | None = None, confidence: float = 0.0) -> None:
        self.k, self.most, self.confidence = k, most or k, confidence

    def open(self, rows: int, device: torch.device | str) -> None:
        """Called before the first step of a decoding."""
        self.tokens = torch.full((rows,), self.k, dtype=torch.long, device=device)

    def tensors(self) -> dict[str, Tensor]:
        """What :meth:`open` has made, by name; see :meth:`specwb.drafters.base.Drafter.tensors`."""
        return {"length.tokens": self.tokens}

    def onward(self, drafted: int, sure: Tensor | None = None) -> Tensor:
        """``[B]``: the rows that draft on below ``drafted`` tokens.

        Args:
            drafted: how many tokens there are already.
            sure: ``[B]`` how sure each row is of them; None where it is not asked.
        """
        go = self.tokens > drafted
        return go if sure is None or not self.confidence else go & (sure >= self.confidence)

    def observe(self, drafted: Tensor, accepted: Tensor) -> None:
        """Called after a step.

        Args:
            drafted: ``[B]`` draft tokens of each row, up to an end of text.
            accepted: ``[B]`` how many of them were accepted.
        """


class Heuristic(Length):
    """2 more after a step in which all were accepted, otherwise 1 less, within 1..``most``.

    This is the transformers library's schedule.
    """

    def observe(self, drafted: Tensor, accepted: Tensor) -> None:
        tokens = torch.where(accepted == drafted, self.tokens + 2, self.tokens - 1)
        self.tokens.copy_(tokens.clamp_(1, self.most))


class Adaptive(Length):
    """Adaptive draft length (ADL): ``k = clip(ceil(g + delta [a >= share g]), k_min, k_max)``.

    g and a are the moving averages ``(1 - rho) old + rho new`` of the tokens generated before the
    first end of text and of those accepted. The first k is ``k_max``.

    Both averages begin at 0 and are not corrected for it: with rho = .5 the first observation
    counts half, so after a first block of k_max tokens without an end g is k_max / 2. A block
    without an end counts as k generated tokens, so that k then feeds on itself; with share = 1 it
    never grows again after a token was rejected (theorem 11.6).

    Args:
        k_min: the least length.
        k_max: the largest, and the first.
        delta: how much the length grows where enough was accepted.
        rho: weight of the last step in the averages.
        share: share of what was generated that must be accepted.
        confidence: see :class:`Length`.

    Source: DiffuSpec (arXiv 2510.02358), eqs. 9-11, with its constants as defaults. ``share`` = 1
    is the paper's condition; its only published reproduction takes the floor where the paper has
    the ceiling.
    """

    def __init__(
        self,
        k_min: int = 20,
        k_max: int = 30,
        delta: float = 10,
        rho: float = 0.5,
        share: float = 1.0,
        confidence: float = 0.0,
    ) -> None:
        super().__init__(k_max, confidence=confidence)
        self.k_min, self.delta, self.rho, self.share = k_min, delta, rho, share

    def open(self, rows: int, device: torch.device | str) -> None:
        super().open(rows, device)
        zeros = torch.zeros(2, rows, dtype=torch.float64, device=device)
        self.generated, self.accepted = zeros.unbind()

    def tensors(self) -> dict[str, Tensor]:
        averages = {"length.generated": self.generated, "length.accepted": self.accepted}
        return {**super().tensors(), **averages}

    def observe(self, drafted: Tensor, accepted: Tensor) -> None:
        # in place: a recorded step knows addresses
        self.generated.mul_(1 - self.rho).add_(self.rho * drafted)
        self.accepted.mul_(1 - self.rho).add_(self.rho * accepted)
        more = self.delta * (self.accepted >= self.share * self.generated)
        self.tokens.copy_((self.generated + more).ceil().long().clamp_(self.k_min, self.most))
