"""Methods side by side on the same prompts, models and machine.

Their runs are interleaved and paired, and the transformers library decodes in the same run.

A speedup is over the fastest plain decoding of the run, this engine's or the library's. Which of
the two is faster depends on the machine, and a method that only beats the slower one speeds nothing
up.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from typing import Any

import pandas as pd

from specwb.core.errors import ArgumentError
from specwb.core.inputs import integer, is_many
from specwb.core.options import MethodError
from specwb.core.probability import Sampling
from specwb.engine.machine import Watch, one_step
from specwb.engine.methods import METHODS, Method, built_with, that_run
from specwb.lab.bench.conditions import conditions, describe, draft_of
from specwb.lab.bench.library import Library, default_rows, plain_row
from specwb.lab.bench.measure import Job, clock_is_free, measure
from specwb.lab.bench.runs import (
    PARTS,
    Runs,
    acceptance_by_depth,
    by_category,
    fastest,
    non_looping,
    reference,
    row_of,
    summary,
    written,
)
from specwb.lab.bench.ties import Same, same_texts
from specwb.models.load import draft_model
from specwb.models.products import packed_bytes
from specwb.models.prompts import Prompt
from specwb.models.questions import Question, fitted
from specwb.models.target import Target

SPLIT = 4
"""Groups decoded again for the times by part, where a clock would disturb the measured runs."""
SCHEMA = 1
"""Version of the JSON form. It is raised when a key changes its meaning or goes."""

Groups = list[tuple[str, list[list[int]]]]
"""Category and rows of token ids of every group of prompts, in running order."""


def compare(
    target: Target,
    prompts: Sequence[Question] | Sequence[Prompt],
    methods: str | Sequence[str | Method] | None = None,
    *,
    draft: Target | str | None = None,
    temperature: float = 0.0,
    top_k: int = 0,
    top_p: float = 1.0,
    max_new_tokens: int = 64,
    batch: int = 1,
    seconds: float | None = None,
    seed: int = 0,
    library: bool = True,
    others: Sequence[Target] = (),
    progress: Callable[[float, str], None] | None = None,
) -> pd.DataFrame:
    """Measure methods side by side; return a frame with one row a method.

    Every group of ``batch`` prompts is decoded by every method before the next group, in rotating
    order, so that a machine whose speed drifts favours none. Plain decoding is run twice: by this
    engine (``ar``) and by the transformers library (``hf_greedy``, at T > 0 ``hf_sample``). The
    fastest of them (two, or more with ``others``), by the median over groups, is the reference:
    ``speedup = (the method's tokens/s) / (the reference's tokens/s on the same group)``. The median
    and the quartiles of it are reported. No speedup is over a slower one.

    A small fixed step is timed between all runs. A run beside a slow one was disturbed and is
    measured again where there is time for it; the attempt with the faster step beside it counts.
    See :mod:`specwb.engine.machine`.

    Args:
        target: the target model.
        prompts: questions of a prompt set, or texts or lists of token ids.
        methods: specs or built methods, default those registered that this target can run; the
            others are left out by name. Both plain decodings are always run. A spec that begins
            with ``hf_`` is a decoding by the transformers library, see
            :class:`specwb.lab.bench.library.Library`.
        draft: the draft model of methods that take one, default the target's own.
        temperature: 0 is greedy.
        top_k: a filter; 0 switches it off.
        top_p: a filter; 1 switches it off.
        max_new_tokens: for every prompt.
        batch: prompts that are decoded together.
        seconds: how long to measure, warm-up included: no run is begun after it, but for those of
            plain decoding and of the first method on the first group. A method whose turn had not
            come is left out by name. None takes all prompts.
        seed: of the sampling.
        library: also run the library's speculative decoding on the same models, at batch 1:
            ``hf_assisted`` with the library's default assistant settings and ``hf_prompt_lookup``.
        others: the same model in other number types. Of each both plain decodings are run too
            (``float32 ar``, ``float32 hf_greedy``), and the reference is the fastest of all.
        progress: called with (fraction done, text).
    Returns:
        A frame with the columns

        - method, lossless.
        - identical: whether the greedy output equals plain decoding's in the same number type; None
          at T > 0, and in another number type.
        - tau: tokens a target forward.
        - accepted_per_round: accepted draft tokens a decoding step.
        - tokens_per_second.
        - speedup, speedup_low, speedup_high: the median and the quartiles.
        - disturbed: how many runs were beside a slow step.
        - draft, score, verify, commit: seconds by part of the decoding steps.

        Its ``attrs`` have the settings and

        - reference: ``method``, what speedup is over; ``plain``: tokens/s of all plain decodings;
          ``library``: speedups of the library's other rows over its own plain decoding.
        - fastest: the fastest method, and whether it is lossless, see
          :func:`specwb.lab.bench.runs.fastest`.
        - same_text: method -> how its greedy texts agree with plain decoding's: ``texts``, those of
          them that part at a tie up to rounding (``ties``) and elsewhere (``others``, which must be
          0), and the ``margin`` of a tie, see :mod:`specwb.lab.bench.ties`; None at T > 0. Plain
          decodings in another number type are not in it.
        - left_out: method -> why it has no row; categories_left_out: those without a prompt.
        - machine: whether the machine was quiet, see
          :meth:`specwb.engine.machine.Watch.facts`.
        - began: when, in UTC.
        - threads: CPU threads that torch computes with.
        - sha256, dtype, commit: as :func:`specwb.lab.bench.conditions.conditions` has them.
        - outputs: for every prompt its category, its text and ``texts``: method -> what it wrote.
          Without a tokenizer these are token ids, as text.
        - accepted_lengths: method -> run -> row -> accepted draft tokens of every step.
        - acceptance_by_depth: method -> [accepted, tested] for depth 1, 2, ...: of the steps whose
          accepted path reached depth d - 1 and had candidates below it, how many went on to
          depth d. A row's last step counts only what it accepted: the end of text or the limit may
          have cut it.
        - by_category: the figures and acceptance_by_depth again, by category (a question's
          ``subtask``).
        - non_looping: tau and speedup on the runs in which plain greedy decoding does not loop
          (:func:`loops`); None at T > 0.
        - time_split: where the seconds by part are from. On a CPU they are from the measured runs.
          On CUDA a clock would wait for the device five times a step and keep steps from running
          as graphs, so they are from a second, eager pass over the first few groups.
    Raises:
        ValueError: batch, max_new_tokens or seconds is out of range, there are no prompts, or one
            of ``others`` is another model or has the target's number type.
        MethodError: a method cannot be built or is named twice.
    """
    sampling = Sampling(temperature, top_k, top_p)
    batch, seed = integer("batch", batch, 1), integer("seed", seed)
    max_new_tokens = integer("max_new_tokens", max_new_tokens, 1)
    if seconds is not None and (isinstance(seconds, bool | str) or not 0 < seconds < math.inf):
        raise ArgumentError(
            f"seconds must be a number > 0, or None for all prompts, got {seconds!r}"
        )
    left_out: dict[str, str] = {}
    if methods is None:
        those, left_out = that_run(usual(target), target, draft, usual=True)
        methods = list(those.values())
    specs, library_specs = _specs(methods)
    built = _methods(specs, target, draft, sampling)
    library_rows = _library_rows(library_specs, library, target, draft, built, sampling, batch)
    groups, cut = _groups(target, prompts, batch, max_new_tokens)
    elsewhere = _elsewhere(target, others, sampling, batch)
    everyone: dict[str, Method | Library] = {
        **built,
        **{row.key: row for row in library_rows},
        **{key: row for key, (row, _) in elsewhere.items()},
    }
    plain = ("ar", plain_row(sampling), *elsewhere)
    # what was asked for comes first: with little time, the library's usual rows are left out
    named = [row.key for row in library_rows[: len(library_specs)]]
    order = list(dict.fromkeys(["ar", *built, *named, *plain, *everyone]))
    always = {*plain, *order[:2]}
    began = datetime.now(UTC).isoformat(timespec="seconds")
    watch = Watch(one_step(target))
    runs: Runs = {name: [] for name in everyone}
    by_part: Runs = {}
    separate, interrupted = not clock_is_free(target.device), False
    try:
        how = max_new_tokens, sampling, seed
        in_order = {name: everyone[name] for name in order}
        asked = _jobs(in_order, always, groups, runs, how, seconds, progress, watch)
        jobs = (replace(job, target=elsewhere.get(job.key, (None, None))[1]) for job in asked)
        for job, run in measure(target, jobs, watch=watch):
            runs[job.key].append(run)
        if separate:
            again = [
                Job(key, one, rows, *how)
                for key, one in built.items()
                if runs.get(key)
                for _, rows in groups[:SPLIT]
            ]
            for job, run in measure(target, again, clock=True):
                by_part.setdefault(job.key, []).append(run)
    except KeyboardInterrupt:
        interrupted = True
        if not all(runs.values()):
            raise
    runs = _whole_groups(runs)
    used = len(runs["ar"])
    if progress:
        progress(1.0, "done")

    built = {key: chosen for key, chosen in built.items() if key in runs}
    timed = by_part if separate else {key: runs[key] for key in built}
    late = f"no time was left for a first run (seconds = {seconds or 0:g})"
    left_out |= {name: late for name in everyone if name not in runs}
    over = reference({name: runs[name] for name in plain})
    speeds = {name: summary(runs[name], runs[over])["tokens_per_second"] for name in plain}
    by_library = {
        row.key: summary(runs[row.key], runs[plain[1]])["speedup"]
        for row in library_rows
        if row.assisted and row.key in runs
    }
    same: dict[str, Same] = {}
    if sampling.greedy:
        own = {name: runs[name] for name in runs if name not in elsewhere}
        same = _same_texts(target, groups, own)
    frame = pd.DataFrame(
        [
            row_of(name, runs, over, timed.get(name, []), built.get(name), same.get(name), watch)
            for name in runs
        ]
    )
    winner, lossless = fastest(runs, over), frame.set_index("method")["lossless"]
    settings = {
        "temperature": sampling.temperature,
        "top_k": sampling.top_k,
        "top_p": sampling.top_p,
        "max_new_tokens": max_new_tokens,
        "batch": batch,
        "dtype": str(target.dtype).removeprefix("torch."),
        "seed": seed,
    }
    every_run = [run for method_runs in runs.values() for run in method_runs]
    frame.attrs = {
        **conditions(target, built.values()),
        "packed_bytes": packed_bytes(),
        "began": began,
        "reference": {"method": over, "plain": speeds, "library": by_library},
        "fastest": winner | {"lossless": bool(lossless[winner["method"]])},
        "same_text": {x: asdict(one) for x, one in same.items()} if sampling.greedy else None,
        "left_out": left_out,
        "machine": watch.facts(
            [run.probe for run in every_run], sum(run.again for run in every_run)
        ),
        "settings": settings,
        "prompts": sum(len(rows) for _, rows in groups[:used]),
        "all_prompts": sum(len(rows) for _, rows in groups),
        "runs": used,
        "cut_prompts": cut,
        "categories_left_out": sorted(
            {category for category, _ in groups} - {category for category, _ in groups[:used]}
        ),
        "interrupted": interrupted,
        "accepted_lengths": {name: [run.accepted for run in runs[name]] for name in built},
        "acceptance_by_depth": {name: acceptance_by_depth(runs[name]) for name in built},
        "by_category": by_category(runs, over, [category for category, _ in groups[:used]]),
        "non_looping": non_looping(runs, over) if sampling.greedy else None,
        "time_split": {
            "separate": separate,
            "tokens": {name: written(timed[name]) for name in built if name in timed},
        },
        "outputs": _outputs(target, groups[:used], runs),
    }
    return frame


def to_json(frame: pd.DataFrame, command: str = "") -> dict[str, Any]:
    """Make the ``--json`` form: all of ``frame.attrs``, and the rows with seconds by part."""

    def cleaned(cells: dict[str, Any]) -> dict[str, Any]:
        """NaN is no JSON; None is."""
        return {k: None if isinstance(v, float) and pd.isna(v) else v for k, v in cells.items()}

    rows = []
    for record in frame.to_dict("records"):
        parts = {part: record.pop(part) for part in PARTS}
        rows.append({**cleaned(record), "seconds": cleaned(parts)})
    return {
        "schema_version": SCHEMA,
        "command": command,
        **frame.attrs,
        "rows": rows,
    }


def usual(target: Target) -> list[str]:
    """List every registered method but those whose trained head the target does not have.

    What cannot run for another reason, such as a missing draft model, is left out by name.
    """
    return [key for key, entry in METHODS.items() if not entry.head or target.own_head(entry.head)]


def build_methods(
    target: Target,
    methods: Sequence[str | Method],
    draft: Target | str | None,
    sampling: Sampling,
) -> dict[str, Method]:
    """Builds methods by key, plain decoding (``ar``) first where it is not named."""
    specs, library = _specs(methods)
    if library:
        raise MethodError(f"{library[0]!r} is the library's; only specwb compare measures it")
    return _methods(specs, target, draft, sampling)


def _specs(methods: str | Sequence[str | Method]) -> tuple[list[str | Method], list[str]]:
    """Part what is asked for into this engine's methods and the library's rows."""
    if not isinstance(methods, str) and not is_many(methods):
        raise MethodError(f"methods must be a method's name or several, got {methods!r}")
    specs: list[str | Method] = [methods] if isinstance(methods, str) else list(methods)
    library = [s for s in specs if isinstance(s, str) and s.startswith("hf_")]
    return [s for s in specs if s not in library], library


def _methods(
    specs: list[str | Method],
    target: Target,
    draft: Target | str | None,
    sampling: Sampling,
) -> dict[str, Method]:
    """Build the methods by key, with ``ar`` first where it is not named."""
    if not any((s.key if isinstance(s, Method) else s) == "ar" for s in specs):
        specs.insert(0, "ar")
    built: dict[str, Method] = {}
    for spec in specs:
        method = spec if isinstance(spec, Method) else built_with(spec, target, draft)
        method.rule_for(sampling)  # raises where rule and sampling do not fit
        if method.key in built:
            raise MethodError(f"method {method.key!r} is named twice")
        built[method.key] = method
    return built


def _library_rows(specs, library, target, draft, built, sampling, batch) -> list[Library]:
    """Build the rows asked for by name, then the usual ones that are not among them."""
    chosen = draft if draft is not None else target.draft
    assisted = any(s.startswith("hf_assisted") for s in specs) or (library and batch == 1)
    draft = draft_of(built.values())
    if assisted and chosen is not None:
        draft = draft_model(target, chosen)
    rows = {}
    for spec in specs:
        row = Library(spec, target, draft, sampling, batch)
        if row.key in rows:
            raise MethodError(f"method {row.key!r} is named twice")
        rows[row.key] = row
    names = [plain_row(sampling)]
    if library:
        names = default_rows(sampling, batch, draft is not None)
    for name in names:
        rows.setdefault(name, Library(name, target, draft, sampling, batch))
    return list(rows.values())


def _elsewhere(
    target: Target, others: Sequence[Target], sampling: Sampling, batch: int
) -> dict[str, tuple[Method | Library, Target]]:
    """Build the plain decodings of the same model in other number types."""
    rows: dict[str, tuple[Method | Library, Target]] = {}
    if not (is_many(others) and all(isinstance(other, Target) for other in others)):
        raise ArgumentError(f"others are models, as specwb.load returns them, got {others!r}")
    for other in others:
        kind, name = str(other.dtype).removeprefix("torch."), plain_row(sampling)
        if other.dtype == target.dtype or f"{kind} ar" in rows:
            raise ArgumentError(f"plain decoding in {kind} is there already; name another type")
        if describe(other) != describe(target):
            models = f"{describe(other)}, not {describe(target)}"
            raise ArgumentError(f"others are the same model in other number types, got {models}")
        rows[f"{kind} ar"] = built_with("ar", other), other
        rows[f"{kind} {name}"] = Library(name, other, None, sampling, batch), other
    return rows


def _same_texts(target: Target, groups: Groups, runs: Runs) -> dict[str, Same]:
    """How every method's texts agree with those of ``ar``."""
    rows = [group for _, group in groups[: len(runs["ar"])]]
    texts = {name: [run.tokens for run in runs[name]] for name in runs}
    return same_texts(target, rows, texts["ar"], texts)


def _outputs(target: Target, groups: Groups, runs: Runs) -> list[dict[str, Any]]:
    """Every prompt with what every method wrote after it."""

    def text(ids: list[int]) -> str:
        return " ".join(map(str, ids)) if target.tokenizer is None else target.tokenizer.decode(ids)

    return [
        {
            "category": category,
            "prompt": text(ids),
            "texts": {name: text(runs[name][i].tokens[row]) for name in runs},
        }
        for i, (category, rows) in enumerate(groups)
        for row, ids in enumerate(rows)
    ]


def _groups(
    target: Target, prompts: Sequence, batch: int, max_new_tokens: int
) -> tuple[Groups, int]:
    """Put the prompts into groups of ``batch``, in running order.

    Prompts that do not fit the context are cut to it; the second result counts them. A last group
    that is not full is left out, unless it is the only one.
    """
    every = fitted(target, prompts, max_new_tokens)
    rows = [(category, ids) for category, ids, _ in every]
    cut = sum(was_cut for *_, was_cut in every)
    if batch == 1:
        return [(category, [ids]) for category, ids in rows], cut
    pieces = [rows[i : i + batch] for i in range(0, len(rows), batch)]
    pieces = [piece for piece in pieces if len(piece) == batch] or pieces
    groups = []
    for piece in pieces:
        categories = {category for category, _ in piece}
        name = "mixed" if len(categories) > 1 else piece[0][0]
        groups.append((name, [ids for _, ids in piece]))
    return groups, cut


def _jobs(
    methods: dict[str, Method | Library],
    always: Collection[str],
    groups: Groups,
    runs: Runs,
    how: tuple[int, Sampling, int],
    seconds: float | None,
    progress: Callable[[float, str], None] | None,
    watch: Watch,
) -> Iterator[Job]:
    """Every method on every group, group by group, in rotating order.

    With ``seconds``, no run is begun after that time but for those of the methods in ``always`` on
    the first group, without which there is nothing to compare. A method that has no run by then has
    none later. A group is started only where it is likely to end in time. A job's run is in
    ``runs`` before the next job is asked for; a method that was not run on the first group is taken
    out.
    """
    names, total = list(methods), sum(len(rows) for _, rows in groups)
    began = time.monotonic()
    end = math.inf if seconds is None else began + seconds
    for index, (_, rows) in enumerate(groups):
        spent = time.monotonic() - began
        if index and seconds is not None:
            group = sum(run.wall for name in names for run in runs[name]) / index
            if spent + group > seconds:
                return
        # with little time, a first run of every method is worth more than a second of one
        watch.repeat_until = end if index or seconds is None else began
        first = index % len(names)
        for turn, name in enumerate([*names[first:], *names[:first]]):
            if time.monotonic() >= end and (index or name not in always):
                continue
            if progress:
                fraction = (index + turn / len(names)) / len(groups)
                text = f"{index * len(rows)} of {total} prompts done"
                if seconds:
                    left = max(0.0, end - time.monotonic())
                    fraction = max(fraction, 1 - left / seconds)
                    text += f", {left:.0f} s left"
                progress(fraction, f"{text}, now {name}")
            yield Job(name, methods[name], rows, *how)
        if not index:
            for name in [name for name in names if not runs[name]]:
                names.remove(name)
                del runs[name]


def _whole_groups(runs: Runs) -> Runs:
    """The runs of the methods that have any, without those of a group that not all have run."""
    begun = {name: some for name, some in runs.items() if some}
    whole = min(map(len, begun.values()), default=0)
    return {name: some[:whole] for name, some in begun.items()}
