"""Kangaroo, beside its cells: what a step costs, and when to stop drafting, measured at every
position of a text at once.

At each position the decoding step that would begin there is drafted to its full depth. What that
step would have been with any threshold follows from it.

At T = 0 the text is the target's own whatever is drafted, so the steps of a decoding with any
threshold and any smaller depth are among these. Simulating such a decoding is exact and costs
nothing.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

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
from specwb.engine.methods import method as make_method
from specwb.lab.cost.calibrate import seconds_at, step_times
from specwb.lab.papers.figures import SavedResults
from specwb.lab.papers.run import Models
from specwb.models.questions import Question
from specwb.models.target import Target

TEXTS, PLACES, DEPTH = 12, 48, 8
"""Of the traces: texts, positions of each, and depth of the drafts."""
DRAFTED, BEFORE, STEPS = (1, 2, 3, 4, 6, 8), 128, 16
"""Of the costs: lengths of chains, tokens before, and steps of each turn."""
ROWS = 32
"""Positions that are drafted together."""


def probe(
    models: Models, questions: Sequence[Question], document: SavedResults, _: int
) -> Iterator[tuple[float, str]]:
    """Measure the costs of every adapter's steps, and record a trace of every exit layer.

    They are ``document["costs"]`` and ``document["traces"]``, by the name of the adapter, "" for
    the target's own.
    """
    target = models.target
    costs, traces = document.setdefault("costs", {}), document.setdefault("traces", {})
    texts = models.texts(questions, PLACES + 2 * DEPTH, TEXTS)
    names = {name.partition("[")[2].rstrip("]") for name in document["cells"]}
    names = names - {""} if models.heads else {""}
    for i, name in enumerate(sorted(names), 1):
        adapter = str(models.heads / name) if models.heads else None
        options = {"head": adapter} if adapter else {}
        if name not in costs:
            costs[name] = _costs(target, options)
        if (not name or name.startswith("exit")) and name not in traces:
            chains = make_method(f"kangaroo:gamma={DEPTH},eta=0", target, **options)
            trace = every_round(target, texts, chains, tokens=PLACES)
            # rounded down, so that the same levels reach a threshold in thousandths
            sure = np.floor(1000 * trace.sure.astype(float)).astype(int)
            traces[name] = {
                key: value.tolist()
                for key, value in (("sure", sure), ("kept", trace.kept), ("text", trace.text))
            }
        yield i / len(names), f"costs and traces: {name or 'own adapter'}"


def _costs(target: Target, options: Mapping[str, Any]) -> dict[str, Any]:
    """Milliseconds of a step of plain decoding, and of one that drafts a chain, by its length."""
    # a threshold that is never missed, so that the test for it is paid for
    methods = {d: make_method("kangaroo", target, gamma=d, eta=1e-9, **options) for d in DRAFTED}
    methods[0] = make_method("ar", target)
    steps = step_times(target, methods, [1] * BEFORE, STEPS)
    plain, *chains = (round(1000 * steps[d], 4) for d in (0, *DRAFTED))
    return {"plain": plain, "round": dict(zip(map(str, DRAFTED), chains, strict=True))}


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


def rounds_of(trace: Mapping[str, Any]) -> Rounds:
    """Read a shipped trace, whose confidence is in thousandths."""
    return Rounds(np.array(trace["sure"]) / 1000, np.array(trace["kept"]), np.array(trace["text"]))


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

    def speedup(self, cost: Mapping[int, float]) -> float:
        """Predict the speedup over plain decoding: tokens of the steps over their time.

        ``cost`` is the time of a step by its drafted tokens, 0 of a plain one.
        """
        spent = sum(seconds_at(cost, drafted) for drafted in self.drafted)
        return self.cr * cost[0] * len(self.drafted) / spent


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
    tokens: int = PLACES,
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
