"""Drafting from an early exit: where to leave the target, when to stop, what that gives."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import ipywidgets as w
import plotly.graph_objects as go

from specwb import figures
from specwb.errors import ArgumentError
from specwb.evaluation.exits import Costs, Rounds, Simulation
from specwb.studies.kangaroo import cells as reproduced
from specwb.studies.kangaroo.claims import etas
from specwb.widgets.live import STYLE, Explorer

STEP = 0.05
ETAS = tuple(round(STEP * i, 2) for i in range(21))
Curve = Mapping[float, tuple[float, float]]


class StopExplorer(Explorer):
    """Choose an exit layer, a threshold eta and at most gamma tokens, and see the rounds of
    decoding at T = 0: CR, drafted and wasted tokens, the speedup predicted from what rounds cost,
    the one measured where it was measured, and the paper's curves beside.

    The rounds are those that a decoding would have
    (:meth:`specwb.evaluation.exits.Rounds.simulate`); nothing is run.

    Args:
        traces: name of an adapter -> :class:`Rounds`.
        costs: name -> :class:`Costs`.
        measured: (name, gamma) -> eta -> (CR, speedup).
        paper: name -> eta -> (CR, speedup).
        exit, eta, gamma: where the controls stand at first; exit is a name.
    Attributes:
        exit, eta, gamma: the controls; set ``.value``.
        rounds: the :class:`Simulation` shown.
        predicted: its speedup.
        summary: one line about it.
    Raises:
        ValueError: no traces, or traces without costs.
    """

    def __init__(
        self,
        traces: Mapping[str, Rounds],
        costs: Mapping[str, Costs],
        measured: Mapping[tuple[str, int], Curve],
        paper: Mapping[str, Curve],
        *,
        exit: str | None = None,
        eta: float = 0.6,
        gamma: int = 6,
    ) -> None:
        if not traces or set(traces) - set(costs):
            raise ArgumentError(
                "every adapter has traces and costs, one adapter at least; got traces of "
                f"{list(traces)}, costs of {list(costs)}"
            )
        self._traces, self._costs, self._measured, self._paper = traces, costs, measured, paper
        self._made: dict[tuple[str, int], list[tuple[Simulation, float]]] = {}
        names, most = list(traces), min(one.depth for one in traces.values())
        self.exit = w.SelectionSlider(
            options=names,
            value=exit or names[0],
            description="exit",
            continuous_update=False,
            style=STYLE,
        )
        self.eta = w.FloatSlider(
            eta,
            min=0,
            max=1,
            step=STEP,
            description="eta",
            readout_format=".2f",
            continuous_update=False,
            style=STYLE,
        )
        self.gamma = w.IntSlider(
            min(gamma, most),
            min=1,
            max=most,
            description="gamma",
            continuous_update=False,
            style=STYLE,
        )
        self._build([self.exit, self.eta, self.gamma])

    @classmethod
    def of(cls, *documents: Mapping[str, Any], **at: Any) -> StopExplorer:
        """Of result files of ``specwb reproduce kangaroo``. The target's own adapter is called
        "own". ``at``: where the controls stand.
        """
        traces, costs, measured = {}, {}, {}
        for document in documents:
            rows = {
                row["cell"]: (row["tau"], row["speedup"])
                for row in document["rows"]
                if row["speedup"]
            }
            for variant, trace in document["traces"].items():
                name = variant or "own"
                traces[name], costs[name] = (
                    reproduced.rounds_of(trace),
                    reproduced.costs_of(document["costs"][variant]),
                )
                for gamma in reproduced.GAMMAS:
                    keys = {
                        eta: reproduced.chain(eta, gamma, variant=variant).key
                        for eta in reproduced.ETAS
                    }
                    measured[name, gamma] = {
                        float(eta): rows[key] for eta, key in keys.items() if key in rows
                    }
        points = etas()
        paper = {
            f"gamma {g}": {
                e: (row["cr"], row["speedup"]) for (e, of), row in points.items() if of == g
            }
            for g in reproduced.GAMMAS
        }
        return cls(traces, costs, measured, paper, **at)

    def curve(self, name: str, gamma: int) -> list[tuple[Simulation, float]]:
        """The rounds at every threshold of :data:`ETAS`, and the speedup predicted of them."""
        if (name, gamma) not in self._made:
            every = [self._traces[name].simulate("top", eta, gamma) for eta in ETAS]
            self._made[name, gamma] = [(one, self._costs[name].predicted(one)) for one in every]
        return self._made[name, gamma]

    def best(self, name: str) -> tuple[float, int, float]:
        """The fastest setting of an adapter that its costs predict: speedup, gamma, eta."""
        gammas = range(self.gamma.min, self.gamma.max + 1)
        return max(
            (speed, gamma, eta)
            for gamma in gammas
            for eta, (_, speed) in zip(ETAS, self.curve(name, gamma), strict=True)
        )

    def _new(self) -> tuple[str, go.Figure]:
        name, gamma, chosen = self.exit.value, self.gamma.value, round(self.eta.value / STEP)
        rounds, speeds = zip(*self.curve(name, gamma), strict=True)
        self.rounds, self.predicted = rounds[chosen], speeds[chosen]
        measured, best = (
            self._measured.get((name, gamma), {}),
            max(range(len(ETAS)), key=speeds.__getitem__),
        )
        seen = f", measured {measured[ETAS[chosen]][1]:.2f}x" if ETAS[chosen] in measured else ""
        one = self.rounds
        line = (
            f"{name}, eta {ETAS[chosen]:.2f}, gamma {gamma}: {one.mean_drafted:.2f} tokens "
            "drafted a round, "
            f"{one.cr - 1:.2f} kept + 1 = CR {one.cr:.2f}, {one.wasted:.2f} wasted; "
            f"predicted speedup {self.predicted:.2f}x{seen}; the best eta here would be "
            f"{ETAS[best]:.2f} with {speeds[best]:.2f}x"
        )
        drawn = figures.stopping(
            ETAS,
            [one.cr for one in rounds],
            [one.mean_drafted for one in rounds],
            speeds,
            chosen,
            measured,
            self._paper,
        )
        return line, drawn
