"""How two distributions that differ in a known way share their mass."""

from __future__ import annotations

import ipywidgets as w
import numpy as np
import plotly.graph_objects as go
from scipy.special import softmax

from specwb import figures
from specwb.analysis import acceptance_rate, simulate
from specwb.errors import ArgumentError
from specwb.widgets.live import Explorer

TOKENS = 13


def shaped(
    temperature: float, shift: float, sharpness: float, tokens: int = TOKENS
) -> tuple[np.ndarray, np.ndarray]:
    """A target with bell-shaped logits z around the middle token, and a draft whose bell stands
    ``shift`` tokens to the right and is ``sharpness`` times as steep; both at the same temperature:
    ``p = softmax(z / T)``, ``q = softmax(sharpness z(. - shift) / T)``.

    Raises:
        ValueError: temperature or sharpness not > 0.
    """
    if not (temperature > 0 and sharpness > 0):
        raise ArgumentError(
            f"temperature and sharpness must be > 0, got {temperature} and {sharpness}"
        )
    place = np.arange(tokens) - tokens // 2
    return softmax(-(place**2) / 4 / temperature), softmax(
        -sharpness * (place - shift) ** 2 / 4 / temperature
    )


class AcceptanceExplorer(Explorer):
    """Shape a draft's distribution against a target's and watch accepted mass, residual and output:
    the output stays p.

    Args:
        temperature, shift, sharpness: where the sliders stand at first (see :func:`shaped`).
        draws: how often the rule is run, 1 or more.
        seed: of the draws.
    Attributes:
        temperature, shift, sharpness: the sliders; set ``.value``.
        summary: one line about what is shown.
        p, q: the distributions.
    """

    def __init__(
        self,
        *,
        temperature: float = 1.0,
        shift: float = 1.0,
        sharpness: float = 1.0,
        draws: int = 2000,
        seed: int = 0,
    ) -> None:
        self.draws, self._seed = draws, seed
        style = {"description_width": "110px"}
        self.temperature = w.FloatSlider(
            temperature,
            min=0.2,
            max=5,
            step=0.1,
            description="temperature",
            readout_format=".1f",
            style=style,
        )
        self.shift = w.FloatSlider(
            shift,
            min=-5,
            max=5,
            step=0.5,
            description="shift of q",
            readout_format=".1f",
            style=style,
        )
        self.sharpness = w.FloatSlider(
            sharpness,
            min=0.2,
            max=5,
            step=0.1,
            description="sharpness of q",
            readout_format=".1f",
            style=style,
        )
        self._build([self.temperature, self.shift, self.sharpness])

    def _new(self) -> tuple[str, go.Figure]:
        self.p, self.q = shaped(self.temperature.value, self.shift.value, self.sharpness.value)
        counts, accepted = simulate(self.p, self.q, self.draws, self._seed)
        alpha, off = float(acceptance_rate(self.p, self.q)), abs(counts / self.draws - self.p).max()
        line = (
            f"temperature {self.temperature.value:.1f}, shift {self.shift.value:.1f}, "
            f"sharpness {self.sharpness.value:.1f}: acceptance 1 - TV = {alpha:.3f}; "
            f"{accepted / self.draws:.3f} of {self.draws} draws accepted, "
            f"shares of the output off p by at most {off:.3f}, the noise of so many draws"
        )
        return line, figures.acceptance(self.p, self.q, counts.tolist())
