"""Claims of papers, what is measured of them, and verdicts by one stated rule.

A claim compares two cells over the same prompts. Its effect is a ratio with a bootstrap interval;
its verdict is one of :data:`VERDICTS`, with the reason where it is not a plain yes. All claims of a
paper are judged together, so that many claims do not make one of them true by chance.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import exp, log
from statistics import fmean
from typing import Any

import numpy as np
from scipy import stats

from specwb.studies import grid

VERDICTS = ("reproduced", "contradicted", "inconclusive", "not comparable", "not claimed")
"""What a verdict may be; of what no paper claims it is the last."""
LACKING = "not in the paper"
"""The place of a comparison that the paper lacks."""
ENOUGH = 48
"""With fewer prompts a claim is inconclusive."""
SEEDS = 2
"""With fewer training runs a variant, nothing is said of how variants are trained."""
EVEN = 1.05
"""Two settings are even if their ratio is within this factor of 1."""
ALPHA, POWER = 0.05, 0.8
"""The probability of a false verdict in a paper, and of seeing an effect of the size ``seen``."""
SPEEDS = ("speedup", "pace", "draft")
"""Figures that depend on the machine."""
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


def settings(compared: Compared) -> list[grid.Setting]:
    """List the cells of one side of a claim."""
    if isinstance(compared, Tuned | Pooled):
        return [*compared.settings, *getattr(compared, "like", ())]
    return [compared]


@dataclass(frozen=True)
class Claim:
    """A figure of the first cell over that of the second.

    Attributes:
        text: what is claimed.
        table: where the paper claims it, :data:`LACKING` where it does not.
        what: the figure.
        first: the cell above the fraction line.
        second: the cell below it.
        paper: the ratio in the paper, None where it states none.
        sign: only which of the two is larger is judged.
        even: it is judged that neither is larger.
        least: the ratio is claimed to be above this.
        over: two cells; the ratio is then that of the first two over the ratio of these.
        tau: of a speed, the ratio of tokens a step in the paper, where it states them. What is left
            of the paper's ratio are costs: of drafting and of verifying.
        differs: why the two are not comparable: "hardware", "models", "training budget" or
            "definition", and what differs.
        foregone: why the outcome is known beforehand; such a claim is not counted.
        headline: whether it stands in the paper's abstract.
    """

    text: str
    table: str
    what: str
    first: Compared
    second: Compared
    paper: float | None = None
    sign: bool = False
    even: bool = False
    least: float = 1.0
    over: tuple[grid.Setting, grid.Setting] | None = None
    tau: float | None = None
    differs: str = ""
    foregone: str = ""
    headline: bool = False

    @property
    def sides(self) -> tuple[Compared, ...]:
        """What is compared: two sides, or four."""
        return (self.first, self.second, *(self.over or ()))

    @property
    def cells(self) -> list[grid.Setting]:
        """All cells that are compared."""
        return [cell for side in self.sides for cell in settings(side)]

    @property
    def ablation(self) -> bool:
        """Whether it is judged on the results of the ablation's heads."""
        return any(cell.variant for cell in self.cells)

    @property
    def trained(self) -> bool:
        """Whether the sides differ in how a head was trained."""
        return len({frozenset(c.variant for c in settings(side)) for side in self.sides}) > 1


RULE = (
    "Rule: the ratio of the means over prompts, with a 95 % interval from 10,000 bootstrap "
    "samples of prompts (pairs stay together). A claim says that a ratio lies above 1, with a "
    "number that it is at least the square root of the paper's (half its effect on a logarithmic "
    "scale). reproduced: the interval lies above 1, by Holm's correction over all claims of the "
    f"paper too (together at most {ALPHA:.0%} false), and the ratio itself is large enough, of "
    "which no test is made. contradicted: by the same test the interval lies below 1, or, without "
    f"a correction, below what is claimed. inconclusive: otherwise, and with fewer than {ENOUGH} "
    f"prompts; seen says which ratio would have been seen with probability {POWER:.0%} had it been "
    "the only claim. not comparable: with its reason. A speed of other hardware is restated where "
    "the paper states the tokens a step too: ours over the cost of a step that the paper's two "
    "numbers imply; where less than half of its effect is in the tokens, or it states none, its "
    "hardware is not comparable. A head's training cannot be judged by one training run of a "
    "small budget. Claims whose outcome is known beforehand are not counted. Speedups are of this "
    "machine, without prompt processing."
)
EVEN_RULE = (
    "Where the claim is that two settings are even: reproduced if the interval lies within "
    f"1/{EVEN} and {EVEN}, contradicted if it lies outside, by the same correction."
)
TUNED_RULE = "A tuned setting is, for every prompt, the best on all the other prompts."


def judge(
    documents: dict[bool, dict[str, Any] | None],
    claims: Sequence[Claim],
    values: Values,
    machine: str = "cuda",
    seeds: int = 1,
) -> dict[bool, list[dict[str, Any]]]:
    """Measure all claims of a paper and give their verdicts by :data:`RULE`.

    Args:
        documents: of grids, with ``cells``, ``domains`` of their prompts and the ``kind`` of device
            (default cpu): False -> that of own heads, True -> that of the ablation's, or None.
        claims: the claims.
        values: gives a figure of a cell for every prompt, from (cells, cell, what).
        machine: the kind of device that the paper's speeds are of.
        seeds: training runs of every variant.
    Returns:
        The verdicts of both documents, see :func:`effect`, with ``verdict`` and ``why``. A claim
        is left out where a cell was not measured.
    """
    found: list[tuple[Claim, dict[str, Any]]] = []
    for claim in claims:
        document = documents.get(claim.ablation)
        if document is not None and (measured := effect(document, claim, values)):
            here = document.get("kind", "cpu")
            restate(measured, document, claim, values, here != machine)
            measured["why"] = reason(claim, measured, here != machine, seeds)
            if claim.trained:
                measured["seeds"] = seeds  # training runs of every variant
            found.append((claim, measured))
    family = [v for c, v in found if v["why"] == "" and c.table != LACKING and not c.foregone]
    for v, p in zip(family, holm([v["p"] for v in family]), strict=True):
        v["p_holm"] = round(p, 5)
    for claim, v in found:
        v["verdict"], v["why"] = decide(claim, v)
    out: dict[bool, list[dict[str, Any]]] = {False: [], True: []}
    for claim, v in found:
        out[claim.ablation].append(v)
    return out


def effect(document: dict[str, Any], claim: Claim, values: Values) -> dict[str, Any] | None:
    """Measure a claim.

    Returns:
        The claim's texts and cells with the ``ratio`` and its interval ``low`` to ``high``, also by
        domain; ``p``, two-sided, of what the claim compares with; ``seen``, the ratio over 1 that
        would have been seen with probability :data:`POWER`; None where a cell was not measured.
    """

    def series(cell: Any) -> list[float]:
        if isinstance(cell, Tuned | Pooled):
            return cell.series(document["cells"], claim.what, values)
        return values(document["cells"], cell, claim.what)

    figures = [series(side) for side in claim.sides]
    n = min(map(len, figures))
    if n < grid.MIN_PROMPTS:
        return None
    data = np.array([xs[:n] for xs in figures])
    domains = document.get("domains", [])[:n]
    by_domain = {
        domain: bootstrap(data[:, [other == domain for other in domains]])
        for domain in dict.fromkeys(domains)
        if domains.count(domain) >= grid.MIN_PROMPTS and not claim.over
    }
    return {
        "claim": claim.text,
        "table": claim.table,
        "of": claim.what,
        "verdict": "",
        "paper": None if claim.paper is None else round(claim.paper, 3),
        **interval(data, claim),
        "prompts": n,
        "by_domain": {
            domain: [_number(x) for x in numbers] for domain, numbers in by_domain.items()
        },
        "first": claim.first.key,
        "second": claim.second.key,
        **({"over": [cell.key for cell in claim.over]} if claim.over else {}),
        **({"foregone": claim.foregone} if claim.foregone else {}),
        **({"headline": True} if claim.headline else {}),
    }


def interval(data: np.ndarray, claim: Claim, factor: float = 1.0) -> dict[str, float | None]:
    """Compute the ratio of means with its interval, p and the ratio that would have been seen.

    Args:
        data: of every side and prompt, ``[2,n]`` or ``[4,n]``.
        claim: what the ratio is compared with.
        factor: that the ratio is multiplied by.
    """
    n = data.shape[1]
    ratio, samples = resample(data)
    ratio, samples = factor * ratio, factor * samples
    low, high = np.nan, np.nan
    if not np.isnan(samples).all():
        with np.errstate(invalid="ignore"):  # samples may be infinite
            low, high = np.nanquantile(samples, [0.025, 0.975])
    p, seen = 1.0, None
    positive = samples[np.isfinite(samples) & (samples > 0)]
    if len(positive) > 0.9 * len(samples) and np.isfinite(ratio) and ratio > 0:
        error = float(np.log(positive).std(ddof=1))
        if error > 1e-9:
            distance = abs(log(ratio) - log(claim.least))
            if claim.even:  # of the nearer end of the range
                distance = abs(abs(log(ratio)) - log(EVEN))
            p = float(2 * stats.t.sf(distance / error, n - 1))
            quantiles = stats.t.ppf([1 - ALPHA / 2, POWER], n - 1)
            seen = exp(min(error * float(quantiles.sum()), 50.0))
    return {
        "ratio": _number(ratio),
        "low": _number(low),
        "high": _number(high),
        "p": round(p, 5),
        "seen": None if seen is None else round(seen, 4),
    }


def restate(
    v: dict[str, Any], document: dict[str, Any], claim: Claim, values: Values, other: bool
) -> None:
    """Restate a speed of other hardware through tokens a step, in ``v["restated"]``.

    With a paper's ratio S of speeds and T of tokens a step, the ratio of the cost of a step there
    is T / S. Ours over it is what the speeds would be there with the tokens here. It is left out
    where less than half of ``log S`` is in the tokens, and where one of the two settings was tuned
    here or the claim is that two are even: the paper's cost is then of other settings than ours.
    """
    if claim.even or any(isinstance(side, Tuned) for side in claim.sides[:2]):
        return
    if not other or claim.what != "speedup" or claim.paper is None or claim.tau is None:
        return
    if claim.paper == 1 or log(claim.tau) / log(claim.paper) < 0.5:
        return
    figures = []
    for side in claim.sides[:2]:
        if isinstance(side, Pooled):
            figures.append(side.series(document["cells"], "tau", values))
        else:
            figures.append(values(document["cells"], side, "tau"))
    n = min(map(len, figures))
    cost = claim.tau / claim.paper
    data = np.array([xs[:n] for xs in figures])
    v["restated"] = {**interval(data, claim, 1 / cost), "cost": round(cost, 4)}
    v["p"] = v["restated"]["p"]


def reason(claim: Claim, v: dict[str, Any], other: bool, seeds: int) -> str:
    """Why a claim is not comparable, "" where it is."""
    if claim.table == LACKING:
        return ""
    if claim.differs:
        return claim.differs
    if claim.trained and seeds < SEEDS:
        return f"training budget: {seeds} short training run a variant"
    if other and claim.what in SPEEDS and "restated" not in v:
        return "hardware"
    return ""


def holm(ps: Sequence[float]) -> list[float]:
    """Adjust p values by Holm's method: the i-th smallest of m times m - i, in order."""
    order = np.argsort(ps, kind="stable")
    adjusted, largest = [1.0] * len(ps), 0.0
    for i, index in enumerate(order):
        largest = max(largest, min(1.0, (len(ps) - i) * ps[index]))
        adjusted[index] = largest
    return adjusted


def decide(claim: Claim, v: dict[str, Any]) -> tuple[str, str]:
    """Give the verdict by :data:`RULE`, and its reason."""
    if claim.table == LACKING:
        return "not claimed", ""
    if v["why"]:
        return "not comparable", v["why"]
    if v["prompts"] < ENOUGH:
        return "inconclusive", f"fewer than {ENOUGH} prompts"
    numbers = v.get("restated", v)
    ratio, low, high = (numbers[name] for name in ("ratio", "low", "high"))
    if low is None or high is None or ratio is None:
        return "inconclusive", "a mean is 0"
    if numbers["seen"] is None:
        return "inconclusive", "no spread was measured"
    # a foregone claim is in no family
    clear = v.get("p_holm", v["p"]) <= ALPHA
    chance = "it may be chance among so many claims"
    through = "in tokens a step" if "restated" in v else ""
    if claim.even:
        within, outside = low > 1 / EVEN and high < EVEN, low > EVEN or high < 1 / EVEN
        if not clear:
            return "inconclusive", chance if within or outside else ""
        if within:
            return "reproduced", through
        return ("contradicted", "not even") if outside else ("inconclusive", "")
    least = claim.least
    if claim.paper is not None and not claim.sign and least == 1:
        least = claim.paper**0.5
    if low > claim.least and clear:
        if ratio >= least:
            return "reproduced", through
        if high < least:
            return "contradicted", "the effect is less than half the paper's"
        return "inconclusive", "the effect is there, its size is open"
    if high < claim.least and clear:
        return "contradicted", "the other one is larger" if claim.least == 1 else "below the bound"
    if low > claim.least or high < claim.least:
        return "inconclusive", chance
    return "inconclusive", ""


def _number(x: float) -> float | None:
    return round(float(x), 4) if np.isfinite(x) else None


@lru_cache(maxsize=16)
def weights(n: int, samples: int, seed: int) -> np.ndarray:
    """Draw ``n`` of n columns, so often; return the columns' shares ``[n,samples]``."""
    columns = np.random.default_rng(seed).integers(0, n, (samples, n))
    places = columns + n * np.arange(samples)[:, None]
    return (np.bincount(places.ravel(), minlength=n * samples) / n).reshape(samples, n).T.copy()


def resample(data: np.ndarray, samples: int = 10_000, seed: int = 0) -> tuple[float, np.ndarray]:
    """Compute the ratio ``a / b``, or ``(a / b) / (c / d)``, of means, and bootstrap samples of it.

    Args:
        data: of two or four series over the same prompts, ``[2,n]`` or ``[4,n]``.
        samples: how many.
        seed: of the columns that are drawn.
    Returns:
        The ratio, and that of resampled columns ``[samples]``.
    """
    drawn = list(data @ weights(data.shape[1], samples, seed))
    means = [series.mean() for series in data]
    with np.errstate(divide="ignore", invalid="ignore"):
        if len(data) == 2:
            return float(means[0] / means[1]), drawn[0] / drawn[1]
        a, b, c, d = drawn
        ratio = means[0] * means[3] / (means[1] * means[2])
        return float(ratio), a * d / (b * c)


def bootstrap(
    pairs: np.ndarray, samples: int = 10_000, seed: int = 0
) -> tuple[float, float, float]:
    """Compute the ratio of the means of ``pairs [2,n]`` with its 95 % interval.

    The interval is over resampled columns. Both are infinite where the second mean is 0.

    Returns:
        The ratio, and the interval's lower and upper end.
    """
    ratio, ratios = resample(pairs, samples, seed)
    low, high = np.nan, np.nan
    if not np.isnan(ratios).all():
        low, high = np.nanquantile(ratios, [0.025, 0.975])
    return ratio, float(low), float(high)


def span(numbers: dict[str, Any]) -> str:
    """Write a ratio with its interval."""
    ratio, low, high = (
        f"{numbers[name]:.2f}" if numbers[name] is not None else "-"
        for name in ("ratio", "low", "high")
    )
    return f"x{ratio} ({low}-{high})"


def sentence(v: dict[str, Any]) -> str:
    """Write a verdict as one line."""
    why = f" ({v['why']})" if v.get("why") else ""
    paper = "" if v["paper"] is None else f", the paper's {v['paper']:.2f}"
    seen = f"; x{v['seen']:.2f} would have been seen" if v.get("seen") else ""
    restated = ""
    if "restated" in v:
        restated = f"; with the paper's cost of a step {span(v['restated'])}"
    foregone = f"; not counted: {v['foregone']}" if v.get("foregone") else ""
    domains = ", ".join(
        f"{domain} {numbers[0]:.2f}"
        for domain, numbers in v["by_domain"].items()
        if numbers[0] is not None
    )
    return (
        f"{v['verdict'].upper()}{why}: {v['claim']} [{v['table']}]: "
        f"{v['of']} {span(v)}{paper}{restated}{seen}{foregone}; {domains}"
    )


def counts(verdicts: Sequence[dict[str, Any]]) -> dict[str, int]:
    """Count what is claimed by verdict, foregone conclusions left out."""
    counted = [v["verdict"] for v in verdicts if not v.get("foregone")]
    return {name: counted.count(name) for name in VERDICTS[:-1] if name in counted}
