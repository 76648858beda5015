"""What a paper claims of two cells that are measured over the same prompts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

import numpy as np

from specwb.lab.studies import grid

LACKING = "not in the paper"
"""The place of a comparison that the paper lacks."""
Values = Callable[[dict[str, Any], Any, str], list[float]]
"""Gives a figure of a cell for every prompt, from (cells, cell, what)."""


@dataclass(frozen=True)
class Tuned:
    """Of several settings, for every prompt the one that is best on all the other prompts.

    That is what a choice by such prompts is worth on one that had no part in it. The best setting
    on all prompts would look too good.
    """

    name: str  # in the results
    settings: tuple[grid.Setting, ...]
    what: str = "speedup"  # the figure that the best setting is chosen by
    # settings that are compared in place of ``settings``; of these the one with the index of the
    # best is taken
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
    """The mean of several settings on every prompt."""

    name: str
    settings: tuple[grid.Setting, ...]

    @property
    def key(self) -> str:
        return self.name

    def series(self, cells: dict[str, Any], what: str, values: Values) -> list[float]:
        """Return the mean of the figure ``what`` over the settings, for every prompt."""
        figures = [values(cells, setting, what) for setting in self.settings]
        return [fmean(xs) for xs in zip(*figures, strict=False)]


@dataclass(frozen=True)
class Bar:
    """How well a drafter does in the paper."""

    cell: grid.Setting  # a setting of the drafter
    paper: float  # the paper's figure of this setting
    what: str = "accepted"  # the figure, accepted draft tokens a step or the share of levels


Bars = dict[tuple[str, str], Bar]
"""(method, variant of its head) -> what the paper has of this drafter."""
Compared = grid.Setting | Tuned | Pooled
"""What a claim compares."""


def settings(compared: Compared) -> list[grid.Setting]:
    """List the cells of one side of a claim."""
    if isinstance(compared, Tuned | Pooled):
        return [*compared.settings, *getattr(compared, "like", ())]
    return [compared]


def series(compared: Compared, cells: dict[str, Any], what: str, values: Values) -> list[float]:
    """Return the figure ``what`` of one side of a claim, for every prompt."""
    if isinstance(compared, Tuned | Pooled):
        return compared.series(cells, what, values)
    return values(cells, compared, what)


def again(compared: Any, run: int) -> Any:
    """One side of a claim with the heads of training run ``run``, 0 for the first."""
    if isinstance(compared, Tuned | Pooled):
        many: dict[str, Any] = {
            name: tuple(again(cell, run) for cell in getattr(compared, name))
            for name in ("settings", "like")
            if hasattr(compared, name)
        }
        return replace(compared, **many)
    if not compared.variant:
        return compared
    return replace(compared, variant=run_name(compared.variant, run))


def run_name(variant: str, run: int) -> str:
    """The name of a variant's head of training run ``run``, 0 for the first."""
    return f"{variant}@{run + 1}" if run else variant


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
        differs: why the two are not comparable: "hardware", "models", "training budget" or
            "definition", and what differs.
        theorem: which theorem contradicts it, whatever is measured.
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
    differs: str = ""
    theorem: str = ""
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

    @property
    def measurement(self) -> tuple[Any, ...]:
        """Name what is measured, the same of claims that are about one measurement."""
        what = "tau" if self.what == "accepted" else self.what
        return (what, *(tuple(cell.key for cell in settings(side)) for side in self.sides))
