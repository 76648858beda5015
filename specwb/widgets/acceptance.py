"""How two distributions that differ in a known way share their mass."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.special import softmax

from specwb import figures
from specwb.analysis import acceptance_rate, simulate
from specwb.widgets.controls import Control, Drawn, Explorer

TOKENS = 13


def shaped(
    temperature: float, shift: float, sharpness: float, tokens: int = TOKENS
) -> tuple[np.ndarray, np.ndarray]:
    """A target with bell-shaped logits z around the middle token, and a draft whose bell stands
    ``shift`` tokens to the right and is ``sharpness`` times as steep; both at the same temperature:
    ``p = softmax(z / T)``, ``q = softmax(sharpness z(. - shift) / T)``.
    """
    place = np.arange(tokens) - tokens // 2
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
