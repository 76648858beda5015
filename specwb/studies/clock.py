"""A paper's machine, which is not at hand: steps timed by the cost model of ``specwb predict``.

A speed is predicted from tokens a step and from the time of a step on the paper's machine and
shapes, in the way that papers' code runs (launched eagerly). Its error is that of the cost model on
published rows of all other papers (:mod:`specwb.cost.ledger`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from specwb.cost import ledger
from specwb.cost.cards import SIZES, card
from specwb.cost.forecast import EAGER, parts
from specwb.cost.shapes import PredictionError, shape, tables
from specwb.cost.steps import DRAFT, Step, draft_kind, step
from specwb.cost.work import Setting
from specwb.options import MethodError
from specwb.studies.claim import Values

PLAIN = "ar"


@dataclass(frozen=True)
class Clock:
    """The machine and the models of a paper's speeds."""

    target: str  # a name in ``data/predict``
    card: str  # likewise
    draft: str = ""  # the draft or diffusion model's shape, of methods that have one
    devices: int = 1  # that the target is parted over
    report: str = ""  # the paper's name in the cost model's ledger, "" where it has no row there
    taken: str = ""  # what the paper does not state, and is taken to be
    # a cell -> the spec that the cost model prices in its place
    priced: Callable[[Any], str] = lambda cell: cell.spec
    # (spec, n) -> the spec with drafts of n levels, None for one that never stops early
    shorter: Callable[[str, int], str | None] = lambda spec, n: None

    @property
    def place(self) -> str:
        """The target and the machine, in words."""
        many = f"{self.devices} x " if self.devices > 1 else ""
        taken = f" ({self.taken})" if self.taken else ""
        return f"{self.target} on {many}{self.card}{taken}"

    def seconds(self, spec: str, sampled: bool, what: str = "step") -> float:
        """Predict the seconds of a step, or with ``what="draft"`` of its drafting."""
        return _seconds(self.target, self.draft, self.card, self.devices, spec, sampled, what)

    def mean_seconds(
        self, spec: str, sampled: bool, levels: float | None, what: str = "step"
    ) -> float:
        """Predict the same of drafts that stop early, after ``levels`` levels on average."""
        if levels is None or self.shorter(spec, 1) is None:
            return self.seconds(spec, sampled, what)
        low = max(int(levels), 1)
        weights = {low: 1 - max(levels - low, 0.0), low + 1: max(levels - low, 0.0)}
        return sum(
            weight * self.seconds(str(self.shorter(spec, n)), sampled, what)
            for n, weight in weights.items()
            if weight
        )

    def values(self, measured: Values) -> Values:
        """Give speeds, paces and drafting times on this clock, and all else as ``measured``."""

        def figure(cells: dict[str, Any], cell: Any, what: str) -> list[float]:
            if what not in ("speedup", "pace", "draft"):
                return measured(cells, cell, what)
            spec, sampled = self.priced(cell), cell.temperature > 0
            taus = measured(cells, cell, "tau")
            levels: list[Any] = [None] * len(taus)
            if self.shorter(spec, 1) is not None:
                levels = list(measured(cells, cell, "levels"))
            if what == "draft":
                return [1000 * self.mean_seconds(spec, sampled, n, what) for n in levels]
            plain = self.seconds(PLAIN, sampled)
            paces = [plain / self.mean_seconds(spec, sampled, n) for n in levels]
            if what == "pace":
                return paces
            return [tau * pace for tau, pace in zip(taus, paces, strict=False)]

        return figure

    def error(self, first: str, second: str, apart: float) -> float:
        """The half-width of a 90 % interval of the logarithm of a ratio of two specs' speeds.

        ``apart`` is the size of the logarithm of the ratio of the two costs of a step.
        """
        kinds = [spec.partition(":")[0] for spec in (first, second)]
        if PLAIN in kinds:
            return ledger.model_error(self.report)
        return ledger.ratio_error(self.report, kinds[0] == kinds[1], apart)


@lru_cache(maxsize=1024)
def _seconds(
    target: str, draft: str, name: str, devices: int, spec: str, sampled: bool, what: str
) -> float:
    usual: dict[str, Any] = dict(tables("published"))
    setting = Setting(1, usual["context"], SIZES[usual["dtype"]])
    machine = card(name).typical(usual["dtype"])
    own: Step = step(
        spec,
        shape(target),
        shape(draft) if draft and draft_kind(spec) else None,
        setting,
        sampled,
        devices,
    )
    rows = parts(own, machine, EAGER)
    return float(sum(row.seconds for row in rows if what == "step" or row.stage == DRAFT))


UNPRICED = (PredictionError, MethodError)
"""Raised where it is not known what a setting costs."""
