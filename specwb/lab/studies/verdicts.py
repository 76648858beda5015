"""Verdicts on the claims of a paper, by one stated rule.

A claim compares two cells over the same prompts. Its effect is a ratio with an interval; its
verdict is one of :data:`VERDICTS`, with the reason where it is not a plain yes. All claims of a
paper are judged together: their intervals hold jointly, and a verdict says nothing but where one of
them lies.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

import numpy as np

from specwb.lab.studies import grid
from specwb.lab.studies.claim import LACKING, Bars, Claim, Values, again, series
from specwb.lab.studies.intervals import Estimate, Part, bootstrap, estimate, spread

VERDICTS = (
    "reproduced",
    "contradicted",
    "inconclusive",
    "not comparable",
    "not claimed",
)
"""What a verdict may be; of what no paper claims it is the last."""
ENOUGH = 48
"""With fewer prompts a claim is inconclusive."""
SEEDS = 2
"""With fewer training runs a variant, nothing is said of how variants are trained."""
BAR = 0.5
"""The part of a paper's accepted draft tokens that a drafter here must have."""
EVEN = 1.05
"""Two settings are even if their ratio is within this factor of 1."""
ALPHA, POWER = 0.05, 0.8
"""The probability that an interval of a paper misses, and of seeing an effect of the size
``seen``."""
SPEEDS = ("speedup", "pace", "draft")
"""Figures that depend on the machine."""

INTERVALS = (
    "The ratio of the means over prompts, with a 95 % interval from 10,000 bootstrap samples "
    "of prompts (pairs stay together). Beside it stands its joint interval: Student's of the "
    "ratio's logarithm, with the bootstrap's error, at 95 % for all measurements of the paper "
    "together (5 % divided by their number). A verdict says where the joint interval lies, so that "
    f"any false one in a paper has at most a probability of {ALPHA:.0%}. A claim says that a ratio "
    "is above 1; one with a number, that it is above the square root of the paper's, which is half "
    "its effect on a logarithmic scale."
)
MEANINGS = {
    "reproduced": "the joint interval lies above what is claimed.",
    "contradicted": "it lies below, or a theorem that is named excludes the claim.",
    "inconclusive": (
        f"none of these, or nothing varies; always with fewer than {ENOUGH} prompts. Detectable is "
        f"the smallest true ratio that is found to be above 1 with probability {POWER:.0%}. Every "
        "measurement counts once: what repeats one is named and not counted."
    ),
    "not comparable": (
        f"with its reason. Drafter: ours accepts less than {BAR:g} times the draft tokens a step "
        "that the paper states for the same setting; of all papers, such a drafter decides "
        "nothing. A head's training cannot be judged by one run of a small budget, nor a speed of "
        "other hardware by one of this machine."
    ),
}
"""What each verdict says."""
COUNTED = (
    "With several runs, the spread of runs is part of the error. Claims whose outcome is known "
    "beforehand are not counted. Speedups are of this machine, without prompt processing."
)
RULE = "Rule: " + " ".join(
    (INTERVALS, *(f"{word}: {meaning}" for word, meaning in MEANINGS.items()), COUNTED)
)
EVEN_RULE = (
    "Where the claim is that two settings are even: reproduced if the joint interval lies within "
    f"1/{EVEN} and {EVEN}, contradicted if it lies outside."
)
TUNED_RULE = "A tuned setting is, for every prompt, the best on all the other prompts."
Found = tuple[Claim, dict[str, Any], Estimate]


def judge(
    documents: dict[bool, dict[str, Any] | None],
    claims: Sequence[Claim],
    values: Values,
    machine: str = "cuda",
    bars: Bars | None = None,
) -> dict[bool, list[dict[str, Any]]]:
    """Measure all claims of a paper and give their verdicts by :data:`RULE`.

    Args:
        documents: of grids, with ``cells``, ``domains`` of their prompts and the ``kind`` of device
            (default cpu): False -> that of own heads, True -> that of the ablation's, or None.
        claims: the claims.
        values: gives a figure of a cell for every prompt, from (cells, cell, what).
        machine: the kind of device that the paper's speeds are of.
        bars: what the paper's drafters accept.
    Returns:
        The verdicts of both documents, see :func:`effect`, with ``verdict`` and ``why``; ``joint``,
        the interval that the verdict is about; ``seen``; ``repeats``, the claim whose measurement
        it is too. A claim is left out where a cell was not measured.
    """
    found: list[Found] = []
    for claim in claims:
        document = documents.get(claim.ablation)
        if document is not None and (measured := effect(document, claim, values)):
            v, estimated = measured
            other = document.get("kind", "cpu") != machine
            v["why"] = reason(claim, v, other, weakness(document, claim, v, values, bars or {}))
            found.append((claim, v, estimated))
    judged = [one for one in found if _judged(*one[:2])]
    counted: dict[tuple[Any, ...], dict[str, Any]] = {}
    for claim, v, _ in judged:
        first = counted.setdefault(claim.measurement, v)
        if first is not v:
            v["repeats"] = first["claim"]
    family = {c.measurement for c, v, e in judged if _tested(v, e)}
    alpha = ALPHA / max(len(family), 1)
    for claim, v, estimated in found:
        level = alpha if _judged(claim, v) and _tested(v, estimated) else ALPHA
        v["joint"] = v["seen"] = None
        if estimated.varies:
            v["joint"] = [_number(x) for x in estimated.within(level)]
            v["seen"] = round(estimated.seen(level, POWER), 4)
        v["verdict"], v["why"] = decide(claim, v)
    out: dict[bool, list[dict[str, Any]]] = {False: [], True: []}
    for claim, v, _ in found:
        out[claim.ablation].append(v)
    return out


def _judged(claim: Claim, v: dict[str, Any]) -> bool:
    """Whether a verdict is given that counts."""
    return claim.table != LACKING and not claim.foregone and not v["why"]


def _tested(v: dict[str, Any], estimated: Estimate) -> bool:
    """Whether a verdict other than inconclusive can be given by the joint interval."""
    return estimated.varies and v["prompts"] >= ENOUGH


def effect(
    document: dict[str, Any], claim: Claim, values: Values
) -> tuple[dict[str, Any], Estimate] | None:
    """Measure a claim.

    Returns:
        The claim's texts and cells with the ``ratio`` and its interval ``low`` to ``high``, also by
        domain, and the number of training ``seeds`` of what is trained; and the estimate. None
        where a cell was not measured.
    """
    runs = [seeds_of(document, claim, index) for index in range(training_runs(document, claim))]
    whole = [
        [series(side, document["cells"], claim.what, values) for side in c.sides] for c in runs
    ]
    n = min(len(xs) for figures in whole for xs in figures)
    if n < grid.MIN_PROMPTS:
        counted = replace(claim, what="tau", over=None)
        if claim.what not in SPEEDS or not (tokens := effect(document, counted, values)):
            return None
        # tokens without times
        return {
            **tokens[0],
            "of": claim.what,
            **dict.fromkeys(("ratio", "low", "high")),
            "by_domain": {},
        }, Estimate(np.nan, np.nan, np.nan, np.nan, 0)
    every = np.array([[xs[:n] for xs in figures] for figures in whole])  # runs, sides, prompts
    data, domains = every.mean(0), document.get("domains", [])[:n]
    by_domain = {
        domain: bootstrap(data[:, [other == domain for other in domains]])
        for domain in dict.fromkeys(domains)
        if domains.count(domain) >= grid.MIN_PROMPTS and not claim.over
    }
    estimated = estimate(data, more=run_parts(every))
    return {
        "claim": claim.text,
        "table": claim.table,
        "of": claim.what,
        "verdict": "",
        "paper": None if claim.paper is None else round(claim.paper, 3),
        **_shown(estimated),
        "prompts": n,
        "by_domain": {
            domain: [_number(x) for x in numbers] for domain, numbers in by_domain.items()
        },
        "first": claim.first.key,
        "second": claim.second.key,
        **({"over": [cell.key for cell in claim.over]} if claim.over else {}),
        **({"seeds": len(runs)} if claim.trained else {}),
        **({"foregone": claim.foregone} if claim.foregone else {}),
        **({"headline": True} if claim.headline else {}),
    }, estimated


def seeds_of(document: dict[str, Any], claim: Claim, index: int) -> Claim:
    """A claim about the heads of training run ``index``, 0 for the first."""
    over = claim.over and (again(claim.over[0], index), again(claim.over[1], index))
    return replace(
        claim, first=again(claim.first, index), second=again(claim.second, index), over=over
    )


def training_runs(document: dict[str, Any], claim: Claim) -> int:
    """Count the training runs of which every cell of a claim was measured."""
    if not claim.trained:
        return 1
    runs = 1
    while all(cell.key in document["cells"] for cell in seeds_of(document, claim, runs).cells):
        runs += 1
    return runs


def run_parts(every: np.ndarray) -> list[Part]:
    """The error from training: of every side the spread of its runs' means.

    Runs of different sides are taken to be independent, though those of one seed read the same
    text. A mean also varies with the prompts, which makes this larger.
    """
    means = every.mean(2)
    if len(every) < SEEDS or (means <= 0).any():
        return []
    return [spread(np.log(side)) for side in means.T]


def weakness(
    document: dict[str, Any], claim: Claim, v: dict[str, Any], values: Values, bars: Bars
) -> str:
    """Say why the drafters of a claim decide nothing about their tokens, "" where they do."""
    for cell in claim.cells:
        bar = bars.get((cell.spec.partition(":")[0], cell.variant))
        if bar is None or not (figures := values(document["cells"], bar.cell, bar.what)):
            continue
        if (here := fmean(figures)) < BAR * bar.paper:
            name = cell.variant or cell.spec.partition(":")[0]
            what = "draft tokens a step" if bar.what == "accepted" else "of its levels"
            return f"drafter: {name} accepts {here:.2f} {what}, the paper's {bar.paper:.2f}"
    if claim.trained and v["seeds"] < SEEDS:
        return f"training budget: {v['seeds']} short training run a variant"
    return ""


def reason(claim: Claim, v: dict[str, Any], other: bool, weak: str = "") -> str:
    """Why a claim is not comparable, "" where it is."""
    if claim.table == LACKING or claim.theorem:
        return ""
    if claim.differs:
        return claim.differs
    return "hardware" if other and claim.what in SPEEDS else weak


def decide(claim: Claim, v: dict[str, Any]) -> tuple[str, str]:
    """Give the verdict by :data:`RULE`, and its reason."""
    if claim.table == LACKING:
        return "not claimed", ""
    if v["why"]:
        return "not comparable", v["why"]
    if claim.theorem:
        return "contradicted", claim.theorem
    if v["prompts"] < ENOUGH:
        return "inconclusive", f"fewer than {ENOUGH} prompts"
    if None in (v["ratio"], v["low"], v["high"]):
        return "inconclusive", "a mean is 0"
    if v["joint"] is None:
        return "inconclusive", "no spread was measured"
    low, high = v["joint"]
    alone = v["low"], v["high"]
    if claim.even:
        if low > 1 / EVEN and high < EVEN:
            return "reproduced", ""
        if low > EVEN or high < 1 / EVEN:
            return "contradicted", "not even"
        clear = alone[0] > EVEN or alone[1] < 1 / EVEN
        clear |= alone[0] > 1 / EVEN and alone[1] < EVEN
        return "inconclusive", CHANCE if clear else ""
    enough = claim.least
    if claim.paper is not None and not claim.sign and claim.least == 1:
        enough = max(1.0, claim.paper**0.5)
    if low > enough:
        return "reproduced", ""
    if high < enough:
        text = "the effect is less than half the paper's"
        if high < claim.least:
            text = "the other one is larger" if claim.least == 1 else "below the bound"
        return "contradicted", text
    if low > claim.least:
        return "inconclusive", "the effect is there, its size is open"
    return "inconclusive", CHANCE if alone[0] > enough or alone[1] < enough else ""


CHANCE = "it may be chance among so many claims"
"""Why a claim is inconclusive whose own interval is clear and whose joint one is not."""


def _shown(estimated: Estimate) -> dict[str, float | None]:
    return {name: _number(getattr(estimated, name)) for name in ("ratio", "low", "high")}


def _number(x: float) -> float | None:
    return round(x, 4) if np.isfinite(x) else None


def _of(v: dict[str, Any]) -> str:
    """What the figure of a claim is called."""
    return grid.SHOWN.get(v["of"], v["of"])


def span(numbers: dict[str, Any]) -> str:
    """Write a ratio with its interval."""
    ratio, low, high = (
        f"{numbers[name]:.2f}" if numbers[name] is not None else "-"
        for name in ("ratio", "low", "high")
    )
    return f"x{ratio} ({low}-{high})"


def effects(v: dict[str, Any]) -> str:
    """Write what was measured, and its joint interval."""
    parts = [f"{_of(v)} {span(v)}" if v["ratio"] is not None else f"{_of(v)} not timed"]
    if joint := v.get("joint"):
        low, high = (f"{x:.2f}" if x is not None else "-" for x in joint)
        parts.append(f"joint {low}-{high}")
    if v.get("seeds", 1) > 1:
        parts.append(f"{v['seeds']} training runs")
    return "; ".join(parts)


def uncounted(v: dict[str, Any]) -> str:
    """Say why a verdict is not counted, "" where it is."""
    if v.get("foregone"):
        return f"not counted: {v['foregone']}"
    return f"not counted: the measurement of: {v['repeats']}" if v.get("repeats") else ""


def sentence(v: dict[str, Any]) -> str:
    """Write a verdict as one line."""
    why = f" ({v['why']})" if v.get("why") else ""
    paper = "" if v["paper"] is None else f"the paper's {v['paper']:.2f}"
    seen = f"detectable x{v['seen']:.2f}" if v.get("seen") else ""
    domains = ", ".join(
        f"{domain} {numbers[0]:.2f}"
        for domain, numbers in v["by_domain"].items()
        if numbers[0] is not None
    )
    rest = "; ".join(filter(None, (effects(v), paper, seen, uncounted(v), domains)))
    return f"{v['verdict'].upper()}{why}: {v['claim']} [{v['table']}]: {rest}"


def counts(verdicts: Sequence[dict[str, Any]]) -> dict[str, int]:
    """Count what is claimed by verdict, each measurement once, without foregone conclusions."""
    counted = [v["verdict"] for v in verdicts if not uncounted(v)]
    return {name: counted.count(name) for name in VERDICTS[:-1] if name in counted}
