"""The ledger: what six papers claim, and what was measured of it here, on one page."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING

import numpy as np

from specwb.lab.papers import FAMILIES, NAMES
from specwb.lab.papers.figures import SHOWN, SavedResults, figure
from specwb.lab.papers.judge import EVEN, JUDGED, PROMPTS, WORDS, Judgement, bounds, counts
from specwb.lab.papers.paper import EVEN as CLAIMED_EVEN
from specwb.lab.papers.paper import Paper, read_paper
from specwb.lab.papers.results import files, shipped, verdicts

if TYPE_CHECKING:
    from specwb.lab.papers.curves import Seen

HEADER = ("claim", "paper", "here", "verdict", "note")
"""The columns of a paper's claims."""
CELL_FIGURES = ("drafted", "accepted", "tau", "depth_fraction", "ms", "speedup")
"""The figures of a cell that are printed."""
WIDTH, HEIGHT, OCTAVES = 160, 14, 2
"""Of a claim's picture: pixels, and how far its axis goes on both sides of 1, in powers of 2."""
Section = tuple[str, str, tuple[str, ...], list[tuple[str, ...]]]
"""Title, text, header and rows of a table of the page."""
RULE = (
    "A claim is a ratio of one figure of two cells over the same prompts. It agrees if its 95 % "
    "interval (bootstrap over prompts, pairs staying together, and over training runs where there "
    "are several) lies above half of the paper's effect, the square root of its ratio, or above 1 "
    "where the paper states no number; it is more than claimed above twice the effect, the square "
    "of that ratio; it differs below half of it; otherwise it is undecided, also with fewer than "
    f"{PROMPTS} prompts and where heads are compared that were trained once. A paper's ratio "
    f"within {CLAIMED_EVEN:.0%} of 1 claims that two settings are even, which they are within a "
    f"factor of {EVEN}. A theorem that excludes or implies a claim decides it. Speeds of two "
    "settings of one method are compared on this machine; others, of other hardware, are shown and "
    "not judged. A tuned setting is, for every prompt, the best on all other prompts; speeds leave "
    "prompt processing out."
)
PICTURE = (
    f"The pictures' axis is logarithmic, from 1/{2**OCTAVES} to {2**OCTAVES}, with a line at 1: "
    "what agrees is shaded, the paper's ratio is a ring, and ours a dot with its interval."
)


def order(verdict: Judgement) -> tuple[bool, ...]:
    """Sort key of verdicts: those of a measurement first, then those of a theorem, then what was
    not judged here; of each the abstract's claims first."""
    measured = verdict.evidence == "measured here"
    return verdict.word not in JUDGED, not measured, not verdict.claim.headline


@dataclass(frozen=True)
class Judged:
    """A paper's verdicts on one family of models, sorted by :func:`order`."""

    paper: Paper
    family: str  # of the models, "" of a run of one's own
    verdicts: Sequence[Judgement]
    measured: str  # by which command, on which device

    @property
    def title(self) -> str:
        """The paper's name, and the family where it is not the first."""
        is_first = self.family in ("", FAMILIES[0])
        return self.paper.name if is_first else f"{self.paper.name} on {self.family}"


def judged(paper: Paper, documents: Sequence[SavedResults], family: str = "") -> Judged:
    """Judge a paper on results; ``documents`` as of :func:`specwb.lab.papers.results.shipped`."""
    own = documents[0]
    by = own.get("command") or own.get("counted", {}).get("command", "?")
    on, commit = own["arguments"], own.get("commit", "?")[:10]
    models = " with ".join(on[role] for role in ("target", "draft") if role in on)
    measured = (
        f"Measured by `{by}` at commit {commit}, {on.get('device', '?')}: {models}, prompts "
        f"{on.get('prompts', '?')}."
    )
    return Judged(paper, family, sorted(verdicts(paper, documents), key=order), measured)


def all_shipped() -> list[Judged]:
    """Judge every paper on the shipped results of every family."""
    papers = [read_paper(name) for name in NAMES]
    return [
        judged(paper, shipped(paper, family), family)
        for family in FAMILIES
        for paper in papers
        if files(paper, family)
    ]


class Pictured(str):
    """A text that stands for a picture, or beside it."""

    picture = ""  # SVG


def here(verdict: Judgement) -> str:
    """Write the measured ratio with its interval, ``1.33 (1.29-1.37)``, and draw it."""
    text = Pictured()
    if not np.isnan(verdict.ratio):
        runs = f", {verdict.runs} training runs" if verdict.runs > 1 else ""
        few = f", {verdict.prompts} prompts" if verdict.prompts < PROMPTS else ""
        text = Pictured(f"{verdict.ratio:.2f} ({verdict.low:.2f}-{verdict.high:.2f}){runs}{few}")
    if text or verdict.claim.paper:
        text.picture = drawn(verdict)
    return text


def drawn(verdict: Judgement) -> str:
    """Draw a claim as SVG in one line, see :data:`PICTURE`."""

    def x(ratio: float) -> str:
        octaves = np.log2(np.clip(ratio, 2.0**-OCTAVES, 2.0**OCTAVES))
        return f"{WIDTH * (octaves + OCTAVES) / (2 * OCTAVES):.1f}"

    claim, middle = verdict.claim, HEIGHT / 2
    least, most = map(x, bounds(claim))
    parts = [
        f'<path d="M{least} 0H{most}V{HEIGHT}H{least}Z" fill="#009e73" fill-opacity="0.25"/>',
        f'<path d="M{x(1)} 0V{HEIGHT}M0 {middle}H{WIDTH}" stroke="#999" stroke-width="0.5"/>',
    ]
    if not np.isnan([verdict.low, verdict.high]).any():
        parts += [
            f'<path d="M{x(verdict.low)} {middle}H{x(verdict.high)}" stroke="#0072b2" '
            'stroke-width="3"/>',
            f'<circle cx="{x(verdict.ratio)}" cy="{middle}" r="3" fill="#0072b2"/>',
        ]
    if claim.paper:
        parts.append(
            f'<circle cx="{x(claim.paper)}" cy="{middle}" r="4" fill="none" stroke="#d55e00"/>'
        )
    return (
        f'<svg width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'aria-label="{verdict.word}">{"".join(parts)}</svg>'
    )


def seen(point: Seen | None) -> str:
    """Write a value measured here with its interval."""
    if point is None:
        return ""
    interval = "" if point.low is None else f" ({point.low:.2f}-{point.high:.2f})"
    return f"{point.value:.2f}{interval}"


def cell_rows(document: SavedResults) -> list[dict[str, str]]:
    """Write the figures of every cell of some results."""
    out = []
    for name, record in document["cells"].items():
        line = {"cell": name, "prompts": str(len(record["accepted"]))}
        for what in CELL_FIGURES:
            values = figure(document["cells"], name, what)
            line[what] = f"{fmean(values):.2f}" if values else ""
        out.append(line)
    return out


def claim_row(verdict: Judgement) -> tuple[str, ...]:
    """Write a claim as a row of the page, see :data:`HEADER`."""
    claim = verdict.claim
    place = f" [{claim.place}]" if claim.place else ""
    paper = "" if claim.paper is None else f"{claim.paper:.2f}"
    word = verdict.word if verdict.evidence != "theorem" else f"{verdict.word} (theorem)"
    what = SHOWN.get(claim.what, claim.what)
    return (f"{claim.text}: {what}{place}", paper, here(verdict), word, verdict.note)


def claims(one: Judged) -> Section:
    """Make the section of a paper, with all its claims."""
    about = "; ".join(filter(None, (one.paper.source, one.paper.setting)))  # ours have no setting
    text = f"{about}. {one.measured}"
    return one.title, text, HEADER, [claim_row(verdict) for verdict in one.verdicts]


def chance(every: Iterable[Judgement]) -> str:
    """Say how many of the intervals may miss the true ratio by chance."""
    of = sum(v.evidence == "measured here" and v.word in JUDGED for v in every)
    return f"Of {of} intervals at 95 % about {of / 20:.1f} miss the true ratio by chance."


def sections(every: Sequence[Judged], left_out: dict[str, str] | None = None) -> list[Section]:
    """Make the page: the counts, the abstracts' claims, the rule, every paper's claims.

    Args:
        every: what was judged.
        left_out: paper -> why it is not there.
    """
    tallies = [(one.title, counts(one.verdicts)) for one in every]
    words = [word for word in WORDS if any(word in tally for _, tally in tallies)]
    summary = [(title, *(str(tally.get(w, 0)) for w in words)) for title, tally in tallies]
    for family in dict.fromkeys(one.family for one in every):
        of = [tally for one, (_, tally) in zip(every, tallies, strict=True) if one.family == family]
        total = [str(sum(tally.get(word, 0) for tally in of)) for word in words]
        summary.append((f"all on {family}" if family else "all", *total))
    titled = [(one.title, verdict) for one in every for verdict in one.verdicts]
    text = f"Each measurement and each theorem counts once. {chance(v for _, v in titled)}"
    headlines = [
        (f"{title}: {row[0]}", *row[1:])
        for title, v in sorted(titled, key=lambda pair: order(pair[1]))
        if v.claim.headline
        for row in [claim_row(v)]
    ]
    page: list[Section] = [
        ("Claims by verdict", text, ("paper", *words), summary),
        ("Headline claims", "What the abstracts say.", HEADER, headlines),
        ("How a verdict is given", RULE, (), []),
    ]
    page += map(claims, every)
    papers = {one.paper.name: one.paper for one in every}
    rows: list[tuple[str, ...]] = [
        (name, text) for name, paper in papers.items() for text in paper.contradictions
    ]
    page.append(("Inside the papers", "What does not agree there.", ("paper", "what"), rows))
    if left_out:
        page.append(("Left out", "", ("paper", "why"), list(left_out.items())))
    return page


def escaped(text: str) -> str:
    """Write a text so that Markdown shows it as it is, in one line, and what is in backticks as
    code."""
    marks = r"(`[^`|]+`)|([\\`*_{}\[\]<>#|~$])"
    return re.sub(marks, lambda m: m[1] or f"\\{m[2]}", " ".join(text.split()))


def _cell(text: str) -> str:
    return f"{escaped(text)} {text.picture}" if isinstance(text, Pictured) else escaped(text)


def markdown(page: Iterable[Section]) -> str:
    """Write the page as Markdown."""
    parts = ["# Ledger of the papers' claims", PICTURE]
    for title, text, header, rows in page:
        parts += [f"## {escaped(title)}", *([escaped(text)] if text else [])]
        if rows:
            lines = [header, ("---",) * len(header), *rows]
            parts.append("\n".join("| " + " | ".join(map(_cell, line)) + " |" for line in lines))
    return "\n\n".join(parts) + "\n"
