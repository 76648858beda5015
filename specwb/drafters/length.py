"""The draft length of every row.

It is decided between steps, from the accepted tokens, and within a step, from the drafter's
confidence in its draft.
"""

from __future__ import annotations

import torch
from torch import Tensor


class Length:
    """A constant length of ``k`` tokens, at most ``most``; subclasses change ``tokens [B]``, the
    current length of each row, between steps.

    Within a step a row continues its draft while it has fewer than ``tokens`` draft tokens and its
    confidence in the tokens drafted since the last check is at least ``confidence``
    (:meth:`onward`; 0 asks for none). The drafter defines its confidence, see
    :mod:`specwb.drafters.stopping`.
    """

    def __init__(self, k: int, most: int | None = None, confidence: float = 0.0) -> None:
        self.k, self.most, self.confidence = k, most or k, confidence

    def open(self, rows: int, device: torch.device | str) -> None:
        """Called before the first step of a decoding."""
        self.tokens = torch.full((rows,), self.k, dtype=torch.long, device=device)

    def tensors(self) -> dict[str, Tensor]:
        """The tensors that :meth:`open` made, by name; see
        :meth:`specwb.drafters.base.Drafter.tensors`."""
        return {"length.tokens": self.tokens}

    def onward(self, drafted: int, sure: Tensor | None = None) -> Tensor:
        """``[B]``: the rows that continue their draft after ``drafted`` tokens, in which they have
        the confidence ``sure [B]``."""
        go = self.tokens > drafted
        return go if sure is None or not self.confidence else go & (sure >= self.confidence)

    def observe(self, drafted: Tensor, accepted: Tensor) -> None:
        """Called after a step with each row's draft tokens up to an end of text, and the accepted
        ones among them, both ``[B]``."""


class Heuristic(Length):
    """2 more after a step in which all draft tokens were accepted, otherwise 1 less, within
    1..``most``.

    This is the transformers library's schedule.
    """

    def observe(self, drafted: Tensor, accepted: Tensor) -> None:
        tokens = torch.where(accepted == drafted, self.tokens + 2, self.tokens - 1)
        self.tokens.copy_(tokens.clamp_(1, self.most))


class Adaptive(Length):
    """Adaptive draft length (ADL): ``k = clip(ceil(g + delta [a >= share g]), k_min, k_max)``.

    g and a are the moving averages ``(1 - rho) old + rho new``, rho = .5, of the tokens generated
    before the first end of text and of those accepted. The first k is ``k_max``.

    Both averages begin at 0 and are not corrected for it: the first observation counts half, so
    after a first block of k_max tokens without an end g is k_max / 2. A block without an end counts
    as k generated tokens, so k depends on its own earlier values; with share = 1 it never grows
    again after a rejected token (theorem 11.6).

    Args:
        k_min: the least length.
        k_max: the largest, and the first.
        delta: growth of the length when enough was accepted.
        share: share of the generated tokens that must be accepted.

    Source: DiffuSpec (arXiv 2510.02358), eqs. 9-11, with its constants as defaults. ``share`` = 1
    is the paper's condition; its only published reproduction takes the floor where the paper has
    the ceiling.
    """

    def __init__(
        self,
        k_min: int = 20,
        k_max: int = 30,
        delta: float = 10,
        share: float = 1.0,
    ) -> None:
        super().__init__(k_max)
        self.k_min, self.delta, self.share = k_min, delta, share

    def open(self, rows: int, device: torch.device | str) -> None:
        super().open(rows, device)
        zeros = torch.zeros(2, rows, dtype=torch.float64, device=device)
        self.generated, self.accepted = zeros.unbind()

    def tensors(self) -> dict[str, Tensor]:
        averages = {"length.generated": self.generated, "length.accepted": self.accepted}
        return {**super().tensors(), **averages}

    def observe(self, drafted: Tensor, accepted: Tensor) -> None:
        # in place: a recorded step knows addresses
        self.generated.add_(drafted).div_(2)
        self.accepted.add_(accepted).div_(2)
        more = self.delta * (self.accepted >= self.share * self.generated)
        self.tokens.copy_((self.generated + more).ceil().long().clamp_(self.k_min, self.most))
