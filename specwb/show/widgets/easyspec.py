"""Layers side by side: what that changes, a step on several devices, and what it may bring."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from functools import cache, partial
from typing import Any

import numpy as np
from torch import Tensor

from specwb.core.errors import ArgumentError
from specwb.lab.evaluation.fuzzy import KINDS, similarity
from specwb.lab.papers.paper import read_paper
from specwb.models.fuzzy import Layers, grouping
from specwb.models.target import Target
from specwb.show.figures import easyspec as figures
from specwb.show.widgets.controls import Control, Drawn, Explorer
from specwb.theory.analysis import layer_parallel as parallel

EXCHANGES = (0.0, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0)
SHARES = tuple(round(i / 50, 2) for i in range(51))
COSTS = tuple(round(i / 100, 2) for i in range(41))


def named(groups: Layers) -> str:
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
        line = (
            f"n {n}, groups {named(self.groups)}, R = {len(self.groups)} of "
            f"{self._layers}{', MLPs side by side too' * whole}: smallest cosine of {least}"
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
        depth: drafted tokens, or levels.
    """

    times: Mapping[int, Mapping[str, float]]
    layers: int
    depth: int = 5
    n: Any = Control(4, low=1, high=lambda self: self.layers - 1)
    width: Any = Control(of=lambda self: list(self.times), label="tree width", slide=True)
    devices: Any = Control(4, low=1, high=8, row=1)
    exchange: Any = Control(0.0, of=[(f"{x:g} ms", x) for x in EXCHANGES], slide=True, row=1)
    calibrate: Any = Control(True, label="calibration", row=2)

    def draw(self, n: int, width: int, devices: int, exchange: float, calibrate: bool) -> Drawn:
        groups, at, depth = grouping(self.layers, n), self.times[width], self.depth
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
        gain = f"a gain while an exchange takes less than {self.limit:.3f} ms"
        line = (
            f"n {n}, width {width}, {devices} device{'s'[: devices - 1]}, exchange {exchange:g} "
            f"ms: drafting takes {self.drafting:.2f} ms, in layer order {self.plain:.2f} ms, "
            f"{self.plain / self.drafting:.2f}x; devices are busy "
            f"{busy / (devices * self.drafting):.0%} of it; with verification {end:.2f} ms; "
            f"{gain if self.limit else 'no exchange is short enough for a gain'}"
        )
        title = f"One step, groups {named(groups)}"
        return line, figures.round_on_devices(self.spans, depth, title)


class StageExplorer(Explorer):
    """Choose a draft model's layers, n, the draft's depth and attention's share of a layer's time,
    and see what the drafting stage gains at most, and how many tokens per step a speedup over plain
    decoding needs.

    Devices are enough and exchanges take no time; verification takes as long as a plain step.

    Args:
        points: name -> (share, speedup of the stage), such as were measured; at most three.
    """

    points: Mapping[str, tuple[float, float]] | None = None
    layers: Any = Control(32, low=8, high=80)
    n: Any = Control(4, low=1, high=7)
    depth: Any = Control(5, low=1, high=8, row=1)
    share: Any = Control(0.5, step=0.01, row=1)
    wanted: Any = Control(
        lambda self: self._published["speedup"], low=1, high=9, step=0.01, label="speedup", row=2
    )
    calibrate: Any = Control(True, label="calibration", row=2)

    def prepare(self) -> None:
        if len(self.points or {}) > 3:
            raise ArgumentError(f"at most three points, got {len(self.points or {})}")
        self._published: Mapping[str, float] = read_paper("easyspec").constants

    def draw(
        self, layers: int, n: int, depth: int, share: float, wanted: float, calibrate: bool
    ) -> Drawn:
        rounds = parallel.attention_rounds(grouping(layers, n))
        shares, costs, best = np.array(SHARES), np.array(COSTS), self._published["stage"]
        self.ratio = parallel.fuzzy_ratio(share, rounds, layers)
        self.stage = parallel.stage_speedup(self.ratio, depth, calibrate)
        self.implied = None  # attention's share that the paper's best stage needs here
        with suppress(ValueError):
            self.implied = parallel.implied_share(best, depth, rounds, layers, calibrate)
        # the cost of a draft step at which the speedup wanted needs all drafted tokens to be kept
        self.dearest = max(0.0, ((depth + 1) / wanted - 1) * self.stage / depth)
        most = parallel.largest_stage_speedup(depth, rounds, layers, calibrate)
        ratios = parallel.fuzzy_ratio(shares, rounds, layers)
        stages = {
            name: parallel.stage_speedup(ratios, depth, way).tolist()
            for name, way in (("calibrated", True), ("not calibrated", False))
        }
        by_stage = {"tau needed, plain drafter": 1.0, "tau needed, with this stage": self.stage}
        tokens = {
            name: parallel.needed_tokens(wanted, depth, costs / stage).tolist()
            for name, stage in by_stage.items()
        }
        said = f"the published {best:g}x needs a share of {self.implied or 0:.2f}"
        said = f"no share gives the published {best:g}x" if self.implied is None else said
        price = f"{self.dearest:.3f} plain steps, {self.dearest / self.stage:.3f} without groups"
        kept = f"costs less than {price}" if self.dearest else "costs nothing, and not then"
        line = (
            f"{layers} layers, n {n}, R = {rounds}, depth "
            f"{depth}{', not calibrated' * (not calibrate)}, share {share:.2f}: fuzzy / exact "
            f"{self.ratio:.2f}, stage {self.stage:.2f}x, at most {most:.2f}x; {said}; "
            f"{wanted:.2f}x over plain decoding only if a draft step {kept}"
        )
        points = {"chosen": (share, self.stage), **(self.points or {})}
        title = f"tokens per step that {wanted:.2f}x needs"
        return line, figures.stage_and_round(
            SHARES, stages, points, best, COSTS, tokens, depth + 1, title
        )
