"""Who decodes a sweep's runs: this process, several of this machine, or a Dask cluster's."""

from __future__ import annotations

import pickle
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from specwb.bench.machine import Watch, one_step
from specwb.bench.measure import Job, measure
from specwb.bench.store import digest
from specwb.extras import require
from specwb.methods import Method
from specwb.methods import method as make_method
from specwb.models.load import load
from specwb.models.target import Target
from specwb.probability import Sampling
from specwb.sweeps.space import Configuration, SweepError

PART = 4
"""Prompts that another process decodes before it hands its runs over."""
ANSWER_SECONDS = 10
"""How long a Dask scheduler has to answer."""


Run = tuple[str, str, dict[str, Any], float | None]
"""What :meth:`specwb.bench.store.Store.add` takes."""


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


class Worker:
    """Decodes what it is given; another process loads the target by its name, if it is one.

    Raises:
        SweepError: no scheduler answers at that address, or it has no workers.
        MissingExtra: Dask is not installed.
    """

    def __init__(
        self,
        target: Target | str | Path,
        model: Target,
        timed: bool,
        jobs: int = 1,
        dask: str | None = None,
    ) -> None:
        self.target, self.model, self.timed, self.jobs = target, model, timed, jobs
        self.client = None if dask is None else _client(dask)

    @property
    def is_alone(self) -> bool:
        """Whether this process decodes."""
        return self.client is None and self.jobs == 1

    def close(self) -> None:
        """Closes the Dask client."""
        if self.client is not None:
            self.client.close()

    def runs(self, work: list[tuple[Task, Item]]) -> Iterator[Run]:
        """Yields the runs, in any order."""
        if not work:
            return
        if self.is_alone:
            yield from _measured(self.model, work, self.timed)
            return
        from joblib import Parallel, delayed

        by_task: dict[tuple[str, int], list[tuple[Task, Item]]] = {}
        numbers: dict[str, int] = {}
        for task, item in work:
            number = numbers[task.id] = numbers.get(task.id, -1) + 1
            by_task.setdefault((task.id, number // PART), []).append((task, item))
        with ExitStack() as stack:
            where, backend = self._sent(stack)
            stack.enter_context(backend)
            pool = Parallel(return_as="generator_unordered")
            parts = (
                delayed(_elsewhere)(
                    where,
                    self.model.fingerprint,
                    self.model.dtype,
                    task.configuration,
                    task.options,
                    task.id,
                    [item for _, item in part],
                    self.timed,
                )
                for part in by_task.values()
                for task in [part[0][0]]
            )
            for found in pool(parts):
                yield from found

    def _sent(self, stack: ExitStack) -> tuple[Any, AbstractContextManager]:
        """What other processes find the target by, and the backend that runs them.

        A model in memory is sent once, not with every part of the work.
        """
        from joblib import parallel_config

        where: Any = self.target if isinstance(self.target, Target) else str(self.target)
        if self.client is not None:
            sent = [where] if isinstance(where, Target) else None
            options = {"client": self.client, "scatter": sent, "wait_for_workers_timeout": 0}
            return where, parallel_config(backend="dask", **options)
        if isinstance(where, Target):
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            path = Path(folder) / "target"
            path.write_bytes(pickle.dumps(where))
            where = path
        return where, parallel_config(backend="loky", n_jobs=self.jobs)


def _client(address: str) -> Any:
    """Connects to a Dask scheduler."""
    require("specwb sweep --dask", "dask", "distributed")
    from distributed import Client

    try:
        client = Client(address, timeout=ANSWER_SECONDS, set_as_default=False)
    except (OSError, ValueError, TypeError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise SweepError(f"no Dask scheduler answers at {address!r}: {reason}") from error
    if not client.scheduler_info()["workers"]:
        client.close()
        raise SweepError(f"the Dask scheduler at {address!r} has no workers")
    return client


def _elsewhere(
    where: Target | Path | str,
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
    model = where if isinstance(where, Target) else _loaded(where, fingerprint, dtype)
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
