"""Running a sweep: every prompt by every configuration, resumed where a store already has it."""

from __future__ import annotations

import platform
import tempfile
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pandas as pd

from specwb.core.inputs import integer, is_many
from specwb.core.probability import Sampling
from specwb.core.progress import progress as bar
from specwb.engine.methods import Method
from specwb.engine.methods import method as make_method
from specwb.engine.work import check_work
from specwb.lab.bench.conditions import conditions as conditions_of
from specwb.lab.bench.conditions import weights
from specwb.lab.bench.store import Store, digest
from specwb.lab.sweeps.heads import Heads, content_hash
from specwb.lab.sweeps.results import frame
from specwb.lab.sweeps.space import SHARED, Configuration, Space, SweepError, options_of
from specwb.lab.sweeps.workers import Item, Task, runs
from specwb.models.load import load
from specwb.models.prompts import Prompt
from specwb.models.questions import Question, fitted
from specwb.models.target import Target

Progress = Callable[[float, str], None]


def sweep(
    target: Target | str | Path,
    prompts: Sequence[Question] | Sequence[Prompt],
    method: str | Sequence[str] | None = None,
    *,
    space: Space | None = None,
    store: Store | Path | str | None = None,
    samples: int | None = None,
    jobs: int = 1,
    timed: bool | None = None,
    progress: Progress | None = None,
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
    was at, of other processes the few that each has not handed over.

    Args:
        target: the target model, or its name.
        prompts: questions of a prompt set, or texts or lists of token ids.
        method: a method's name, or several that have the same options.
        space: other configurations than ``method`` and ``axes`` say.
        store: a :class:`Store` or its file; default none, and the results are in the frame only.
        samples: how many configurations are drawn at random, default all.
        jobs: processes that decode at once, on one thread each, by joblib's backend in force.
        timed: whether times are noted; default where nothing else is decoded at the same time.
        progress: called with (fraction done, text): before the first run with how many there are
            and an estimate of their time, see :func:`workload`, and after every run. Default a bar
            or lines on standard error, in a notebook nothing.
        axes: options of the method, and temperature, top_k, top_p, seed, max_new_tokens, rule,
            draft, head: one value, several (a list or range), or a
            :class:`specwb.lab.sweeps.space.Range`. ``train={"loss": ["kl", "lk"], "seed":
            range(3)}`` trains the method's head with these settings, each once, beside the store.

    Returns:
        See :func:`specwb.lab.sweeps.results.frame`.

    Raises:
        SweepError, MethodError, ValueError: a configuration that cannot be, before the first run.
        StoreError: the store cannot be used, or another program measures into it.
        KeyboardInterrupt: after what was measured has been written.
    """
    if space is None:
        if method is None:
            raise SweepError("a sweep needs a method, or a space")
        if not isinstance(method, str) and not is_many(method):
            raise SweepError(f"method must be a method's name or several, got {method!r}")
        names = [method] if isinstance(method, str) else list(method)
        space = Space([{"method": names, **axes}], samples)
    elif method is not None or axes or samples is not None:
        raise SweepError("give either a space, or a method with its axes and samples")
    if not isinstance(space, Space):
        raise SweepError(f"space must be a specwb.lab.sweeps.Space, got {space!r}")
    if progress is not None and not callable(progress):
        raise SweepError(f"progress must be a function, got {progress!r}")
    integer("jobs", jobs, 1, kind=SweepError)
    with bar("sweep", lasting=True) if progress is None else nullcontext(progress) as move:
        rest = jobs, timed, move
        if isinstance(store, Store):
            with store.measuring():
                return _sweep(target, prompts, space, store, *rest)
        with tempfile.TemporaryDirectory() as folder:
            place = Path(folder) / "sweep.sqlite" if store is None else store
            with Store(place) as opened, opened.measuring():
                return _sweep(target, prompts, space, opened, *rest)


def _sweep(
    target: Target | str | Path,
    prompts: Sequence[Question] | Sequence[Prompt],
    space: Space,
    store: Store,
    jobs: int,
    timed: bool | None,
    progress: Progress,
) -> pd.DataFrame:
    model = target if isinstance(target, Target) else load(target)
    is_timed = jobs == 1 if timed is None else timed
    configurations = with_plain(space.configurations())
    longest = max(one["max_new_tokens"] for one in configurations)
    items = _items(model, prompts, longest)
    heads = Heads(model, store.path.with_suffix(".heads"))
    tasks = _tasks(model, configurations, heads, jobs == 1, store)
    done = store.done(is_timed)
    work = [
        (task, item)
        for i, item in enumerate(items)
        for task in tasks[i % len(tasks) :] + tasks[: i % len(tasks)]
        if (task.id, item.key) not in done
    ]
    if work:
        progress(0.0, workload(model, work, jobs))
    for count, run in enumerate(runs(target, model, work, is_timed, jobs)):
        store.add(*run)
        progress((count + 1) / len(work), f"{count + 1} of {len(work)} runs")
    ids = {task.id for task in tasks}
    keys = {item.key for item in items}
    results = frame(store)
    return results[results.id.isin(ids) & results.prompt.isin(keys)].reset_index(drop=True)


def workload(target: Target, work: Sequence[tuple[Task, Item]], jobs: int = 1) -> str:
    """Says how many runs there are, and how long they take if all are as fast as plain decoding;
    prompts are left out. More than :func:`check_work` allows is refused."""
    tokens = sum(task.configuration["max_new_tokens"] for task, _ in work)
    lower = "first (prompts), max_new_tokens or the number of configurations"
    what = f"{len(work)} runs at the speed of plain decoding"
    return check_work(target, what, tokens / jobs, 1, lower=lower)


def with_plain(configurations: Sequence[Configuration]) -> list[Configuration]:
    """Adds plain decoding with the sampling of every configuration, at the front."""
    plain = {
        digest(one): one
        for configuration in configurations
        for one in [{"method": "ar"} | {name: configuration[name] for name in SHARED}]
    }
    others = [one for one in configurations if digest(one) not in plain]
    return [*plain.values(), *others]


def _items(
    target: Target, prompts: Sequence[Question] | Sequence[Prompt], tokens: int
) -> list[Item]:
    """The prompts' tokens, cut to what the context has room for."""
    rows = fitted(target, prompts, tokens)
    items = {digest(ids): Item(digest(ids), domain, ids) for domain, ids, _ in rows}
    if not items:
        raise SweepError("a sweep needs at least one prompt")
    return list(items.values())


def _tasks(
    target: Target,
    configurations: Sequence[Configuration],
    heads: Heads,
    is_alone: bool,
    store: Store,
) -> list[Task]:
    """Builds every configuration, so that one that cannot be is found before the first run, and
    notes them in the store.

    Heads are trained when all of their settings have been checked.
    """
    for one in configurations:
        heads.check(one)
    shared = conditions_of(target)
    shared |= {
        "device": shared["device"].partition(",")[0],
        "threads": shared["threads"] if is_alone else 1,
        # tells machines apart without naming them
        "machine": digest([platform.node(), platform.machine()])[:8],
    }
    built: dict[str, tuple[Method, dict[str, Any]]] = {}
    ready = []
    for one in configurations:
        options = {**options_of(one), "rule": one.get("rule")}
        if (folder := heads.trained(one)) is not None:
            options["head"] = str(folder)
        key = digest([one["method"], options])
        if key not in built:
            method = make_method(one["method"], target, **options)
            built[key] = method, weights(target, [method])
        method, hashes = built[key]
        sampling = Sampling(float(one["temperature"]), one["top_k"], one["top_p"])
        method.rule_for(sampling)
        ready.append((one, method, sampling, options, shared | hashes))
    return [
        Task(store.add_settings(portable(one), facts), one, method, sampling, options)
        for one, method, sampling, options, facts in ready
    ]


def portable(one: Configuration) -> Configuration:
    """A configuration without paths: files and folders are named by the hash of their content."""
    named = dict(one)
    for name, value in one.items():
        is_path = name in ("draft", "head", "ngram", "train.corpus") and isinstance(
            value, str | Path
        )
        if is_path and (content := content_hash(value)) is not None:
            named[name] = f"{Path(value).name}@{content[:8]}"
    return named
