"""Recording a decoding as a trace."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate, pairwise
from typing import Any

from specwb.core.flow import Step
from specwb.core.probability import Sampling
from specwb.core.stops import Text
from specwb.engine.decoding import rounds
from specwb.engine.methods import METHODS, Method
from specwb.engine.methods import method as make_method
from specwb.models.prompts import Prompt, token_rows
from specwb.models.target import Target
from specwb.show.scope.lenses import watched
from specwb.show.scope.rounds import as_round, rule_of
from specwb.show.scope.trace import FORMAT, VERSION, Part, Trace

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
    **options: Any,
) -> Trace:
    """Decode a prompt and return all of it as one JSON trace, which ``specwb.microscope`` plays
    with Python or without (docs/trace.md).

    The text is that of :func:`specwb.decode` with the same arguments. Each step has its tree, the
    most probable tokens of p and q at every node, every test with its uniform, and the bonus
    token. There are no times in it: the same arguments give the same trace.

    Args:
        target: what :func:`specwb.load` returned.
        prompt: one text, token ids, or a chat's messages.
        method: as for :func:`specwb.decode`; a greedy step (temperature 0) has no uniforms.
        max_new_tokens: upper bound of the tokens that are written.
        temperature, top_k, top_p, seed, eos: as for :func:`specwb.decode`.
        options: the method's own, where it is named by its key.
    Returns:
        a dictionary of plain numbers, texts and lists, which is shown as one line.
    Raises:
        ValueError: whatever :func:`specwb.rounds` raises.
    """
    if not isinstance(method, Method):
        method = make_method(method, target, **options)
        options = {}
    (ids,) = token_rows(target, [prompt])  # type: ignore[list-item]
    sampling = Sampling(temperature, top_k, top_p)
    drawn = {name: getattr(sampling, name) for name in ("temperature", "top_k", "top_p")}
    settings = {"max_new_tokens": max_new_tokens, "seed": seed, "eos": eos, **drawn}
    drafter, lenses = watched(method.drafter, target)
    seen = replace(method, drafter=drafter, arenas={})
    steps = list(rounds(target, [ids], seen, trace=True, **settings, **options))
    tokens = [token for step in steps for token in _written(step)]
    words = target.tokenizer
    text = Text(words, ids).feed(tokens) if words else None
    pieces = iter(_pieces(text) if text else [f"{token} " for token in tokens])
    entries = []
    for step, lens in zip(steps, lenses, strict=True):
        written = [[token, next(pieces)] for token in _written(step)]
        entries.append(as_round(step) | {"text": written, "lens": lens})
    key = method.key.partition(":")[0]
    entry = METHODS.get(key)
    shown = ids[-SHOWN:]
    trace = Trace(
        format=FORMAT,
        version=VERSION,
        method={
            "spec": method.key,
            "key": key,
            "paper": entry.paper if entry else "",
            "exactness": method.exactness.value,
            "rule": rule_of(steps[0]),
            "scheme": method.drafter.scheme(sampling).value,
        },
        target={"name": target.name, "vocabulary": target.vocabulary},
        sampling={**drawn, "seed": seed, "max_new_tokens": max_new_tokens},
        prompt={
            "text": words.decode(shown, skip_special_tokens=True) if words else None,
            "tokens": shown,
            "left_out": len(ids) - len(shown),
        },
        tokens=tokens,
        text=text.printed if text else None,
        rounds=entries,
    )
    trace["words"] = _labels(target, trace)
    return trace


def _written(step: Step) -> list[int]:
    """The tokens that a step added to its one row."""
    assert step.verdict.emitted is not None
    return step.verdict.emitted[0, : int(step.verdict.count[0])].tolist()


def _pieces(text: Text) -> list[str]:
    """The part of the text that each token adds; joined they are the text. The bytes of a letter
    that is not whole yet come with its last one."""
    *ends, _ = accumulate((size for _, size in text.sizes), max)
    return [text.printed[a:b] for a, b in pairwise([*ends, len(text.printed)])]


def _labels(target: Target, trace: Part) -> dict[str, str]:
    """Words of every token that the trace names, by id."""
    used = {*trace["tokens"], *trace["prompt"]["tokens"]}
    for entry in trace["rounds"]:
        used |= {*entry["tokens"], entry["bonus"]["token"]}
        used |= {token for row in entry["rows"].values() for token in row["tokens"]}
        lens = entry["lens"] or {}
        used |= set(lens.get("text", []))
        used |= {token for head in lens.get("heads", []) for token, _ in head}
        used |= {token for place in lens.get("places", []) for token in place["tokens"]}
    words = {}
    for token in sorted(used):
        text = target.tokenizer.decode([token]) if target.tokenizer else str(token)
        words[str(token)] = f"#{token}" if not text or "\ufffd" in text else text
    return words
