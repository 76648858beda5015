"""Recording a decoding as a trace."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import asdict, replace
from typing import Any

from specwb.core.errors import ArgumentError
from specwb.core.flow import Step
from specwb.core.probability import Sampling
from specwb.core.stops import PART, Text
from specwb.engine.decoding import rounds
from specwb.engine.loop import Clock
from specwb.engine.methods import METHODS, Method
from specwb.engine.methods import method as make_method
from specwb.models.prompts import Prompt, token_rows
from specwb.models.target import Target
from specwb.show.scope.lenses import Watcher
from specwb.show.scope.rounds import as_round, rule_of
from specwb.show.scope.trace import FORMAT, PARTS, VERSION, Trace, short

SHOWN = 400  # tokens of a prompt that a trace holds, the last ones


def record(
    target: Target,
    prompt: Prompt,
    method: str | Method = "sps",
    *,
    max_new_tokens: int = 24,
    temperature: float = 0.0,
    top_k: int = 0,
    top_p: float = 1.0,
    seed: int = 0,
    eos: int | list[int] | None = None,
    repeats: int = 2,
    **options: Any,
) -> Trace:
    """Decode a prompt and return all of it as one JSON trace, which ``specwb.microscope`` plays
    with Python or without (docs/trace.md).

    The text is that of :func:`specwb.decode` with the same arguments. Each step has its tree, the
    most probable tokens of p and q at every node, every test with its uniform, the bonus token and
    the seconds of its four parts. The clock is measured here and now: of ``repeats`` decodings, and
    as many plain ones between them, each part's least.

    Args:
        target: what :func:`specwb.load` returned.
        prompt: one text, token ids, or a chat's messages.
        method: as for :func:`specwb.decode`; a greedy step (temperature 0) has no uniforms.
        max_new_tokens: how far it goes.
        temperature, top_k, top_p, seed, eos: as for :func:`specwb.decode`.
        repeats: how many decodings are timed, at least 1.
        options: the method's own, where it is named by its key.
    Returns:
        a dictionary of plain numbers, texts and lists, which is shown as one line.
    Raises:
        ValueError: ``repeats`` below 1, and whatever :func:`specwb.rounds` raises.
    """
    if isinstance(repeats, bool) or not isinstance(repeats, int) or repeats < 1:
        raise ArgumentError(f"repeats must be an integer >= 1, got {repeats!r}")
    if not isinstance(method, Method):
        method = make_method(method, target, **options)
        options = {}
    (ids,) = token_rows(target, [prompt])  # type: ignore[list-item]
    chosen = Sampling(temperature, top_k, top_p)
    sampling = asdict(chosen)
    settings = {"max_new_tokens": max_new_tokens, "seed": seed, "eos": eos, **sampling, **options}
    watcher = Watcher(method.drafter, target)
    watched = replace(method, drafter=watcher.drafter, arenas={})
    steps: list[Step] = []
    for step in rounds(target, [ids], watched, trace=True, **settings):
        steps.append(step)
    counts = [int(step.verdict.count[0]) for step in steps]
    tokens = [x for step in steps for x in _written(step)]
    found = [as_round(step) for step in steps]
    pieces = iter(_pieces(target, ids, tokens))
    for one, step, lens in zip(found, steps, watcher.lenses, strict=True):
        one["text"] = [[token, next(pieces)] for token in _written(step)]
        one["lens"] = lens
    clock, plain = _timed(target, ids, method, settings, counts, len(tokens), repeats)
    for one, seconds in zip(found, clock, strict=True):
        one["seconds"] = seconds
    key = method.key.partition(":")[0]
    entry = METHODS.get(key)
    trace = Trace(
        format=FORMAT,
        version=VERSION,
        method={
            "spec": method.key,
            "key": key,
            "paper": entry.paper if entry else "",
            "exactness": method.exactness.value,
            "rule": rule_of(steps[0]),
            "scheme": method.drafter.scheme(chosen).value,
        },
        target={"name": target.name, "vocabulary": target.vocabulary},
        sampling={**sampling, "seed": seed, "max_new_tokens": max_new_tokens},
        prompt={
            "text": _text(target, ids[-SHOWN:]),
            "tokens": ids[-SHOWN:],
            "left_out": max(0, len(ids) - SHOWN),
        },
        tokens=tokens,
        text=None if target.tokenizer is None else Text(target.tokenizer, ids).feed(tokens).printed,
        rounds=found,
        plain=plain,
    )
    trace["words"] = _labels(target, trace)
    return trace


def _written(step: Step) -> list[int]:
    """The tokens that a step added to its one row."""
    assert step.verdict.emitted is not None
    return step.verdict.emitted[0, : int(step.verdict.count[0])].tolist()


def _timed(
    target: Target,
    ids: list[int],
    method: Method,
    settings: dict[str, Any],
    counts: list[int],
    new: int,
    repeats: int,
) -> tuple[list[dict[str, float]], dict[str, Any]]:
    """Seconds of the parts of each step, and of plain decoding by token."""
    plain = make_method("ar", target)
    # as many tokens, wherever its own text would end
    sampled = {**settings, "max_new_tokens": new, "eos": ()}
    mine: list[list[dict[str, float]]] = []
    theirs: list[list[float]] = []
    for _ in range(repeats):
        theirs.append([sum(parts.values()) for _, parts in _laps(target, ids, plain, sampled)])
        laps = list(_laps(target, ids, method, settings))
        if [count for count, _ in laps] == counts or not mine:  # the same steps, but for rounding
            mine.append([parts for _, parts in laps][: len(counts)])
    rounds_seconds = [
        {part: short(min(run[i][part] for run in mine if i < len(run))) for part in PARTS}
        for i in range(min(len(counts), max(map(len, mine))))
    ]
    while len(rounds_seconds) < len(counts):
        rounds_seconds.append(rounds_seconds[-1])
    tokens = max(map(len, theirs))
    seconds = [short(min(run[i] for run in theirs if i < len(run))) for i in range(tokens)]
    totals = [sum(run) for run in theirs if len(run) == tokens]
    return rounds_seconds, {
        "seconds": seconds,
        "repeats": repeats,
        "spread": short(max(totals) / min(totals)),
        "device": str(target.device),
        "load": short(os.getloadavg()[0]) if hasattr(os, "getloadavg") else None,
        "cores": os.cpu_count(),
    }


def _laps(
    target: Target, ids: list[int], method: Method, settings: dict[str, Any]
) -> Iterator[tuple[int, dict[str, float]]]:
    """Tokens and seconds of the parts of every step."""
    clock = Clock(target.device)
    before = dict(clock.seconds)
    for step in rounds(target, [ids], method, clock=clock, **settings):
        yield (
            int(step.verdict.count[0]),
            {part: clock.seconds[part] - before[part] for part in PARTS},
        )
        before = dict(clock.seconds)


def _text(target: Target, ids: list[int]) -> str | None:
    if target.tokenizer is None:
        return None
    return target.tokenizer.decode(ids, skip_special_tokens=True)


def _pieces(target: Target, prompt: list[int], ids: list[int]) -> list[str]:
    """The part of the text that each token adds; joined they are the text. Bytes of a letter that
    is not whole yet come with its last one."""
    if target.tokenizer is None:
        return [f"{token} " for token in ids]
    pieces, shown, decoded = [], "", Text(target.tokenizer, prompt)
    for i, token in enumerate(ids, 1):
        text = decoded.feed([token]).printed
        held = i < len(ids) and text.endswith(PART)
        if held or not text.startswith(shown):
            pieces.append("")
            continue
        pieces.append(text[len(shown) :])
        shown = text
    return pieces


def _labels(target: Target, trace: dict[str, Any]) -> dict[str, str]:
    """Words of every token that the trace names, by id."""
    used = {*trace["tokens"], *trace["prompt"]["tokens"]}
    for one in trace["rounds"]:
        used |= {*one["tokens"], one["bonus"]["token"]}
        used |= {token for row in one["rows"].values() for token in row["tokens"]}
        lens = one["lens"] or {}
        used |= set(lens.get("text", []))
        used |= {token for head in lens.get("heads", []) for token, _ in head}
        used |= {token for place in lens.get("places", []) for token in place["tokens"]}
    tokenizer = target.tokenizer
    if tokenizer is None:
        return {str(token): str(token) for token in sorted(used)}
    words = {}
    for token in sorted(used):
        text = tokenizer.decode([token])
        words[str(token)] = f"#{token}" if not text or "\ufffd" in text else text
    return words
