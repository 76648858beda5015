"""One judge for all claims: a claim and the measurements in, a word out.

A claim is a ratio of one figure of two cells over the same prompts. Its 95 % interval is a
bootstrap over prompts, pairs staying together, and over training runs where there are several. It

- *agrees* if the interval lies above half of the paper's effect on the logarithmic scale, that is
  above the square root of the paper's ratio (above 1 where the paper has no number);
- is *more than claimed* if it lies above twice the effect, the square of that ratio;
- *differs* if it lies below half of the effect;
- is *undecided* otherwise, with fewer than :data:`PROMPTS` prompts, and where heads are compared
  that were trained once each.

Speeds of two settings of one method are compared on this machine; another speed of other hardware
is shown and not judged: *other hardware*. No verdict depends on another.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

import numpy as np

from specwb.lab.bench.statistics import bootstrap
from specwb.lab.papers.figures import SPEEDS, Cells, SavedResults, Table, figure, runs_of
from specwb.lab.papers.paper import Cell, Claim, Side

PROMPTS = 48
"""With fewer prompts a claim is undecided."""
EVEN = 1.05
"""Two settings are even if their ratio is within this factor of 1."""
MACHINE = "cuda"
"""The kind of device that the papers' speeds are of."""
JUDGED = ("agrees", "more than claimed", "undecided", "differs")
"""The verdicts that a measurement or a theorem gives."""
WORDS = (*JUDGED, "other hardware", "not measured")
"""What a verdict may be."""


@dataclass(frozen=True)
class Judgement:
    """A claim and what is known of it here.

    Attributes:
        claim: the claim.
        word: one of :data:`WORDS`.
        evidence: "measured here", "theorem" or "not measured".
        ratio: the measured ratio with its interval ``low`` to ``high``; NaN where there is none.
        prompts: how many prompts it is over.
        runs: training runs of the heads that it compares.
        note: what differs from the paper, and what weakens the measurement.
    """

    claim: Claim
    word: str
    evidence: str
    ratio: float = np.nan
    low: float = np.nan
    high: float = np.nan
    prompts: int = 0
    runs: int = 1
    note: str = ""


def series(cells: Cells, side: Side, what: str) -> list[float]:
    """Compute a figure of one side of a claim for every prompt.

    Of a mean those cells count that were measured; of a best one all must have been.
    """
    if not side.by:
        rows = [row for cell in side.cells if (row := figure(cells, cell, what))]
        return [fmean(values) for values in zip(*rows, strict=False)]
    rows = [figure(cells, cell, what) for cell in side.cells]
    scores = [figure(cells, cell, side.by) for cell in side.like or side.cells]
    n = min(map(len, rows + scores))
    every = np.array([row[:n] for row in scores])
    best = (every.sum(1, keepdims=True) - every).argmax(0)  # by the sum over the other prompts
    return np.array([row[:n] for row in rows])[best, np.arange(n)].tolist() if n > 1 else []


def judge(
    claim: Claim,
    documents: Sequence[SavedResults],
    drafters: Sequence[Table] = (),
    published: Mapping[str, Table] | None = None,
) -> Judgement:
    """Hold a claim against measurements.

    Args:
        claim: the claim.
        documents: results, each with ``cells`` and the ``kind`` of device (default cpu): those of
            the target's own heads, then those of heads that were trained to be compared.
        drafters: what the paper's drafters accept, see :class:`specwb.lab.papers.paper.Paper`.
        published: settings of the paper's trained heads, see there.
    Returns:
        The verdict. Where a theorem excludes or implies the claim, it decides.
    """
    heads = [cell for cell in claim.cells if "[" in cell]
    document = next((d for d in documents if all(cell in d["cells"] for cell in heads)), {})
    cells: Cells = document.get("cells", {})
    runs = runs_of(cells, [cell for side in claim.sides for cell in side.cells])
    data = [[series(cells, side, claim.what) for side in _again(claim, run)] for run in runs]
    n = min(len(values) for sides in data for values in sides)
    notes = [claim.note, claim.excluded_by or claim.implied_by]
    notes += other_heads(claim, document.get("architecture", {}), published or {})
    notes += weaknesses(claim, cells, drafters)
    verdict = Judgement(claim, "not measured", "not measured")
    if n > 1:
        every = np.array([[values[:n] for values in sides] for sides in data])
        ratio, low, high = bootstrap(every)
        verdict = Judgement(claim, "undecided", "measured here", ratio, low, high, n, len(runs))
        if len(runs) == 1 and _compares_heads(claim):
            notes.append("one training run of each head")
        elif n >= PROMPTS:
            verdict = replace(verdict, word=_word(verdict))
        of_speed = claim.what.removesuffix("/ms") in SPEEDS
        if of_speed and len({kind for kind, _ in claim.methods}) == 1:
            notes.append("on this machine")
        elif of_speed and document.get("kind", "cpu") != MACHINE:
            if verdict.word != "undecided":
                notes.append(f"on this machine: {verdict.word}")
            verdict = replace(verdict, word="other hardware")
    if claim.excluded_by:
        verdict = replace(verdict, word="differs", evidence="theorem")
    elif claim.implied_by:
        verdict = replace(verdict, word="agrees", evidence="theorem")
    return replace(verdict, note="; ".join(filter(None, notes)))


def _compares_heads(claim: Claim) -> bool:
    """Whether the sides differ in the trained heads that they decode with."""
    return len({frozenset(Cell.read(cell).head for cell in x.cells) for x in claim.sides}) > 1


def _again(claim: Claim, cells: Sequence[str]) -> list[Side]:
    """The sides of a claim with these cells in place of its own."""
    rest = iter(cells)
    return [replace(side, cells=tuple(next(rest) for _ in side.cells)) for side in claim.sides]


def bounds(claim: Claim) -> tuple[float, float]:
    """The ratios between which a claim agrees; above the second it is more than claimed."""
    if claim.even:
        return 1 / EVEN, EVEN
    paper = max(claim.paper or 1.0, 1.0)
    if claim.least is not None or paper == 1:
        return claim.least or 1.0, np.inf
    return paper**0.5, paper**2


def _word(verdict: Judgement) -> str:
    """The word for an interval, see the head of this file."""
    claim, low, high = verdict.claim, verdict.low, verdict.high
    least, most = bounds(claim)
    if high < least or (claim.even and low > most):
        return "differs"
    if claim.even:
        return "agrees" if low > least and high < most else "undecided"
    return "more than claimed" if low > most else "agrees" if low > least else "undecided"


def other_heads(
    claim: Claim,
    ours: Mapping[str, Table],
    published: Mapping[str, Table],
) -> Iterable[str]:
    """Say which of the target's own heads that a claim decodes with are not as the paper's."""
    used = {kind for kind, head in claim.methods if not head}
    for kind, settings in published.items():
        own = ours.get(kind, {}) if kind in used else {}
        known = {key: wanted for key, wanted in settings.items() if key in own}
        others = [f"{key}={own[key]}, not {w}" for key, w in known.items() if own[key] != w]
        if others:
            yield f"our {kind} head has {', '.join(others)}"


def weaknesses(claim: Claim, cells: Cells, drafters: Sequence[Table]) -> Iterable[str]:
    """Say of which drafters of a claim less than half of what the paper's accept is accepted."""
    for one in drafters:
        method, _, head = one["drafter"].partition(" ")
        uses = (method, head.strip("[]")) in claim.methods
        here = figure(cells, one["cell"], one["what"]) if uses else []
        if here and fmean(here) < one["paper"] / 2:
            of = "of its levels" if one["what"] == "depth_fraction" else "draft tokens"
            yield f"our {one['drafter']} accepts {fmean(here):.2f} {of}, not {one['paper']:.2f}"


def counts(verdicts: Iterable[Judgement]) -> dict[str, int]:
    """Count verdicts by word, each theorem and each measurement once.

    Of several claims about one measurement the least favourable word counts.
    """
    facts: dict[Any, int] = {}
    for verdict in verdicts:
        claim = verdict.claim
        what = "tau" if claim.what == "accepted" else claim.what
        fact = claim.excluded_by or claim.implied_by or (what, claim.sides)
        facts[fact] = max(facts.get(fact, 0), WORDS.index(verdict.word))
    found = Counter(facts.values())
    return {word: found[i] for i, word in enumerate(WORDS) if found[i]}
