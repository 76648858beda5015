"""Methods side by side on the same prompts, models and machine: interleaved, paired, with the transformers library in the same run.

A speedup is over the fastest plain decoding of the run, this engine's or the library's: which of the two is faster depends on
the machine, and a method that only beats the slower one speeds nothing up.
"""

from __future__ import annotations

import math
import platform
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import pandas as pd
import torch

from specwb.engine import Clock, Prompt, decode, token_rows
from specwb.evaluation.library import Library, default_rows, plain_row
from specwb.evaluation.machine import Watch, one_step
from specwb.evaluation.prompts import Question, interleave
from specwb.files import weights_hash
from specwb.flow import Exactness
from specwb.inputs import integer
from specwb.methods import METHODS, Method, MethodError, draft_model
from specwb.methods import method as make_method
from specwb.models.products import packed_bytes
from specwb.models.target import Target
from specwb.probability import Sampling

PARTS = ("draft", "score", "verify", "commit")
SPLIT = 4  # groups decoded again for the time split where the clock costs too much to run while measuring

SCHEMA = 1  # of the JSON form; raised when a key changes its meaning or goes

Groups = list[tuple[str, list[list[int]]]]


@dataclass
class Run:
    """One method on one group of prompts. ``accepted`` and ``tested`` are by row and round, empty for the library's rows.

    ``step``: seconds of the calibration step beside the run, the slower of before and after. ``again``: it was measured again.
    """

    tokens: list[list[int]]
    forwards: int  # summed over rows; a library row's are counted by a hook
    seconds: float
    parts: dict[str, float] = field(default_factory=dict)
    accepted: list[list[int]] = field(default_factory=list)
    tested: list[list[int]] = field(default_factory=list)
    step: float = 0.0
    again: bool = False


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
    """One row a method; ``frame.attrs`` has device, models, settings, versions, prompts used and what the report draws.

    Every group of ``batch`` prompts is decoded by every method before the next group, in rotating order, so that a machine whose
    speed drifts favours none. Plain decoding is run twice: by this engine (``ar``) and by the transformers library
    (``hf_greedy``, at T > 0 ``hf_sample``). The faster of the two, by the median over groups, is the reference:
    ``speedup = (the method's tokens/s) / (the reference's tokens/s on the same group)``, of which the median and the quartiles
    are reported. No speedup is over the slower of the two.

    A small fixed step is timed between all runs. A run beside a slow one was disturbed and is measured again where there is
    time for it; the attempt with the faster step beside it counts. See :mod:`specwb.evaluation.machine`.

    Args:
        methods: specs or built methods, default every registered one; both plain decodings are always run. A spec that begins
            with ``hf_`` is the transformers library's decoding, see :class:`specwb.evaluation.library.Library`.
        draft: the draft model of methods that take one, default the target's own.
        seconds: stop starting new groups after about this long (at least one group a category is done). None is all prompts.
        library: also run the library's speculative decoding on the same models, at batch 1: ``hf_assisted`` with the library's
            default assistant settings and ``hf_prompt_lookup``.
        progress: called with (fraction done, text).
    Columns: method, lossless, identical (greedy output equal to plain decoding's, None at T > 0), tau, accepted_per_round,
        tokens_per_second, speedup, speedup_low, speedup_high, disturbed (runs beside a slow step), and seconds by part.
    Raises:
        ValueError: batch, max_new_tokens or seconds out of range, or no prompts. MethodError: a method that cannot be
            built or is named twice.
    Attributes (of ``frame.attrs``), beside the settings:
        reference: ``method``, what speedup is over, and ``plain``: tokens/s of both plain decodings.
        machine: was it quiet? See :meth:`specwb.evaluation.machine.Watch.facts`.
        began (UTC), threads, sha256 (of the weights by role; of a hub model its commit, None of a model in memory).
        outputs: by prompt its category, its text and ``texts``: method -> what it wrote. Without a tokenizer token ids, as text.
        accepted_lengths: method -> run -> row -> drafted tokens kept, by round.
        acceptance_by_depth: method -> [accepted, tested] for depth 1, 2, ...: of the rounds whose accepted path reached depth d - 1 and
            had candidates below it, how many went on to depth d. A row's last round counts only what it accepted: the end of text or
            the limit may have cut it.
        by_category: the figures and acceptance_by_depth again, by category (a question's ``subtask``).
        non_looping: tau and speedup on the runs in which plain greedy decoding does not loop (:func:`loops`); None at T > 0.
        time_split: where the seconds by part are from. On a CPU from the measured runs. On CUDA a clock would wait for the device five
            times a round and keep rounds from running as graphs, so they are from a second, eager pass over the first few groups.
    """
    sampling = Sampling(temperature, top_k, top_p)
    temperature, top_k, top_p = sampling.temperature, sampling.top_k, sampling.top_p
    batch, seed = integer("batch", batch, 1), integer("seed", seed)
    max_new_tokens = integer("max_new_tokens", max_new_tokens, 1)
    if seconds is not None and (isinstance(seconds, bool | str) or not 0 < seconds < math.inf):
        raise ValueError(f"seconds must be a number > 0, or None for all prompts, got {seconds!r}")
    specs = usual(target) if methods is None else [methods] if isinstance(methods, str) else list(methods)
    theirs = [s for s in specs if isinstance(s, str) and s.startswith("hf_")]
    built = _methods([s for s in specs if s not in theirs], target, draft, sampling, methods is None)
    rows = _library_rows(theirs, library, target, draft, built, sampling, batch)
    groups, cut = _groups(target, prompts, batch, max_new_tokens)
    clocked = clock_is_cheap(target.device)
    runners: dict[str, Callable[[list[list[int]], int], Run]] = {}
    for key, made in built.items():
        runners[key] = partial(_ours, target, made, sampling, seed, clocked)
    for row in rows:
        runners[row.key] = partial(_library, row)

    for run in runners.values():  # warm-up: lazily made tables, thread pools, kernels
        run(groups[0][1], min(8, max_new_tokens))
    began, watch = datetime.now(UTC).isoformat(timespec="seconds"), Watch(one_step(target))
    runs: dict[str, list[Run]] = {name: [] for name in runners}
    split, interrupted = runs, False
    try:
        _measure(runners, groups, runs, max_new_tokens, seconds, progress, watch)
        if not clocked:
            split = {key: [_ours(target, built[key], sampling, seed, True, g, max_new_tokens) for _, g in groups[:SPLIT]] for key in built}
    except KeyboardInterrupt:
        interrupted = True
    used = len(runs["ar"])
    if not used:
        raise KeyboardInterrupt
    if progress:
        progress(1.0, "done")
    plain = ("ar", plain_row(sampling))
    over = reference({name: runs[name] for name in plain})
    every, helper = [run for own in runs.values() for run in own], _draft_of(built)
    frame = pd.DataFrame([_row(name, runs, over, split.get(name, []), built.get(name), sampling, watch) for name in runners])
    frame.attrs = {
        "packed_bytes": packed_bytes(),
        "device": describe_device(target.device),
        "models": {"target": describe(target), **({"draft": describe(helper)} if helper is not None else {})},
        "sha256": _hashes(target, helper, built),
        "began": began, "threads": torch.get_num_threads(),
        "reference": {"method": over, "plain": {name: _summary(runs[name], runs[over])["tokens_per_second"] for name in plain}},
        "machine": watch.facts([run.step for run in every], sum(run.again for run in every)),
        "settings": {
            "temperature": temperature, "top_k": top_k, "top_p": top_p, "max_new_tokens": max_new_tokens, "batch": batch,
            "dtype": str(target.dtype).removeprefix("torch."), "seed": seed,
        },
        "versions": versions(),
        "prompts": sum(len(g) for _, g in groups[:used]), "all_prompts": sum(len(g) for _, g in groups), "runs": used,
        "cut_prompts": cut, "interrupted": interrupted,
        "accepted_lengths": {name: [r.accepted for r in runs[name]] for name in built},
        "acceptance_by_depth": {name: acceptance_by_depth(runs[name]) for name in built},
        "by_category": _by_category(runs, over, [category for category, _ in groups[:used]]),
        "non_looping": _non_looping(runs, over) if sampling.greedy else None,
        "time_split": {"separate": not clocked, "tokens": {name: _tokens(split[name]) for name in built if name in split}},
        "outputs": _outputs(target, groups[:used], runs),
    }  # fmt: skip
    return frame


def to_json(frame: pd.DataFrame, command: str = "") -> dict[str, Any]:
    """The ``--json`` form: everything in ``frame.attrs`` and the rows with their seconds by part.

    Args:
        frame: what :func:`compare` returned.
        command: the command line it came from.
    """
    from specwb.reproduce.store import commit  # which itself needs this module

    rows = []
    for record in frame.to_dict("records"):
        parts = {part: record.pop(part) for part in PARTS}
        clean = {k: None if isinstance(v, float) and pd.isna(v) else v for k, v in record.items()}
        rows.append({**clean, "seconds": {k: None if v is None or pd.isna(v) else v for k, v in parts.items()}})
    return {"schema_version": SCHEMA, "command": command, "commit": commit(), **frame.attrs, "rows": rows}


def reference(runs: dict[str, list[Run]]) -> str:
    """What speedups are over: of the plain decodings, named ``ar`` first, the one that is faster in the median of paired runs."""
    first, *others = runs
    best = max(others, key=lambda name: _summary(runs[name], runs[first])["speedup"])
    return best if _summary(runs[best], runs[first])["speedup"] > 1 else first


def loops(tokens: Sequence[int], n: int = 8, times: int = 3) -> bool:
    """Does some run of ``n`` tokens occur ``times`` times (overlapping ones count)?

    Greedy text of small models soon repeats itself, and repeated text is easy to draft.
    """
    return max(Counter(tuple(tokens[i : i + n]) for i in range(len(tokens) - n + 1)).values(), default=0) >= times


def clock_is_cheap(device: torch.device) -> bool:
    """A clock in a round waits for the device: for nothing on a CPU, five times a round on CUDA."""
    return device.type == "cpu"


def acceptance_by_depth(runs: Sequence[Run]) -> list[tuple[int, int]]:
    """(accepted, tested) for depth 1, 2, ..., each with its own denominator."""
    accepted = [a for run in runs for row in run.accepted for a in row]
    tested = [t for run in runs for row in run.tested for t in row]
    return [(sum(a >= d for a in accepted), sum(t >= d for t in tested)) for d in range(1, max(tested, default=0) + 1)]


def _methods(specs: list, target: Target, draft: Target | str | None, sampling: Sampling, unasked: bool) -> dict[str, Method]:
    if not any((s.key if isinstance(s, Method) else s) == "ar" for s in specs):
        specs.insert(0, "ar")
    built: dict[str, Method] = {}
    for spec in specs:
        made = spec if isinstance(spec, Method) else _build(spec, target, draft, unasked)
        made.rule_for(sampling)
        if made.key in built:
            raise MethodError(f"method {made.key!r} is named twice")
        built[made.key] = made
    return built


def usual(target: Target) -> list[str]:
    """Every registered method but those whose trained head the target does not have."""
    return [key for key, entry in METHODS.items() if not entry.head or target.own_head(entry.head)]


def _build(spec: str, target: Target, draft: Target | str | None, unasked: bool) -> Method:
    """``unasked``: the method was not named; then one whose draft model is trained for it (``deep``) takes that, whatever the others take."""
    key = spec.partition(":")[0] if isinstance(spec, str) else ""
    takes = key in METHODS and "draft" in METHODS[key].options and "draft=" not in spec and not (unasked and METHODS[key].head == "deep")
    return make_method(spec, target, draft=draft) if takes and draft is not None else make_method(spec, target)


def _draft_of(built: dict[str, Method]) -> Target | None:
    return next((d for m in built.values() if isinstance(d := getattr(m.drafter, "draft", None), Target)), None)


def _library_rows(specs, library, target, draft, built, sampling, batch) -> list[Library]:
    """The rows asked for by name, then the usual ones that are not among them."""
    chosen = draft if draft is not None else target.draft
    assists = any(s.startswith("hf_assisted") for s in specs) or (library and batch == 1)
    helper = draft_model(target, chosen) if assists and chosen is not None else _draft_of(built)
    rows = {}
    for spec in specs:
        row = Library(spec, target, helper, sampling, batch)
        if row.key in rows:
            raise MethodError(f"method {row.key!r} is named twice")
        rows[row.key] = row
    for key in default_rows(sampling, batch, helper is not None) if library else [plain_row(sampling)]:
        rows.setdefault(key, Library(key, target, helper, sampling, batch))
    return list(rows.values())


def _hashes(target: Target, draft: Target | None, built: dict[str, Method]) -> dict[str, str | None]:
    """By role: sha256 of the weight files, or a hub model's commit; of the target's own heads, where a method took one."""

    def of(model: Target) -> str | None:
        return model.sha256 or getattr(model.model.config, "_commit_hash", None)

    kinds = {entry.head for key in built if "head=" not in key and (entry := METHODS.get(key.partition(":")[0])) and entry.head}
    heads = {kind: weights_hash(place) for kind in sorted(kinds) if (place := target.own_head(kind)) is not None}
    return {"target": of(target), **({"draft": of(draft)} if draft is not None else {}), **heads}


def _outputs(target: Target, groups: Groups, runs: dict[str, list[Run]]) -> list[dict[str, Any]]:
    def text(ids: list[int]) -> str:
        return " ".join(map(str, ids)) if target.tokenizer is None else target.tokenizer.decode(ids)

    return [
        {"category": category, "prompt": text(ids), "texts": {name: text(own[i].tokens[row]) for name, own in runs.items()}}
        for i, (category, rows) in enumerate(groups)
        for row, ids in enumerate(rows)
    ]


def _groups(target: Target, prompts: Sequence, batch: int, max_new_tokens: int) -> tuple[Groups, int]:
    """(category, rows of token ids) in running order; prompts beyond the context are cut to it (counted)."""
    room = target.context - max_new_tokens
    if room < 1:
        raise ValueError(f"max_new_tokens={max_new_tokens} leaves no room for a prompt in the context of {target.name!r} ({target.context})")
    if prompts and isinstance(prompts[0], Question):
        fitted = [(q.subtask, *q.fit(target.tokenizer, room)) for q in interleave(list(prompts))]
        rows = [(category, token_rows(target, [ids])[0]) for category, ids, _ in fitted]
        cut = sum(was for *_, was in fitted)
    else:
        whole = token_rows(target, prompts)
        rows = [("all", ids[-room:]) for ids in whole]
        cut = sum(len(ids) > room for ids in whole)
    if batch == 1:
        return [(c, [ids]) for c, ids in rows], cut
    pieces = [rows[i : i + batch] for i in range(0, len(rows), batch)]
    pieces = [p for p in pieces if len(p) == batch] or pieces
    return [("mixed" if len({c for c, _ in p}) > 1 else p[0][0], [ids for _, ids in p]) for p in pieces], cut


def _measure(runners, groups: Groups, runs, max_new_tokens, seconds, progress, watch: Watch) -> None:
    """Fills ``runs`` group by group; a group that is not finished by every method is left out."""
    names = list(runners)
    categories = {category for category, _ in groups}
    began = time.monotonic()
    end = math.inf if seconds is None else began + seconds
    for index, (category, rows) in enumerate(groups):
        spent = time.monotonic() - began
        if seconds is not None and index >= len(categories) and spent + spent / index > seconds:
            break
        done: dict[str, Run] = {}
        for turn in range(len(names)):
            name = names[(turn + index) % len(names)]
            if progress:
                fraction = (index + turn / len(names)) / len(groups)
                progress(max(fraction, (time.monotonic() - began) / seconds if seconds else 0), f"{name}: {category}")
            done[name] = _watched(partial(runners[name], rows, max_new_tokens), watch, end)
        for name in names:
            runs[name].append(done[name])


def _watched(run: Callable[[], Run], watch: Watch, end: float) -> Run:
    """One run between two looks at the machine; if it was disturbed, once more where that fits before ``end``.

    Which of the two counts goes by the steps beside them, never by their own times: the faster of two would flatter whatever
    was disturbed.
    """

    def attempt() -> Run:
        before, made = watch.last, run()
        made.step = max(before, watch.look())
        return made

    made = attempt()
    if watch.slow(made.step) and time.monotonic() + made.seconds < end:
        made = min(made, attempt(), key=lambda one: one.step)
        made.again = True
    return made


def _ours(target: Target, made: Method, sampling: Sampling, seed: int, clocked: bool, rows: list[list[int]], max_new_tokens: int) -> Run:
    clock = Clock(target.device) if clocked else None
    began = time.perf_counter()
    out = decode(
        target, rows, made, max_new_tokens=max_new_tokens, temperature=sampling.temperature, top_k=sampling.top_k, top_p=sampling.top_p,
        seed=seed, clock=clock,
    )  # fmt: skip
    seconds = time.perf_counter() - began
    return Run(out.tokens, sum(out.step_counts), seconds, dict(clock.seconds) if clock else {}, out.accepted_lengths, out.tested_lengths)


def _library(row: Library, rows: list[list[int]], max_new_tokens: int) -> Run:
    return Run(*row.generate(rows, max_new_tokens))


def _tokens(runs: list[Run]) -> int:
    return sum(len(t) for r in runs for t in r.tokens)


def _row(name: str, runs: dict[str, list[Run]], over: str, split: list[Run], made: Method | None, sampling: Sampling, watch: Watch) -> dict[str, Any]:
    own = runs[name]
    return {
        "method": name,
        "lossless": made is None or made.exactness is Exactness.LOSSLESS,
        "identical": _identical(own, runs["ar"]) if sampling.greedy else None,
        **_summary(own, runs[over]),
        "disturbed": sum(watch.slow(r.step) for r in own),
        **{p: sum(r.parts[p] for r in split) if split and split[0].parts else None for p in PARTS},
    }


def _identical(own: list[Run], plain: list[Run]) -> bool:
    return all(a.tokens == b.tokens for a, b in zip(own, plain, strict=True))


def _summary(own: list[Run], plain: list[Run]) -> dict[str, float]:
    tokens = _tokens(own)
    tau = tokens / max(1, sum(r.forwards for r in own))
    ratios = pd.Series([_tokens([a]) / a.seconds / (_tokens([b]) / b.seconds) for a, b in zip(own, plain, strict=True)])
    return {
        "tau": round(tau, 4), "accepted_per_round": round(tau - 1, 4), "tokens_per_second": round(tokens / sum(r.seconds for r in own), 2),
        "speedup": round(float(ratios.median()), 4), "speedup_low": round(float(ratios.quantile(0.25)), 4),
        "speedup_high": round(float(ratios.quantile(0.75)), 4),
    }  # fmt: skip


def _by_category(runs: dict[str, list[Run]], over: str, kinds: list[str]) -> dict[str, dict[str, dict[str, Any]]]:
    out = {}
    for category in dict.fromkeys(kinds):
        mine = {name: [r for r, kind in zip(all_runs, kinds, strict=True) if kind == category] for name, all_runs in runs.items()}
        out[category] = {
            name: {"runs": len(own), **_summary(own, mine[over]), "acceptance_by_depth": acceptance_by_depth(own)} for name, own in mine.items()
        }
    return out


def _non_looping(runs: dict[str, list[Run]], over: str) -> dict[str, Any]:
    plain = runs["ar"]
    straight = [i for i, run in enumerate(plain) if not any(map(loops, run.tokens))]
    base = [runs[over][i] for i in straight]
    figures = {name: _summary([own[i] for i in straight], base) for name, own in runs.items()} if straight else {}
    return {"runs": len(straight), "of": len(plain), "prompts": sum(len(r.tokens) for r in base), "methods": figures}


def versions() -> dict[str, str]:
    """Of what decides a result. The library's assisted decoding behaves differently where scikit-learn is installed."""
    out = {"python": platform.python_version()}
    for name in ("specwb", "torch", "transformers", "scikit-learn"):
        try:
            out[name] = version(name)
        except PackageNotFoundError:
            out[name] = "not installed"
    return out


def describe_device(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    names = torch.cpu.get_capabilities() if hasattr(torch.cpu, "get_capabilities") else {}
    return f"{names.get('cpu_name') or platform.processor() or platform.machine()}, {torch.get_num_threads()} threads"


def describe(target: Target) -> str:
    count = sum(p.numel() for p in target.model.parameters())
    c = target.model.config
    return f"{target.name} ({c.model_type}, {c.num_hidden_layers} x {c.hidden_size}, {count / 1e6:.1f} M parameters)"
