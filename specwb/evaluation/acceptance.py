"""Acceptance of every rule on a real pair: along texts that the target samples, from the exact laws of both models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from specwb.analysis import DRAWN, RATES, optimum, rrsw_estimate
from specwb.evaluation.statistics import mean_and_error
from specwb.models.target import Target
from specwb.probability import Sampling

LAWS = tuple(dict.fromkeys(DRAWN.values()))
COLUMNS = (*RATES, *(f"optimum {law}" for law in LAWS))
BOUNDS = frozenset({"coupling"})  # lower bounds of a rate: shown, and never the winner
TIE = 2.0  # standard errors of a paired difference


def laws_along(
    target: Target, draft: Target, prompt: Sequence[int], text: Sequence[int], at: Sequence[int], temperature: float
) -> tuple[Tensor, Tensor]:
    """p and q ``[m,V]`` float64 after the first ``at[i]`` tokens of ``text``: one forward of each model over prompt and text.

    Raises:
        ValueError: a place outside 0..len(text), no place, or a temperature that is not > 0.
    """
    if not temperature > 0:
        raise ValueError(f"temperature must be > 0, at 0 every law is a point; got {temperature}")
    if not at or min(at) < 0 or max(at) > len(text):
        raise ValueError(f"places must be in 0..{len(text)}, at least one; got {list(at)}")
    ids, rows = [*prompt, *text], [len(prompt) - 1 + i for i in at]
    found = []
    for model in (target, draft):
        with torch.inference_mode():
            logits = model.model(torch.tensor([ids], device=model.device), use_cache=False).logits[0, rows]
        found.append(Sampling(temperature).probabilities(logits.double()))
    return found[0], found[1]


def rates(p: Tensor, q: Tensor, ks: Sequence[int], *, samples: int = 64, seed: int = 0) -> Tensor:
    """``[len(ks), m, len(COLUMNS)]``: the acceptance of every rule of ``analysis.RATES`` and alpha* of every draft law, on each of m pairs.

    All are exact but ``rrsw`` for k >= 3, which is estimated without bias from ``samples`` tuples; its noise is independent from position to
    position and so contained in every standard error taken over positions or prompts.
    """

    def column(name: str, k: int) -> Tensor:
        if name.startswith("optimum "):
            return optimum(p, q, k, name.removeprefix("optimum "))
        return rrsw_estimate(p, q, k, samples=samples, seed=seed)[0] if name == "rrsw" else RATES[name](p, q, k)

    return torch.stack([torch.stack([column(name, k) for name in COLUMNS], -1) for k in ks])


def places(length: int, count: int, seed: int) -> list[int]:
    """``count`` different places of 0..length - 1 (all, if there are fewer), in order."""
    order = torch.randperm(length, generator=torch.Generator().manual_seed(seed))
    return sorted(order[:count].tolist())


def table(records: Sequence[dict[str, Any]]) -> pd.DataFrame:
    """One row for every domain ("all" too), temperature, k and rule.

    Args:
        records: one for a prompt and temperature, with ``temperature``, ``domain``, ``ks`` and ``rates`` as :func:`rates` gives them (a list).
    Columns: domain, temperature, k, rule, drawn (how the candidates are drawn, as ``analysis.optimum`` names it), mean (every prompt counts
        the same), error (over prompts), error_positions (as if positions were independent), optimum (alpha* of that draft law), share =
        mean / optimum, behind and behind_error (the paired difference from the rule with the largest mean), best (the largest, or within two
        errors of it), verdict (the rules that are best, the largest first), prompts, positions.
    Raises:
        ValueError: no records, or ones of other columns.
    """
    if not records or any(len(place) != len(COLUMNS) for r in records for at_k in r["rates"] for place in at_k):
        raise ValueError(f"records must have the columns {', '.join(COLUMNS)}; measure them again")
    long = pd.DataFrame(
        [
            (r["temperature"], r["domain"], i, k, place, *values)
            for i, r in enumerate(records)
            for k, at_k in zip(r["ks"], r["rates"], strict=True)
            for place, values in enumerate(at_k)
        ],
        columns=["temperature", "domain", "prompt", "k", "place", *COLUMNS],
    )
    rows = []
    for domain in [*dict.fromkeys(long.domain), "all"]:
        mine = long if domain == "all" else long[long.domain == domain]
        for (temperature, k), cell in mine.groupby(["temperature", "k"]):
            rows += _compared(cell, {"domain": domain, "temperature": temperature, "k": int(k)})  # type: ignore[arg-type]
    return pd.DataFrame(rows)


def _compared(cell: pd.DataFrame, where: dict[str, Any]) -> list[dict[str, Any]]:
    prompts = cell.groupby("prompt")[list(COLUMNS)].mean()
    rules = [name for name in RATES if name not in BOUNDS]
    winner = max(rules, key=lambda name: prompts[name].mean())
    behind = {name: mean_and_error(prompts[winner] - prompts[name]) for name in RATES}  # type: ignore[arg-type]
    # rounding alone parts rules that are the same; a single prompt has no error and ties with none
    best = [name for name in rules if behind[name][0] <= 1e-9 or behind[name][0] <= TIE * behind[name][1]]
    best.sort(key=lambda name: behind[name][0])
    out = []
    for name in RATES:
        mean, error = mean_and_error(prompts[name])  # type: ignore[arg-type]
        most = float(prompts[f"optimum {DRAWN[name]}"].mean())
        out.append({
            **where, "rule": name, "drawn": DRAWN[name], "mean": mean, "error": error, "error_positions": mean_and_error(cell[name])[1],  # type: ignore[arg-type]
            "optimum": most, "share": mean / most, "behind": behind[name][0], "behind_error": behind[name][1], "best": name in best,
            "verdict": " = ".join(best), "prompts": len(prompts), "positions": len(cell),
        })  # fmt: skip
    return out
