"""Layers side by side: what that changes, a round on several devices, and what it may bring."""

from __future__ import annotations

from collections.abc import Mapping

import ipywidgets as w
import numpy as np
import plotly.graph_objects as go
from torch import Tensor

from specwb.analysis import layer_parallel as parallel
from specwb.analysis.layer_parallel import Span
from specwb.errors import ArgumentError
from specwb.evaluation.fuzzy import KINDS, similarity
from specwb.figures import easyspec as figures
from specwb.models.fuzzy import Layers, grouping
from specwb.models.target import Target
from specwb.studies.study import published
from specwb.widgets.live import STYLE, Explorer

EXCHANGES = (0.0, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0)
SHARES = tuple(round(i / 50, 2) for i in range(51))
COSTS = tuple(round(i / 100, 2) for i in range(41))


def named(groups: Layers) -> str:
    """``0 1-3 4-6 7``"""
    return " ".join(str(g[0]) if len(g) == 1 else f"{g[0]}-{g[-1]}" for g in groups)


def _whole(value: int, least: int, most: int, description: str) -> w.IntSlider:
    return w.IntSlider(
        value, min=least, max=most, description=description, continuous_update=False, style=STYLE
    )


def _tick(value: bool, description: str) -> w.Checkbox:
    return w.Checkbox(value, description=description, indent=False)


class FuzzyExplorer(Explorer):
    """Choose how many attentions of a draft model run side by side, and see what one such pass
    changes: by layer, the cosine between exact and fuzzy.

    Args:
        draft: the model.
        windows: ``[B,m]`` token ids, texts.
        n, first, last, whole: where the controls stand at first, as for
            :func:`specwb.models.fuzzy.grouping` and :func:`specwb.evaluation.fuzzy.similarity`.
    Attributes:
        n, first, last, whole: the controls; set ``.value``.
        groups: what runs side by side.
        found: kind -> cosine by layer.
        summary: one line.
    Raises:
        GroupError: a model of fewer than three layers.
    """

    def __init__(
        self,
        draft: Target,
        windows: Tensor,
        *,
        n: int = 4,
        first: bool = True,
        last: bool = True,
        whole: bool = False,
    ) -> None:
        self._draft, self._windows, self._layers = draft, windows, len(draft.backbone.layers)
        self._made: dict[tuple[Layers, bool], dict[str, list[float]]] = {}
        grouping(self._layers, 2, True, True)
        self.n = _whole(n, 1, self._layers - 1, "n")
        self.first, self.last = _tick(first, "first layer alone"), _tick(last, "last layer alone")
        self.whole = _tick(whole, "MLPs side by side too")
        self.groups: Layers = ()
        self.found: dict[str, list[float]] = {}
        self._build([self.n], [self.first, self.last, self.whole])

    def _new(self) -> tuple[str, go.Figure]:
        self.groups = grouping(self._layers, self.n.value, self.first.value, self.last.value)
        key = self.groups, self.whole.value
        if key not in self._made:
            self._made[key] = similarity(self._draft, self._windows, *key)
        self.found = self._made[key]
        least = ", ".join(f"{kind} {min(self.found[kind]):.3f}" for kind in KINDS)
        line = (
            f"n {self.n.value}, groups {named(self.groups)}, R = {len(self.groups)} of "
            f"{self._layers}{', MLPs side by side too' * key[1]}: "
            f"smallest cosine of {least}"
        )
        return line, figures.by_layer(
            self.found, self.groups, "Exact and fuzzy execution, by layer", "cosine", least=0.5
        )


class DevicesExplorer(Explorer):
    """Choose n, a tree's width, how long an exchange takes and how many devices there are, and see
    one round's timeline.

    The first step, which is exact, is taken to cost what the others do; verification is the target
    on one device.

    Args:
        times: width of the tree -> milliseconds of ``attention``, ``mlp``, ``head`` for as many
            tokens, and of ``verify``.
        layers: of the draft model.
        depth: drafted tokens, or levels.
        n, width, devices, exchange, calibrate: where the controls stand; exchange is one of
            :data:`EXCHANGES`, in milliseconds.
    Attributes:
        n, width, devices, exchange, calibrate: the controls; set ``.value``.
        spans: the timeline.
        drafting: its time, verification left out.
        plain: that of the same draft with every layer alone, on one device.
        limit: what an exchange may take for these devices to need less than one device.
        summary: one line about it.
    Raises:
        ValueError: no times.
    """

    def __init__(
        self,
        times: Mapping[int, Mapping[str, float]],
        layers: int,
        *,
        depth: int = 5,
        n: int = 4,
        width: int = 1,
        devices: int = 4,
        exchange: float = 0.0,
        calibrate: bool = True,
    ) -> None:
        if not times:
            raise ArgumentError("there must be times of one width at least")
        self._times, self._layers, self._depth = times, layers, depth
        self.n, self.devices = _whole(n, 1, layers - 1, "n"), _whole(devices, 1, 8, "devices")
        self.width = w.SelectionSlider(
            options=list(times),
            value=width,
            description="tree width",
            continuous_update=False,
            style=STYLE,
        )
        waits = [(f"{x:g} ms", x) for x in EXCHANGES]
        self.exchange = w.SelectionSlider(
            options=waits,
            value=exchange,
            description="exchange",
            continuous_update=False,
            style=STYLE,
        )
        self.calibrate = _tick(calibrate, "calibration")
        self.spans: list[Span] = []
        self.drafting = self.plain = self.limit = 0.0
        self._build([self.n, self.width], [self.devices, self.exchange], [self.calibrate])

    def _new(self) -> tuple[str, go.Figure]:
        groups, at = grouping(self._layers, self.n.value), self._times[self.width.value]
        attention, mlp, head, verify = (at[name] for name in ("attention", "mlp", "head", "verify"))
        devices, calibrate, depth = self.devices.value, self.calibrate.value, self._depth
        self.spans = parallel.timeline(
            groups, attention, mlp, self.exchange.value, devices, depth, head, verify, calibrate
        )
        end = max(span.stop for span in self.spans)
        self.drafting = end - verify
        self.plain = depth * parallel.step_time(
            [(i,) for i in range(self._layers)], attention, mlp, head=head
        )
        self.limit = parallel.round_exchange_limit(groups, devices, attention, depth, calibrate)
        busy = sum(
            span.stop - span.start for span in self.spans if span.kind not in ("exchange", "verify")
        )
        line = (
            f"n {self.n.value}, width {self.width.value}, {devices} device{'s'[: devices - 1]}, "
            f"exchange {self.exchange.value:g} ms: drafting takes "
            f"{self.drafting:.2f} ms, in layer order {self.plain:.2f} ms, "
            f"{self.plain / self.drafting:.2f}x; devices are busy "
            f"{busy / (devices * self.drafting):.0%} of it; with verification {end:.2f} ms; "
            + (
                f"a gain while an exchange takes less than {self.limit:.3f} ms"
                if self.limit
                else "no exchange is short enough for a gain"
            )
        )
        title = f"One round, groups {named(groups)}"
        return line, figures.round_on_devices(self.spans, depth, title)


class StageExplorer(Explorer):
    """Choose a draft model's layers, n, the draft's depth and attention's share of a layer's time,
    and see what the drafting stage gains at most, and how many tokens a round a speedup over plain
    decoding needs.

    Devices are enough and exchanges take no time; verification takes as long as a plain step.

    Args:
        points: name -> (share, speedup of the stage), such as were measured; at most three.
        layers, n, depth, share, wanted, calibrate: where the controls stand at first; wanted is the
            paper's best by default.
    Attributes:
        layers, n, depth, share, wanted, calibrate: the controls; set ``.value``.
        ratio: a fuzzy step's time over an exact one's.
        stage: the stage's speedup.
        implied: attention's share that the paper's best stage would need here, None where none is
            enough.
        dearest: what a draft step may cost at most, in plain steps, for the speedup wanted if all
            that is drafted is kept.
        summary: one line about it.
    Raises:
        ValueError: more than three points.
    """

    def __init__(
        self,
        points: Mapping[str, tuple[float, float]] | None = None,
        *,
        layers: int = 32,
        n: int = 4,
        depth: int = 5,
        share: float = 0.5,
        wanted: float | None = None,
        calibrate: bool = True,
    ) -> None:
        self._points = dict(points or {})
        if len(self._points) > 3:
            raise ArgumentError(f"at most three points, got {len(self._points)}")
        self._published: Mapping[str, float] = published("easyspec")["constants"]
        self.layers, self.n, self.depth = (
            _whole(layers, 8, 80, "layers"),
            _whole(n, 1, 7, "n"),
            _whole(depth, 1, 8, "depth"),
        )
        common = {"continuous_update": False, "style": STYLE, "readout_format": ".2f"}
        self.share = w.FloatSlider(share, min=0, max=1, step=0.01, description="share", **common)
        self.wanted = w.FloatSlider(
            self._published["speedup"] if wanted is None else wanted,
            min=1,
            max=9,
            step=0.01,
            description="speedup",
            **common,
        )
        self.calibrate = _tick(calibrate, "calibration")
        self.ratio = self.stage = 1.0
        self.implied: float | None = None
        self.dearest = 0.0
        self._build([self.layers, self.n], [self.depth, self.share], [self.wanted, self.calibrate])

    def _new(self) -> tuple[str, go.Figure]:
        layers, n, depth, calibrate, wanted = (
            c.value for c in (self.layers, self.n, self.depth, self.calibrate, self.wanted)
        )
        rounds, share = parallel.attention_rounds(grouping(layers, n)), self.share.value
        shares, costs, best = np.array(SHARES), np.array(COSTS), self._published["stage"]
        self.ratio = parallel.fuzzy_ratio(share, rounds, layers)
        self.stage = parallel.stage_speedup(self.ratio, depth, calibrate)
        try:
            self.implied = parallel.implied_share(best, depth, rounds, layers, calibrate)
        except ValueError:
            self.implied = None
        self.dearest = max(0.0, ((depth + 1) / wanted - 1) * self.stage / depth)
        most = parallel.largest_stage_speedup(depth, rounds, layers, calibrate)
        stages = {
            name: parallel.stage_speedup(
                parallel.fuzzy_ratio(shares, rounds, layers), depth, way
            ).tolist()
            for name, way in (("calibrated", True), ("not calibrated", False))
        }
        tokens = {
            name: parallel.needed_tokens(wanted, depth, costs / stage).tolist()
            for name, stage in (
                ("tau needed, plain drafter", 1.0),
                ("tau needed, with this stage", self.stage),
            )
        }
        points = {"chosen": (share, self.stage), **self._points}
        said = (
            f"no share gives the published {best:g}x"
            if self.implied is None
            else f"the published {best:g}x needs a share of {self.implied:.2f}"
        )
        price = f"{self.dearest:.3f} plain steps, {self.dearest / self.stage:.3f} without groups"
        kept = f"costs less than {price}" if self.dearest else "costs nothing, and not then"
        line = (
            f"{layers} layers, n {n}, R = {rounds}, depth "
            f"{depth}{', not calibrated' * (not calibrate)}, share {share:.2f}: fuzzy / exact "
            f"{self.ratio:.2f}, stage {self.stage:.2f}x, at most {most:.2f}x; {said}; "
            f"{wanted:.2f}x over plain decoding only if a draft step {kept}"
        )
        drawn = figures.stage_and_round(
            SHARES,
            stages,
            points,
            best,
            COSTS,
            tokens,
            depth + 1,
            f"tokens a round that {wanted:.2f}x needs",
        )
        return line, drawn
