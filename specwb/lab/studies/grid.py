"""A grid of settings measured side by side.

Every prompt is decoded by every cell before the next prompt, for a fixed number of decoding steps
each. The number of steps is fixed rather than the number of tokens: tau is then a plain mean that
no limit cuts, and prompts are independent repetitions of equal weight. Texts go on past an
end-of-text token.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, median
from typing import Any, Protocol

from specwb.core.errors import ArgumentError
from specwb.core.probability import Sampling
from specwb.engine.machine import Watch, one_step
from specwb.engine.methods import Method
from specwb.engine.methods import method as make_method
from specwb.lab.bench.measure import Job, Run, measure
from specwb.lab.bench.statistics import mean_and_error
from specwb.lab.bench.store import StoreError
from specwb.lab.studies.store import Store
from specwb.models.questions import Question, interleave
from specwb.models.target import Target

LONG = 512
"""Tokens of a long prompt."""
MIN_PROMPTS = 2
"""With fewer prompts there is no standard error."""
PARTS = ("draft", "search", "verify", "rest")
"""The parts of a decoding step's time."""
CLOCKED = ("ms", "mean", "parts")
"""What is recorded of time."""
TOGETHER = 16
"""Prompts in a batch whose tokens alone are counted."""
SHOWN = {"speedup": "speedup.steady"}
"""What a figure is called where it is shown, if not as in results; its formula:
:data:`specwb.lab.bench.results.FIGURES`."""


class Setting(Protocol):
    """What a grid needs to know of a cell.

    Attributes:
        key: names the cell in the results.
        spec: the method, as it is typed.
        variant: the name of the trained head it decodes with, where there are several.
        plain: plain decoding, which speedups are over.
        temperature: of the decoding.
        layout: how the target is run over a draft.
        long: whether the prompt has other prompts before it, up to ``LONG`` tokens.
    """

    @property
    def key(self) -> str: ...
    @property
    def spec(self) -> str: ...
    @property
    def variant(self) -> str: ...
    @property
    def plain(self) -> Setting: ...
    @property
    def temperature(self) -> float: ...
    @property
    def layout(self) -> str: ...
    @property
    def long(self) -> bool: ...


@dataclass(frozen=True)
class Cell:
    """A method with its settings."""

    spec: str
    variant: str = ""
    temperature: float = 0.0
    layout: str = "tree"
    long: bool = False

    @property
    def key(self) -> str:
        return f"T={self.temperature:g} {self.spec}{f' [{self.variant}]' if self.variant else ''}"

    @property
    def kind(self) -> str:
        """The key of the method in the registry."""
        return self.spec.partition(":")[0]

    @property
    def plain(self) -> Cell:
        """Plain decoding at the same temperature, which speedups are over."""
        return Cell("ar", temperature=self.temperature)

    def method(self, target: Target, head: Any = None, **options: Any) -> Method:
        """Build the method."""
        heads = {} if head is None else {"head": head}
        return make_method(self.spec, target, **options, **heads)


def shape(method: Method) -> dict[str, Any]:
    """Describe the largest tree that a method drafts."""
    limits = method.drafter.limits
    return {"nodes": limits.nodes, "depth": limits.depth, "chain": limits.children <= 1}


def run(
    target: Target,
    questions: Sequence[Question],
    store: Store,
    methods: Mapping[Any, Method],
    *,
    rounds_each: int = 10,
    seconds: float | None = None,
    seed: int = 0,
    progress: Callable[[float, str], None] | None = None,
    most: int | None = None,
    timed: bool = True,
) -> bool:
    """Measure every cell on every prompt, and put the results into the store.

    ``store.cells[cell.key]`` is filled with :func:`results` and ``disturbed`` (1: the machine was
    slow beside it, also when it was measured again), one entry a prompt; the prompts' domains are
    ``store.document["domains"]``.

    It goes through the prompts, beginning where the store ends, until another would take longer
    than ``seconds`` of measuring in all (at least two are done), or to the last. Cells take turns
    in rotating order; prompt i has ``seed + i``. Behind a prompt there is room for the longest
    drafts, all accepted, or for ``most`` new tokens, which must hold three steps.

    Without ``timed`` only tokens are counted, of several prompts together, and no time is recorded.
    A cell then has tokens of more prompts than times; a later run with times fills these in and
    leaves the tokens.

    Returns:
        Whether it was interrupted.
    """
    cells: list[Setting] = list(methods)
    longest = 1 + max(method.drafter.limits.depth for method in methods.values())
    room = target.context - (most or rounds_each * longest)
    if room < 2:
        raise ArgumentError(
            f"{rounds_each} steps leave no room for a prompt in the context of {target.name!r} "
            f"({target.context})"
        )
    questions = interleave(list(questions))
    texts = [q.fit(target.tokenizer, room)[0] for q in questions]
    document = store.document
    document["domains"] = [q.subtask for q in questions]
    records = [store.cells.setdefault(cell.key, {"accepted": [], "ms": []}) for cell in cells]
    for cell, record in zip(cells, records, strict=True):
        counted, clocked = (
            {len(record.get(name, [])) for name in names}
            for names in (("accepted", "drafted"), ("ms", "mean"))
        )
        if len(counted) > 1 or len(clocked) > 1 or max(counted) < max(clocked):
            raise StoreError(
                f"--out: {store.path} was begun by an earlier version, which noted less of "
                f"{cell.key!r}; name another file, or begin anew with --restart"
            )
        # an earlier version did not watch the machine
        record.setdefault("disturbed", [0] * len(record["ms"]))

    last, together = ("ms", 1) if timed else ("accepted", TOGETHER)

    def jobs() -> Iterator[Job]:
        for index in range(min(len(record[last]) for record in records), len(texts), together):
            is_late = index >= MIN_PROMPTS and seconds is not None
            if is_late and document["spent"] * (index + 1) / index > seconds:
                return
            for turn in range(len(cells)):
                cell = cells[(turn + 7 * index) % len(cells)]
                begin, end = len(store.cells[cell.key][last]), min(index + together, len(texts))
                if begin >= end:
                    continue
                if progress:
                    fraction = (index + turn / len(cells) * together) / len(texts)
                    if seconds is not None:
                        fraction = document["spent"] / max(seconds, 1e-9)
                    progress(fraction, f"prompt {begin + 1}: {cell.key}")
                rows = [lengthened(i) if cell.long else texts[i] for i in range(begin, end)]
                seeds = list(range(seed + begin, seed + end))
                yield job_of(cell, methods[cell], rows, rounds_each, seeds, most)

    def lengthened(index: int) -> list[int]:
        before = [token for text in (*texts[index + 1 :], *texts[:index]) for token in text]
        return [*before, *texts[index]][-min(LONG, room) :]

    watch = Watch(one_step(target)) if timed else None
    try:
        for job, one in measure(target, jobs(), steps=rounds_each, watch=watch, timed=timed):
            document["spent"] = round(document["spent"] + one.wall, 3)
            record = store.cells[job.key]
            for row in range(len(job.rows)):
                more = results(one, job.method, row)
                if watch:
                    more["disturbed"] = int(watch.slow(one.probe))
                index = len(record[last])
                for name, value in more.items():
                    series = record.setdefault(name, [])
                    # tokens that were counted before stay; without a watch no time is kept
                    if len(series) == index and (timed or name not in CLOCKED):
                        series.append(value)
            store.save()
    except KeyboardInterrupt:
        return True
    return False


def job_of(
    cell: Setting,
    method: Method,
    rows: Sequence[list[int]],
    count: int,
    seeds: Sequence[int],
    most: int | None = None,
) -> Job:
    """Prompts of a cell, decoded for ``count`` steps, or up to ``most`` new tokens."""
    tokens = most or count * (1 + method.drafter.limits.depth)
    return Job(cell.key, method, rows, tokens, Sampling(cell.temperature), seeds, cell.layout)


def results(run: Run, method: Any, row: int = 0) -> dict[str, Any]:
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
        a = {part: 1000 * (x - run.first_parts[part]) / len(later) for part, x in run.parts.items()}
        search = a.get("search", 0.0)
        parts = [a["draft"] - search, search, a["score"] + a["verify"]]
        parts.append(mean - sum(parts))
    found: dict[str, Any] = {
        "accepted": run.accepted[row],
        "ms": round(1000 * median(later), 3),
        "drafted": run.drafted[row],
        "mean": round(mean, 4),
        "parts": [round(x, 4) for x in parts],
    }
    is_tree = method.drafter.limits.children > 1
    return found | ({"levels": run.levels[row]} if is_tree else {})


def cell_record(cells: dict[str, Any], key: str) -> dict[str, list]:
    """Return what was recorded of a cell, with empty lists where nothing was."""
    return cells.get(key, {"accepted": [], "ms": []})


def accepted_in(document: dict[str, Any], cell: Setting) -> list[int]:
    """Return the accepted tokens of every step of a cell, over all prompts."""
    return [a for steps in document["cells"][cell.key]["accepted"] for a in steps]


def by_depth(accepted: Sequence[int], depth: int) -> list[list[int]]:
    """Count (accepted, tested) at depths 1.. of drafts that have candidates at each of them."""
    reached = [sum(a >= d for a in accepted) for d in range(depth + 1)]
    return [[b, a] for a, b in pairwise(reached)]


def values(cells: dict[str, Any], cell: Setting, what: str) -> list[float]:
    """Compute a figure of a cell for every prompt.

    Args:
        cells: the records.
        cell: the cell.
        what: of all steps "tau", "accepted" (tau - 1), "drafted" (draft tokens), "levels" (the
            depth of the draft) or "depth_fraction" (accepted over levels); of all steps but the
            first "ms" (the mean), a part of "ms" (one of ``PARTS``), "pace" (the steps in the time
            of one step of plain decoding) or "speedup".
    """
    record = cell_record(cells, cell.key)
    if what in ("tau", "accepted"):
        return [fmean(accepted) + (what == "tau") for accepted in record["accepted"]]
    if what == "drafted":
        return [fmean(n) for n in record.get("drafted", [])]
    if what == "levels":
        return [fmean(n) for n in record.get("levels", record.get("drafted", []))]
    if what == "depth_fraction":
        pairs = zip(*(values(cells, cell, part) for part in ("accepted", "levels")), strict=True)
        return [a / n if n else 0.0 for a, n in pairs]
    if what in PARTS:
        return [parts[PARTS.index(what)] for parts in record.get("parts", []) if parts]
    ms = record.get("mean", [])
    if what == "ms":
        return ms
    plain_ms = cell_record(cells, cell.plain.key).get("mean", [])
    pace = [a / b for a, b in zip(plain_ms, ms, strict=False)]
    if what == "pace":
        return pace
    # the first step has the prompt in it
    tokens = [1 + fmean(accepted[1:]) for accepted in record["accepted"]]
    return [t * s for t, s in zip(tokens, pace, strict=False)]


def by_domain(values: Sequence[float], domains: Sequence[str]) -> dict[str, float]:
    """Compute the mean over the prompts of each domain."""
    groups: dict[str, list[float]] = {domain: [] for domain in domains}
    for value, domain in zip(values, domains, strict=False):
        groups[domain].append(value)
    return {domain: round(fmean(group), 4) for domain, group in groups.items() if group}


def error_of(values: Sequence[float]) -> float | None:
    """Compute the standard error of a mean over prompts; None where there is none."""
    error = mean_and_error(values)[1] if len(values) > 1 else None
    return None if error is None else round(error, 4)


def row(
    document: dict[str, Any],
    cell: Setting,
    values: Callable[[dict[str, Any], Any, str], list[float]] = values,
) -> dict[str, Any]:
    """Compute one cell's figures: means over prompts, with a standard error ``NAME_error``.

    That of accepted is tau's. Where fewer prompts were timed than counted, ``timed`` is their
    number. ``by_depth`` are [accepted, tested] of chains.
    """
    cells, domains = document["cells"], document.get("domains", [])
    figures = {
        what: values(cells, cell, what)
        for what in ("tau", "accepted", "drafted", "ms", "speedup", *PARTS)
    }
    mean = fmean(figures["tau"])
    record, shape = cells[cell.key], document.get("shapes", {}).get(cell.key, {})
    steps = [  # (accepted, drafted) of every step
        pair
        for accepted, drafted in zip(record["accepted"], record.get("drafted", []), strict=False)
        for pair in zip(accepted, drafted, strict=True)
    ]
    depth = max((drafted for _, drafted in steps), default=0) if shape.get("chain") else 0
    return {
        "cell": cell.key,
        "spec": cell.spec,
        "variant": cell.variant,
        "temperature": cell.temperature,
        **shape,
        "prompts": len(figures["tau"]),
        **({"timed": len(figures["ms"])} if len(figures["ms"]) < len(figures["tau"]) else {}),
        "tau": round(mean, 4),
        "tau_error": error_of(figures["tau"]),
        "accepted": round(mean - 1, 4),
        "drafted": round(fmean(drafted for _, drafted in steps), 3) if steps else None,
        "drafted_error": error_of(figures["drafted"]),
        "by_domain": by_domain(figures["accepted"], domains),
        "speedup_by_domain": by_domain(figures["speedup"], domains),
        "by_depth": [
            [sum(a >= d for a, _ in steps), sum(a >= d - 1 and n >= d for a, n in steps)]
            for d in range(1, depth + 1)
        ],
        "ms_per_round": round(fmean(figures["ms"]), 4) if figures["ms"] else None,
        "parts": {part: round(fmean(figures[part]), 4) for part in PARTS if figures[part]},
        "speedup": round(fmean(figures["speedup"]), 4) if figures["speedup"] else None,
        "speedup_error": error_of(figures["speedup"]),
    }


def fastest(rows: Sequence[Mapping[str, Any]], key: str, name: str) -> list[str]:
    """Name the fastest of a method's settings at T = 0, in a list of one line.

    The list is empty where none was measured.
    """
    settings = [
        r for r in rows if r["spec"].startswith(key) and r["speedup"] and r["temperature"] == 0
    ]
    if not settings:
        return []
    best = max(settings, key=lambda r: r["speedup"])
    return [
        f"Fastest of {len(settings)} settings of {name} at T = 0, chosen on these prompts: "
        f"{best['spec']}, {SHOWN['speedup']} {best['speedup']:.2f}x."
    ]
