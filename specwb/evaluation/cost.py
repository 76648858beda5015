"""The cost model put to work: measure a pair's times and acceptance once, predict the speedup of any chain or tree.

Needs three short runs: a long chain, a wide tree, and bare forwards of both models. What is predicted is what
:func:`specwb.compare` measures, prompt processing included.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Any

import numpy as np
import torch

from specwb.analysis import expected_rounds, tree_reach
from specwb.drafters.base import Drafter
from specwb.engine import Prompt, rounds, token_rows
from specwb.flow import Draft, Exactness, State
from specwb.methods import Method
from specwb.methods import method as make_method
from specwb.models.target import Target
from specwb.noise import Noise
from specwb.tree import Tree


class _Same(Drafter):
    """Drafts token 0 everywhere: what a round costs that drafts nothing and scores n tokens."""

    captured = True

    def __init__(self, n: int) -> None:
        self.tree = Tree.chain(n - 1)

    def open(self, state: State, target: Target) -> None:
        self.tree = self.tree.to(target.device)
        self._tokens = torch.zeros(state.rows, self.tree.n - 1, dtype=torch.long, device=target.device)

    def propose(self, state: State, noise: Noise) -> Draft:
        return self.candidates(state, self._tokens)


def _timed(target: Target, prompt: Sequence[int], method: Method, count: int, **settings: Any) -> tuple[float, float]:
    """Seconds until the first round is over, and the median of up to ``count`` later ones."""

    def now() -> float:
        if target.device.type == "cuda":
            torch.cuda.synchronize(target.device)
        return time.perf_counter()

    at = [now()]
    for _ in rounds(target, [prompt], method, eos=(), **settings):
        at.append(now())
        if len(at) > count + 1:
            break
    seconds = [b - a for a, b in pairwise(at)]
    return seconds[0], median(seconds[1:] or seconds)


def forward_seconds(
    model: Target, widths: Sequence[int], prompt: Prompt, *, rounds: int = 12, repeats: int = 3, temperature: float = 0.0
) -> dict[int, float]:
    """Seconds of a round that scores n tokens and drafts at no cost, for every n in ``widths``: medians, the widths taking turns.

    For ``n = 1`` it is a round of plain decoding. ``v(gamma) = t(gamma + 1) / t(1)``; a draft model is measured in the same way, and
    ``c = t_draft(1) / t_target(1)``.

    Raises:
        ValueError: no width, one < 1, or a text beyond the context.
    """
    if not widths or min(widths) < 1:
        raise ValueError(f"widths must be integers >= 1, got {list(widths)}")
    (row,) = token_rows(model, [prompt])  # type: ignore[list-item]
    made = {n: Method(f"forward of {n}", _Same(n), None, Exactness.LOSSLESS) for n in dict.fromkeys(widths)}
    found: dict[int, list[float]] = {n: [] for n in made}
    for n in made:  # warm-up
        _timed(model, row, made[n], 1, max_new_tokens=2)
    for _ in range(repeats):
        for n, method in made.items():
            found[n].append(_timed(model, row, method, rounds, max_new_tokens=rounds + 1, temperature=temperature)[1])
    return {n: median(values) for n, values in found.items()}


def accepted_by_rank(
    target: Target, prompts: Sequence[Prompt], method: str | Method, *, max_new_tokens: int = 64, temperature: float = 0.0, seed: int = 0, **options
) -> list[list[float]]:
    """How often the r-th child was the one accepted, by depth, among the rounds whose walk came there: ``rates[d - 1][r]``.

    The form :func:`specwb.analysis.tree_reach` takes. Rounds that end a row are left out, since the limit may have cut them. A depth
    never reached has rates 0.
    """
    made = method if isinstance(method, Method) else make_method(method, target, **options)
    counts = torch.zeros(made.drafter.tree.D, max(made.drafter.tree.K, 1), dtype=torch.long)
    tested = torch.zeros(made.drafter.tree.D, dtype=torch.long)
    for prompt in token_rows(target, prompts):
        for step in rounds(target, [prompt], made, max_new_tokens=max_new_tokens, temperature=temperature, seed=seed):
            assert step.state is not None
            accepted = int(step.verdict.accepted[0])
            if bool(step.state.done[0]):
                continue
            tree = step.draft.tree
            ranks = tree.rank[0, step.verdict.path[0, 1 : accepted + 1]].tolist()
            tested[: min(accepted + 1, tree.D)] += 1
            for d, r in enumerate(ranks):
                counts[d, r] += 1
    return (counts.double() / tested.clamp_min(1)[:, None]).tolist()


@dataclass(frozen=True)
class CostModel:
    """One pair on one machine: ``seconds = opening + expected rounds (t_target(n) + sum over levels t_draft(width) + D rest)``.

    target, draft: seconds of a round that scores n tokens and drafts at no cost, linear between the widths measured.
    opening: (target, draft) seconds of prompt processing.
    rest: seconds a drafted level takes beyond these (choosing candidates, testing them; it may be negative), from one measured chain.
    chain, tree: acceptance rates by depth and rank, from one long chain and one wide tree.
    """

    target: dict[int, float]
    draft: dict[int, float]
    opening: tuple[float, float]
    rest: float
    chain: list[list[float]]
    tree: list[list[float]]

    @property
    def c(self) -> float:
        """Draft step over target step."""
        return self.draft[1] / self.target[1]

    def v(self, gamma: float) -> float:
        """Scoring gamma + 1 tokens over scoring one."""
        return _at(self.target, gamma + 1) / self.target[1]

    def reach(self, tree: Tree) -> list[float]:
        return tree_reach(self.chain if tree.is_chain else self.tree, tree.host[0])

    def round_seconds(self, tree: Tree) -> float:
        """One round: the first draft forward feeds two tokens (the catch-up window), the later ones a level each."""
        fed = [2, *(stop - start for start, stop in tree.levels[1:-1])] if tree.D else []
        return _at(self.target, tree.n) + sum(_at(self.draft, n) for n in fed) + tree.D * self.rest

    def speedup(self, tree: Tree, tokens: int) -> float:
        """Plain decoding's seconds for ``tokens`` new tokens over the tree's."""
        plain = self.opening[0] + tokens * self.target[1]
        return plain / (sum(self.opening) + expected_rounds(self.reach(tree), tokens) * self.round_seconds(tree))


def calibrate(
    target: Target,
    draft: Target,
    prompts: Sequence[Prompt],
    *,
    gamma: int = 8,
    tree: Sequence[int] = (4, 4, 4),
    max_new_tokens: int = 64,
    temperature: float = 0.0,
    rounds: int = 12,
    seed: int = 0,
) -> CostModel:
    """Measure what :class:`CostModel` needs, on prompts that the predictions are not judged by.

    Args:
        gamma: the chain measured; it bounds the depth of chains predicted. tree: the wide tree; it bounds depth and children of trees.
        rounds: how many rounds each time is a median of.
    """
    rows = token_rows(target, prompts)
    typical = sorted(rows, key=len)[len(rows) // 2]
    chain, wide = make_method("sps", target, draft=draft, gamma=gamma), make_method("mcsd", target, draft=draft, tree=tuple(tree))
    shared = {"max_new_tokens": max_new_tokens, "temperature": temperature, "seed": seed}
    rates = [accepted_by_rank(target, rows, made, **shared) for made in (chain, wide)]  # type: ignore[arg-type]
    widths = [1, 2, 3, 4, 6, 9, 13, 21, 32]
    t = forward_seconds(target, widths, typical, rounds=rounds, temperature=temperature)
    d = forward_seconds(draft, [w for w in widths if w <= 21], typical, rounds=rounds, temperature=temperature)
    plain = make_method("ar", target)
    # the three take turns, so that a machine whose speed drifts favours none
    runs = [[_timed(model, typical, m, rounds, **shared) for model, m in ((target, plain), (draft, plain), (target, chain))] for _ in range(3)]
    first, later = (np.median([[run[i] for run in turn] for turn in runs], axis=0) for i in (0, 1))
    bare = CostModel(t, d, (float(first[0] - t[1]), float(first[1] - d[1])), 0.0, *rates)
    return CostModel(t, d, bare.opening, (float(later[2]) - bare.round_seconds(Tree.chain(gamma))) / gamma, *rates)


def _at(measured: dict[int, float], n: float) -> float:
    """Linear between the widths measured; beyond the widest the last slope goes on."""
    xs = sorted(measured)
    if n > xs[-1] and len(xs) > 1:
        a, b = xs[-2:]
        return measured[b] + (n - b) * (measured[b] - measured[a]) / (b - a)
    return float(np.interp(n, xs, [measured[x] for x in xs]))
