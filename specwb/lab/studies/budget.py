"""Whether an effect of training lasts: heads that differ in one thing, by training budget.

A :class:`Comparison` has arms, such as a head with and without CSGD. Every arm is trained from the
start for each of :data:`STEPS` (learning rates fall over a run's last half, so that a short run is
no part of a long one), several times, and decodes the same prompts; the target's own head, which
saw more text, stands next to them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count, product
from statistics import fmean
from typing import Any

from specwb.lab.bench.statistics import mean_and_error
from specwb.lab.studies.claim import LACKING, Claim, again
from specwb.lab.studies.curves import Curve, Figures, Ours, Point, Seen, seen
from specwb.lab.studies.grid import Cell
from specwb.lab.studies.study import Document, Rows, Study, Tables, every
from specwb.lab.studies.trained import spelled
from specwb.lab.studies.verdicts import span

STEPS = (64, 125, 250, 500)
"""The budgets, in steps of the same number of tokens."""
WARMUP = 25
"""Steps in which the learning rates rise, the same for all budgets."""


@dataclass(frozen=True)
class Arm:
    """Heads that are trained alike: their name in tables, and the settings that are theirs."""

    label: str
    settings: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class Comparison:
    """Heads of one kind that are trained in several ways.

    Attributes:
        name: of the study.
        title: what is compared.
        head: the kind of head.
        arms: name -> arm; the last one is what the others are compared with.
        drafts: what every head drafts at T = 0: name -> spec. A tree of so many nodes is the best
            one by the head's own accuracies, so that heads differ in it too.
        common: settings of all arms.
        objectives: the end of an arm's name -> the objective's name, and its settings.
    """

    name: str
    title: str
    head: str
    arms: Mapping[str, Arm]
    drafts: Mapping[str, str]
    common: Mapping[str, object] = field(default_factory=dict)
    objectives: Mapping[str, Arm] = field(default_factory=lambda: {"": Arm("")})

    @property
    def variants(self) -> dict[str, str]:
        """Every trained head: name -> settings, as ``specwb train --set`` takes them."""
        out = {}
        for (end, objective), steps in product(self.objectives.items(), STEPS):
            for name, arm in self.arms.items():
                changed = {"warmup": WARMUP, **objective.settings, **arm.settings, "steps": steps}
                settings = {**self.common, **changed}
                out[f"{name}{end}-{steps}"] = spelled(settings)
        return out

    def cells(self, variants: tuple[str, ...] = ("",)) -> list[Cell]:
        """List the settings that heads are compared in; by default the target's own is."""
        return [Cell("ar"), *(Cell(spec, v) for v in variants for spec in self.drafts.values())]

    def row(self, steps: int, draft: str, end: str = "") -> list[Cell]:
        """The cells of a budget's heads, an arm after the other."""
        return [Cell(self.drafts[draft], f"{name}{end}-{steps}") for name in self.arms]

    def texts(self, steps: int, draft: str, end: str = "") -> list[str]:
        """The claims of the comparisons of a budget, an arm after the other."""
        *labels, reference = (arm.label for arm in self.arms.values())
        return [f"{a} over {reference}, {steps} steps, {draft}{self._by(end)}" for a in labels]

    def _by(self, end: str) -> str:
        label = self.objectives[end].label
        return f", {label}" if label else ""

    def claims(self, _: Document) -> list[Claim]:
        """List the comparisons. No paper's numbers stand next to them: its budgets are others."""
        return [
            Claim(text, LACKING, "accepted", cell, reference)
            for end, steps, draft in product(self.objectives, STEPS, self.drafts)
            for *others, reference in [self.row(steps, draft, end)]
            for text, cell in zip(self.texts(steps, draft, end), others, strict=True)
        ]

    def tables(self, document: Document, own: Rows, ablation: Rows) -> Tables:
        """Make the printed tables: accepted draft tokens by budget, and every setting."""
        found = {v["claim"]: v for v in (document.get("ablation") or {}).get("verdicts", [])}
        *_, reference = (arm.label for arm in self.arms.values())
        out = []
        for end, (draft, spec) in product(self.objectives, self.drafts.items()):
            lines = []
            for steps in STEPS:
                texts = self.texts(steps, draft, end)
                if not found.keys() >= set(texts):
                    continue
                runs = [by_run(ablation, cell, "accepted") for cell in self.row(steps, draft, end)]
                least = min(map(len, runs))
                ratios = [*(span(found[text]) for text in texts), ""]
                lines += [
                    {
                        "steps": str(steps),
                        "tokens": f"{_tokens(document, steps):,}",
                        "head": arm.label,
                        "runs": str(least),
                        "accepted": f"{fmean(values[:least]):.2f}",
                        f"over {reference}": ratio,
                    }
                    for arm, values, ratio in zip(self.arms.values(), runs, ratios, strict=True)
                ]
            title = f"Accepted draft tokens per step, {draft}, T = 0{self._by(end)}"
            if row := own.get(Cell(spec).key):
                title += f" (the target's own head: {row['accepted']:.2f})"
            out.append((title, lines))
        return [*out, ("Every setting", every(ablation, ("accepted", "tau")))]

    def curves(self, document: Document) -> Iterator[Curve]:
        """Yield a curve for each arm: accepted draft tokens by budget."""
        if not document.get("ablation"):
            return
        for end, draft in product(self.objectives, self.drafts):
            for i, arm in enumerate(self.arms.values()):
                points = (
                    Point(_tokens(document, s) / 1000, None, ours=_mean(self.row(s, draft, end)[i]))
                    for s in STEPS
                )
                yield Curve(f"{draft}{self._by(end)}", arm.label, "accepted", points)

    def study(self) -> Study:
        """Make the study, which is no paper's."""
        figures = Figures()
        figures.add(
            "budget",
            f"{self.title} by training budget: accepted draft tokens per step",
            "",
            "thousand tokens of training",
            over="training runs, of the mean over prompts",
        )(self.curves)
        return Study(
            name=self.name,
            cells=lambda _: self.cells(),
            claims=self.claims,
            tables=self.tables,
            heads=(self.head,),
            rules=(
                "Ratios are of means over prompts and training runs; their 95 % intervals include "
                "the spread over prompts and, with two runs and more, that over runs. Each is for "
                "itself: on average one in twenty such intervals misses the true ratio."
            ),
            variants=self.variants,
            ablation=lambda: self.cells(tuple(self.variants)),
            head=self.head,
            figures=figures,
            partial=True,
            is_paper=False,
        )


def by_run(rows: Rows, cell: Cell, what: str) -> list[float]:
    """List a figure of a cell for every training run."""
    keys = (again(cell, run).key for run in count())
    out = []
    while (row := rows.get(next(keys))) is not None:
        out.append(row[what])
    return out


def _tokens(document: Document, steps: int) -> int:
    """The tokens that the head of a budget was trained on."""
    card = next(iter(document["ablation"]["heads"].values()))
    return int(steps * card["rows"] * card["length"])


def _mean(cell: Cell) -> Ours:
    """Give the mean over training runs, with Student's interval over them."""

    def ours(_: dict[str, Any], rows: Rows) -> Seen | None:
        values = by_run(rows, cell, "accepted")
        return seen(*mean_and_error(values), len(values)) if values else None

    return ours
