"""Layers side by side: what that changes."""

from __future__ import annotations

from functools import cache, partial
from typing import Any

from torch import Tensor

from specwb.lab.papers.easyspec import KINDS, similarity
from specwb.models.fuzzy import LayerIndices, grouping
from specwb.models.target import Target
from specwb.show import figures
from specwb.show.figures.kit import BARE
from specwb.show.palette import FAINT
from specwb.show.widgets.controls import Control, Drawn, Explorer


def named(groups: LayerIndices) -> str:
    """``0 1-3 4-6 7``"""
    return " ".join(str(g[0]) if len(g) == 1 else f"{g[0]}-{g[-1]}" for g in groups)


class FuzzyExplorer(Explorer):
    """Choose how many attentions of a draft model run side by side, and see what one such pass
    changes: by layer, the cosine between exact and fuzzy. A grey band lies behind layers that run
    side by side.

    Args:
        draft: the model.
        windows: ``[B,m]`` token ids, texts.
    """

    draft: Target
    windows: Tensor
    n: Any = Control(4, low=1, high=lambda self: self._layers - 1)
    first: Any = Control(True, label="first layer alone", row=1)
    last: Any = Control(True, label="last layer alone", row=1)
    whole: Any = Control(False, label="MLPs side by side too", row=1)

    def prepare(self) -> None:
        self._layers = len(self.draft.backbone.layers)
        grouping(self._layers, 2, True, True)
        self._found = cache(partial(similarity, self.draft, self.windows))

    def draw(self, n: int, first: bool, last: bool, whole: bool) -> Drawn:
        self.groups = grouping(self._layers, n, first, last)
        self.found = self._found(self.groups, whole)
        least = ", ".join(f"{kind} {min(self.found[kind]):.3f}" for kind in KINDS)
        mlps = ", MLPs side by side too" if whole else ""
        line = (
            f"n {n}, groups {named(self.groups)}, R = {len(self.groups)} of {self._layers}{mlps}: "
            f"smallest cosine of {least}"
        )
        curves = {kind: dict(enumerate(cosines)) for kind, cosines in self.found.items()}
        title = "Exact and fuzzy execution, by layer"
        drawn = figures.by_setting(curves, title, "cosine", "layer")
        low = min(0.5, *(min(cosines) for cosines in self.found.values()))
        drawn.update_yaxes(range=[low - 0.03, 1.03]).update_xaxes(dtick=1, **BARE)
        for group in (group for group in self.groups if len(group) > 1):
            ends = group[0] - 0.4, group[-1] + 0.4
            drawn.add_vrect(*ends, line_width=0, fillcolor=FAINT, layer="below")
        return line, drawn
