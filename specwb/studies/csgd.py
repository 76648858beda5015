"""Whether CSGD's gain lasts: Falcon's head with and without it, by training budget.

The head of :data:`specwb.studies.falcon.FIRST` is trained from the start for each of
:data:`STEPS`, with and without glancing (its share lambda falls to 0 over the run, so that a short
run is no part of a long one), by our objective and by the published one, several times. The
target's own head, which saw more text, stands beside them.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count, product
from statistics import fmean
from typing import Any

from specwb.bench.statistics import mean_and_error
from specwb.studies.claim import LACKING, Claim, again
from specwb.studies.curves import Curve, Figures, Ours, Point, Seen, seen
from specwb.studies.falcon import CHAIN4, options
from specwb.studies.grid import Cell
from specwb.studies.study import Document, Rows, Study, Tables, every
from specwb.studies.verdicts import span

STEPS = (64, 125, 250, 500)
"""The budgets, in steps of the same number of tokens."""
WARMUP = 25
"""Steps in which the learning rates rise, the same for all budgets."""
ARMS: dict[str, dict[str, object]] = {"csgd": {}, "plain": {"glance": 0}}
NAMES = {"csgd": "CSGD", "plain": "no CSGD"}
OBJECTIVES: dict[str, dict[str, object]] = {
    "": {},
    "-paper": {"unroll": 1, "regression": 10, "noise": 0.1, "count_glanced": 1, "loss": "kl"},
}
"""Ours, and the published one, of paper and code: KL divergence, one pass, features' regression at
ten times our weight, noise on the features, and the predictions of replaced pairs counted. Text,
optimiser and rates are the same for both; what else differs from the code is in
:class:`specwb.training.falcon.FalconRecipe`."""
BY = {"": "", "-paper": ", the published objective"}
VARIANTS = {
    f"{arm}{objective}-{steps}": options(warmup=WARMUP, **changed, **differs, steps=steps)
    for objective, changed in OBJECTIVES.items()
    for steps in STEPS
    for arm, differs in ARMS.items()
}
DRAFTS = {"chain of 4": f"falcon:{CHAIN4}", "26 nodes": "falcon:nodes=26"}
"""What every head drafts, at T = 0."""
FIGURES = Figures()


def cells(variants: tuple[str, ...] = ("",)) -> list[Cell]:
    """List the settings that heads are compared in; by default the target's own is."""
    return [Cell("ar"), *(Cell(spec, v) for v in variants for spec in DRAFTS.values())]


def compared(steps: int, draft: str, objective: str = "") -> tuple[Cell, Cell]:
    """The cells of the two heads of a budget."""
    csgd, plain = (Cell(DRAFTS[draft], f"{arm}{objective}-{steps}") for arm in ARMS)
    return csgd, plain


def claims(_: Document) -> list[Claim]:
    """List the comparisons; the paper has one, of another budget (its table 4)."""
    return [
        Claim(_text(steps, draft, by), LACKING, "accepted", *compared(steps, draft, by))
        for by in OBJECTIVES
        for steps in STEPS
        for draft in DRAFTS
    ]


def _text(steps: int, draft: str, objective: str = "") -> str:
    return f"CSGD over none, {steps} steps, {draft}{BY[objective]}"


def by_run(rows: Rows, cell: Cell, what: str) -> list[float]:
    """List a figure of a cell for every training run."""
    keys = (again(cell, run).key for run in count())
    out = []
    while (row := rows.get(next(keys))) is not None:
        out.append(row[what])
    return out


def tables(document: Document, own: Rows, ablation: Rows) -> Tables:
    """Make the printed tables: accepted draft tokens by budget, and every setting."""
    found = {v["claim"]: v for v in (document.get("ablation") or {}).get("verdicts", [])}
    out = []
    for by, (draft, spec) in product(OBJECTIVES, DRAFTS.items()):
        lines = []
        for steps in STEPS:
            if (v := found.get(_text(steps, draft, by))) is None:
                continue
            both = compared(steps, draft, by)
            means = [by_run(ablation, cell, "accepted")[: v["seeds"]] for cell in both]
            lines.append(
                {
                    "steps": str(steps),
                    "tokens": f"{_tokens(document, steps):,}",
                    **{name: f"{fmean(x):.2f}" for name, x in zip(NAMES.values(), means)},
                    "runs": str(v["seeds"]),
                    "CSGD over none": span(v),
                }
            )
        title = f"Accepted draft tokens per step, {draft}, T = 0{BY[by]}"
        if row := own.get(Cell(spec).key):
            title += f" (the target's own head: {row['accepted']:.2f})"
        out.append((title, lines))
    return [*out, ("Every setting", every(ablation, ("accepted", "tau")))]


def _tokens(document: Document, steps: int) -> int:
    """The tokens that the head of a budget was trained on."""
    card = next(iter(document["ablation"]["heads"].values()))
    return int(steps * card["rows"] * card["length"])


def _over_runs(cell: Cell) -> Ours:
    """Give the mean over training runs, with Student's interval over them."""

    def ours(_: dict[str, Any], rows: Rows) -> Seen | None:
        values = by_run(rows, cell, "accepted")
        return seen(*mean_and_error(values), len(values)) if values else None

    return ours


@FIGURES.add(
    "budget",
    "CSGD by training budget: accepted draft tokens per step",
    "",
    "thousand tokens of training",
    over="training runs, of the mean over prompts",
)
def _budget(document: Document) -> Iterator[Curve]:
    if not document.get("ablation"):
        return
    for by, draft in product(OBJECTIVES, DRAFTS):
        for i, name in enumerate(NAMES.values()):
            points = (
                Point(_tokens(document, s) / 1000, None, ours=_over_runs(compared(s, draft, by)[i]))
                for s in STEPS
            )
            yield Curve(f"{draft}{BY[by]}", name, "accepted", points)


STUDY = Study(
    name="csgd",
    cells=lambda _: cells(),
    claims=claims,
    tables=tables,
    heads=("falcon",),
    rules=(
        "Ratios are of means over prompts and training runs; their 95 % intervals include the "
        "spread over prompts and, with two runs and more, that over runs."
    ),
    variants=VARIANTS,
    ablation=lambda: cells(tuple(VARIANTS)),
    head="falcon",
    figures=FIGURES,
    partial=True,
    is_paper=False,
)
