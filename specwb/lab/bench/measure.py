"""Decodings timed and counted, for every runner in one way: jobs in, runs out.

What has to be right for every measurement is done here: a method is warmed up before its first run
with a sampling, CUDA graphs are recorded before replays are timed, the device is waited for where a
time is read, and a run beside a disturbance of the machine is measured again where there is time
for it. Which jobs there are, in which order and until when is the caller's: jobs are taken one by
one, so that a caller's generator may stop, or make the next job of the last run.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import islice, pairwise
from typing import Any

import torch
from torch import Tensor

from specwb.core.probability import Sampling
from specwb.core.stops import Text
from specwb.engine.decoding import rounds
from specwb.engine.graphs import replayed
from specwb.engine.loop import Clock
from specwb.engine.machine import Watch
from specwb.engine.methods import Method
from specwb.lab.bench.library import Library
from specwb.models.target import Target

WARM_UP = 8
"""New tokens of a method's first decoding, which is not timed."""


@dataclass(frozen=True, eq=False)
class Job:
    """A prompt, or a batch of them, that one method decodes under one setting."""

    key: str  # what its runs are grouped by
    method: Method | Library  # a built method, or a decoding of the transformers library
    rows: Sequence[Sequence[int]]  # token ids of the prompts
    tokens: int  # new tokens of each row, at most
    sampling: Sampling = Sampling()  # noqa: RUF009  # temperature and filters
    # of the sampling: one per row, or one that each row's is derived from
    seed: int | Sequence[int] = 0
    layout: str = "tree"  # how the target is run over a draft, see :func:`specwb.rounds`


@dataclass
class Run:
    """What a job wrote, and how long that took.

    Lists by row and step have the steps that wrote something. A library's run has no steps.

    Where a last step that may be cut was left out, tokens and times still have it.
    """

    tokens: list[list[int]]  # new token ids by row
    forwards: int  # target forwards, summed over rows
    seconds: float  # of the whole run, prompt processing included
    accepted: list[list[int]] = field(default_factory=list)  # draft tokens kept, by row and step
    # depths at which candidates were tested, by row and step. A row's last step counts only what it
    # accepted: the end of text or the limit may have cut it. Empty where a number of steps was
    # asked for.
    tested: list[list[int]] = field(default_factory=list)
    drafted: list[list[int]] = field(default_factory=list)  # draft tokens, by row and step
    # the depth of the draft, by row and step; for trees, when a number of steps was asked for
    levels: list[list[int]] = field(default_factory=list)
    # of every step of the batch, the first one with the prompt in it; empty where steps were not
    # timed
    step_seconds: list[float] = field(default_factory=list)
    # seconds by part of the steps, summed; empty where no clock ran
    parts: dict[str, float] = field(default_factory=dict)
    first_parts: dict[str, float] = field(default_factory=dict)  # the same of the first step alone
    texts: list[str] | None = None  # what was written, where stop texts were asked for
    # seconds of the machine's fixed step beside the run, the slower of before and after
    probe: float = 0.0
    again: bool = False  # whether the run was measured again
    # seconds that measuring took, with what was decoded for it and does not count: steps that were
    # recorded as graphs, a disturbed attempt, probes. Warm-ups are not in it.
    wall: float = 0.0

    @property
    def written(self) -> int:
        """New tokens of all rows."""
        return sum(map(len, self.tokens))

    @property
    def tokens_per_second(self) -> float:
        return self.written / self.seconds


def _now(device: torch.device) -> float:
    """Seconds of a clock, read when the device has done its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def rotated(names: Sequence[Any], turn: int) -> list[Any]:
    """Return the names beginning with another one each turn, so that a drift favours none."""
    first = turn % len(names)
    return [*names[first:], *names[:first]]


def measure(
    target: Target,
    jobs: Iterable[Job],
    *,
    steps: int | None = None,
    until: Sequence[str] | None = None,
    clock: bool | None = None,
    watch: Watch | None = None,
    timed: bool = True,
    warm: bool = True,
) -> Iterator[tuple[Job, Run]]:
    """Decode jobs one after another; yields each with its run before the next job is taken.

    Args:
        target: the model of all jobs.
        jobs: what is decoded, in this order.
        steps: decoding steps of a job; texts then go on past their end, every step is timed, and
            where a job's tokens are too few for all its drafts a last step that may be cut is left
            out. None decodes to the end of the text.
        until: texts that end a row; the runs then have texts. None: none, and no texts.
        clock: whether the parts of a step are timed; default where that costs nothing.
        watch: times the machine's fixed step between runs. A run beside a slow one was disturbed;
            it is measured again where there is time (:attr:`Watch.repeat_until`), and the attempt
            with the faster step beside it counts, whatever the two took themselves.
        timed: whether times are wanted. Otherwise nothing is warmed up, and what recorded graphs
            counts too.
        warm: whether a method is warmed up before its first run.
    """
    begun: set[tuple] = set()
    for job in jobs:
        kind = id(job.method), job.sampling, job.layout
        if timed and warm and kind not in begun:
            begun.add(kind)
            _warm_up(target, job, until, clock)
        began, before = time.monotonic(), watch.last if watch else 0.0
        run = _decode(target, job, steps, until, clock, timed)
        if watch:
            run.probe = max(before, watch.probe())
            if watch.slow(run.probe) and time.monotonic() + run.seconds < watch.repeat_until:
                before = watch.last
                second = _decode(target, job, steps, until, clock, timed)
                second.probe = max(before, watch.probe())
                run = min(run, second, key=lambda one: one.probe)
                run.again = True
        run.wall = time.monotonic() - began
        yield job, run


def _warm_up(target: Target, job: Job, until: Sequence[str] | None, clock: bool | None) -> None:
    """Decodes a few tokens: tables that are made when first needed, threads, packed weights."""
    _decode(target, replace(job, tokens=min(WARM_UP, job.tokens)), None, until, clock, False)


def _decode(
    target: Target,
    job: Job,
    steps: int | None,
    until: Sequence[str] | None,
    clock: bool | None,
    timed: bool,
) -> Run:
    method = job.method
    if isinstance(method, Library):
        return _by_library(target, method, job, until)

    def once() -> Run:
        return _by_engine(target, method, job, steps, until, clock)

    return replayed(once, method.arenas) if timed else once()


def _by_library(target: Target, row: Library, job: Job, until: Sequence[str] | None) -> Run:
    rows = [list(ids) for ids in job.rows]
    seed = job.seed if isinstance(job.seed, int) else job.seed[0]
    devices = [target.device] if target.device.type == "cuda" else []
    with torch.random.fork_rng(devices):  # the library draws from torch's global generator
        torch.manual_seed(seed)
        tokens, forwards, seconds = row.generate(rows, job.tokens)
    run = Run(tokens, forwards, seconds)
    if until is not None:
        run.texts = [
            Text(target.tokenizer, prompt).feed(ids).printed
            for prompt, ids in zip(rows, tokens, strict=True)
        ]
    return run


def _by_engine(
    target: Target,
    method: Method,
    job: Job,
    count: int | None,
    until: Sequence[str] | None,
    clocked: bool | None,
) -> Run:
    drafter, tokens = method.drafter, job.tokens
    by_step, enough = count is not None, 0
    if count is not None:
        enough = count * (1 + drafter.limits.depth)  # not reached before the last step is over
        tokens = min(enough, tokens)
    # a clock waits for the device, five times a step, which costs nothing on a CPU
    if clocked is None:  # where steps are timed one by one, those that are never recorded too
        waits = by_step and (not drafter.captured or job.layout != "tree")
        clocked = waits or target.device.type == "cpu"
    clock = Clock(target.device) if clocked else None

    spent = getattr(drafter, "spent", {})
    searched = spent.get("search", 0.0)  # by all decodings of the method before this one

    def laps() -> dict[str, float]:
        seconds = dict(clock.seconds) if clock else {}
        if clock and spent:  # a search is a part of drafting
            seconds["search"] = spent["search"] - searched
        return seconds

    times = [_now(target.device)]
    first: dict[str, float] = {}
    # a tensor [B] per step: between two steps that are timed no more is computed than is read
    columns: dict[str, list[Tensor]] = {"count": [], "drafted": [], "offered": [], "levels": []}
    is_tree = drafter.limits.children > 1
    state, stops = None, None
    loop = rounds(
        target,
        job.rows,
        method,
        max_new_tokens=tokens,
        **asdict(job.sampling),
        seed=job.seed,
        eos=() if by_step else None,
        layout=job.layout,
        clock=clock,
        until=until or (),
    )
    for step in islice(loop, count):
        if by_step:
            times.append(_now(target.device))
        first = first or laps()
        state, stops, draft = step.state, step.stops, step.draft
        columns["count"].append(step.verdict.count)
        columns["drafted"].append(draft.valid[:, 1:].sum(1))
        if not by_step:
            columns["offered"].append(step.offered)
        elif is_tree:
            columns["levels"].append((draft.valid * draft.tree.depth).amax(1))
    assert state is not None
    assert stops is not None
    starts, ends, table = state.start.tolist(), state.length.tolist(), state.tokens.tolist()
    batch = len(job.rows)
    by_row: dict[str, list[list[int]]] = {
        name: torch.stack([x.expand(batch) for x in column], 1).tolist() if column else []
        for name, column in columns.items()
    }
    seconds = _now(target.device) - times[0]
    parts = laps()
    loop.close()  # type: ignore[attr-defined]
    # a row that has ended writes nothing
    live = [sum(n > 0 for n in row) for row in by_row["count"]]
    if by_step and tokens < enough:
        full = [sum(row) >= tokens for row in by_row["count"]]
        live = [n - (n > 1 and is_full) for n, is_full in zip(live, full, strict=True)]
    by_row = {
        name: [row[:n] for row, n in zip(rows, live, strict=False)] for name, rows in by_row.items()
    }
    accepted = [[n - 1 for n in row] for row in by_row["count"]]
    written = [row[a:b] for row, a, b in zip(table, starts, ends, strict=True)]
    return Run(
        tokens=written,
        forwards=sum(live),
        seconds=seconds,
        accepted=accepted,
        tested=[
            [a + more for a, more in zip(row[:-1], offered, strict=False)] + row[-1:]
            for row, offered in zip(accepted, by_row["offered"], strict=False)
        ],
        drafted=by_row["drafted"],
        levels=by_row["levels"],
        step_seconds=[b - a for a, b in pairwise(times)],
        parts=parts,
        first_parts=first,
        texts=None if until is None else stops.texts(written),
    )
