"""Layers side by side: what that changes, and a step on several devices."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache, partial
from typing import Any

from torch import Tensor

from specwb.lab.evaluation.fuzzy import KINDS, similarity
from specwb.models.fuzzy import LayerIndices, grouping
from specwb.models.target import Target
from specwb.show.figures import easyspec as figures
from specwb.show.widgets.controls import Control, Drawn, Explorer
from specwb.theory.analysis import layer_parallel as parallel

DEPTH = 5
"""Draft tokens of a step, or levels of its tree."""
EXCHANGES = (0.0, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0)


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


class DevicesExplorer(Explorer):
    """Choose n, a tree's width, how long an exchange takes and how many devices there are, and see
    one step's timeline.

    The first step, which is exact, is taken to cost what the others do; verification is the target
    on one device.

    Args:
        times: width of the tree -> milliseconds of ``attention``, ``mlp``, ``head`` for as many
            tokens, and of ``verify``.
        layers: of the draft model.
    """

    times: Mapping[int, Mapping[str, float]]
    layers: int
    n: Any = Control(4, low=1, high=lambda self: self.layers - 1)
    width: Any = Control(of=lambda self: list(self.times), label="tree width", slide=True)
    devices: Any = Control(4, low=1, high=8, row=1)
    exchange: Any = Control(0.0, of=[(f"{x:g} ms", x) for x in EXCHANGES], slide=True, row=1)
    calibrate: Any = Control(True, label="calibration", row=2)

    def draw(self, n: int, width: int, devices: int, exchange: float, calibrate: bool) -> Drawn:
        groups, at, depth = grouping(self.layers, n), self.times[width], DEPTH
        attention, mlp, head, verify = (at[name] for name in ("attention", "mlp", "head", "verify"))
        self.spans = parallel.timeline(
            groups, attention, mlp, exchange, devices, depth, head, verify, calibrate
        )
        end, alone = max(span.stop for span in self.spans), [(i,) for i in range(self.layers)]
        self.drafting = end - verify
        self.plain = depth * parallel.step_time(alone, attention, mlp, head=head)
        # what an exchange may take for these devices to need less than one device
        self.limit = parallel.round_exchange_limit(groups, devices, attention, depth, calibrate)
        computing = [span for span in self.spans if span.kind not in ("exchange", "verify")]
        busy = sum(span.stop - span.start for span in computing)
        many = f"{devices} devices" if devices > 1 else "1 device"
        gain = f"a gain while an exchange takes less than {self.limit:.3f} ms"
        line = (
            f"n {n}, width {width}, {many}, exchange {exchange:g} ms: drafting takes "
            f"{self.drafting:.2f} ms, in layer order {self.plain:.2f} ms, "
            f"{self.plain / self.drafting:.2f}x; devices are busy "
            f"{busy / (devices * self.drafting):.0%} of it; with verification {end:.2f} ms; "
            f"{gain if self.limit else 'no exchange is short enough for a gain'}"
        )
        title = f"One step, groups {named(groups)}"
        return line, figures.round_on_devices(self.spans, depth, title)
