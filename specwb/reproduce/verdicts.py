"""Ratios of what a paper compares, measured over the same prompts, and verdicts on them by one stated rule."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from specwb.reproduce import grid

ENOUGH = 48  # prompts


@dataclass(frozen=True)
class Claim:
    """``what`` of the first cell over that of the second; ``paper`` the same ratio there, None where it has no such measurement;
    ``sign``: only which is larger is judged."""

    text: str
    table: str
    what: str
    first: grid.Setting
    second: grid.Setting
    paper: float | None = None
    ablation: bool = True
    sign: bool = False


RULE = (
    "Rule: the ratio of the means over prompts, with a 95 % interval from 10,000 bootstrap samples of prompts (pairs stay together). reproduced: "
    "the interval lies above 1 and the ratio is at least the square root of the paper's (half its effect on a logarithmic scale; of baselines "
    f"that the paper copied from elsewhere only that it lies above 1). not reproduced: otherwise. not comparable: fewer than {ENOUGH} prompts, "
    "or the paper has no such number. Speedups are of this machine, without prompt processing."
)


def judge(document: dict[str, Any], claim: Claim, values: Callable[[dict[str, Any], Any, str], list[float]]) -> dict[str, Any] | None:
    """The ratio, its interval, by domain, and the verdict by :data:`RULE`; None where a cell was not measured.

    Args: document: of a grid, with ``cells`` and ``domains`` of its prompts. values: of a cell by prompt, from (cells, cell, claim.what).
    """
    a, b = (values(document["cells"], cell, claim.what) for cell in (claim.first, claim.second))
    n = min(len(a), len(b))
    if n < grid.FEWEST:
        return None
    both = np.array([a[:n], b[:n]])
    ratio, low, high = bootstrap(both)
    domains = document["domains"][:n]
    by = {d: bootstrap(both[:, [at == d for at in domains]]) for d in dict.fromkeys(domains) if domains.count(d) >= grid.FEWEST}
    verdict = "not comparable"
    if n >= ENOUGH and claim.paper is not None:
        verdict = "reproduced" if low > 1 and ratio >= (1 if claim.sign else claim.paper**0.5) else "not reproduced"
    return {
        "claim": claim.text, "table": claim.table, "of": claim.what, "verdict": verdict, "paper": claim.paper and round(claim.paper, 3),
        "ratio": _number(ratio), "low": _number(low), "high": _number(high), "prompts": n,
        "by_domain": {d: [_number(x) for x in found] for d, found in by.items()}, "first": claim.first.key, "second": claim.second.key,
    }  # fmt: skip


def _number(x: float) -> float | None:
    return round(float(x), 4) if np.isfinite(x) else None


def bootstrap(pairs: np.ndarray, samples: int = 10_000, seed: int = 0) -> tuple[float, float, float]:
    """Ratio of means of ``pairs [2,n]`` and its 95 % interval over resampled columns; infinite where the second has none."""
    n = pairs.shape[1]
    chosen = np.random.default_rng(seed).integers(0, n, (samples, n))
    with np.errstate(divide="ignore", invalid="ignore"):
        drawn = pairs[0][chosen].mean(1) / pairs[1][chosen].mean(1)
        ratio = pairs[0].mean() / pairs[1].mean()
    low, high = np.nanquantile(drawn, [0.025, 0.975]) if not np.isnan(drawn).all() else (np.nan, np.nan)
    return float(ratio), float(low), float(high)


def said(v: dict[str, Any]) -> str:
    """A verdict as a line."""
    there = "" if v["paper"] is None else f", the paper's {v['paper']:.2f}"
    numbers = [f"{v[name]:.2f}" if v[name] is not None else "-" for name in ("ratio", "low", "high")]
    domains = ", ".join(f"{d} {found[0]:.2f}" for d, found in v["by_domain"].items() if found[0] is not None)
    return f"{v['verdict'].upper()}: {v['claim']} [{v['table']}]: {v['of']} x{numbers[0]} ({numbers[1]}-{numbers[2]}){there}; {domains}"
