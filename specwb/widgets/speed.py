"""The speedup model with its parameters in hand."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from specwb import figures
from specwb.analysis import best_gamma, expected_tokens, speedup
from specwb.widgets.controls import Control, Drawn, Explorer

FREE, MEASURED = "as one token (v = 1)", "as measured"


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
