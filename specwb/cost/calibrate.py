"""Measures what the cost model needs: times and acceptance of a pair, once.

That takes short runs: a long chain, a wide tree, forwards of both models alone after a short and a
long text, and, for trees of the draft model's top tokens, one wide tree for every number of
children.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import median
from typing import Any

import numpy as np
import torch

from specwb.bench.measure import Job, measure
from specwb.cost.model import CostModel, at_length, disorder, in_order
from specwb.decoding import rounds
from specwb.drafters.base import Drafter
from specwb.errors import ArgumentError
from specwb.flow import Draft, Exactness, State
from specwb.methods import Method
from specwb.methods import method as make_method
from specwb.models.prompts import Prompt, token_rows
from specwb.models.target import Target
from specwb.noise import Noise
from specwb.probability import Sampling
from specwb.tree import Tree

SLACK = 0.15
"""Times that had to be moved by more than this to be in order are measured again."""
WIDTHS = (1, 2, 3, 4, 6, 9, 13, 21, 32)
"""The numbers of tokens whose scoring is timed."""
TURNS = 3
"""Turns in which everything is timed."""
AGAIN = 2
"""Further turns, where the times are out of order."""
LONG = 1024
"""Tokens of the long text that forwards are measured after, where the context has room for it."""


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
    *,
    max_new_tokens: int,
    temperature: float = 0.0,
    seed: int = 0,
    graphs: bool | None = None,
) -> tuple[float, float]:
    """Time the decoding steps of one prompt.

    Returns:
        The seconds until the first step is over, prompt processing included, and the median of
        the later steps.
    """
    sampling = Sampling(temperature)
    job = Job(method.key, method, [list(prompt)], max_new_tokens, sampling, seed, graphs=graphs)
    ((_, run),) = measure(target, [job], steps=count + 1, clock=False, warm=False)
    first, *later = run.step_seconds
    return first, median(later or [first])


def forward_seconds(
    model: Target,
    widths: Sequence[int],
    prompt: Prompt,
    *,
    rounds: int = 12,
    repeats: int = 3,
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
        repeats: turns.
        temperature: 0 is greedy.
    """
    return in_order(_forward_seconds(model, widths, prompt, rounds, repeats, temperature))


def _forward_seconds(
    model: Target,
    widths: Sequence[int],
    prompt: Prompt,
    rounds: int,
    repeats: int,
    temperature: float,
) -> dict[int, float]:
    """The medians of :func:`forward_seconds` before they are put in order."""
    if not widths or min(widths) < 1:
        raise ArgumentError(f"widths must be integers >= 1, got {list(widths)}")
    (row,) = token_rows(model, [prompt])  # type: ignore[list-item]
    methods = {
        n: Method(f"forward of {n}", _ZeroDrafter(n), None, Exactness.LOSSLESS)
        for n in dict.fromkeys(widths)
    }
    for method in methods.values():  # warm-up
        step_seconds(model, row, method, 1, max_new_tokens=2)
    settings: dict[str, Any] = {"max_new_tokens": rounds + 1, "temperature": temperature}
    seconds: dict[int, list[float]] = {n: [] for n in methods}
    for _ in range(repeats):
        for n, method in methods.items():
            _, later = step_seconds(model, row, method, rounds, **settings)
            seconds[n].append(later)
    return {n: median(values) for n, values in seconds.items()}


class AcceptanceTally:
    """Counts how often the r-th child is the accepted one, by depth.

    At depth d it is counted among the decoding steps whose walk reached depth d - 1. Steps that end
    a row are left out, since the limit may have cut them. A depth that is never reached has rates
    0. The method and ``tested [D]``, ``counts [D,K]`` give ``rates[d - 1][r]``, the form that
    :func:`specwb.analysis.tree_reach` takes.
    """

    def __init__(self, method: Method) -> None:
        limits = method.drafter.limits
        self.method = method
        self.counts = torch.zeros(limits.depth, max(limits.children, 1), dtype=torch.long)
        self.tested = torch.zeros(limits.depth, dtype=torch.long)

    def add(self, target: Target, prompt: Sequence[int], **settings: Any) -> None:
        """Decode one prompt and count; ``settings`` as of :func:`specwb.rounds`."""
        for step in rounds(target, [prompt], self.method, **settings):
            assert step.state is not None
            accepted = int(step.verdict.accepted[0])
            if bool(step.state.done[0]):
                continue
            tree = step.draft.tree
            ranks = tree.rank[0, step.verdict.path[0, 1 : accepted + 1]].tolist()
            self.tested[: min(accepted + 1, tree.D)] += 1
            for depth, rank in enumerate(ranks):
                self.counts[depth, rank] += 1

    @property
    def rates(self) -> list[list[float]]:
        return (self.counts.double() / self.tested.clamp_min(1)[:, None]).tolist()


def accepted_by_rank(
    target: Target,
    prompts: Sequence[Prompt],
    method: str | Method,
    *,
    max_new_tokens: int = 64,
    temperature: float = 0.0,
    seed: int = 0,
    **options,
) -> list[list[float]]:
    """Measure how often the r-th child is the accepted one, by depth.

    At depth d it is counted among the decoding steps whose walk reached depth d - 1. Steps that end
    a row are left out, since the limit may have cut them. A depth that is never reached has rates
    0. Returns ``rates[d - 1][r]``, the form that :func:`specwb.analysis.tree_reach` takes.
    """
    chosen = method if isinstance(method, Method) else make_method(method, target, **options)
    tally = AcceptanceTally(chosen)
    for prompt in token_rows(target, prompts):
        tally.add(target, prompt, max_new_tokens=max_new_tokens, temperature=temperature, seed=seed)
    return tally.rates


def calibrate(
    target: Target,
    draft: Target | None,
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

    Times out of order by more than ``SLACK`` are measured again, twice at most. What is still out
    of order is put in order (:func:`in_order`), a negative cost becomes 0, and ``doubts`` says so.

    Chains and trees that are predicted may be as deep as ``gamma`` and ``tree``, with no more
    children. Rates of ``top[i]`` children are measured in trees as deep as ``tree``; none at T = 0,
    where children are the draft model's top tokens anyhow. Without a draft model only the target is
    measured. After ``seconds`` acceptance is counted on no further prompt, but at least on one.
    """
    rows = token_rows(target, prompts)
    typical = sorted(rows, key=len)[len(rows) // 2]
    temperature = Sampling(temperature).temperature
    settings = {"max_new_tokens": max_new_tokens, "temperature": temperature, "seed": seed}
    report = progress or (lambda done, text: None)
    models = {"target": target} if draft is None else {"target": target, "draft": draft}
    plain = make_method("ar", target)
    steps = [(model, plain) for model in models.values()]
    drafting, top_ks = [], tuple(k for k in top if k > 1 and temperature > 0)
    if draft is not None:
        drafting = [
            make_method("sps", target, draft=draft, gamma=gamma),
            make_method("mcsd", target, draft=draft, tree=tuple(tree)),
        ]
        shapes = [(k,) * len(tree) for k in top_ks]
        drafting += [make_method("mcsd", target, draft=draft, tree=ks, draw="top") for ks in shapes]
        steps.append((target, drafting[0]))

    forwards, first, later = _timings(models, steps, rows, typical, rounds, settings, report)
    contexts = {
        side: {length: in_order(table) for length, table in tables.items()}
        for side, tables in forwards.items()
    }
    length = _typical_length(rows, max_new_tokens)
    seconds_of = {side: at_length(tables, length) for side, tables in contexts.items()}
    opening = [
        max(0.0, float(whole - table[1]))
        for whole, table in zip(first, seconds_of.values(), strict=False)
    ]
    doubts = [
        f"{side}, after {length} tokens: steps of more tokens took less time than steps of fewer; "
        f"put in order, the furthest by {disorder(table):.0%}"
        for side, tables in forwards.items()
        for length, table in tables.items()
        if disorder(table) > SLACK
    ]
    model = CostModel(
        target=seconds_of["target"],
        draft=seconds_of.get("draft", {}),
        opening=(opening[0], opening[1] if draft is not None else 0.0),
        rest=0.0,
        chain=[],
        tree=[],
        contexts=contexts,
        prompts=len(rows),
        doubts=tuple(doubts),
    )
    if draft is None:
        return model

    tallies = [AcceptanceTally(method) for method in drafting]
    counted = count_acceptance(
        target,
        rows,
        tallies,
        settings,
        seconds,
        lambda done, text: report(0.25 + 0.75 * done, text),
    )
    chain_rates, tree_rates, *top_rates = (tally.rates for tally in tallies)
    draft_step = model.draft[1]
    rest = (float(later[-1]) - model.round_seconds(Tree.chain(gamma))) / gamma
    if rest < -draft_step:
        doubts.append(
            f"a step with a chain of {gamma} took less than its parts by {-rest / draft_step:.1f} "
            "draft steps a level; one is taken off"
        )
    return replace(
        model,
        rest=max(rest, -draft_step),
        chain=chain_rates,
        tree=tree_rates,
        top=dict(zip(top_ks, top_rates, strict=True)),
        prompts=counted,
        doubts=tuple(doubts),
    )


def _typical_length(rows: list[list[int]], max_new_tokens: int) -> float:
    """Of the text in the middle of a decoding."""
    return sum(map(len, rows)) / len(rows) + max_new_tokens / 2


def _timings(
    models: dict[str, Target],
    steps: list[tuple[Target, Method]],
    rows: list[list[int]],
    prompt: list[int],
    rounds: int,
    settings: dict[str, Any],
    report: Callable[[float, str], None],
) -> tuple[dict[str, dict[int, dict[int, float]]], np.ndarray, np.ndarray]:
    """Time forwards and decoding steps in turns, until the forwards are in order.

    Everything takes turns, so that a machine whose speed drifts favours none.

    Returns:
        Side -> length of text -> width -> seconds of a forward; and for every one of ``steps`` the
        seconds of the first step and of a later one. All are medians over the turns.
    """
    turns, step_times = [], []
    texts = {side: _texts(rows, model, rounds) for side, model in models.items()}
    widths = {"target": WIDTHS, "draft": WIDTHS[:-1]}
    for turn in range(TURNS + AGAIN):
        report(min(turn / TURNS, 1) / 4, "forwards")
        temperature = settings["temperature"]
        turns.append(
            {
                side: {
                    len(text): _forward_seconds(model, widths[side], text, rounds, 1, temperature)
                    for text in texts[side]
                }
                for side, model in models.items()
            }
        )
        step_times.append(
            [step_seconds(model, prompt, method, rounds, **settings) for model, method in steps]
        )
        medians = {
            side: {
                length: {n: median(one[side][length][n] for one in turns) for n in table}
                for length, table in tables.items()
            }
            for side, tables in turns[0].items()
        }
        tables = [table for tables in medians.values() for table in tables.values()]
        # not after an even number of turns: a median between a good and a bad time is neither
        if turn + 1 == TURNS and max(map(disorder, tables)) <= SLACK:
            break
    first, later = np.median(step_times, axis=0).T
    return medians, first, later


def count_acceptance(
    target: Target,
    rows: list[list[int]],
    tallies: list[AcceptanceTally],
    settings: dict[str, Any],
    seconds: float | None,
    report: Callable[[float, str], None],
) -> int:
    """Decode prompt after prompt with every tally's method; return the number of prompts.

    With ``seconds`` no prompt is begun that is likely to end later, but always the first.
    """
    began = time.monotonic()
    for i, row in enumerate(rows):
        if seconds is not None and i and (time.monotonic() - began) * (i + 1) / i > seconds:
            return i
        for j, tally in enumerate(tallies):
            report((i + j / len(tallies)) / len(rows), f"acceptance: {tally.method.key}")
            tally.add(target, row, **settings)
    return len(rows)


def _texts(rows: list[list[int]], model: Target, rounds: int) -> list[list[int]]:
    """The shortest prompt; and all in a row, as long as ``LONG`` and the context allow."""
    room = model.context - rounds - 1 - max(WIDTHS)
    all_tokens = [token for row in rows for token in row]
    while len(all_tokens) < min(LONG, room):
        all_tokens = all_tokens + all_tokens
    return [min(rows, key=len), all_tokens[: min(LONG, room)]]
