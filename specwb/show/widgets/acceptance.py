"""How two distributions that differ in a known way share their mass, and the speedup model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from scipy.special import softmax

from specwb.show import figures
from specwb.show.widgets.controls import Control, Drawn, Explorer
from specwb.theory.analysis import acceptance_rate, best_gamma, expected_tokens, simulate, speedup

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
        curve = [speedup(alpha, g, c, v(g)) for g in range(self.most + 1)]
        best = best_gamma(alpha, c, v, self.most)
        line = (
            f"alpha {alpha:.2f}, c {c:.2f}, v({gamma}) = {v(gamma):.2f}: gamma {gamma} adds "
            f"{expected_tokens(alpha, gamma):.2f} tokens per step, "
            f"speedup {curve[gamma]:.2f}x; best is gamma {best} with {curve[best]:.2f}x"
        )
        return line, figures.speedup({"predicted": curve}, self.measured or {}, gamma)
