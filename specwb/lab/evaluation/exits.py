"""When to stop drafting, measured at every position of a text at once.

At each position the decoding step that would begin there is drafted to its full depth. What that
step would have been with any threshold follows from it.

At T = 0 the text is the target's own whatever is drafted, so the steps of a decoding with any
threshold and any smaller depth are among these. Simulating such a decoding is exact and costs
nothing.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np
import torch
from torch import Tensor

from specwb.core.errors import ArgumentError
from specwb.core.flow import Exactness
from specwb.core.probability import Sampling
from specwb.drafters.kangaroo import DynamicKangaroo
from specwb.drafters.length import Length
from specwb.drafters.level import Levels
from specwb.drafters.stopping import Top
from specwb.engine.decoding import decode, rounds
from specwb.engine.methods import Method
from specwb.models.target import Target

ROWS = 32
"""Positions that are drafted together."""


@dataclass(frozen=True)
class Rounds:
    """The decoding steps that would begin at N positions in texts, in order."""

    sure: np.ndarray  # ``[N,D-1]``, the drafter's confidence in each level but the last
    kept: np.ndarray  # ``[N]``, how many levels of the full draft are accepted
    text: np.ndarray  # ``[N]``, which text the position is in

    @property
    def depth(self) -> int:
        return self.sure.shape[1] + 1

    def simulate(self, eta: float, gamma: int | None = None) -> Simulation:
        """Select the steps of decoding every text at T = 0 with a threshold.

        A step whose end lies beyond a text's last position is the last of that text and counts as
        it is.

        Args:
            eta: the threshold of the confidence, in [0, 1].
            gamma: at most so many levels are drafted, default all.
        """
        gamma = self.depth if gamma is None else gamma
        if not 0 <= eta <= 1 or not 1 <= gamma <= self.depth:
            raise ArgumentError(
                f"eta must be in [0, 1], gamma in 1..{self.depth}; got {eta}, {gamma}"
            )
        drafted = np.full(len(self.kept), gamma)
        if gamma > 1:
            unsure = self.sure[:, : gamma - 1] < eta
            drafted = np.where(unsure.any(1), unsure.argmax(1) + 1, gamma)
        kept = np.minimum(self.kept, drafted)
        steps = []
        for text in dict.fromkeys(self.text.tolist()):
            positions = np.flatnonzero(self.text == text)
            i = 0
            while i < len(positions):
                steps.append(positions[i])
                i += kept[positions[i]] + 1
        return Simulation(kept[steps].tolist(), drafted[steps].tolist(), self.text[steps].tolist())


@dataclass(frozen=True)
class Simulation:
    """The decoding steps of a simulated decoding."""

    kept: list[int]  # accepted levels of each step
    drafted: list[int]  # drafted levels of each step
    text: list[int]  # the text that each step is in

    @property
    def cr(self) -> float:
        """Compression rate: tokens per step, the bonus token included (tau)."""
        return 1 + fmean(self.kept)

    @property
    def mean_drafted(self) -> float:
        return fmean(self.drafted)

    @property
    def wasted(self) -> float:
        """Drafted levels per step that are not accepted."""
        return fmean(self.drafted) - fmean(self.kept)

    def ctar(self, w: int) -> float:
        """Return the consistent token acceptance rate.

        It is the share of steps that accept at least ``w`` levels.
        ``cr == 1 + sum over w >= 1 of ctar(w)``.
        """
        return fmean(k >= w for k in self.kept)

    def speedup(self, seconds: Callable[[int], float], plain: float = 1.0) -> float:
        """Predict the speedup over plain decoding: tokens of the steps over their seconds."""
        steps = Counter(self.drafted)
        spent = sum(count * seconds(drafted) for drafted, count in steps.items())
        return self.cr * plain * steps.total() / spent


class _ConfidenceRecorder(Top):
    """Is always fully confident, and records the probability of the most probable token."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[Tensor] = []

    def of(self, logits: Tensor, hidden: Tensor, tokens: Tensor, sampling: Sampling) -> Tensor:
        self.records.append(super().of(logits, hidden, tokens, sampling).float())
        return torch.ones_like(logits[:, 0, 0])


def every_round(
    target: Target,
    prompts: Sequence[Sequence[int]],
    method: Method,
    *,
    tokens: int = 48,
) -> Rounds:
    """Draft the decoding step at every position of the target's own greedy texts.

    The positions are the first ``tokens`` ones of the text after every prompt. Each step is drafted
    to its full depth, and the probability of its most probable token is recorded at every level but
    the last.

    Args:
        target: the target model.
        prompts: token ids.
        method: one that drafts a chain or a static tree level by level. Its own stopping is left
            out.
        tokens: positions per prompt.
    Raises:
        ValueError: the method is of another kind, or the prompts leave no room in the context.
    """
    drafter = copy.copy(method.drafter)
    static_levels = (
        isinstance(drafter, Levels)
        and not isinstance(drafter, DynamicKangaroo)
        and drafter.exactness is Exactness.LOSSLESS
    )
    if not static_levels or not drafter.tree.in_level_order:
        raise ArgumentError(
            f"{method.key} does not draft a static tree level by level, or changes the text"
        )
    assert isinstance(drafter, Levels)
    tree = drafter.tree
    sure: list[Tensor] = []
    kept: list[int] = []
    text: list[int] = []
    rows = [list(prompt) for prompt in prompts]
    plain = decode(target, rows, "ar", max_new_tokens=tokens + tree.D, eos=())
    for i, (prompt, new) in enumerate(zip(rows, plain.tokens, strict=True)):
        for first in range(0, tokens, ROWS):
            positions = range(first, min(first + ROWS, tokens))
            recorder = _ConfidenceRecorder()
            drafter.length = Length(tree.D, confidence=1.0)
            drafter.sure = recorder
            drafter.host_reads = max(0, tree.D - 1)
            recorded = Method(method.key, drafter, method.rule, Exactness.LOSSLESS)
            # the token before the position is pending, so its step writes the position
            beginnings = [[*prompt, *new[:position]] for position in positions]
            steps = rounds(
                target, beginnings, recorded, max_new_tokens=tree.D + 1, eos=(), graphs=False
            )
            kept += next(iter(steps)).verdict.accepted.tolist()
            steps.close()  # type: ignore[attr-defined]
            text += [i] * len(positions)
            levels = recorder.records  # none of a tree of one level
            none = torch.zeros(len(positions), 0)
            sure.append(torch.stack(levels, 1).cpu() if levels else none)
    return Rounds(torch.cat(sure).numpy(), np.array(kept), np.array(text))
