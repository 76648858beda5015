"""Methods side by side on the same prompts, models and machine.

Their runs are interleaved and paired, and the transformers library decodes in the same run.

A speedup is over the fastest plain decoding of the run, this engine's or the library's. Which of
the two is faster depends on the machine, and a method that only beats the slower one speeds nothing
up.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import ttest_1samp

from specwb.core.errors import ArgumentError
from specwb.core.flow import Exactness
from specwb.core.inputs import integer, is_many
from specwb.core.options import MethodError
from specwb.core.probability import Sampling
from specwb.core.stops import loops
from specwb.engine.machine import Watch, one_step
from specwb.engine.methods import METHODS, Method, built_with, that_run
from specwb.lab.bench.conditions import conditions, draft_of
from specwb.lab.bench.library import Library, plain_row, usual_rows
from specwb.lab.bench.measure import Job, Run, measure, rotated
from specwb.lab.bench.results import PARTS, figures, of_plain, reference
from specwb.lab.bench.ties import agreements
from specwb.models.load import draft_model
from specwb.models.prompts import Prompt
from specwb.models.questions import Question, fitted
from specwb.models.target import Target

LEVEL = 0.05
"""How often some method that is as fast as the fastest is told apart from it, at most."""
SCHEMA = 2
"""Version of the JSON form. It is raised when a key changes its meaning or goes."""

Groups = list[tuple[str, list[list[int]]]]
"""Category and rows of token ids of every group of prompts, in running order."""
Decoder = Method | Library
"""A built method, or a decoding of the transformers library."""


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
    progress: Callable[[float, str], None] | None = None,
) -> pd.DataFrame:
    """Measure methods side by side; return a frame with one row a method.

    Every group of ``batch`` prompts is decoded by every method before the next group, in rotating
    order, so that a machine whose speed drifts favours none. Plain decoding is run twice: by this
    engine (``ar``) and by the transformers library (``hf_greedy``, at T > 0 ``hf_sample``). The
    faster of them, by the median over groups, is the reference: ``speedup = (the method's tokens/s)
    / (the reference's tokens/s on the same group)``. The median and the quartiles of it are
    reported. No speedup is over the slower one.

    A small fixed step is timed between all runs. A run beside a slow one was disturbed and is
    measured again where there is time for it; the attempt with the faster step beside it counts.
    See :mod:`specwb.engine.machine`.

    Args:
        target: the target model.
        prompts: questions of a prompt set, or texts or lists of token ids. Questions are run in the
            order of :func:`specwb.models.questions.interleave`, so that a short run has several
            categories.
        methods: specs or built methods, measured in this order; default those registered that this
            target can run, the others are left out by name. Both plain decodings are always run. A
            spec that begins with ``hf_`` is a decoding by the transformers library, see
            :class:`specwb.lab.bench.library.Library`.
        draft: the draft model of methods that take one, default the target's own.
        temperature: 0 is greedy.
        top_k: a filter; 0 switches it off.
        top_p: a filter; 1 switches it off.
        max_new_tokens: for every prompt.
        batch: prompts that are decoded together.
        seconds: the time budget, warm-up included: no run is begun after it, except those of plain
            decoding and of the first method on the first group. A method whose turn had not come is
            left out by name. None takes all prompts.
        seed: of the sampling.
        library: also run the library's speculative decoding on the same models, at batch 1:
            ``hf_assisted`` with the library's default assistant settings and ``hf_prompt_lookup``.
        progress: called with (fraction done, text).
    Returns:
        A frame with the columns

        - method, lossless.
        - identical: whether the greedy output equals plain decoding's; None at T > 0.
        - runs: groups that the method decoded. A last group that was interrupted counts for the
          methods that had decoded it.
        - tau: tokens per target forward.
        - accepted_per_round: accepted draft tokens per decoding step.
        - tokens_per_second.
        - speedup, speedup_low, speedup_high: the median and the quartiles.
        - disturbed: number of runs beside a slow step.
        - draft, score, verify, commit: seconds by part of the decoding steps; NaN on CUDA, where
          the clock would wait for the device five times per step.

        Its ``attrs`` have the settings and

        - reference: ``method``, what speedup is over; ``plain``: tokens/s of both plain decodings;
          ``library``: speedups of the library's other rows over its own plain decoding.
        - fastest: the fastest method, and whether it is lossless, see :func:`fastest`.
        - same_text: method -> an :class:`specwb.lab.bench.ties.Agreement` of its greedy texts with
          plain decoding's; None at T > 0.
        - left_out: method -> why it has no row; categories_left_out: those without a prompt.
        - machine: whether the machine was quiet, see
          :meth:`specwb.engine.machine.Watch.facts`.
        - began: when, in UTC.
        - models, sha256, device, threads, dtype, versions, commit: as
          :func:`specwb.lab.bench.conditions.conditions` has them.
        - outputs: for every prompt its category, its text and ``texts``: method -> what it wrote.
          Without a tokenizer these are token ids, as text.
        - accepted_lengths: method -> run -> row -> accepted draft tokens of every step.
        - acceptance_by_depth: method -> [accepted, tested] for depth 1, 2, ..., see
          :func:`acceptance_by_depth`.
        - by_category: the figures by category (a question's ``subtask``) and method.
        - looping: groups in which plain greedy decoding repeats itself; None at T > 0.
    Raises:
        ArgumentError: batch, max_new_tokens or seconds is out of range, or there are no prompts.
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
    decoders = build(target, methods, draft, sampling, batch)
    assistant = _assistant(target, draft, decoders) if library and batch == 1 else None
    rows = usual_rows(sampling, batch, assistant) if library else [plain_row(sampling)]
    # what was asked for comes first: with little time, the library's usual rows are left out
    for row in rows:
        decoders.setdefault(row, Library(row, target, assistant, sampling, batch))
    plain = ("ar", plain_row(sampling))
    groups, cut = grouped(target, prompts, batch, max_new_tokens)
    began = datetime.now(UTC).isoformat(timespec="seconds")
    watch, interrupted = Watch(one_step(target)), False
    runs: dict[str, list[Run]] = {name: [] for name in decoders}
    settings = max_new_tokens, sampling, seed
    try:
        jobs = _jobs(decoders, plain, groups, runs, settings, seconds, progress, watch)
        for job, run in measure(target, jobs, watch=watch):
            runs[job.key].append(run)
    except KeyboardInterrupt:
        interrupted = True
        if not all(runs[name] for name in plain):  # there is nothing to compare with
            raise
    if progress:
        progress(1.0, "done")

    late = "interrupted before its first run"
    if not interrupted:
        late = f"no time was left for a first run (seconds = {seconds or 0:g})"
    left_out |= {name: late for name, some in runs.items() if not some}
    runs = {name: some for name, some in runs.items() if some}
    same = _agreements(target, groups, runs, decoders) if sampling.greedy else {}
    table, over = _paired(runs, groups, watch)
    frame = figures(table, ["method"])
    identical = {name: not one.ties + one.others for name, one in same.items()}
    frame.insert(0, "lossless", [_is_lossless(decoders[name]) for name in frame.index])
    frame.insert(1, "identical", [identical.get(name) for name in frame.index])
    for part in PARTS:
        frame[part] = [sum(run.parts.get(part, math.nan) for run in runs[x]) for x in frame.index]
    used = groups[: len(runs["ar"])]
    every_run = [run for some in runs.values() for run in some]
    ours = {name: some for name, some in runs.items() if isinstance(decoders[name], Method)}
    best = fastest(table, over)
    frame.attrs = {
        **conditions(target, [decoders[name] for name in runs]),
        "began": began,
        "reference": {
            "method": over,
            "plain": {name: float(frame.tokens_per_second[name]) for name in plain},
            "library": _over_the_librarys(table, decoders, plain[1]),
        },
        "fastest": {**best, "lossless": bool(frame.lossless[best["method"]])},
        "same_text": {name: asdict(one) for name, one in same.items()} or None,
        "left_out": left_out,
        "machine": watch.facts([run.probe for run in every_run], sum(r.again for r in every_run)),
        "settings": {
            **asdict(sampling),
            "max_new_tokens": max_new_tokens,
            "batch": batch,
            "dtype": str(target.dtype).removeprefix("torch."),
            "seed": seed,
        },
        "prompts": sum(len(rows) for _, rows in used),
        "all_prompts": sum(len(rows) for _, rows in groups),
        "runs": len(used),
        "cut_prompts": cut,
        "categories_left_out": sorted({name for name, _ in groups} - {name for name, _ in used}),
        "interrupted": interrupted,
        "accepted_lengths": {name: [run.accepted for run in some] for name, some in ours.items()},
        "acceptance_by_depth": {name: acceptance_by_depth(some) for name, some in ours.items()},
        "by_category": {
            category: figures(part, ["method"]).to_dict("index")
            for category, part in table.groupby("category", sort=False)
        },
        "looping": None,
        "outputs": _outputs(target, used, runs),
    }
    if sampling.greedy:
        frame.attrs["looping"] = sum(any(map(loops, run.tokens)) for run in runs["ar"])
    return frame.reset_index()


def to_json(frame: pd.DataFrame, command: str = "") -> dict[str, Any]:
    """Make the ``--json`` form: all of ``frame.attrs``, and the rows with seconds by part."""

    def cleaned(cells: dict[str, Any]) -> dict[str, Any]:
        """NaN is no JSON; None is."""
        return {k: None if isinstance(v, float) and pd.isna(v) else v for k, v in cells.items()}

    rows = []
    for record in frame.to_dict("records"):
        parts = {part: record.pop(part) for part in PARTS}
        rows.append({**cleaned(record), "seconds": cleaned(parts)})
    return {"schema_version": SCHEMA, "command": command, **frame.attrs, "rows": rows}


def usual(target: Target) -> list[str]:
    """List every registered method but those whose trained head the target does not have.

    What cannot run for another reason, such as a missing draft model, is left out by name.
    """
    return [key for key, entry in METHODS.items() if not entry.head or target.own_head(entry.head)]


def build(
    target: Target,
    methods: str | Sequence[str | Method],
    draft: Target | str | None,
    sampling: Sampling,
    batch: int = 1,
) -> dict[str, Decoder]:
    """Build methods, then rows of the library, by key; ``ar`` comes first where it is not named.

    Raises:
        MethodError: one cannot be built, does not fit the sampling, or is named twice.
    """
    if not isinstance(methods, str) and not is_many(methods):
        raise MethodError(f"methods must be a method's name or several, got {methods!r}")
    specs: list[str | Method] = [methods] if isinstance(methods, str) else list(methods)
    if not any((spec.key if isinstance(spec, Method) else spec) == "ar" for spec in specs):
        specs.insert(0, "ar")
    decoders: dict[str, Decoder] = {}

    def add(decoder: Decoder) -> None:
        if decoder.key in decoders:
            raise MethodError(f"method {decoder.key!r} is named twice")
        decoders[decoder.key] = decoder

    rows = [spec for spec in specs if isinstance(spec, str) and spec.startswith("hf_")]
    for spec in specs:
        if spec not in rows:
            method = spec if isinstance(spec, Method) else built_with(spec, target, draft)
            method.rule_for(sampling)  # raises where rule and sampling do not fit
            add(method)
    assistant = None
    if any(row.startswith("hf_assisted") for row in rows):
        assistant = _assistant(target, draft, decoders)
    for row in rows:
        add(Library(row, target, assistant, sampling, batch))
    return decoders


def _assistant(
    target: Target, draft: Target | str | None, decoders: Mapping[str, Decoder]
) -> Target | None:
    """The draft model of the library's assisted decoding; None where there is none."""
    chosen = draft if draft is not None else target.draft
    return draft_of(decoders.values()) if chosen is None else draft_model(target, chosen)


def grouped(
    target: Target, prompts: Sequence, batch: int, max_new_tokens: int
) -> tuple[Groups, int]:
    """Put the prompts into groups of ``batch``, in running order.

    Prompts that do not fit the context are cut to it; the second result counts them. A last group
    that is not full is left out, unless it is the only one.
    """
    every = fitted(target, prompts, max_new_tokens)
    cut = sum(was_cut for *_, was_cut in every)
    pieces = [every[i : i + batch] for i in range(0, len(every), batch)]
    pieces = [piece for piece in pieces if len(piece) == batch] or pieces
    groups = []
    for piece in pieces:
        categories = {category for category, _, _ in piece}
        name = "mixed" if len(categories) > 1 else piece[0][0]
        groups.append((name, [ids for _, ids, _ in piece]))
    return groups, cut


def _jobs(
    decoders: Mapping[str, Decoder],
    plain: Sequence[str],
    groups: Groups,
    runs: Mapping[str, list[Run]],
    settings: tuple[int, Sampling, int],
    seconds: float | None,
    progress: Callable[[float, str], None] | None,
    watch: Watch,
) -> Iterator[Job]:
    """Every method on every group, group by group, in rotating order.

    With ``seconds``, no run is begun after that time except those of plain decoding and of the
    first method on the first group, without which there is nothing to compare. A method that has
    no run by then has none later. A group is started only where it is likely to end in time. A
    job's run is in ``runs`` before the next job is taken.
    """
    asked = [name for name in decoders if name not in plain]
    always = {*plain, *asked[:1]}
    began = time.monotonic()
    end = math.inf if seconds is None else began + seconds
    for index, (_, rows) in enumerate(groups):
        names = [name for name in decoders if not index or runs[name]]
        if index:
            wall = sum(run.wall for some in runs.values() for run in some) / index
            if time.monotonic() + wall > end:
                return
        # with little time, a first run of every method is worth more than a second of one
        watch.repeat_until = end if index or seconds is None else began
        for turn, name in enumerate(rotated(names, index)):
            now = time.monotonic()
            if now >= end and (index or name not in always):
                continue
            if progress:
                done = (index + turn / len(names)) / len(groups)
                left = ""
                if seconds:
                    done = max(done, 1 - max(0.0, end - now) / seconds)
                    left = f", {max(0.0, end - now):.0f} s left"
                progress(done, f"group {index + 1} of {len(groups)}{left}, now {name}")
            yield Job(name, decoders[name], rows, *settings)


def _paired(
    runs: Mapping[str, list[Run]], groups: Groups, watch: Watch
) -> tuple[pd.DataFrame, str]:
    """The runs as rows of :mod:`specwb.lab.bench.results`, with speedups; and the reference."""
    table = pd.DataFrame(
        [
            {
                "method": name,
                "prompt": i,
                "category": groups[i][0],
                "tokens": run.written,
                "forwards": run.forwards,
                "seconds": run.seconds,
                "tokens_per_second": run.tokens_per_second,
                "disturbed": watch.slow(run.probe),
            }
            for name, some in runs.items()
            for i, run in enumerate(some)
        ]
    )
    over = reference(table)
    plain = of_plain(table, "tokens_per_second", over, ["prompt"])
    return table.assign(speedup=table.tokens_per_second / plain), over


def fastest(table: pd.DataFrame, over: str) -> dict[str, Any]:
    """Find the method with the largest median speedup, and those that may be as fast.

    Another method is told apart from it by a t test of the logarithms of their paired runs' ratios,
    whose mean is 0 if both are equally fast. The level of all tests together is :data:`LEVEL`
    (Bonferroni).

    Args:
        table: one row a run, with the columns method, prompt, tokens_per_second and speedup.
        over: the method that speedups are over.
    Returns:
        A dict with the keys

        - method, speedup: the fastest, and its median speedup over ``over``.
        - others: how many other methods there are.
        - tied: those of them that are not told apart from it.
    """
    medians = table.groupby("method", sort=False).speedup.median()
    best = str(medians.idxmax())
    speeds = table.pivot(index="prompt", columns="method", values="tokens_per_second")
    others = [name for name in medians.index if name != best]
    tied = []
    for name in others:
        ratios = np.log(speeds[best] / speeds[name]).dropna().to_numpy()
        if len(ratios) > 1 and np.ptp(ratios) < 1e-9:  # no spread to test against
            is_apart = abs(ratios[0]) > 1e-9
        else:
            is_apart = len(ratios) > 1 and ttest_1samp(ratios, 0).pvalue < LEVEL / len(others)
        if not is_apart:
            tied.append(name)
    return {"method": best, "speedup": float(medians[best]), "others": len(others), "tied": tied}


def acceptance_by_depth(runs: Sequence[Run]) -> list[tuple[int, int]]:
    """Count (accepted, tested) for depth 1, 2, ..., each with its own denominator.

    Of the steps whose accepted path reached depth d - 1 and had candidates below it, how many went
    on to depth d. A row's last step counts only what it accepted: the end of text or the limit may
    have cut it.
    """
    accepted = [a for run in runs for row in run.accepted for a in row]
    tested = [t for run in runs for row in run.tested for t in row]
    return [
        (sum(a >= d for a in accepted), sum(t >= d for t in tested))
        for d in range(1, max(tested, default=0) + 1)
    ]


def _is_lossless(decoder: Decoder) -> bool:
    return isinstance(decoder, Library) or decoder.exactness is Exactness.LOSSLESS


def _over_the_librarys(
    table: pd.DataFrame, decoders: Mapping[str, Decoder], plain: str
) -> dict[str, float]:
    """The median speedups of the library's speculative decodings over its own plain decoding."""
    base = of_plain(table, "tokens_per_second", plain, ["prompt"])
    medians = (table.tokens_per_second / base).groupby(table.method, sort=False).median()
    rows = {name: decoders[name] for name in medians.index}
    return {
        name: float(medians[name])
        for name, row in rows.items()
        if isinstance(row, Library) and row.assisted
    }


def _agreements(
    target: Target,
    groups: Groups,
    runs: Mapping[str, list[Run]],
    decoders: Mapping[str, Decoder],
) -> dict[str, Any]:
    """How every method's texts agree with those of ``ar``."""
    texts = {name: [row for run in some for row in run.tokens] for name, some in runs.items()}
    prompts = [row for _, rows in groups for row in rows]
    library = [name for name in texts if isinstance(decoders[name], Library)]
    return agreements(target, list(zip(prompts, texts["ar"], strict=False)), texts, library)


def _outputs(target: Target, groups: Groups, runs: Mapping[str, list[Run]]) -> list[dict[str, Any]]:
    """Every prompt with the texts of all methods after it."""

    def text(ids: list[int]) -> str:
        return " ".join(map(str, ids)) if target.tokenizer is None else target.tokenizer.decode(ids)

    outputs = []
    for i, (category, rows) in enumerate(groups):
        for row, ids in enumerate(rows):
            written = {name: some[i].tokens[row] for name, some in runs.items() if i < len(some)}
            texts = {name: text(tokens) for name, tokens in written.items()}
            outputs.append({"category": category, "prompt": text(ids), "texts": texts})
    return outputs
