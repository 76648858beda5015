"""Methods side by side on the same prompts, models and machine: interleaved, paired, with the transformers library in the same run."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pandas as pd
import torch

from specwb.engine import Clock, Prompt, decode, token_rows
from specwb.evaluation.prompts import Question, interleave
from specwb.flow import Exactness
from specwb.methods import METHODS, Method, MethodError
from specwb.methods import method as make_method
from specwb.models.load import check_pair, load
from specwb.models.target import Target
from specwb.probability import Sampling

PARTS = ("draft", "score", "verify", "commit")


@dataclass
class Run:
    """One method on one group of prompts."""

    tokens: list[list[int]]
    forwards: int  # summed over rows; a library row's are counted by a hook
    seconds: float
    parts: dict[str, float] = field(default_factory=dict)


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
    """One row a method; ``frame.attrs`` has device, models, settings, prompts used and results by category.

    Every group of ``batch`` prompts is decoded by every method before the next group, in rotating order, so that a machine whose
    speed drifts favours none. Speedup is per group: the method's tokens/s over plain decoding's (``ar``) on the same group;
    the median and the quartiles are reported.

    Args:
        methods: specs or built methods, default every registered one; ``ar`` is always run, being the reference.
        draft: the draft model of methods that take one, default the target's own.
        seconds: stop starting new groups after about this long (at least one group a category is done).
        library: also run the transformers library on the same models: ``hf_greedy`` (``hf_sample`` at T > 0) and, at batch 1,
            ``hf_assisted`` with the library's default assistant settings.
        progress: called with (fraction done, text).
    Columns: method, lossless, identical (greedy output equal to plain decoding's, None at T > 0), tau, accepted_per_round,
        tokens_per_second, speedup, speedup_low, speedup_high, and seconds by part.
    """
    sampling = Sampling(float(temperature), top_k, float(top_p))
    if batch < 1 or max_new_tokens < 1:
        raise ValueError(f"batch and max_new_tokens must be >= 1, got {batch} and {max_new_tokens}")
    specs = list(METHODS) if methods is None else [methods] if isinstance(methods, str) else list(methods)
    if not any((s.key if isinstance(s, Method) else s) == "ar" for s in specs):
        specs.insert(0, "ar")
    built = {}
    for spec in specs:
        made = spec if isinstance(spec, Method) else _build(spec, target, draft)
        made.rule_for(sampling)
        if made.key in built:
            raise MethodError(f"method {made.key!r} is named twice")
        built[made.key] = made
    groups, cut = _groups(target, prompts, batch, max_new_tokens)
    helper = _assistant(target, draft, built) if library and batch == 1 else None
    runners: dict[str, Callable[[list[list[int]], int], Run]] = {}
    for key, made in built.items():
        runners[key] = partial(_ours, target, made, sampling, seed)
    if library:
        runners["hf_greedy" if sampling.greedy else "hf_sample"] = partial(_library, target, None, sampling)
        if helper is not None:
            runners["hf_assisted"] = partial(_library, target, helper, sampling)

    names = list(runners)
    for name in names:  # warm-up: lazily made tables, thread pools, kernels
        runners[name](groups[0][1], min(8, max_new_tokens))
    categories = list(dict.fromkeys(category for category, _ in groups))
    runs: dict[str, list[Run]] = {name: [] for name in names}
    began, interrupted = time.monotonic(), False
    try:
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
                done[name] = runners[name](rows, max_new_tokens)
            for name in names:
                runs[name].append(done[name])
    except KeyboardInterrupt:
        interrupted = True
    used = len(runs["ar"])
    if not used:
        raise KeyboardInterrupt
    if progress:
        progress(1.0, "done")
    frame = pd.DataFrame([_row(name, runs, built.get(name), sampling) for name in names])
    kinds = [category for category, _ in groups[:used]]
    by_category = {}
    for category in dict.fromkeys(kinds):
        mine = {name: [r for r, kind in zip(runs[name], kinds, strict=True) if kind == category] for name in names}
        by_category[category] = {name: _summary(mine[name], mine["ar"]) for name in names}
    frame.attrs = {
        "device": describe_device(target.device),
        "models": {"target": describe(target), **({"draft": describe(d)} if (d := _draft_of(built)) is not None else {})},
        "settings": {
            "temperature": temperature, "top_k": top_k, "top_p": top_p, "max_new_tokens": max_new_tokens, "batch": batch,
            "dtype": str(target.dtype).removeprefix("torch."),
        },
        "prompts": sum(len(rows) for _, rows in groups[:used]), "all_prompts": sum(len(rows) for _, rows in groups), "runs": used,
        "cut_prompts": cut, "interrupted": interrupted, "by_category": by_category,
    }  # fmt: skip
    return frame


def to_json(frame: pd.DataFrame) -> dict[str, Any]:
    """The ``--json`` form: device, models, settings and rows with their seconds by part."""
    rows = []
    for record in frame.to_dict("records"):
        parts = {part: record.pop(part) for part in PARTS}
        clean = {k: None if isinstance(v, float) and pd.isna(v) else v for k, v in record.items()}
        rows.append({**clean, "seconds": {k: None if v is None or pd.isna(v) else v for k, v in parts.items()}})
    return {**frame.attrs, "rows": rows}


def _build(spec: str, target: Target, draft: Target | str | None) -> Method:
    key = spec.partition(":")[0]
    takes = key in METHODS and "draft" in METHODS[key].options and "draft=" not in spec
    return make_method(spec, target, draft=draft) if takes and draft is not None else make_method(spec, target)


def _draft_of(built: dict[str, Method]) -> Target | None:
    return next((d for m in built.values() if isinstance(d := getattr(m.drafter, "draft", None), Target)), None)


def _assistant(target: Target, draft: Target | str | None, built: dict[str, Method]) -> Target | None:
    if isinstance(draft, Target):
        return draft
    chosen = _draft_of(built)
    if chosen is None and (draft or target.draft):
        chosen = load(draft or target.draft or "", dtype=target.dtype, device=target.device)
        check_pair(target, chosen)
    return chosen


def _groups(target: Target, prompts: Sequence, batch: int, max_new_tokens: int) -> tuple[list[tuple[str, list[list[int]]]], int]:
    """(category, rows of token ids) in running order; prompts beyond the context lose their beginning (counted)."""
    room = target.context - max_new_tokens
    if room < 1:
        raise ValueError(f"max_new_tokens={max_new_tokens} leaves no room for a prompt in the context of {target.name!r} ({target.context})")
    rows: list[tuple[str, list[int]]] = []
    if prompts and isinstance(prompts[0], Question):
        rows = [(q.category, token_rows(target, [q.ids(target.tokenizer)])[0]) for q in interleave(list(prompts))]
    else:
        rows = [("all", ids) for ids in token_rows(target, prompts)]
    cut = sum(len(ids) > room for _, ids in rows)
    rows = [(c, ids[-room:]) for c, ids in rows]
    if batch == 1:
        return [(c, [ids]) for c, ids in rows], cut
    pieces = [rows[i : i + batch] for i in range(0, len(rows), batch)]
    pieces = [p for p in pieces if len(p) == batch] or pieces
    return [("mixed" if len({c for c, _ in p}) > 1 else p[0][0], [ids for _, ids in p]) for p in pieces], cut


def _ours(target: Target, made: Method, sampling: Sampling, seed: int, rows: list[list[int]], max_new_tokens: int) -> Run:
    clock = Clock(target.device)
    began = time.perf_counter()
    out = decode(
        target, rows, made, max_new_tokens=max_new_tokens, temperature=sampling.temperature, top_k=sampling.top_k, top_p=sampling.top_p,
        seed=seed, clock=clock,
    )  # fmt: skip
    return Run(out.tokens, sum(out.rounds), time.perf_counter() - began, dict(clock.seconds))


def _library(target: Target, assistant: Target | None, sampling: Sampling, rows: list[list[int]], max_new_tokens: int) -> Run:
    """``model.generate`` on the same weights; rows are left-padded, tokens counted as ours are (end of text included, padding not)."""
    width = max(map(len, rows))
    pad = target.eos[0] if target.eos else 0
    ids = torch.tensor([[pad] * (width - len(r)) + r for r in rows], device=target.device)
    seen = torch.tensor([[0] * (width - len(r)) + [1] * len(r) for r in rows], device=target.device)
    settings: dict[str, Any] = {"max_new_tokens": max_new_tokens, "pad_token_id": pad, "do_sample": not sampling.greedy}
    # a checkpoint's own generation settings would make it another algorithm
    settings |= {"repetition_penalty": 1.0, "no_repeat_ngram_size": 0, "num_beams": 1}
    if not sampling.greedy:
        settings |= {"temperature": sampling.temperature, "top_k": sampling.top_k, "top_p": sampling.top_p}
    if assistant is not None:
        settings["assistant_model"] = assistant.model
    calls = 0

    def count(*_: object) -> None:
        nonlocal calls
        calls += 1

    from transformers.utils import logging

    level = logging.get_verbosity()
    logging.set_verbosity_error()  # the library warns about arguments it passes to itself
    hook = target.model.register_forward_pre_hook(count)
    try:
        began = time.perf_counter()
        out = target.model.generate(input_ids=ids, attention_mask=seen, **settings)[:, width:].tolist()
        seconds = time.perf_counter() - began
    finally:
        hook.remove()
        logging.set_verbosity(level)
    tokens = []
    for row in out:
        end = next((i + 1 for i, t in enumerate(row) if t in target.eos), len(row))
        tokens.append(row[:end])
    # a row that ends early still rides along in the library's batch; it took part in as many forwards as it has tokens
    return Run(tokens, calls if assistant is not None else sum(map(len, tokens)), seconds)


def _row(name: str, runs: dict[str, list[Run]], made: Method | None, sampling: Sampling) -> dict[str, Any]:
    own, plain = runs[name], runs["ar"]
    summary = _summary(own, plain)
    parts = {p: sum(r.parts.get(p, 0.0) for r in own) if own[0].parts else None for p in PARTS}
    return {
        "method": name,
        "lossless": made is None or made.exactness is Exactness.LOSSLESS,
        "identical": all(a.tokens == b.tokens for a, b in zip(own, plain, strict=True)) if sampling.greedy else None,
        **summary,
        **parts,
    }


def _summary(own: list[Run], plain: list[Run]) -> dict[str, float]:
    tokens = sum(len(t) for r in own for t in r.tokens)
    tau = tokens / max(1, sum(r.forwards for r in own))
    rate = [sum(map(len, r.tokens)) / r.seconds for r in own]
    ratios = pd.Series([a / (sum(map(len, b.tokens)) / b.seconds) for a, b in zip(rate, plain, strict=True)])
    return {
        "tau": round(tau, 4), "accepted_per_round": round(tau - 1, 4), "tokens_per_second": round(tokens / sum(r.seconds for r in own), 2),
        "speedup": round(float(ratios.median()), 4), "speedup_low": round(float(ratios.quantile(0.25)), 4),
        "speedup_high": round(float(ratios.quantile(0.75)), 4),
    }  # fmt: skip


def describe_device(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    names = torch.cpu.get_capabilities() if hasattr(torch.cpu, "get_capabilities") else {}
    return f"{names.get('cpu_name') or platform.processor() or platform.machine()}, {torch.get_num_threads()} threads"


def describe(target: Target) -> str:
    count = sum(p.numel() for p in target.model.parameters())
    c = target.model.config
    return f"{target.name} ({c.model_type}, {c.num_hidden_layers} x {c.hidden_size}, {count / 1e6:.1f} M parameters)"
