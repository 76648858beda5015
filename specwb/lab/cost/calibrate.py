"""Measures what decoding steps cost on this machine, by width, and how often a child is accepted.

The cost model is ``seconds(tree) = t_target(n) + sum over levels t_draft(width) + D rest``.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import numpy as np
import torch
from scipy.optimize import isotonic_regression

from specwb.core.flow import Draft, Exactness, State
from specwb.core.noise import Noise
from specwb.core.probability import Sampling
from specwb.core.tree import Tree
from specwb.drafters.base import Drafter
from specwb.drafters.level import LevelDrafter
from specwb.engine.decoding import rounds as decoding_rounds
from specwb.engine.methods import Method
from specwb.lab.bench.measure import Job, measure
from specwb.models.prompts import Prompt, token_rows
from specwb.models.target import Target

WIDTHS = (1, 2, 3, 4, 6, 9, 13, 21, 32)
"""The numbers of tokens whose scoring is timed."""
TURNS = 3
"""How often methods whose steps are timed take turns."""


def in_order(seconds: Mapping[int, float]) -> dict[int, float]:
    """The nearest times in which no width is cheaper than a narrower one, by isotonic regression.

    A step that scores more tokens reads the same weights and does more work, so what is cheaper by
    measurement is noise. Noise has no sign: neighbours out of order get their mean, where the
    larger or the smaller of them would make every figure too large or too small.
    """
    widths = sorted(seconds)
    fit = isotonic_regression([seconds[n] for n in widths]).x.tolist()
    return dict(zip(widths, fit, strict=True))


def seconds_at(table: Mapping[int, float], n: float) -> float:
    """Interpolate seconds by width linearly; beyond the widest the last slope goes on."""
    widths = sorted(table)
    if n > widths[-1] and len(widths) > 1:
        a, b = widths[-2:]
        return table[b] + (n - b) * (table[b] - table[a]) / (b - a)
    return float(np.interp(n, widths, [table[width] for width in widths]))


@dataclass(frozen=True)
class CostModel:
    """What steps of a drafter cost on one machine, in seconds, and what is accepted."""

    # tokens that a step scores -> its seconds without drafting, see :func:`forward_seconds`
    target: dict[int, float]
    draft: dict[int, float]  # tokens that a drafted level processes -> its seconds
    rest: float = 0.0  # of a drafted level beyond these
    # acceptance by depth and rank, from one long chain and from one wide tree
    chain: list[list[float]] = field(default_factory=list)
    tree: list[list[float]] = field(default_factory=list)

    @classmethod
    def from_json(cls, saved: Mapping[str, Any]) -> CostModel:
        """Read a saved model, whose keys are strings; its times are put in order."""
        target, draft = (
            in_order({int(n): s for n, s in saved[side].items()}) for side in ("target", "draft")
        )
        return cls(target, draft, saved["rest"], saved["chain"], saved["tree"])

    @property
    def c(self) -> float:
        """Draft step time over target step time."""
        return self.draft[1] / self.target[1]

    def v(self, gamma: float) -> float:
        """The time to score gamma + 1 tokens over the time to score one."""
        return seconds_at(self.target, gamma + 1) / self.target[1]

    def round_seconds(self, tree: Tree) -> float:
        """The seconds of a decoding step that drafts this static tree level by level."""
        # the first pass processes the text's last tokens, each of the others a level
        widths = [LevelDrafter.window, *(stop - start for start, stop in tree.levels[1:-1])]
        drafting = sum(seconds_at(self.draft, width) for width in widths[: tree.D])
        return seconds_at(self.target, tree.n) + drafting + tree.D * self.rest


class _ZeroDrafter(Drafter):
    """Drafts n - 1 times token 0: a step of it drafts at no cost and scores n tokens."""

    captured = True

    def __init__(self, n: int) -> None:
        self.tree = Tree.chain(n - 1)

    def open(self, state: State, target: Target) -> None:
        self.tree = self.tree.to(target.device)
        self._tokens = torch.zeros(
            state.rows, self.tree.n - 1, dtype=torch.long, device=target.device
        )

    def tensors(self) -> dict[str, torch.Tensor]:
        return {"tokens": self._tokens}

    def propose(self, state: State, noise: Noise) -> Draft:
        return self.candidates(state, self._tokens)


def step_seconds(
    target: Target,
    prompt: Sequence[int],
    method: Method,
    count: int,
    temperature: float = 0.0,
) -> float:
    """The median seconds of ``count`` decoding steps of one prompt, after the first, which
    processes the prompt."""
    room = target.context - len(prompt)
    most = max(1, min(room, (count + 1) * (method.drafter.limits.depth + 1)))
    job = Job(method.key, method, [list(prompt)], most, Sampling(temperature))
    ((_, run),) = measure(target, [job], steps=count + 1, clock=False, warm=False)
    first, *later = run.step_seconds
    return median(later or [first])


def forward_seconds(
    model: Target,
    widths: Sequence[int],
    prompt: Prompt,
    *,
    rounds: int = 12,
    temperature: float = 0.0,
) -> dict[int, float]:
    """Time decoding steps that score n tokens and draft at no cost, for every n in ``widths``.

    The widths take turns. The medians are put in order (:func:`in_order`), so that ``v >= 1`` and
    no slope is negative. ``v(gamma) = t(gamma + 1) / t(1)``; with a draft model measured in the
    same way ``c = t_draft(1) / t_target(1)``.

    Args:
        model: target or draft model.
        widths: numbers of tokens that a step scores.
        prompt: the text before.
        rounds: decoding steps that each median is of.
        temperature: 0 is greedy.
    """
    methods = {
        n: Method(f"forward of {n}", _ZeroDrafter(n), None, Exactness.LOSSLESS) for n in widths
    }
    return in_order(step_times(model, methods, prompt, rounds, temperature))


def step_times(
    target: Target,
    methods: Mapping[int, Method],
    prompt: Prompt,
    rounds: int,
    temperature: float = 0.0,
) -> dict[int, float]:
    """Seconds of a step of several methods that take turns, after a warm-up; medians of turns."""
    (row,) = token_rows(target, [prompt])  # type: ignore[list-item]
    turns: dict[int, list[float]] = {n: [] for n in methods}
    for method in methods.values():
        step_seconds(target, row, method, 1)
    for _ in range(TURNS):
        for n, method in methods.items():
            turns[n].append(step_seconds(target, row, method, rounds, temperature))
    return {n: median(seconds) for n, seconds in turns.items()}


def accepted_by_rank(
    target: Target,
    prompts: Sequence[Prompt],
    method: Method,
    *,
    max_new_tokens: int = 64,
    temperature: float = 0.0,
    seed: int = 0,
    seconds: float | None = None,
) -> list[list[float]]:
    """Measure how often the r-th child is the accepted one, by depth.

    At depth d it is counted among the decoding steps whose walk reached depth d - 1. Steps that end
    a row are left out, since the limit may have cut them. A depth that is never reached has rates
    0. After ``seconds`` no further prompt is begun. Returns ``rates[d - 1][r]``, the form that
    :func:`specwb.theory.analysis.tree_reach` takes.
    """
    limits, began = method.drafter.limits, time.monotonic()
    counts = torch.zeros(limits.depth, max(limits.children, 1), dtype=torch.long)
    tested = torch.zeros(limits.depth, dtype=torch.long)
    how: dict[str, Any] = {"temperature": temperature, "seed": seed}
    for i, row in enumerate(token_rows(target, prompts)):
        if i and seconds is not None and time.monotonic() - began > seconds:
            break
        for step in decoding_rounds(target, [row], method, max_new_tokens=max_new_tokens, **how):
            assert step.state is not None
            if bool(step.state.done[0]):
                continue
            accepted, tree = int(step.verdict.accepted[0]), step.draft.tree
            tested[: min(accepted + 1, tree.D)] += 1
            ranks = tree.rank[0, step.verdict.path[0, 1 : accepted + 1]].tolist()
            for depth, rank in enumerate(ranks):
                counts[depth, rank] += 1
    return (counts.double() / tested.clamp_min(1)[:, None]).tolist()


def calibrate(
    target: Target,
    wide: Method,
    prompts: Sequence[Prompt],
    forwards: Mapping[int, float],
    *,
    rounds: int = 12,
    temperature: float = 0.0,
    **counting: Any,
) -> CostModel:
    """Measure the :class:`CostModel` of a drafter by its steps over a wide static tree.

    A level costs what a step takes beyond scoring the tree, which ``forwards`` has by width, over
    the tree's depth. ``counting``: see :func:`accepted_by_rank`.
    """
    tree: Tree = wide.drafter.tree  # type: ignore[attr-defined]
    steps = step_times(target, {1: wide}, middle(target, prompts), rounds, temperature)
    level = max(0.0, (steps[1] - seconds_at(forwards, tree.n)) / tree.D)
    rates = accepted_by_rank(target, prompts, wide, temperature=temperature, **counting)
    return CostModel(dict(forwards), {1: level}, tree=rates)


def middle(target: Target, prompts: Sequence[Prompt]) -> list[int]:
    """The prompt of middle length, as token ids."""
    return sorted(token_rows(target, prompts), key=len)[len(prompts) // 2]
