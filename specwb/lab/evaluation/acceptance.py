"""Acceptance of every rule on a real pair of models.

It is computed from both models' exact distributions, at positions along texts that the target
samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from specwb.core.errors import ArgumentError
from specwb.core.probability import Sampling
from specwb.lab.bench.statistics import mean_and_error
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


def rates(p: Tensor, q: Tensor, ks: Sequence[int], *, samples: int = 64, seed: int = 0) -> Tensor:
    """Compute the acceptance of every rule, and the optimum alpha* of every sampling scheme.

    The rules are those of ``analysis.RATES``, and ``exact_text``. All rates are exact but ``rrsw``
    for k >= 3 and ``exact_text``, which are estimated without bias from ``samples`` draws. Their
    noise is independent from position to position and so contained in every standard error taken
    over positions or prompts.

    Returns:
        ``[len(ks), m, len(COLUMNS)]``.
    """

    def column(name: str, k: int) -> Tensor:
        if name.startswith("optimum "):
            return optimum(p, q, k, name.removeprefix("optimum "))
        if name == "rrsw":
            return rrsw_estimate(p, q, k, samples=samples, seed=seed)[0]
        if name == "exact_text":
            return places.lt(k).double().mean(-1)
        return RATES[name](p, q, k)

    places = first_arrivals(p, q, samples, seed)
    return torch.stack([torch.stack([column(name, k) for name in COLUMNS], -1) for k in ks])


def first_arrivals(p: Tensor, q: Tensor, samples: int, seed: int) -> Tensor:
    """The target's token is the first in the race ``E / p``. How many tokens are before it in the
    draft's race with the same noise, ``E / q`` (theorem 7.8): ``[m, samples]``, V where the draft
    cannot draw it. Noise is drawn anew for each pair."""
    generator = torch.Generator(p.device).manual_seed(seed)
    noise = torch.empty(samples, p.shape[-1], dtype=p.dtype, device=p.device)
    places = []
    for a, b in zip(p, q, strict=True):
        noise.exponential_(generator=generator)
        theirs = noise / b
        first = theirs.gather(1, (noise / a).argmin(1, keepdim=True))
        places.append(torch.where(first.isinf()[:, 0], len(a), (theirs < first).sum(1)))
    return torch.stack(places)


def random_positions(length: int, count: int, seed: int) -> list[int]:
    """Draw ``count`` different positions of 0..length - 1 (all, if there are fewer), in order."""
    order = torch.randperm(length, generator=torch.Generator().manual_seed(seed))
    return sorted(order[:count].tolist())


def table(records: Sequence[dict[str, Any]]) -> pd.DataFrame:
    """Compare the rules: one row for every domain ("all" too), temperature, k and rule.

    Returns:
        A frame with the columns

        - domain, temperature, k, rule.
        - drawn: how the candidates are drawn, as ``analysis.optimum`` names it.
        - mean: the mean rate; every prompt counts the same.
        - error: its standard error over prompts.
        - optimum: alpha* of that sampling scheme.
        - verdict: the rules that are best, the largest first: that with the largest mean, and
          those whose paired difference from it is within two of its standard errors.
        - prompts, positions: how many there are.
    """
    if not records or any(
        len(values) != len(COLUMNS)
        for record in records
        for at_k in record["rates"]
        for values in at_k
    ):
        raise ArgumentError(
            f"records must have the columns {', '.join(COLUMNS)}; measure them again"
        )
    long = pd.DataFrame(
        [
            (record["temperature"], record["domain"], prompt, k, position, *values)
            for prompt, record in enumerate(records)
            for k, at_k in zip(record["ks"], record["rates"], strict=True)
            for position, values in enumerate(at_k)
        ],
        columns=["temperature", "domain", "prompt", "k", "position", *COLUMNS],
    )
    rows = []
    for domain in [*dict.fromkeys(long.domain), "all"]:
        in_domain = long if domain == "all" else long[long.domain == domain]
        for group, cell in in_domain.groupby(["temperature", "k"]):
            temperature, k = group  # type: ignore[misc]
            labels = {"domain": domain, "temperature": temperature, "k": int(k)}
            rows += _compared(cell, labels)
    return pd.DataFrame(rows)


def _compared(cell: pd.DataFrame, labels: dict[str, Any]) -> list[dict[str, Any]]:
    """The rows of one domain, temperature and k; ``labels`` are their first columns."""
    prompts = cell.groupby("prompt")[list(COLUMNS)].mean()
    rules = [name for name in RULES if name not in BOUNDS]
    winner = max(rules, key=lambda name: prompts[name].mean())
    best = []
    for name in rules:
        # Two rules that are the same differ by rounding alone: hence 1e-9. A single prompt has the
        # error NaN, so that it ties with none.
        behind, error = mean_and_error(prompts[winner] - prompts[name])  # type: ignore[arg-type]
        if behind <= 1e-9 or behind <= TIE * error:
            best.append((behind, name))
    verdict = " = ".join(name for _, name in sorted(best, key=lambda one: one[0]))
    rows = []
    for name, drawn in RULES.items():
        mean, error = mean_and_error(prompts[name])  # type: ignore[arg-type]
        rows.append(
            {
                **labels,
                "rule": name,
                "drawn": drawn,
                "mean": mean,
                "error": error,
                "optimum": float(prompts[f"optimum {drawn}"].mean()),
                "verdict": verdict,
                "prompts": len(prompts),
                "positions": len(cell),
            }
        )
    return rows
