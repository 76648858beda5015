"""Methods side by side on the same prompts, models and machine.

Their runs are interleaved and paired, and the transformers library decodes in the same run.

A speedup is over the fastest plain decoding of the run, this engine's or the library's. Which of
the two is faster depends on the machine, and a method that only beats the slower one speeds nothing
up.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

import pandas as pd
import torch

from specwb.core.errors import ArgumentError
from specwb.core.inputs import integer, is_many, real
from specwb.core.noise import row_seeds
from specwb.core.options import MethodError
from specwb.core.probability import Sampling
from specwb.core.progress import line
from specwb.core.stops import loops
from specwb.engine.machine import Watch, one_step
from specwb.engine.methods import METHODS, Method, built_with, that_run
from specwb.lab.bench.conditions import conditions, draft_of
from specwb.lab.bench.library import Library, usual_rows
from specwb.lab.bench.measure import Run
from specwb.lab.bench.race import Decoder, PromptGroups, Race
from specwb.lab.bench.report import floor
from specwb.lab.bench.ties import agreements
from specwb.lab.cost.calibrate import forward_seconds
from specwb.models.load import draft_model
from specwb.models.prompts import Prompt
from specwb.models.questions import Question, fitted
from specwb.models.target import Target

CPU = torch.device("cpu")
SCHEMA = 3
"""Version of the JSON form. It is raised when a key changes its meaning or goes."""


def compare(
    target: Target,
    prompts: Sequence[Question] | Sequence[Prompt],
    methods: str | Sequence[str | Method] | None = None,
    *,
    draft: Target | str | None = None,
    temperature: float = 0.0,
    top_k: int = 0,
    top_p: float = 1.0,
    exact_text: bool = False,
    max_new_tokens: int = 64,
    batch: int = 1,
    seconds: float | None = None,
    seed: int = 0,
    library: bool = True,
    progress: Callable[..., None] | None = None,
) -> pd.DataFrame:
    """Measure methods side by side; return a frame with one row a method.

    Every group of ``batch`` prompts is decoded by every method before the next group, in rotating
    order, so that a machine whose speed drifts favours none. Plain decoding is run twice: by this
    engine (``ar``) and by the transformers library (``hf_greedy``, at T > 0 ``hf_sample``). The
    faster of them, by the median over groups, is the reference: ``speedup = (the method's tokens/s)
    / (the reference's tokens/s on the same group)``. The median and the quartiles of it are
    reported. No speedup is over the slower one.

    With a time limit some rows have fewer groups than others, see :mod:`specwb.lab.bench.race`: the
    library's have one, its plain decoding more if it is the faster one; methods that are told apart
    from the fastest after 4, 8, 16, ... groups stop; and the last round may reach only the fastest.

    A small fixed step is timed between all runs. A run beside a slow one was disturbed and is
    measured again where there is time for it; the attempt with the faster step beside it counts.
    See :mod:`specwb.engine.machine`.

    Args:
        target: the target model.
        prompts: questions of a prompt set, or texts or lists of token ids. Questions are run in the
            order of :func:`specwb.models.questions.interleave`, so that a short run has several
            categories.
        methods: specs or built methods; default those registered that this target can run, the
            others are left out by name. Both plain decodings are added. A spec that begins with
            ``hf_`` is a decoding by the transformers library, see
            :class:`specwb.lab.bench.library.Library`.
        draft: the draft model of methods that take one, default the target's own.
        temperature: 0 is greedy.
        top_k: a filter; 0 switches it off.
        top_p: a filter; 1 switches it off.
        exact_text: at T > 0 every method writes the text that ``ar`` writes, see
            :func:`specwb.rounds`; the library's decodings do not.
        max_new_tokens: for every prompt.
        batch: prompts that are decoded together.
        seconds: the time limit, warm-up included: no run is begun that is likely to end after it,
            except those of ``ar`` and of one method on the first group. A method whose turn had not
            come is left out by name. None takes all prompts with every row.
        seed: of the sampling.
        library: also run the library's speculative decoding on the same models, at batch 1:
            ``hf_assisted`` with the library's default assistant settings and ``hf_prompt_lookup``.
        progress: called with the share done, a text, and what makes a frame of the runs so far, or
            None before the first run. :func:`specwb.lab.bench.report.floor` is printed first.
    Returns:
        A frame with the columns

        - method, lossless.
        - identical: whether the output equals plain decoding's; None at T > 0 without
          ``exact_text``.
        - runs: groups that the method decoded.
        - tau: tokens per target forward.
        - tokens_per_second.
        - speedup, speedup_low, speedup_high: the median and the quartiles.
        - disturbed: number of runs beside a slow step.
        - cost: seconds of a decoding step over those of plain decoding, without the first step of
          a text; the median of the pairs: about the tau from which the method is faster. On CUDA
          the ratio of the medians of the steps with which the first prompt begins.
        - draft, score, verify, commit: seconds by part of the decoding steps; NaN on CUDA, where
          the clock would wait for the device five times per step.

        Its ``attrs`` have the settings and

        - reference: ``method``, what speedup is over; ``plain``: tokens/s of both plain decodings.
        - fastest: the fastest method, and whether it is lossless, see
          :func:`specwb.lab.bench.race.fastest`.
        - stopped: what had fewer runs on purpose, see :mod:`specwb.lab.bench.race`.
        - passes: seconds of a decoding step of one prompt that scores 1 and 4 tokens.
        - same_text: method -> an :class:`specwb.lab.bench.ties.Agreement` of its texts with plain
          decoding's; None at T > 0 without ``exact_text``.
        - left_out: method -> why it has no row; categories_left_out: those without a prompt.
        - machine: whether the machine was quiet, see
          :meth:`specwb.engine.machine.Watch.facts`.
        - began: when, in UTC.
        - models, sha256, device, threads, dtype, versions, commit: as
          :func:`specwb.lab.bench.conditions.conditions` has them.
        - outputs: for every prompt its category, its text and ``texts``: method -> what it wrote.
          Without a tokenizer these are token ids, as text.
        - acceptance_by_depth: method -> [accepted, tested] for depth 1, 2, ..., see
          :func:`acceptance_by_depth`.
        - looping: groups in which plain greedy decoding repeats itself; None at T > 0.
    Raises:
        ArgumentError: batch, max_new_tokens or seconds is out of range, or there are no prompts.
        MethodError: a method cannot be built or is named twice.
    """
    sampling = Sampling(temperature, top_k, top_p, exact_text)
    batch, seed = integer("batch", batch, 1), integer("seed", seed)
    max_new_tokens = integer("max_new_tokens", max_new_tokens, 1)
    if seconds is not None and not 0 < real("seconds", seconds) < math.inf:
        raise ArgumentError(f"seconds must be a number > 0, or None: all prompts, got {seconds!r}")
    left_out: dict[str, str] = {}
    if methods is None:
        those, left_out = that_run(usual(target), target, draft, usual=True)
        methods = list(those.values())
    decoders = build(target, methods, draft, sampling, batch)
    alone = library and batch == 1
    assistant = _assistant(target, draft, decoders) if alone else None
    for row in usual_rows(sampling, alone, assistant):
        decoders.setdefault(row, Library(row, target, assistant, sampling, batch))
    groups, cut = grouped(target, prompts, batch, max_new_tokens)
    began = datetime.now(UTC).isoformat(timespec="seconds")
    passes = forward_seconds(target, (1, 4), groups[0][1][0][-16:], rounds=4)
    if progress:
        line(floor(passes))
    # what is compiled when first needed is there by now: the time begins
    watch, settings = Watch(one_step(target)), (max_new_tokens, sampling, seed)
    race = Race(decoders, groups, settings, watch, seconds or math.inf, progress)
    interrupted = False
    try:
        race.run(target)
    except KeyboardInterrupt:
        interrupted = True
        if not race.runs["ar"]:  # there is nothing to compare with
            raise
    if progress:
        progress(1.0, "done", None)

    left_out |= {
        name: f"no time was left for a first run (seconds = {seconds or 0:g})"
        for name, some in race.runs.items()
        if not some
    }
    runs = {name: some for name, some in race.runs.items() if some}
    same = _agreements(target, groups, runs, decoders, sampling, seed) if sampling.greedy else {}
    identical = {name: not one.ties + one.others for name, one in same.items()}
    frame = race.frame()
    frame = frame[frame.runs > 0].astype({"disturbed": int})
    frame["identical"] = [identical.get(name) for name in frame.method]
    by = frame.set_index("method")
    used = groups[: len(runs["ar"])]
    every_run = [run for some in runs.values() for run in some]
    best = race.fastest()
    plain = by.tokens_per_second.reindex(race.plain).dropna().to_dict()
    frame.attrs |= {
        **conditions(target, [decoders[name] for name in runs]),
        "began": began,
        "passes": passes,
        "reference": {**frame.attrs["reference"], "plain": plain},
        "fastest": {**best, "lossless": bool(by.lossless[best["method"]])},
        "same_text": {name: asdict(one) for name, one in same.items()} or None,
        "left_out": left_out,
        "machine": watch.facts(
            [run.probe for run in every_run], sum(run.again for run in every_run)
        ),
        "settings": {
            **asdict(sampling),
            "max_new_tokens": max_new_tokens,
            "batch": batch,
            "seed": seed,
        },
        "prompts": len(used) * len(groups[0][1]),
        "all_prompts": len(groups) * len(groups[0][1]),
        "cut_prompts": cut,
        "categories_left_out": sorted({name for name, _ in groups} - {name for name, _ in used}),
        "interrupted": interrupted,
        "acceptance_by_depth": {name: acceptance_by_depth(some) for name, some in runs.items()},
        "looping": None
        if sampling.temperature
        else sum(any(map(loops, x.tokens)) for x in runs["ar"]),
        "outputs": _outputs(target, used, runs),
    }
    return frame


def to_json(frame: pd.DataFrame, command: str = "") -> dict[str, Any]:
    """Make the ``--json`` form: all of ``frame.attrs``, and the rows; what is NaN is null."""
    rows = json.loads(frame.to_json(orient="records"))
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
    for spec in sorted(specs, key=_is_row):
        decoder: Decoder
        if isinstance(spec, str) and _is_row(spec):
            is_assisted = spec.startswith("hf_assisted")
            assistant = _assistant(target, draft, decoders) if is_assisted else None
            decoder = Library(spec, target, assistant, sampling, batch)
        else:
            decoder = spec if isinstance(spec, Method) else built_with(spec, target, draft)
            decoder.rule_for(sampling)  # raises where rule and sampling do not fit
        if decoder.key in decoders:
            raise MethodError(f"method {decoder.key!r} is named twice")
        decoders[decoder.key] = decoder
    return decoders


def _is_row(spec: str | Method) -> bool:
    return isinstance(spec, str) and spec.startswith("hf_")


def _assistant(
    target: Target, draft: Target | str | None, decoders: Mapping[str, Decoder]
) -> Target | None:
    """The draft model of the library's assisted decoding; None where there is none."""
    chosen = draft if draft is not None else target.draft
    return draft_of(decoders.values()) if chosen is None else draft_model(target, chosen)


def grouped(
    target: Target, prompts: Sequence, batch: int, max_new_tokens: int
) -> tuple[PromptGroups, int]:
    """Put the prompts into groups of ``batch``, in running order.

    Prompts that do not fit the context are cut to it; the second result counts them. A last group
    that is not full is left out, unless it is the only one.
    """
    every = fitted(target, prompts, max_new_tokens)
    cut = sum(was_cut for *_, was_cut in every)
    pieces = [every[i : i + batch] for i in range(0, len(every), batch)]
    pieces = [piece for piece in pieces if len(piece) == batch] or pieces
    groups = [
        (" and ".join(dict.fromkeys(name for name, *_ in piece)), [ids for _, ids, _ in piece])
        for piece in pieces
    ]
    return groups, cut


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


def _agreements(
    target: Target,
    groups: PromptGroups,
    runs: Mapping[str, list[Run]],
    decoders: Mapping[str, Decoder],
    sampling: Sampling,
    seed: int,
) -> dict[str, Any]:
    """How every method's texts agree with those of ``ar``; at T > 0 the library's do not."""
    texts = {name: [row for run in some for row in run.tokens] for name, some in runs.items()}
    prompts = [row for _, rows in groups for row in rows]
    library = [name for name in texts if isinstance(decoders[name], Library)]
    if sampling.exact_text:
        texts = {name: rows for name, rows in texts.items() if name not in library}
    seeds = [n for _, rows in groups for n in row_seeds(seed, len(rows), CPU).tolist()]
    pairs = list(zip(prompts, texts["ar"], strict=False))
    return agreements(target, pairs, texts, library, sampling, seeds)


def _outputs(
    target: Target, groups: PromptGroups, runs: Mapping[str, list[Run]]
) -> list[dict[str, Any]]:
    """Every prompt with the texts of all methods after it."""

    def text(ids: list[int]) -> str:
        return " ".join(map(str, ids)) if target.tokenizer is None else target.tokenizer.decode(ids)

    return [
        {
            "category": category,
            "prompt": text(ids),
            "texts": {x: text(some[i].tokens[row]) for x, some in runs.items() if i < len(some)},
        }
        for i, (category, rows) in enumerate(groups)
        for row, ids in enumerate(rows)
    ]
