"""Ratios of what a paper compares, measured over the same prompts, and verdicts on them by one stated rule."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import numpy as np

from specwb.reproduce import grid

ENOUGH = 48  # prompts
EVEN = 1.05  # of two that are claimed to be as good as each other
Values = Callable[[dict[str, Any], Any, str], list[float]]  # of a cell by prompt, from (cells, cell, what)


@dataclass(frozen=True)
class Tuned:
    """Of several settings, for every prompt the one that is best (``what``) on all the others: what a choice by such prompts is worth on one that had
    no part in it, where the best on all prompts would look too good. ``like``: these are compared instead, and the setting at the place of the best
    is taken."""

    name: str
    settings: tuple[grid.Setting, ...]
    what: str = "speedup"
    like: tuple[grid.Setting, ...] = ()

    @property
    def key(self) -> str:
        return self.name

    def series(self, cells: dict[str, Any], what: str, values: Values) -> list[float]:
        own, compared = ([values(cells, s, w) for s in of] for of, w in ((self.settings, what), (self.like or self.settings, self.what)))
        n = min(map(len, own + compared))
        if n < grid.FEWEST:
            return []
        asked = np.array([x[:n] for x in compared])
        best = (asked.sum(1, keepdims=True) - asked).argmax(0)
        return np.array([x[:n] for x in own])[best, np.arange(n)].tolist()


@dataclass(frozen=True)
class Pooled:
    """The mean of several settings on every prompt."""

    name: str
    settings: tuple[grid.Setting, ...]

    @property
    def key(self) -> str:
        return self.name

    def series(self, cells: dict[str, Any], what: str, values: Values) -> list[float]:
        return [fmean(xs) for xs in zip(*(values(cells, s, what) for s in self.settings), strict=False)]


Compared = grid.Setting | Tuned | Pooled


@dataclass(frozen=True)
class Claim:
    """``what`` of the first cell over that of the second; ``paper`` the same ratio there, None where it has no such measurement;
    ``sign``: only which is larger is judged; ``even``: that neither is."""

    text: str
    table: str
    what: str
    first: Compared
    second: Compared
    paper: float | None = None
    ablation: bool = True
    sign: bool = False
    even: bool = False


RULE = (
    "Rule: the ratio of the means over prompts, with a 95 % interval from 10,000 bootstrap samples of prompts (pairs stay together). reproduced: "
    "the interval lies above 1 and the ratio is at least the square root of the paper's (half its effect on a logarithmic scale; of baselines "
    f"that the paper copied from elsewhere only that it lies above 1). not reproduced: otherwise. not comparable: fewer than {ENOUGH} prompts, "
    "or the paper has no such number. Speedups are of this machine, without prompt processing."
)
EVEN_RULE = f"Where the claim is that two settings are even: reproduced if the interval lies within 1/{EVEN} and {EVEN}."
TUNED_RULE = "A tuned setting is, for every prompt, the best on all the other prompts."


def judge(document: dict[str, Any], claim: Claim, values: Values) -> dict[str, Any] | None:
    """The ratio, its interval, by domain, and the verdict by :data:`RULE`; None where a cell was not measured.

    Args: document: of a grid, with ``cells`` and ``domains`` of its prompts. values: of a cell by prompt, from (cells, cell, claim.what).
    """
    a, b = (
        cell.series(document["cells"], claim.what, values) if isinstance(cell, Tuned | Pooled) else values(document["cells"], cell, claim.what)
        for cell in (claim.first, claim.second)
    )
    n = min(len(a), len(b))
    if n < grid.FEWEST:
        return None
    both = np.array([a[:n], b[:n]])
    ratio, low, high = bootstrap(both)
    domains = document["domains"][:n]
    by = {d: bootstrap(both[:, [at == d for at in domains]]) for d in dict.fromkeys(domains) if domains.count(d) >= grid.FEWEST}
    verdict = "not comparable"
    if n >= ENOUGH and claim.paper is not None:
        least = 1 if claim.sign else claim.paper**0.5
        verdict = "reproduced" if (low > 1 / EVEN and high < EVEN if claim.even else low > 1 and ratio >= least) else "not reproduced"
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
