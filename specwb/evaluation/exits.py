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
from statistics import fmean, median
from typing import Any

import numpy as np
import torch
from torch import Tensor

from specwb.bench.measure import seconds_of
from specwb.cost.calibrate import step_seconds
from specwb.decoding import decode, rounds
from specwb.drafters.kangaroo import DynamicKangaroo, KangarooDrafter
from specwb.drafters.length import Length
from specwb.drafters.level import Levels
from specwb.drafters.stopping import Confidence, Top
from specwb.errors import ArgumentError
from specwb.flow import Exactness
from specwb.methods import Method
from specwb.methods import method as make_method
from specwb.models.place import Place
from specwb.models.target import Target
from specwb.probability import Sampling

ROWS = 32
"""Positions that are drafted together."""


@dataclass(frozen=True)
class Rounds:
    """The decoding steps that would begin at N positions in texts, in order.

    Attributes:
        sure: name of a confidence -> ``[N,D-1]``, the confidence of each level but the last.
        kept: ``[N]``, how many levels of the full draft are accepted.
        text: ``[N]``, which text the position is in.
        nodes: of the tree cut at 0..D levels.
    """

    sure: Mapping[str, np.ndarray]
    kept: np.ndarray
    text: np.ndarray
    nodes: tuple[int, ...]

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
        Raises:
            ValueError: the name is unknown, eta is outside [0, 1], or gamma outside 1..D.
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
        """Return the confidence of a chain's accepted draft tokens, and of the first rejected ones.

        Args:
            name: of the confidence.
        """
        level = np.arange(self.depth - 1)
        accepted = self.kept[:, None] > level
        return self.sure[name][accepted], self.sure[name][self.kept[:, None] == level]


@dataclass(frozen=True)
class Simulation:
    """The decoding steps of a simulated decoding.

    Attributes:
        kept: accepted levels of each step.
        drafted: drafted levels of each step.
        text: the text that each step is in.
    """

    kept: list[int]
    drafted: list[int]
    text: list[int]

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
    progress: Callable[[float], None] | None = None,
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
        progress: called with the fraction that is done.
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
            if progress:
                progress(len(kept) / (len(rows) * tokens))
    return Rounds(
        sure={name: torch.cat(values).numpy() for name, values in sure.items()},
        kept=np.array(kept),
        text=np.array(text),
        nodes=tuple(stop for _, stop in tree.levels),
    )


@dataclass(frozen=True)
class Costs:
    """Seconds on one machine at one length of text.

    Attributes:
        plain: a step of plain decoding.
        shallow: one token through the first layers.
        adapter: one token through adapter and head.
        round: D -> a decoding step that drafts a chain of D tokens.
    """

    plain: float
    shallow: float
    adapter: float
    round: dict[int, float]

    @property
    def r(self) -> float:
        """One token through the first layers, over a plain step."""
        return self.shallow / self.plain

    @property
    def a(self) -> float:
        """One token through adapter and head, over a plain step."""
        return self.adapter / self.plain

    def seconds(self, drafted: float) -> float:
        """Return the seconds of a step that drafts so many tokens.

        They are linear between the measured ones.
        """
        depths = sorted(self.round)
        return float(np.interp(drafted, depths, [self.round[depth] for depth in depths]))

    def predicted(self, simulated: Simulation) -> float:
        """Predict the speedup over plain decoding.

        It is the tokens of the steps over their seconds, each step by what it drafted.
        """
        steps = Counter(simulated.drafted)
        seconds = sum(count * self.seconds(drafted) for drafted, count in steps.items())
        return simulated.cr * self.plain * steps.total() / seconds

    def simple(self, simulated: Simulation) -> float:
        """Predict the speedup where a step costs ``1 + D (r + a)`` plain steps.

        That takes scoring several tokens to be as cheap as scoring one.
        """
        return simulated.cr / (1 + simulated.mean_drafted * (self.r + self.a))


def costs(
    target: Target,
    head: object = None,
    prompt: Sequence[int] | None = None,
    *,
    depths: Sequence[int] = (1, 2, 3, 4, 6, 8),
    count: int = 16,
    repeats: int = 3,
) -> Costs:
    """Measure :class:`Costs` of a Kangaroo chain; everything takes turns.

    Args:
        target: the target model.
        head: an adapter or its folder, default the target's own.
        prompt: token ids, default 128 times token 1; the steps are measured behind it.
        depths: of the chains measured.
        count: decoding steps that each time is a median of.
        repeats: turns.
    Raises:
        MethodError, HeadError: there is no such adapter.
        ValueError: there is no depth, or no room in the context.
    """
    ids = list(prompt) if prompt is not None else [1] * 128
    if not depths or min(depths) < 1:
        raise ArgumentError(f"depths must be integers >= 1, got {list(depths)}")
    options: dict[str, Any] = {} if head is None else {"head": head}
    # a threshold that is never missed, so that the test for it is paid for
    chains = {
        depth: make_method("kangaroo", target, gamma=depth, eta=1e-9, **options)
        for depth in dict.fromkeys(depths)
    }
    drafter = chains[depths[0]].drafter
    assert isinstance(drafter, KangarooDrafter)
    plain = make_method("ar", target)

    def step(method: Method, depth: int = 0, graphs: bool | None = None) -> float:
        limit = (count + 1) * (depth + 1)
        return step_seconds(target, ids, method, count, max_new_tokens=limit, graphs=graphs)[1]

    turns = []
    for _ in range(repeats):
        plain_step = step(plain)
        rounds = [step(chain, depth) for depth, chain in chains.items()]
        # The parts are never recorded as graphs, so they are compared with an eager plain step.
        eager = plain_step if target.device.type == "cpu" else step(plain, graphs=False)
        parts = _part_seconds(target, drafter, ids, count)
        turns.append([plain_step, *(part * plain_step / eager for part in parts), *rounds])
    plain_step, shallow, adapter, *rounds = (median(times) for times in zip(*turns, strict=True))
    return Costs(plain_step, shallow, adapter, dict(zip(chains, rounds, strict=True)))


@torch.inference_mode()
def _part_seconds(
    target: Target, description: KangarooDrafter, ids: list[int], count: int
) -> tuple[float, float]:
    """Median seconds of the first layers over a token; and of adapter, head and its choice."""
    drafter = copy.copy(description)
    limits = drafter.limits
    state = target.open(
        [ids], [limits.depth + 1], limits.nodes + 2, Sampling(0.0), (), drafter.features
    )
    drafter.open(state, target)
    drafter.kept = []
    position = (state.length - 1)[:, None]
    place, pending = Place(position, position, state.horizon), state.tokens.gather(1, position)

    def first_layers() -> Tensor:
        drafter.kept.clear()
        return drafter.shallow(state, pending, place)

    features = first_layers()

    def adapter_and_head() -> Tensor:
        hidden = drafter.adapted(features, place)
        return drafter.logits(hidden).argmax(-1)

    parts = seconds_of({"shallow": first_layers, "adapter": adapter_and_head}, target.device, count)
    return parts["shallow"], parts["adapter"]
