"""How two laws that differ in a known way share their mass."""

from __future__ import annotations

from html import escape

import ipywidgets as w
import numpy as np
import plotly.graph_objects as go
from scipy.special import softmax

from specwb import figures
from specwb.analysis import acceptance_rate, simulate
from specwb.widgets.live import redraw

TOKENS = 13


def shaped(temperature: float, shift: float, sharpness: float, tokens: int = TOKENS) -> tuple[np.ndarray, np.ndarray]:
    """A target with bell-shaped logits z around the middle token, and a draft whose bell stands ``shift`` tokens to the right and is ``sharpness``
    times as steep; both at the same temperature: ``p = softmax(z / T)``, ``q = softmax(sharpness z(. - shift) / T)``.

    Raises:
        ValueError: temperature or sharpness not > 0.
    """
    if not (temperature > 0 and sharpness > 0):
        raise ValueError(f"temperature and sharpness must be > 0, got {temperature} and {sharpness}")
    place = np.arange(tokens) - tokens // 2
    return softmax(-(place**2) / 4 / temperature), softmax(-sharpness * (place - shift) ** 2 / 4 / temperature)


class AcceptanceExplorer(w.VBox):
    """Shape a draft's law against a target's and watch accepted mass, residual and output: the output stays p.

    Args:
        temperature, shift, sharpness: where the sliders stand at first (see :func:`shaped`). draws: how often the rule is run, 1 or more.
        seed: of the draws.
    Attributes:
        temperature, shift, sharpness: the sliders; set ``.value``. summary: one line about what is shown. p, q: the laws.
    """

    def __init__(self, *, temperature: float = 1.0, shift: float = 1.0, sharpness: float = 1.0, draws: int = 2000, seed: int = 0) -> None:
        self.draws, self._seed = draws, seed
        style = {"description_width": "110px"}
        self.temperature = w.FloatSlider(temperature, min=0.2, max=5, step=0.1, description="temperature", readout_format=".1f", style=style)
        self.shift = w.FloatSlider(shift, min=-5, max=5, step=0.5, description="shift of q", readout_format=".1f", style=style)
        self.sharpness = w.FloatSlider(sharpness, min=0.2, max=5, step=0.1, description="sharpness of q", readout_format=".1f", style=style)
        self._line, self.summary = w.HTML(), ""
        self._figure: go.FigureWidget | None = None
        self._draw()
        for control in (self.temperature, self.shift, self.sharpness):
            control.observe(lambda _: self._draw(), "value")
        controls = w.HBox([self.temperature, self.shift, self.sharpness], layout={"flex_flow": "row wrap"})
        super().__init__([controls, self._line, self._figure])

    def _draw(self) -> None:
        self.p, self.q = shaped(self.temperature.value, self.shift.value, self.sharpness.value)
        counts, accepted = simulate(self.p, self.q, self.draws, self._seed)
        new = figures.acceptance(self.p, self.q, counts.tolist())
        if self._figure is None:
            self._figure = go.FigureWidget(new)
        else:
            redraw(self._figure, new)
        alpha, off = float(acceptance_rate(self.p, self.q)), abs(counts / self.draws - self.p).max()
        self.summary = (
            f"temperature {self.temperature.value:.1f}, shift {self.shift.value:.1f}, sharpness {self.sharpness.value:.1f}: "
            f"acceptance 1 - TV = {alpha:.3f}; {accepted / self.draws:.3f} of {self.draws} draws accepted, output off p by at most {off:.3f}"
        )
        self._line.value = f'<div class="specwb-summary" role="status">{escape(self.summary)}</div>'
