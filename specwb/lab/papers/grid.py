"""Cells measured side by side: every prompt is decoded by every cell before the next prompt.

Each decodes for a fixed number of steps. The number of steps is fixed rather than the number of
tokens: tau is then a plain mean that no limit cuts, and prompts are independent repetitions of
equal weight. Texts go on past an end-of-text token.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean, median
from typing import Any

from specwb.core.errors import ArgumentError
from specwb.core.probability import Sampling
from specwb.core.progress import Report
from specwb.engine.machine import Watch, one_step
from specwb.engine.methods import Method
from specwb.lab.bench.measure import Job, Run, measure, rotated
from specwb.lab.bench.statistics import mean_and_error
from specwb.lab.papers.figures import SavedResults, figure
from specwb.lab.papers.paper import Cell
from specwb.lab.papers.store import Store
from specwb.models.questions import Question, interleave
from specwb.models.target import Target

LONG = 512
"""Tokens of a long prompt."""
MIN_PROMPTS = 2
"""With fewer prompts there is no standard error."""
CLOCKED = ("ms", "mean", "parts")
"""What is recorded of time."""
TOGETHER = 16
"""Prompts in a batch whose tokens alone are counted."""


def measure_cells(
    target: Target,
    questions: Sequence[Question],
    store: Store,
    methods: Mapping[Cell, Method],
    steps: int,
    room: int | None,
    progress: Report,
) -> bool:
    """Measure every cell on every prompt, and put the results into the store.

    ``store.cells[cell.name]`` is filled with :func:`record` and ``disturbed`` (1: the machine was
    slow beside it, also when it was measured again), one entry a prompt; the prompts' domains are
    ``store.document["domains"]``.

    It goes through the prompts, beginning where the store ends, until another would take longer
    than the settings' ``seconds`` of measuring in all (at least two are done), or to the last.
    Cells take turns in rotating order; prompt i has ``seed + i``. Behind a prompt there is room for
    the longest drafts, all accepted, or for ``room`` new tokens, which must hold three steps.

    Without times only tokens are counted, of several prompts together, and no time is recorded.
    A cell then has tokens of more prompts than times; a later run with times fills these in and
    leaves the tokens.

    Returns:
        Whether it was interrupted.
    Raises:
        ArgumentError: a prompt and its steps do not fit into the target's context.
    """
    cells, settings = list(methods), store.settings
    longest = 1 + max(method.drafter.limits.depth for method in methods.values())
    space = target.context - (room or steps * longest)
    if space < 2:
        raise ArgumentError(
            f"{steps} steps leave no room for a prompt in the context of {target.name!r} "
            f"({target.context})"
        )
    questions = interleave(list(questions))
    texts = [question.fit(target.tokenizer, space)[0] for question in questions]
    document = store.document
    document["domains"] = [question.subtask for question in questions]
    for cell in cells:
        entry = store.cells.setdefault(cell.name, {"accepted": [], "ms": []})
        entry.setdefault("disturbed", [0] * len(entry["ms"]))
    last, together = ("ms", 1) if settings.timed else ("accepted", TOGETHER)

    def jobs() -> Iterator[Job]:
        first = min(len(store.cells[cell.name][last]) for cell in cells)
        for index in range(first, len(texts), together):
            is_late = index >= MIN_PROMPTS and settings.seconds is not None
            if is_late and document["spent"] * (index + 1) / index > settings.seconds:
                return
            for turn, cell in enumerate(rotated(cells, 7 * index)):
                # a cell of an interrupted run may have some of these prompts
                begin = len(store.cells[cell.name][last])
                end = min(index + together, len(texts))
                if begin >= end:
                    continue
                done = (index + turn / len(cells) * together) / len(texts)
                progress(done, f"prompt {begin + 1}: {cell.name}")
                rows = [lengthened(i) if cell.long else texts[i] for i in range(begin, end)]
                tokens = room or steps * (1 + methods[cell].drafter.limits.depth)
                seeds = range(settings.seed + begin, settings.seed + end)
                sampling = Sampling(cell.temperature)
                yield Job(cell.name, methods[cell], rows, tokens, sampling, seeds, cell.layout)

    def lengthened(index: int) -> list[int]:
        before = [token for text in (*texts[index + 1 :], *texts[:index]) for token in text]
        return [*before, *texts[index]][-min(LONG, space) :]

    timed = settings.timed
    watch = Watch(one_step(target)) if timed else None
    try:
        for job, run in measure(target, jobs(), steps=steps, watch=watch, timed=timed):
            document["spent"] = round(document["spent"] + run.wall, 3)
            entry = store.cells[job.key]
            for row in range(len(job.rows)):
                measured = record(run, job.method, row)
                if watch:
                    measured["disturbed"] = int(watch.slow(run.probe))
                index = len(entry[last])
                for name, value in measured.items():
                    values = entry.setdefault(name, [])
                    # tokens that were counted before stay; without a watch no time is kept
                    if len(values) == index and (timed or name not in CLOCKED):
                        values.append(value)
            store.save()
    except KeyboardInterrupt:
        return True
    return False


def record(run: Run, method: Any, row: int = 0) -> dict[str, Any]:
    """What is recorded of one prompt, whose decoding steps were timed; ``row``: of the batch.

    Returns:
        A dict with

        - accepted, drafted: draft tokens of each step, those kept and all of them.
        - ms: the median milliseconds of all steps but the first, which has the prompt in it.
        - mean: their mean.
        - parts: of ``mean``: drafting without the search, the search (of drafters that have one),
          the target's forward and the rule, and the rest. It is empty where a clock would keep
          steps from being recorded as graphs.
        - levels: of trees, the depth of each step's draft.
    """
    later = run.step_seconds[1:]
    mean = 1000 * fmean(later)
    parts = []
    if run.parts:
        by_part = {
            part: 1000 * (seconds - run.first_parts[part]) / len(later)
            for part, seconds in run.parts.items()
        }
        search = by_part.get("search", 0.0)
        parts = [by_part["draft"] - search, search, by_part["score"] + by_part["verify"]]
        parts.append(mean - sum(parts))
    entry: dict[str, Any] = {
        "accepted": run.accepted[row],
        "ms": round(1000 * median(later), 3),
        "drafted": run.drafted[row],
        "mean": round(mean, 4),
        "parts": [round(x, 4) for x in parts],
    }
    if method.drafter.limits.children > 1:
        entry["levels"] = run.levels[row]
    return entry


def shape(method: Method) -> dict[str, Any]:
    """Describe the largest tree that a method drafts."""
    limits = method.drafter.limits
    return {"nodes": limits.nodes, "depth": limits.depth, "chain": limits.children <= 1}


def row(document: SavedResults, name: str) -> dict[str, Any]:
    """Compute one cell's figures from its record: a row of the results.

    Returns:
        Means over prompts, of tau with its standard error ``tau_error``, and of accepted
        ``by_domain``; None of what was not measured.
    """
    cells, domains, cell = document["cells"], document.get("domains", []), Cell.read(name)
    taus, accepted, ms, speedup = (
        figure(cells, name, what) for what in ("tau", "accepted", "ms", "speedup")
    )
    by_domain: dict[str, list[float]] = {}
    for domain, value in zip(domains, accepted, strict=False):
        by_domain.setdefault(domain, []).append(value)
    tau = fmean(taus)
    return {
        "cell": name,
        "spec": cell.spec,
        "temperature": cell.temperature,
        **document.get("shapes", {}).get(name, {}),
        "prompts": len(taus),
        "tau": round(tau, 4),
        "accepted": round(tau - 1, 4),
        "by_domain": {domain: round(fmean(x), 4) for domain, x in by_domain.items()},
        "ms_per_round": round(fmean(ms), 4) if ms else None,
        "speedup": round(fmean(speedup), 4) if speedup else None,
        "tau_error": round(mean_and_error(taus)[1], 4) if len(taus) > 1 else None,
    }


def rows(document: SavedResults) -> list[dict[str, Any]]:
    """Compute the rows of all cells that were measured."""
    cells = document["cells"]
    return [row(document, name) for name in cells if cells[name]["accepted"]]
