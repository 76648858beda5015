"""Which rule wins where: acceptance of every rule on a real pair of models.

It is computed from the pair's exact distributions, by domain, number of candidates and temperature.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from statistics import median
from typing import Any

from specwb.core.errors import ArgumentError
from specwb.engine.decoding import decode
from specwb.lab.evaluation import acceptance
from specwb.lab.papers.results import SavedResults
from specwb.lab.papers.run import Models
from specwb.models.questions import Question, interleave

SAMPLES = 64
"""Of the rates that are estimated, see :func:`specwb.lab.evaluation.acceptance.rates`."""


def probe(
    models: Models, questions: Sequence[Question], document: SavedResults, seed: int
) -> Iterator[tuple[float, str]]:
    """Make one record for each prompt and temperature, and ``rows`` of them all.

    Every prompt is continued by the target alone, up to ``tokens`` tokens at that temperature;
    ``positions`` positions of the continuation are chosen at random. The rows are those of
    :func:`specwb.lab.evaluation.acceptance.table`.
    """
    target, draft, cells = models.target, models.draft, document["cells"]
    assert draft is not None
    settings = document["arguments"]
    tokens = settings["tokens"]
    room = min(target.context, draft.context) - tokens
    if room < 2:
        raise ArgumentError(
            f"tokens={tokens} leave no room for a prompt in the context of {target.name!r} "
            f"({target.context})"
        )
    questions = interleave(list(questions))
    prompts = [q.fit(target.tokenizer, room)[0] for q in questions]
    for temperature in settings["temperatures"]:
        keys = [f"T={temperature:g} prompt {q.question_id}" for q in questions]
        if all(key in cells for key in keys):
            continue
        texts = decode(
            target, prompts, "ar", max_new_tokens=tokens, temperature=temperature, seed=seed
        ).tokens
        every = zip(keys, questions, prompts, texts, strict=True)
        for i, (key, question, prompt, text) in enumerate(every):
            if key in cells:
                continue
            began = time.monotonic()
            at = acceptance.random_positions(len(text), settings["positions"], seed + i)
            p, q = acceptance.distributions_along(target, draft, prompt, text, at, temperature)
            rates = acceptance.rates(p, q, settings["ks"], samples=SAMPLES, seed=seed + i)
            cells[key] = {
                "temperature": temperature,
                "domain": question.subtask,
                "ks": list(settings["ks"]),
                "at": at,
                "rates": [
                    [[round(rate, 4) for rate in rules] for rules in position]
                    for position in rates.cpu().tolist()
                ],
            }
            document["spent"] = round(document["spent"] + time.monotonic() - began, 3)
            yield len(cells) / (len(prompts) * len(settings["temperatures"])), key
    rows = acceptance.table(list(cells.values())).to_dict("records")
    document["columns"] = list(acceptance.COLUMNS)
    document["rows"] = [{name: _number(value) for name, value in row.items()} for row in rows]


def _number(value: Any) -> Any:
    """A float with five digits; None for NaN, which JSON does not have."""
    if not isinstance(value, float):
        return value
    return None if value != value else round(value, 5)


def tables(document: SavedResults) -> list[tuple[str, list[dict[str, str]]]]:
    """What is printed of it: a table a domain with one row for each temperature and k, with every
    rule's mean, the errors' median, the most any rule can accept (``*``) and the best rules: the
    largest mean over prompts, and what is not behind it by more than two standard errors of the
    paired difference. The coupling is a lower bound and never counted as best."""
    best: Counter[str] = Counter()
    titled = []
    for domain in dict.fromkeys(r["domain"] for r in document["rows"]):
        rows = [r for r in document["rows"] if r["domain"] == domain]
        lines = []
        for t, k in dict.fromkeys((r["temperature"], r["k"]) for r in rows):
            rules = {r["rule"]: r for r in rows if (r["temperature"], r["k"]) == (t, k)}
            verdict = next(iter(rules.values()))["verdict"] if k > 1 else "one child"
            if k > 1 and domain != "all":
                best.update(verdict.split(" = "))
            optimum = {row["drawn"]: row["optimum"] for row in rules.values()}
            errors = [row["error"] for row in rules.values() if row["error"] is not None]
            means = {r: f"{row['mean']:.3f}" for r, row in rules.items() if r != "rejection"}
            ends = {"iid*": f"{optimum['iid']:.3f}", "without*": f"{optimum['without']:.3f}"}
            error = f"{median(errors or [float('nan')]):.3f}"
            line = {"T": f"{t:g}", "k": str(k), **means, **ends, "error": error, "best": verdict}
            lines.append(line)
        size = f"{rows[0]['prompts']} prompts, {rows[0]['positions']} positions per cell"
        titled.append((f"{domain}: acceptance of one node, {size}", lines))
    lines = [{"rule": rule, "cells": str(n)} for rule, n in best.most_common()]
    return [*titled, ("Best or tied, by domain, temperature and k > 1", lines)]
