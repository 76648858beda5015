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
from collections.abc import Callable, Mapping, Sequence
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
from specwb.drafters.stopping import Confidence, Top
from specwb.engine.decoding import decode, rounds
from specwb.engine.methods import Method
from specwb.models.target import Target

ROWS = 32
"""Positions that are drafted together."""


@dataclass(frozen=True)
class Rounds:
    """The decoding steps that would begin at N positions in texts, in order."""

    # name of a confidence -> ``[N,D-1]``, the confidence of each level but the last
    sure: Mapping[str, np.ndarray]
    kept: np.ndarray  # ``[N]``, how many levels of the full draft are accepted
    text: np.ndarray  # ``[N]``, which text the position is in
    nodes: tuple[int, ...]  # of the tree cut at 0..D levels

    @property
    def depth(self) -> int:
        return len(self.nodes) - 1

    def simulate(self, name: str, eta: float, gamma: int | None = None) -> Simulation:
        """Select the steps of decoding every text at T = 0 with a threshold.

        A step whose end lies beyond a text's last position is the last of that text and counts as
        it is.

        Args:
            name: of the confidence that is compared with the threshold.
            eta: the threshold, in [0, 1].
            gamma: at most so many levels are drafted, default all.
        """
        gamma = self.depth if gamma is None else gamma
        if name not in self.sure or not 0 <= eta <= 1 or not 1 <= gamma <= self.depth:
            raise ArgumentError(
                f"name must be one of {', '.join(self.sure)}, eta in [0, 1], "
                f"gamma in 1..{self.depth}; got {name!r}, {eta}, {gamma}"
            )
        drafted = np.full(len(self.kept), gamma)
        if gamma > 1:
            unsure = self.sure[name][:, : gamma - 1] < eta
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

    def tested(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """The confidence of a chain's accepted draft tokens, and of the first rejected ones."""
        level = np.arange(self.depth - 1)
        accepted = self.kept[:, None] > level
        return self.sure[name][accepted], self.sure[name][self.kept[:, None] == level]


@dataclass(frozen=True)
class Simulation:
    """The decoding steps of a simulated decoding."""

    kept: list[int]  # accepted levels of each step
    drafted: list[int]  # drafted levels of each step
    text: list[int]  # the text that each step is in

    @property
    def cr(self) -> float:
        """Compression rate: tokens a step, the bonus token included (tau)."""
        return 1 + fmean(self.kept)

    @property
    def mean_drafted(self) -> float:
        return fmean(self.drafted)

    @property
    def wasted(self) -> float:
        """Drafted levels a step that are not accepted."""
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


class _ConfidenceRecorder(Confidence):
    """Is always fully confident, and records what other confidences are."""

    def __init__(self, others: Mapping[str, Confidence]) -> None:
        self.others = dict(others)
        self.records: dict[str, list[Tensor]] = {name: [] for name in others}

    def of(self, logits: Tensor, hidden: Tensor, tokens: Tensor, sampling: Sampling) -> Tensor:
        for name, other in self.others.items():
            self.records[name].append(other.of(logits, hidden, tokens, sampling).float())
        return torch.ones_like(logits[:, 0, 0])


def every_round(
    target: Target,
    prompts: Sequence[Sequence[int]],
    method: Method,
    confidences: Mapping[str, Confidence] | None = None,
    *,
    tokens: int = 48,
) -> Rounds:
    """Draft the decoding step at every position of the target's own greedy texts.

    The positions are the first ``tokens`` ones of the text after every prompt. Each step is drafted
    to its full depth.

    Args:
        target: the target model.
        prompts: token ids.
        method: one that drafts a chain or a static tree level by level. Its own stopping is left
            out.
        confidences: by name, what is recorded of every level but the last; default
            ``{"top": Top()}``.
        tokens: positions a prompt.
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
    confidences = confidences or {"top": Top()}
    sure: dict[str, list[Tensor]] = {name: [] for name in confidences}
    kept: list[int] = []
    text: list[int] = []
    rows = [list(prompt) for prompt in prompts]
    plain = decode(target, rows, "ar", max_new_tokens=tokens + tree.D, eos=())
    for i, (prompt, new) in enumerate(zip(rows, plain.tokens, strict=True)):
        for first in range(0, tokens, ROWS):
            positions = range(first, min(first + ROWS, tokens))
            recorder = _ConfidenceRecorder(confidences)
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
            for name, values in recorder.records.items():
                levels = torch.zeros(len(positions), 0)  # a tree of one level has none
                sure[name].append(torch.stack(values, 1).cpu() if values else levels)
    return Rounds(
        sure={name: torch.cat(values).numpy() for name, values in sure.items()},
        kept=np.array(kept),
        text=np.array(text),
        nodes=tuple(stop for _, stop in tree.levels),
    )
