"""The speedup model with its parameters in hand."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import ipywidgets as w
import plotly.graph_objects as go

from specwb import figures
from specwb.analysis import best_gamma, expected_tokens, speedup
from specwb.widgets.live import Explorer

FREE, MEASURED = "as one token (v = 1)", "as measured"


class SpeedExplorer(Explorer):
    """Move acceptance and costs and watch the predicted speedup over gamma, with measured points
    beside it.

    Args:
        alpha, c, gamma: where the sliders stand at first.
        most: the largest gamma shown.
        v: gamma -> time of scoring gamma + 1 tokens over scoring one, as measured; without it v = 1
            is all there is.
        measured: gamma -> measured speedup.
    Attributes:
        alpha, c, gamma, scoring: the controls; set ``.value``.
        summary: one line about what is shown.
    """

    def __init__(
        self,
        *,
        alpha: float = 0.7,
        c: float = 0.1,
        gamma: int = 4,
        most: int = 12,
        v: Callable[[int], float] | None = None,
        measured: Mapping[int, float] | None = None,
    ) -> None:
        self._v, self._most, self._measured = v, most, dict(measured or {})
        style = {"description_width": "110px"}
        # whole steps: the page's slider would round another value and send it back, over whatever
        # was set meanwhile
        self.alpha = w.FloatSlider(
            round(alpha, 2),
            min=0,
            max=1,
            step=0.01,
            description="alpha",
            readout_format=".2f",
            style=style,
        )
        self.c = w.FloatSlider(
            round(c, 2), min=0, max=1, step=0.01, description="c", readout_format=".2f", style=style
        )
        self.gamma = w.IntSlider(gamma, min=0, max=most, description="gamma", style=style)
        options = [FREE] if v is None else [MEASURED, FREE]
        self.scoring = w.Dropdown(options=options, description="scoring costs", style=style)
        self._build([self.alpha, self.c, self.gamma, self.scoring])

    def _new(self) -> tuple[str, go.Figure]:
        alpha, c, gamma = round(self.alpha.value, 2), round(self.c.value, 2), self.gamma.value
        v = self._v if self._v is not None and self.scoring.value == MEASURED else (lambda g: 1.0)
        curve = [speedup(alpha, g, c, v(g)) for g in range(self._most + 1)]
        best = best_gamma(alpha, c, v, self._most)
        line = (
            f"alpha {alpha:.2f}, c {c:.2f}, v({gamma}) = {v(gamma):.2f}: gamma {gamma} adds "
            f"{expected_tokens(alpha, gamma):.2f} tokens a round, "
            f"speedup {curve[gamma]:.2f}x; best is gamma {best} with {curve[best]:.2f}x"
        )
        return line, figures.speedup({"predicted": curve}, self._measured, gamma)
