"""Decoding a sweep's runs, in this process or in several."""

from __future__ import annotations

import pickle
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from joblib import Parallel, delayed

from specwb.core.probability import Sampling
from specwb.engine.machine import Watch, one_step
from specwb.engine.methods import Method
from specwb.engine.methods import method as make_method
from specwb.lab.bench.measure import Job, measure
from specwb.lab.bench.store import digest
from specwb.lab.sweeps.space import Configuration, SweepError
from specwb.models.load import load
from specwb.models.target import Target

PART = 4
"""Prompts that another process decodes before it hands its runs over."""


Run = tuple[str, str, dict[str, Any], float | None]
"""What :meth:`specwb.lab.bench.store.Store.add` takes."""


@dataclass(frozen=True)
class Item:
    """A prompt."""

    key: str  # a hash of its tokens
    domain: str  # its subtask, "all" where it has none
    ids: list[int]  # its tokens


@dataclass
class Task:
    """A configuration that can be run."""

    id: str  # of its settings in the store
    configuration: Configuration  # its settings
    method: Method  # built on the target
    sampling: Sampling  # temperature and filters
    options: dict[str, Any]  # what the method was built with


def runs(
    target: Target | str | Path,
    model: Target,
    work: Sequence[tuple[Task, Item]],
    timed: bool,
    jobs: int = 1,
) -> Iterator[Run]:
    """Yields the runs of ``work``, with ``jobs`` > 1 in any order.

    Several processes are those of joblib's backend in force, its own (loky) unless the caller has
    chosen another by ``joblib.parallel_config``. Each loads the model by the name ``target``, or
    from a temporary file if ``target`` is a model in memory.
    """
    if not work:
        return
    if jobs == 1:
        yield from _measured(model, work, timed)
        return
    by_task: dict[tuple[str, int], list[tuple[Task, Item]]] = {}
    numbers: dict[str, int] = {}
    for task, item in work:
        number = numbers[task.id] = numbers.get(task.id, -1) + 1
        by_task.setdefault((task.id, number // PART), []).append((task, item))
    with _sent(target) as where:
        parts = (
            delayed(_elsewhere)(
                where,
                model.fingerprint,
                model.dtype,
                task.configuration,
                task.options,
                task.id,
                [item for _, item in part],
                timed,
            )
            for part in by_task.values()
            for task in [part[0][0]]
        )
        for found in Parallel(jobs, return_as="generator_unordered")(parts):
            yield from found


@contextmanager
def _sent(target: Target | str | Path) -> Iterator[Path | str]:
    """The name or file by which other processes find the target.

    A model in memory is written once, not sent with every part of the work.
    """
    if not isinstance(target, Target):
        yield str(target)
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "target"
        path.write_bytes(pickle.dumps(target))
        yield path


def _elsewhere(
    where: Path | str,
    fingerprint: str,
    dtype: torch.dtype,
    configuration: Configuration,
    options: dict[str, Any],
    id: str,
    items: list[Item],
    timed: bool,
) -> list[Run]:
    """Runs one configuration in a process of its own."""
    torch.set_num_threads(1)
    model = _loaded(where, fingerprint, dtype)
    method = make_method(configuration["method"], model, **options)
    place = float(configuration["temperature"]), configuration["top_k"], configuration["top_p"]
    task = Task(id, configuration, method, Sampling(*place), options)
    return list(_measured(model, [(task, item) for item in items], timed))


def _loaded(where: Path | str, fingerprint: str, dtype: torch.dtype) -> Target:
    """Loads a model by its name, or from the file that this sweep has put it in, once a process;
    in the number type that it has in the sweep's own process.
    """
    key = fingerprint, dtype
    if key not in _LOADED:
        _LOADED.clear()  # workers outlive sweeps
        if isinstance(where, Path):
            model = pickle.loads(where.read_bytes())
        else:
            model = load(where, dtype=dtype)
        if model.fingerprint != fingerprint:
            raise SweepError(f"a worker finds another model under {str(where)!r} than this machine")
        _LOADED[key] = model
    return _LOADED[key]


_LOADED: dict[tuple[str, torch.dtype], Target] = {}
"""The model of a worker's process, by its fingerprint and number type."""


def _measured(target: Target, work: Sequence[tuple[Task, Item]], timed: bool) -> Iterator[Run]:
    """Decodes every prompt by its configuration, one after another; yields what a store adds."""
    watch = Watch(one_step(target)) if timed else None
    began = ""

    def jobs() -> Iterator[Job]:
        nonlocal began
        for task, item in work:
            began = datetime.now(UTC).isoformat(timespec="seconds")
            tokens, seed = task.configuration["max_new_tokens"], task.configuration["seed"]
            yield Job(task.id, task.method, [item.ids], tokens, task.sampling, [seed])

    runs = measure(target, jobs(), watch=watch, timed=timed)
    for (task, item), (_, run) in zip(work, runs, strict=True):
        record = {
            "domain": item.domain,
            "tokens": run.written,
            "accepted": run.accepted[0],
            "tested": run.tested[0],
            "drafted": sum(run.drafted[0]),
            "disturbed": watch is not None and watch.slow(run.probe),
            "text": digest(run.tokens[0]),
            "began": began,
        }
        yield task.id, item.key, record, run.seconds if timed else None
