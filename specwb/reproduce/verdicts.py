"""Ratios of what a paper compares, measured over the same prompts, and verdicts on them.

The verdicts follow one stated rule.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import numpy as np

from specwb.reproduce import grid

ENOUGH = 48
"""With fewer prompts a claim is not comparable."""
EVEN = 1.05
"""Two settings are even if their ratio is within this factor of 1."""
Values = Callable[[dict[str, Any], Any, str], list[float]]
"""Gives a figure of a cell for every prompt, from (cells, cell, what)."""


@dataclass(frozen=True)
class Tuned:
    """Of several settings, for every prompt the one that is best on all the other prompts.

    That is what a choice by such prompts is worth on one that had no part in it. The best setting
    on all prompts would look too good.

    Attributes:
        name: in the results.
        settings: the settings.
        what: the figure that the best setting is chosen by.
        like: settings that are compared in place of ``settings``; of these the one with the index
            of the best is taken.
    """

    name: str
    settings: tuple[grid.Setting, ...]
    what: str = "speedup"
    like: tuple[grid.Setting, ...] = ()

    @property
    def key(self) -> str:
        return self.name

    def series(self, cells: dict[str, Any], what: str, values: Values) -> list[float]:
        """Return the figure ``what`` of the best setting, for every prompt."""
        figures = [values(cells, setting, what) for setting in self.settings]
        compared = [values(cells, s, self.what) for s in self.like or self.settings]
        n = min(map(len, figures + compared))
        if n < grid.MIN_PROMPTS:
            return []
        scores = np.array([series[:n] for series in compared])
        best = (scores.sum(1, keepdims=True) - scores).argmax(0)  # by the sum over the others
        return np.array([series[:n] for series in figures])[best, np.arange(n)].tolist()


@dataclass(frozen=True)
class Pooled:
    """The mean of several settings on every prompt.

    Attributes:
        name: in the results.
        settings: the settings.
    """

    name: str
    settings: tuple[grid.Setting, ...]

    @property
    def key(self) -> str:
        return self.name

    def series(self, cells: dict[str, Any], what: str, values: Values) -> list[float]:
        """Return the mean of the figure ``what`` over the settings, for every prompt."""
        figures = [values(cells, setting, what) for setting in self.settings]
        return [fmean(xs) for xs in zip(*figures, strict=False)]


Compared = grid.Setting | Tuned | Pooled
"""What a claim compares."""


@dataclass(frozen=True)
class Claim:
    """A figure of the first cell over that of the second.

    Attributes:
        text: what is claimed.
        table: where the paper claims it.
        what: the figure.
        first: the cell above the fraction line.
        second: the cell below it.
        paper: the ratio in the paper, None where it has no such measurement.
        ablation: whether it is judged on the results of the ablation's heads.
        sign: only which of the two is larger is judged.
        even: it is judged that neither is larger.
    """

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
    "Rule: the ratio of the means over prompts, with a 95 % interval from 10,000 bootstrap samples "
    "of prompts (pairs stay together). reproduced: the interval lies above 1 and the ratio is at "
    "least the square root of the paper's (half its effect on a logarithmic scale; of baselines "
    "that the paper copied from elsewhere only that it lies above 1). not reproduced: otherwise. "
    f"not comparable: fewer than {ENOUGH} prompts, or the paper has no such number. "
    "Speedups are of this machine, without prompt processing."
)
EVEN_RULE = (
    "Where the claim is that two settings are even: reproduced if the interval lies within "
    f"1/{EVEN} and {EVEN}."
)
TUNED_RULE = "A tuned setting is, for every prompt, the best on all the other prompts."


def judge(document: dict[str, Any], claim: Claim, values: Values) -> dict[str, Any] | None:
    """Measure a claim and give the verdict by :data:`RULE`.

    Args:
        document: of a grid, with ``cells`` and ``domains`` of its prompts.
        claim: the claim.
        values: gives a figure of a cell for every prompt, from (cells, cell, claim.what).
    Returns:
        The ratio with its interval, also by domain, and the verdict; None where a cell was not
        measured.
    """

    def series(cell: Any) -> list[float]:
        if isinstance(cell, Tuned | Pooled):
            return cell.series(document["cells"], claim.what, values)
        return values(document["cells"], cell, claim.what)

    a, b = series(claim.first), series(claim.second)
    n = min(len(a), len(b))
    if n < grid.MIN_PROMPTS:
        return None
    pairs = np.array([a[:n], b[:n]])
    ratio, low, high = bootstrap(pairs)
    domains = document["domains"][:n]
    by_domain = {
        domain: bootstrap(pairs[:, [other == domain for other in domains]])
        for domain in dict.fromkeys(domains)
        if domains.count(domain) >= grid.MIN_PROMPTS
    }
    return {
        "claim": claim.text,
        "table": claim.table,
        "of": claim.what,
        "verdict": _verdict(claim, n, ratio, low, high),
        "paper": claim.paper and round(claim.paper, 3),
        "ratio": _number(ratio),
        "low": _number(low),
        "high": _number(high),
        "prompts": n,
        "by_domain": {
            domain: [_number(x) for x in interval] for domain, interval in by_domain.items()
        },
        "first": claim.first.key,
        "second": claim.second.key,
    }


def _verdict(claim: Claim, prompts: int, ratio: float, low: float, high: float) -> str:
    """The verdict by :data:`RULE`."""
    if prompts < ENOUGH or claim.paper is None:
        return "not comparable"
    least = 1 if claim.sign else claim.paper**0.5
    is_larger = low > 1 and ratio >= least
    is_even = low > 1 / EVEN and high < EVEN
    holds = is_even if claim.even else is_larger
    return "reproduced" if holds else "not reproduced"


def _number(x: float) -> float | None:
    return round(float(x), 4) if np.isfinite(x) else None


def bootstrap(
    pairs: np.ndarray, samples: int = 10_000, seed: int = 0
) -> tuple[float, float, float]:
    """Compute the ratio of the means of ``pairs [2,n]`` with its 95 % interval.

    The interval is over resampled columns. Both are infinite where the second mean is 0.

    Returns:
        The ratio, and the interval's lower and upper end.
    """
    n = pairs.shape[1]
    columns = np.random.default_rng(seed).integers(0, n, (samples, n))
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = pairs[0][columns].mean(1) / pairs[1][columns].mean(1)
        ratio = pairs[0].mean() / pairs[1].mean()
        low, high = np.nan, np.nan
        if not np.isnan(ratios).all():
            low, high = np.nanquantile(ratios, [0.025, 0.975])
    return float(ratio), float(low), float(high)


def sentence(v: dict[str, Any]) -> str:
    """Write a verdict as one line."""
    paper = "" if v["paper"] is None else f", the paper's {v['paper']:.2f}"
    ratio, low, high = (
        f"{v[name]:.2f}" if v[name] is not None else "-" for name in ("ratio", "low", "high")
    )
    domains = ", ".join(
        f"{domain} {interval[0]:.2f}"
        for domain, interval in v["by_domain"].items()
        if interval[0] is not None
    )
    return (
        f"{v['verdict'].upper()}: {v['claim']} [{v['table']}]: "
        f"{v['of']} x{ratio} ({low}-{high}){paper}; {domains}"
    )
