"""Layers side by side: what that changes."""

from __future__ import annotations

from functools import cache, partial
from typing import Any

from torch import Tensor

from specwb.lab.evaluation.fuzzy import KINDS, similarity
from specwb.models.fuzzy import LayerIndices, grouping
from specwb.models.target import Target
from specwb.show.figures import easyspec as figures
from specwb.show.widgets.controls import Control, Drawn, Explorer


def named(groups: LayerIndices) -> str:
    """``0 1-3 4-6 7``"""
    return " ".join(str(g[0]) if len(g) == 1 else f"{g[0]}-{g[-1]}" for g in groups)


class FuzzyExplorer(Explorer):
    """Choose how many attentions of a draft model run side by side, and see what one such pass
    changes: by layer, the cosine between exact and fuzzy.

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
        title = "Exact and fuzzy execution, by layer"
        return line, figures.by_layer(self.found, self.groups, title, "cosine", least=0.5)
