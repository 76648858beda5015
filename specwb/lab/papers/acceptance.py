"""Which rule wins where: acceptance of every rule on a real pair of models.

It is computed from both models' exact distributions, at positions along texts that the target
samples, by domain, number of candidates and temperature.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import Tensor

from specwb.core.errors import ArgumentError
from specwb.core.probability import Sampling
from specwb.engine.decoding import decode
from specwb.lab.bench.statistics import mean_and_error
from specwb.lab.papers.figures import Printed, SavedResults
from specwb.lab.papers.run import Models
from specwb.models.questions import Question, interleave
from specwb.models.target import Target
from specwb.theory.analysis import DRAWN, RATES, optimum, rrsw_estimate

RULES = {**DRAWN, "exact_text": "without"}
"""How the candidates of every rule are drawn; ``exact_text`` is no rule but shared noise."""
SCHEMES = tuple(dict.fromkeys(DRAWN.values()))
"""The ways to draw candidates, as ``analysis.optimum`` names them."""
COLUMNS = (*RULES, *(f"optimum {scheme}" for scheme in SCHEMES))
BOUNDS = frozenset({"coupling"})
"""Rules whose rate is known only by a lower bound. They are shown and never win."""
TIE = 2.0
"""Two rules tie if their paired difference is within so many of its standard errors."""
SAMPLES = 64
"""Of the rates that are estimated, see :func:`rates`."""


def probe(
    models: Models, questions: Sequence[Question], document: SavedResults, seed: int
) -> Iterator[tuple[float, str]]:
    """Make one record for each prompt and temperature, and ``rows`` of them all.

    Every prompt is continued by the target alone, up to ``tokens`` tokens at that temperature;
    ``positions`` positions of the continuation are chosen at random. The rows are those of
    :func:`table`.
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
            order = torch.randperm(len(text), generator=torch.Generator().manual_seed(seed + i))
            at = order[: settings["positions"]].sort().values.tolist()
            p, q = distributions_along(target, draft, prompt, text, at, temperature)
            cells[key] = {
                "temperature": temperature,
                "domain": question.subtask,
                "ks": list(settings["ks"]),
                "at": at,
                "rates": [
                    [[round(rate, 4) for rate in rules] for rules in position]
                    for position in rates(p, q, settings["ks"], seed + i).cpu().tolist()
                ],
            }
            document["spent"] = round(document["spent"] + time.monotonic() - began, 3)
            yield len(cells) / (len(prompts) * len(settings["temperatures"])), key
    document["columns"] = list(COLUMNS)
    document["rows"] = table(list(cells.values()))


def distributions_along(
    target: Target,
    draft: Target,
    prompt: Sequence[int],
    text: Sequence[int],
    at: Sequence[int],
    temperature: float,
) -> tuple[Tensor, Tensor]:
    """Compute both models' distributions of the next token at positions along a text.

    Each model runs one forward over prompt and text.

    Returns:
        p of the target and q of the draft model, each ``[m,V]`` in float64: after the first i
        tokens of ``text``, for the m positions i in ``at``.
    """
    ids = [*prompt, *text]
    rows = [len(prompt) - 1 + i for i in at]
    sampling = Sampling(temperature)

    def distributions(model: Target) -> Tensor:
        tokens = torch.tensor([ids], device=model.device)
        with torch.inference_mode():
            logits = model.model(tokens, use_cache=False).logits[0, rows]
        return sampling.probabilities(logits.double())

    return distributions(target), distributions(draft)


def rates(p: Tensor, q: Tensor, ks: Sequence[int], seed: int = 0) -> Tensor:
    """Compute the acceptance of every rule, and the optimum alpha* of every sampling scheme.

    The rules are those of ``analysis.RATES``, and ``exact_text``. All rates are exact but ``rrsw``
    for k >= 3 and ``exact_text``, which are estimated without bias from :data:`SAMPLES` draws.
    Their noise is independent from position to position and so contained in every standard error
    taken over positions or prompts.

    Returns:
        ``[len(ks), m, len(COLUMNS)]``.
    """

    def column(name: str, k: int) -> Tensor:
        if name.startswith("optimum "):
            return optimum(p, q, k, name.removeprefix("optimum "))
        if name == "rrsw":
            return rrsw_estimate(p, q, k, samples=SAMPLES, seed=seed)[0]
        if name == "exact_text":
            return places.lt(k).double().mean(-1)
        return RATES[name](p, q, k)

    places = first_arrivals(p, q, seed)
    return torch.stack([torch.stack([column(name, k) for name in COLUMNS], -1) for k in ks])


def first_arrivals(p: Tensor, q: Tensor, seed: int) -> Tensor:
    """The target's token is the first in the race ``E / p``. How many tokens are before it in the
    draft's race with the same noise, ``E / q`` (theorem 7.8): ``[m, SAMPLES]``, V where the draft
    cannot draw it. Noise is drawn anew for each pair."""
    generator = torch.Generator(p.device).manual_seed(seed)
    noise = torch.empty(SAMPLES, p.shape[-1], dtype=p.dtype, device=p.device)
    places = []
    for a, b in zip(p, q, strict=True):
        noise.exponential_(generator=generator)
        theirs = noise / b
        first = theirs.gather(1, (noise / a).argmin(1, keepdim=True))
        places.append(torch.where(first.isinf()[:, 0], len(a), (theirs < first).sum(1)))
    return torch.stack(places)


def table(records: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Compare the rules: one row for every domain ("all" too), temperature, k and rule.

    Returns:
        Rows with the keys

        - domain, temperature, k, rule.
        - drawn: how the candidates are drawn, as ``analysis.optimum`` names it.
        - mean: the mean rate; every prompt counts the same.
        - error: its standard error over prompts, None of a single one.
        - optimum: alpha* of that sampling scheme.
        - verdict: the rules that are best, the largest first: that with the largest mean, and
          those whose paired difference from it is within two of its standard errors.
        - prompts, positions: how many there are.
    """
    domains = [*dict.fromkeys(record["domain"] for record in records), "all"]
    # domain, temperature and k -> the rates of every prompt, ``[positions, columns]``
    cells: dict[tuple[int, float, int], list[np.ndarray]] = defaultdict(list)
    for record in records:
        for k, positions in zip(record["ks"], record["rates"], strict=True):
            for domain in (domains.index(record["domain"]), len(domains) - 1):
                cells[domain, record["temperature"], k].append(np.array(positions))
    every = [prompt for prompts in cells.values() for prompt in prompts]
    if not every or {prompt.shape[-1] for prompt in every} != {len(COLUMNS)}:
        raise ArgumentError(
            f"records must have the columns {', '.join(COLUMNS)}; measure them again"
        )
    rows = []
    for (domain, temperature, k), prompts in sorted(cells.items(), key=lambda cell: cell[0]):
        means = dict(zip(COLUMNS, zip(*(prompt.mean(0) for prompt in prompts)), strict=True))
        verdict = " = ".join(_best(means))
        for rule, drawn in RULES.items():
            mean, error = mean_and_error(means[rule])
            rows.append(
                {
                    "domain": domains[domain],
                    "temperature": temperature,
                    "k": k,
                    "rule": rule,
                    "drawn": drawn,
                    "mean": round(mean, 5),
                    "error": round(error, 5) if len(prompts) > 1 else None,
                    "optimum": round(float(np.mean(means[f"optimum {drawn}"])), 5),
                    "verdict": verdict,
                    "prompts": len(prompts),
                    "positions": sum(map(len, prompts)),
                }
            )
    return rows


def _best(means: Mapping[str, Sequence[float]]) -> list[str]:
    """The best rule and those that tie with it, from their rates by prompt."""
    rates = {rule: np.array(means[rule]) for rule in RULES if rule not in BOUNDS}
    winner = max(rates.values(), key=np.mean)
    behind = {rule: mean_and_error(winner - rate) for rule, rate in rates.items()}
    # Two rules that are the same differ by rounding alone: hence 1e-9. A single prompt has the
    # error NaN, so that it ties with none.
    best = [rule for rule, (by, error) in behind.items() if by <= 1e-9 or by <= TIE * error]
    return sorted(best, key=behind.__getitem__)


def tables(document: SavedResults) -> Printed:
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
