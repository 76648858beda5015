"""How two distributions that differ in a known way share their mass, and models of the speedup."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from scipy.special import softmax

from specwb.show import figures
from specwb.show.palette import OTHER
from specwb.show.widgets.controls import Control, Drawn, Explorer
from specwb.theory.analysis import (
    acceptance_rate,
    batch_speedups,
    best_gamma,
    expected_tokens,
    simulate,
    speedup,
)

Curves = Mapping[str, Mapping[float, float]]
TOKENS = 13
FREE, MEASURED = "as one token (v = 1)", "as measured"


def shaped(temperature: float, shift: float, sharpness: float) -> tuple[np.ndarray, np.ndarray]:
    """A target with bell-shaped logits z around the middle token, and a draft whose bell stands
    ``shift`` tokens to the right and is ``sharpness`` times as steep; both at the same temperature:
    ``p = softmax(z / T)``, ``q = softmax(sharpness z(. - shift) / T)``.
    """
    place = np.arange(TOKENS) - TOKENS // 2
    return softmax(-(place**2) / 4 / temperature), softmax(
        -sharpness * (place - shift) ** 2 / 4 / temperature
    )


class AcceptanceExplorer(Explorer):
    """Shape a draft's distribution against a target's (:func:`shaped`), and watch accepted mass,
    residual and output: the output stays p.

    Args:
        draws: how often the rule is run, 1 or more.
        seed: of the draws.
    """

    draws: int = 2000
    seed: int = 0
    temperature: Any = Control(1.0, low=0.2, high=5, step=0.1)
    shift: Any = Control(1.0, low=-5, high=5, step=0.5, label="shift of q")
    sharpness: Any = Control(1.0, low=0.2, high=5, step=0.1, label="sharpness of q")
    continuous = True

    def draw(self, temperature: float, shift: float, sharpness: float) -> Drawn:
        self.p, self.q = shaped(temperature, shift, sharpness)
        counts, accepted = simulate(self.p, self.q, self.draws, self.seed)
        alpha, off = float(acceptance_rate(self.p, self.q)), abs(counts / self.draws - self.p).max()
        line = (
            f"temperature {temperature:.1f}, shift {shift:.1f}, sharpness {sharpness:.1f}: "
            f"acceptance 1 - TV = {alpha:.3f}; {accepted / self.draws:.3f} of {self.draws} draws "
            f"accepted, shares of the output off p by at most {off:.3f}, the noise of so many draws"
        )
        return line, figures.acceptance(self.p, self.q, counts.tolist())


class SpeedExplorer(Explorer):
    """Move acceptance and costs and watch the predicted speedup over gamma, with measured points
    next to it.

    Args:
        most: the largest gamma shown.
        v: gamma -> time of scoring gamma + 1 tokens over scoring one, as measured; without it v = 1
            is all there is.
        measured: gamma -> measured speedup.
    """

    most: int = 12
    v: Callable[[int], float] | None = None
    measured: Mapping[int, float] | None = None
    alpha: Any = Control(0.7, step=0.01)
    c: Any = Control(0.1, step=0.01)
    gamma: Any = Control(4, high=lambda self: self.most)
    scoring: Any = Control(
        of=lambda self: [MEASURED, FREE] if self.v else [FREE], label="scoring costs"
    )
    continuous = True

    def draw(self, alpha: float, c: float, gamma: int, scoring: str) -> Drawn:
        v = self.v if self.v and scoring == MEASURED else (lambda g: 1.0)
        curve = {g: speedup(alpha, g, c, v(g)) for g in range(self.most + 1)}
        best = best_gamma(alpha, c, v, self.most)
        line = (
            f"alpha {alpha:.2f}, c {c:.2f}, v({gamma}) = {v(gamma):.2f}: gamma {gamma} adds "
            f"{expected_tokens(alpha, gamma):.2f} tokens per step, "
            f"speedup {curve[gamma]:.2f}x; best is gamma {best} with {curve[best]:.2f}x"
        )
        points = {"chosen": {gamma: curve[gamma]}}
        points |= {"measured": dict(self.measured)} if self.measured else {}
        title, x = "Speedup over plain decoding (dashed: 1)", "gamma, draft tokens per step"
        drawn = figures.by_setting({"predicted": curve}, title, "speedup", x, points)
        return line, drawn.add_hline(1, line={"color": OTHER, "dash": "dash"})


class BatchExplorer(Explorer):
    """Choose a batch whose rows are not equally easy, and see how many draft tokens pay, and in
    which rows.

    Rows accept each token with probabilities evenly spaced over ``alpha - spread .. alpha +
    spread``. The draft tokens that survive most often are compared with the same number in every
    row (:func:`specwb.theory.analysis.batch_speedups`).

    Args:
        most: the longest draft of a row.
        c: cost of drafting a level, over a plain step.
    Attributes:
        verified: draft tokens of each row in the best budget, the easiest row first.
    """

    most: int = 8
    c: float = 0.05
    rows: Any = Control(40, low=1, high=160, label="rows B")
    alpha: Any = Control(0.65, low=0.3, high=0.7, step=0.05, label="acceptance")
    spread: Any = Control(0.25, high=0.3, step=0.05, label="rows differ by")
    balance: Any = Control(128, low=1, high=512, label="n*")
    tabs = ("how many", "in which rows")

    def draw(self, rows: int, alpha: float, spread: float, balance: int) -> tuple[Any, ...]:
        rates = np.linspace(alpha + spread, alpha - spread, rows) if rows > 1 else np.array([alpha])
        ranked, fixed = batch_speedups(rates.tolist(), self.most, balance, self.c)
        best, same = (max(speeds, key=lambda n: speeds[n][0]) for speeds in (ranked, fixed))
        self.verified = ranked[best][1]
        line = (
            f"{rows} rows, acceptance {rates[-1]:.2f} to {rates[0]:.2f}, n* = {balance}: the best "
            f"same number in every row is {same // rows}, {fixed[same][0]:.2f}x; by survival "
            f"{best} draft tokens in all, {self.verified[-1]} to {self.verified[0]} per row, "
            f"{ranked[best][0]:.2f}x"
        )
        drawn = sorted({*range(0, len(ranked), 1 + len(ranked) // 80), *fixed, best})
        curves: Curves = {"by survival": {n: ranked[n][0] for n in drawn}}
        points: Curves = {
            "the same in every row": {n: speed for n, (speed, _) in fixed.items()},
            "the best": {best: ranked[best][0]},
        }
        x, y = "draft tokens verified, all rows", "speedup over plain decoding"
        speeds = figures.by_setting(curves, f"Speedup {ranked[best][0]:.2f}x", y, x, points)
        by_row = {"verified": dict(zip(rates.tolist(), self.verified, strict=True))}
        title = f"{best} draft tokens in {rows} rows"
        where = figures.by_setting({}, title, "draft tokens", "acceptance of the row", by_row)
        return line, speeds, where.update_yaxes(dtick=1, range=[-0.3, self.most + 0.3])
