"""The cost model put to work: measure a pair's times and acceptance once, predict the speedup of any chain or tree.

Needs short runs: a long chain, a wide tree, bare forwards of both models after a short and a long text, and, for trees of the draft's top
tokens, one wide tree for every number of children. What is predicted is what :func:`specwb.compare` measures, prompt processing included.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from statistics import fmean, median
from typing import Any

import numpy as np
import torch

from specwb.analysis import expected_rounds, tree_reach
from specwb.drafters.base import Drafter
from specwb.engine import Prompt, rounds, token_rows
from specwb.errors import SpecwbError
from specwb.flow import Draft, Exactness, State
from specwb.methods import Method
from specwb.methods import method as make_method
from specwb.models.target import Target
from specwb.noise import Noise
from specwb.tree import Tree


class CostError(SpecwbError, ValueError):
    """Measured times that no prediction can be made from."""


SLACK = 0.15
"""Times that had to be moved by more than this to be in order are measured again."""


def in_order(seconds: Mapping[int, float]) -> dict[int, float]:
    """The times nearest to these (least squares) in which no width is cheaper than a narrower one: isotonic regression.

    A step that scores more tokens reads the same weights and does more work, so what is cheaper by measurement is noise, or
    a kernel that starts at a width. Noise has no sign: neighbours out of order are replaced by their mean, where taking the
    larger or the smaller of them would make every figure too large or too small. Times in order stay as they are.

    Args:
        seconds: width -> seconds of a step, in any order of the widths.
    Returns: width -> seconds, by width; finite, > 0, never falling.
    Raises:
        CostError: a time is not a finite number > 0.
    """
    bad = {n: s for n, s in seconds.items() if not (math.isfinite(s) and s > 0)}
    if bad:
        raise CostError(f"seconds of a step must be finite and > 0, got {', '.join(f'{s!r} for {n} tokens' for n, s in bad.items())}; measure again")
    pools: list[list[float]] = []
    for n in sorted(seconds):
        pools.append([seconds[n]])
        while len(pools) > 1 and fmean(pools[-2]) > fmean(pools[-1]):
            last = pools.pop()
            pools[-1] += last
    means = [fmean(pool) for pool in pools for _ in pool]
    return dict(zip(sorted(seconds), means, strict=True))


def disorder(seconds: Mapping[int, float]) -> float:
    """By how much the furthest of these times must be moved to be in order: 0.1 is a tenth of it."""
    ordered = in_order(seconds)
    return max(abs(ordered[n] / s - 1) for n, s in seconds.items())


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
    """Seconds of a round that scores n tokens and drafts at no cost, for every n in ``widths``: medians, the widths taking turns,
    put in order (:func:`in_order`), so that ``v >= 1`` and no slope is negative.

    For ``n = 1`` it is a round of plain decoding. ``v(gamma) = t(gamma + 1) / t(1)``; a draft model is measured in the same way, and
    ``c = t_draft(1) / t_target(1)``.

    Raises:
        ValueError: no width, one < 1, or a text beyond the context.
    """
    return in_order(_forward_seconds(model, widths, prompt, rounds, repeats, temperature))


def _forward_seconds(model: Target, widths: Sequence[int], prompt: Prompt, rounds: int, repeats: int, temperature: float) -> dict[int, float]:
    """The medians as they are."""
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
    tally = _Tally(made)
    for prompt in token_rows(target, prompts):
        tally.add(target, prompt, max_new_tokens=max_new_tokens, temperature=temperature, seed=seed)
    return tally.rates


class _Tally:
    """Counts of :func:`accepted_by_rank`: rounds whose walk came to depth d, and which child it took there."""

    def __init__(self, method: Method) -> None:
        limits = method.drafter.limits
        self.method = method
        self.counts = torch.zeros(limits.depth, max(limits.children, 1), dtype=torch.long)
        self.tested = torch.zeros(limits.depth, dtype=torch.long)

    def add(self, target: Target, prompt: Sequence[int], **settings: Any) -> None:
        for step in rounds(target, [prompt], self.method, **settings):
            assert step.state is not None
            accepted = int(step.verdict.accepted[0])
            if bool(step.state.done[0]):
                continue
            tree = step.draft.tree
            ranks = tree.rank[0, step.verdict.path[0, 1 : accepted + 1]].tolist()
            self.tested[: min(accepted + 1, tree.D)] += 1
            for d, r in enumerate(ranks):
                self.counts[d, r] += 1

    @property
    def rates(self) -> list[list[float]]:
        return (self.counts.double() / self.tested.clamp_min(1)[:, None]).tolist()


@dataclass(frozen=True)
class CostModel:
    """One pair on one machine: ``seconds = opening + expected rounds (t_target(n) + sum over levels t_draft(width) + D rest)``.

    target, draft: seconds of a round that scores n tokens and drafts at no cost, linear between the widths measured, at the length of text
        that is typical of what is predicted.
    opening: (target, draft) seconds of prompt processing.
    rest: seconds a drafted level takes beyond these (choosing candidates, testing them), from one measured chain. It may be negative, since
        a whole round overlaps what was measured apart, but not below what the level's draft forward takes.
    chain, tree: acceptance rates by depth and rank, from one long chain and one wide tree.
    top: k -> the same rates of a tree with k children a node that are the draft's k - 1 most probable tokens and one draw from the rest. They
        are measured for each k, because the last child is accepted as it is only where it is the last.
    prompts: how many acceptance was counted on.
    doubts: sentences on what was measured and cannot be: what it was replaced by and by how much that differs.
    contexts: "target" and "draft" -> length of text -> seconds as above: what ``target`` and ``draft`` were interpolated from.

    Raises:
        CostError: times that are not finite and > 0, a wider step cheaper than a narrower one, or a drafted level of negative
            cost. No prediction is made from such figures, wherever they are from.
    """

    target: dict[int, float]
    draft: dict[int, float]
    opening: tuple[float, float]
    rest: float
    chain: list[list[float]]
    tree: list[list[float]]
    top: dict[int, list[list[float]]] = field(default_factory=dict)
    contexts: dict[str, dict[int, dict[int, float]]] = field(default_factory=dict)
    prompts: int = 0
    doubts: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for side, table in (("target", self.target), ("draft", self.draft)):
            if disorder(table) > 1e-9:  # interpolating rounds
                shown = ", ".join(f"{n}: {1e3 * table[n]:.3g}" for n in sorted(table))
                raise CostError(f"{side}: a step of more tokens is cheaper than one of fewer (ms by tokens {shown}); measure again")
        if not all(math.isfinite(s) and s >= 0 for s in self.opening):
            raise CostError(f"opening: seconds of prompt processing must be finite and >= 0, got {self.opening}; measure again")
        if not (math.isfinite(self.rest) and self.rest + min(self.draft.values()) >= 0):
            raise CostError(f"rest: a drafted level would take {self.rest + min(self.draft.values()):.3g} s; measure again")

    @classmethod
    def from_json(cls, saved: dict[str, Any]) -> CostModel:
        """The model of which ``dataclasses.asdict`` was written as JSON, where keys are strings."""

        def whole(table: dict[str, Any]) -> dict[int, Any]:
            return {int(n): value for n, value in table.items()}

        contexts = {side: {n: whole(t) for n, t in whole(table).items()} for side, table in saved["contexts"].items()}
        return cls(
            whole(saved["target"]), whole(saved["draft"]), tuple(saved["opening"]), saved["rest"], saved["chain"], saved["tree"],
            whole(saved["top"]), contexts, saved["prompts"], tuple(saved.get("doubts", ())),
        )  # fmt: skip

    @property
    def c(self) -> float:
        """Draft step over target step."""
        return self.draft[1] / self.target[1]

    def v(self, gamma: float) -> float:
        """Scoring gamma + 1 tokens over scoring one."""
        return _at(self.target, gamma + 1) / self.target[1]

    def rates(self, tree: Tree, top: bool = False) -> list[list[float]]:
        """Acceptance by depth and rank. ``top``: of a tree of the draft's top tokens and one draw, as many children on all nodes of a level."""
        if tree.is_chain:
            return self.chain
        if not top:
            return self.tree
        missing = {k for k in tree.widths if k > 1} - set(self.top)
        if missing:
            raise ValueError(f"top-and-sample rates were not measured for {', '.join(map(str, sorted(missing)))} children a node")
        return [self.chain[d] if k == 1 else self.top[k][d] for d, k in enumerate(tree.widths)]

    def reach(self, tree: Tree, top: bool = False) -> list[float]:
        return tree_reach(self.rates(tree, top), tree.host[0])

    def round_seconds(self, tree: Tree) -> float:
        """One round: the first draft forward feeds two tokens (the catch-up window), the later ones a level each."""
        fed = [2, *(stop - start for start, stop in tree.levels[1:-1])] if tree.D else []
        return _at(self.target, tree.n) + sum(_at(self.draft, n) for n in fed) + tree.D * self.rest

    def speedup(self, tree: Tree, tokens: int, top: bool = False) -> float:
        """Plain decoding's seconds for ``tokens`` new tokens over the tree's."""
        plain = self.opening[0] + tokens * self.target[1]
        return plain / (sum(self.opening) + expected_rounds(self.reach(tree, top), tokens) * self.round_seconds(tree))


WIDTHS = (1, 2, 3, 4, 6, 9, 13, 21, 32)
TURNS, AGAIN = 3, 2  # turns in which everything is timed; further ones where the times are out of order
LONG = 1024
"""Tokens of the long text that forwards are measured after, where the context has room for so many."""


def calibrate(
    target: Target,
    draft: Target,
    prompts: Sequence[Prompt],
    *,
    gamma: int = 8,
    tree: Sequence[int] = (4, 4, 4),
    top: Sequence[int] = (),
    max_new_tokens: int = 64,
    temperature: float = 0.0,
    rounds: int = 12,
    seed: int = 0,
    seconds: float | None = None,
    progress: Callable[[float, str], None] | None = None,
) -> CostModel:
    """Measure what :class:`CostModel` needs, on prompts that the predictions are not judged by.

    Args:
        gamma: the chain measured; it bounds the depth of chains predicted. tree: the wide tree; it bounds depth and children of trees.
        top: the numbers of children for which top-and-sample rates are measured, in trees as deep as ``tree``; nothing at T = 0, where
            children are the draft's top tokens anyhow.
        rounds: how many rounds each time is a median of.
        seconds: count acceptance on no further prompt after about so long; at least on one.
        progress: called with (fraction done, text).
    Returns: a model whose figures have sense. Times out of order by more than ``SLACK`` are measured again, twice at most;
        what is still out of order is put in order (:func:`in_order`), a negative cost becomes 0, and ``doubts`` says so.
    Raises:
        CostError: a time is not a finite number > 0.
    """
    rows = token_rows(target, prompts)
    typical = sorted(rows, key=len)[len(rows) // 2]
    sampled = tuple(k for k in top if k > 1) if temperature > 0 else ()
    chain, wide = make_method("sps", target, draft=draft, gamma=gamma), make_method("mcsd", target, draft=draft, tree=tuple(tree))
    tops = [make_method("mcsd", target, draft=draft, tree=(k,) * len(tree), draw="top") for k in sampled]
    shared = {"max_new_tokens": max_new_tokens, "temperature": temperature, "seed": seed}
    say = progress or (lambda done, text: None)

    sides = (("target", target, WIDTHS), ("draft", draft, WIDTHS[:-1]))
    texts = {side: _texts(rows, model, rounds) for side, model, _ in sides}
    plain = make_method("ar", target)
    # everything takes turns, so that a machine whose speed drifts favours none
    forwards: list[dict[str, dict[int, dict[int, float]]]] = []
    runs = []
    for turn in range(TURNS + AGAIN):
        say(min(turn / TURNS, 1) / 4, "forwards")
        forwards.append({
            side: {len(text): _forward_seconds(model, ns, text, rounds, 1, temperature) for text in texts[side]} for side, model, ns in sides
        })  # fmt: skip
        runs.append([_timed(model, typical, m, rounds, **shared) for model, m in ((target, plain), (draft, plain), (target, chain))])
        raw = {(side, len(text)): {n: median(f[side][len(text)][n] for f in forwards) for n in ns} for side, _, ns in sides for text in texts[side]}
        # not after an even number of turns: a median between a good and a bad time is neither
        if turn + 1 == TURNS and max(map(disorder, raw.values())) <= SLACK:
            break
    doubts = [
        f"{side}, after {length} tokens: steps of more tokens took less time than steps of fewer; put in order, the furthest by {by:.0%}"
        for (side, length), table in raw.items()
        if (by := disorder(table)) > SLACK
    ]
    contexts = {side: {len(text): in_order(raw[side, len(text)]) for text in texts[side]} for side, _, _ in sides}
    length = sum(map(len, rows)) / len(rows) + max_new_tokens / 2
    t, d = (_between(contexts[side], length) for side in ("target", "draft"))
    first, later = (np.median([[run[i] for run in turn] for turn in runs], axis=0) for i in (0, 1))

    tallies, counted = [_Tally(made) for made in (chain, wide, *tops)], 0
    began = time.monotonic()
    for i, row in enumerate(rows):
        if seconds is not None and i and (time.monotonic() - began) * (i + 1) / i > seconds:
            break
        for j, tally in enumerate(tallies):
            say(0.25 + 0.75 * (i + j / len(tallies)) / len(rows), f"acceptance: {tally.method.key}")
            tally.add(target, row, **shared)
        counted += 1
    by_chain, by_tree, *by_top = (tally.rates for tally in tallies)
    opening = (max(0.0, float(first[0] - t[1])), max(0.0, float(first[1] - d[1])))
    made = CostModel(t, d, opening, 0.0, by_chain, by_tree, dict(zip(sampled, by_top, strict=True)), contexts, counted)
    rest = (float(later[2]) - made.round_seconds(Tree.chain(gamma))) / gamma
    if rest < -d[1]:
        doubts.append(f"a round of a chain of {gamma} took less than its parts by {-rest / d[1]:.1f} draft steps a level; one is taken off")
    return replace(made, rest=max(rest, -d[1]), doubts=tuple(doubts))


def _texts(rows: list[list[int]], model: Target, rounds: int) -> list[list[int]]:
    """The shortest prompt, and all of them in a row up to LONG tokens or what the context holds beside the widest forward."""
    room = model.context - rounds - 1 - max(WIDTHS)
    every = [token for row in rows for token in row]
    while len(every) < min(LONG, room):
        every = every + every
    return [min(rows, key=len), every[: min(LONG, room)]]


def _between(contexts: dict[int, dict[int, float]], length: float) -> dict[int, float]:
    """Seconds by width after a text of this length: attention is linear in it."""
    xs = sorted(contexts)
    return {n: float(np.interp(length, xs, [contexts[x][n] for x in xs])) for n in contexts[xs[0]]}


def _at(measured: dict[int, float], n: float) -> float:
    """Linear between the widths measured; beyond the widest the last slope goes on."""
    xs = sorted(measured)
    if n > xs[-1] and len(xs) > 1:
        a, b = xs[-2:]
        return measured[b] + (n - b) * (measured[b] - measured[a]) / (b - a)
    return float(np.interp(n, xs, [measured[x] for x in xs]))
