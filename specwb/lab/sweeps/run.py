"""Running a sweep: every prompt by every configuration, continued where a store already has it."""

from __future__ import annotations

import platform
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from joblib import Parallel, delayed

from specwb.core.inputs import integer
from specwb.core.probability import Sampling
from specwb.core.progress import Report
from specwb.core.progress import progress as bar
from specwb.engine.machine import Watch, one_step
from specwb.engine.methods import Method
from specwb.engine.methods import method as make_method
from specwb.engine.work import check_work
from specwb.lab.bench.conditions import conditions, weights
from specwb.lab.bench.measure import Job, measure, rotated
from specwb.lab.bench.store import RunStore, digest
from specwb.lab.sweeps.results import SweepError, frame
from specwb.lab.sweeps.space import (
    Configuration,
    SweepBlock,
    configurations,
    options_of,
    with_plain,
)
from specwb.models.load import load
from specwb.models.prompts import Prompt
from specwb.models.questions import Question, fitted
from specwb.models.target import Target

PART = 4
"""Prompts that another process decodes before it hands its runs over."""

SweepPrompts = Sequence[Question] | Sequence[Prompt]
StoredRun = tuple[str, str, dict[str, Any], float | None]
"""The arguments of :meth:`specwb.lab.bench.store.RunStore.add`."""


@dataclass
class Work:
    """One prompt to be decoded by one configuration."""

    id: str  # of the settings in the store
    configuration: Configuration
    key: str  # a hash of the prompt's tokens
    domain: str  # its subtask, "all" where it has none
    ids: list[int]  # its tokens


def sweep(
    target: Target | str | Path,
    prompts: SweepPrompts,
    method: str | Sequence[str] | None = None,
    *,
    blocks: Sequence[SweepBlock] | None = None,
    store: Path | str | None = None,
    jobs: int = 1,
    timed: bool | None = None,
    progress: Report | None = None,
    **axes: Any,
) -> pd.DataFrame:
    """Measure many settings of one or several methods; return a frame with one row a run.

    ::

        frame = specwb.sweep("lab", prompts, "kangaroo", eta=[0, 0.3, 0.6], gamma=[4, 6],
                             temperature=[0, 1], seed=range(3))
        specwb.lab.sweeps.summary(frame, by=["temperature", "eta", "gamma"])

    Every prompt is decoded by every configuration before the next prompt, in rotating order, and by
    plain decoding with the same sampling and seed, which the speedup of a run is over. With a
    store, what is there is not measured again, and an interrupted sweep loses at most the run it
    was at, of other processes the :data:`PART` that each has not handed over.

    Args:
        target: the target model, or its name.
        prompts: questions of a prompt set, or texts or lists of token ids.
        method: a method's name, or several that have the same options.
        blocks: several tables of axes, each with its ``method``, in place of ``method`` and
            ``axes``.
        store: the file of the runs; default none, and the results are in the frame only.
        jobs: processes that decode at once, on one thread each, by joblib's backend in force. They
            load the target by its name.
        timed: whether times are recorded; default where nothing else is decoded at the same time.
        progress: called with (fraction done, text): before the first run with the number of runs
            and an estimate of their time, and after every run. Default a bar or lines on standard
            error, in a notebook nothing.
        axes: options of the method, and temperature, top_k, top_p, seed, max_new_tokens, rule,
            draft, head: one value, or several (a list or range).

    Returns:
        See :func:`specwb.lab.sweeps.results.frame`.

    Raises:
        SweepError, MethodError, ValueError: a configuration that cannot be, before the first run.
        WorkError: the runs would take longer than :func:`specwb.engine.work.check_work` allows.
        StoreError: the store cannot be used, or another program measures into it.
        KeyboardInterrupt: after what was measured has been written.
    """
    if (method is None) == (blocks is None) or (blocks is not None and axes):
        raise SweepError("a sweep needs a method with its axes, or blocks of them")
    blocks = [{"method": method, **axes}] if blocks is None else blocks
    integer("jobs", jobs, 1, kind=SweepError)
    if jobs > 1 and isinstance(target, Target):
        raise SweepError("several processes load the target by its name; give that, not a model")
    settings = with_plain(configurations(blocks))
    with ExitStack() as stack:
        if progress is None:
            progress = stack.enter_context(bar("sweep", lasting=True))
        if store is None:
            store = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "sweep.sqlite"
        opened = stack.enter_context(RunStore(store))
        stack.enter_context(opened.measuring())
        model = target if isinstance(target, Target) else load(target)
        work, methods = _planned(model, prompts, settings, opened, jobs)
        timed = jobs == 1 if timed is None else timed
        done = opened.done(timed)
        missing = [one for one in work if (one.id, one.key) not in done]
        if missing:
            progress(0.0, _estimate(model, missing, jobs))
        if jobs == 1:
            runs = _decoded(model, missing, methods, timed)
        else:
            runs = _by_processes(str(target), model, missing, timed, jobs)
        for count, run in enumerate(runs, 1):
            opened.add(*run)
            progress(count / len(missing), f"{count} of {len(missing)} runs")
        results = frame(opened)
    pairs = {(one.id, one.key) for one in work}
    wanted = [pair in pairs for pair in zip(results.id, results.prompt, strict=True)]
    return results[wanted].reset_index(drop=True)


def _planned(
    target: Target,
    prompts: SweepPrompts,
    settings: Sequence[Configuration],
    store: RunStore,
    jobs: int,
) -> tuple[list[Work], dict[str, Method]]:
    """All work in running order, and the methods by the ids of their settings, which are stored.

    Every method is built, so that one that cannot be is found before the first run.
    """
    longest = max(one["max_new_tokens"] for one in settings)
    unique = {digest(ids): (domain, ids) for domain, ids, _ in fitted(target, prompts, longest)}
    if not unique:
        raise SweepError("a sweep needs at least one prompt")
    shared = conditions(target)
    shared["device"] = shared["device"].partition(",")[0]
    shared["threads"] = shared["threads"] if jobs == 1 else 1
    # tells machines apart without naming them
    shared["machine"] = digest([platform.node(), platform.machine()])[:8]
    built: dict[str, tuple[Method, dict[str, Any]]] = {}
    ids, methods = [], {}
    for one in settings:
        key = digest([one["method"], one.get("rule"), options_of(one)])
        if key not in built:
            method = _built(target, one)
            built[key] = method, weights(target, [method])
        method, hashes = built[key]
        method.rule_for(_sampling(one))
        ids.append(store.add_settings(one, {**shared, **hashes}))
        methods[ids[-1]] = method
    tasks = list(zip(ids, settings, strict=True))
    work = [
        Work(id, one, key, *prompt)
        for turn, (key, prompt) in enumerate(unique.items())
        for id, one in rotated(tasks, turn)
    ]
    return work, methods


def _built(target: Target, one: Configuration) -> Method:
    return make_method(one["method"], target, rule=one.get("rule"), **options_of(one))


def _sampling(one: Configuration) -> Sampling:
    return Sampling(one["temperature"], one["top_k"], one["top_p"])


def _estimate(target: Target, work: Sequence[Work], jobs: int) -> str:
    """The number of runs, and their time if all are as fast as plain decoding; prompts are left
    out. More than :func:`check_work` allows is refused."""
    tokens = sum(one.configuration["max_new_tokens"] for one in work)
    lower = "first (prompts), max_new_tokens or the number of configurations"
    what = f"{len(work)} runs at the speed of plain decoding"
    return check_work(target, what, tokens / jobs, 1, lower=lower)


def _decoded(
    target: Target, work: Sequence[Work], methods: Mapping[str, Method], timed: bool
) -> Iterator[StoredRun]:
    """Decode every prompt by its configuration, one after another; yield what a store adds."""
    watch = Watch(one_step(target)) if timed else None
    jobs = (
        Job(
            one.id,
            methods[one.id],
            [one.ids],
            one.configuration["max_new_tokens"],
            _sampling(one.configuration),
            [one.configuration["seed"]],
        )
        for one in work
    )
    for one, (_, run) in zip(work, measure(target, jobs, watch=watch, timed=timed), strict=True):
        began = datetime.now(UTC) - timedelta(seconds=run.wall)
        record = {
            "domain": one.domain,
            "tokens": run.written,
            "accepted": run.accepted[0],
            "drafted": sum(run.drafted[0]),
            "disturbed": watch is not None and watch.slow(run.probe),
            "text": digest(run.tokens[0]),
            "began": began.isoformat(timespec="seconds"),
        }
        yield one.id, one.key, record, run.seconds if timed else None


def _by_processes(
    name: str, target: Target, work: Sequence[Work], timed: bool, jobs: int
) -> Iterator[StoredRun]:
    """The runs of several processes, in any order."""
    by_settings: dict[str, list[Work]] = {}
    for one in work:
        by_settings.setdefault(one.id, []).append(one)
    parts = [some[i : i + PART] for some in by_settings.values() for i in range(0, len(some), PART)]
    where = name, str(target.dtype).removeprefix("torch."), target.fingerprint
    tasks = (delayed(_in_process)(*where, part, timed) for part in parts)
    for runs in Parallel(jobs, return_as="generator_unordered")(tasks):
        yield from runs


def _in_process(
    name: str, dtype: str, fingerprint: str, work: list[Work], timed: bool
) -> list[StoredRun]:
    """The runs of one configuration, decoded by a process of its own on one thread."""
    torch.set_num_threads(1)
    target = _loaded(name, dtype=dtype)
    if target.fingerprint != fingerprint:
        raise SweepError(f"a worker finds another model under {name!r} than this machine")
    methods = {work[0].id: _built(target, work[0].configuration)}
    return list(_decoded(target, work, methods, timed))


_loaded = lru_cache(1)(load)
"""The model of a worker, which lives longer than one part of the work."""
