"""Drafting from an early exit: where to leave the target, when to stop, what that gives."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from functools import cache
from typing import Any

from specwb.lab.papers.kangaroo import Rounds, Simulation, rounds_of
from specwb.lab.papers.paper import read_paper
from specwb.show import figures
from specwb.show.widgets.controls import Control, Drawn, Explorer

STEP = 0.05
ETAS = tuple(round(STEP * i, 2) for i in range(21))
CHAIN = re.compile(r"T=0 kangaroo:gamma=(\d+),eta=([\d.]+)(?: \[(.+)\])?")
"""The name of a cell of a chain: gamma, eta and, in brackets, the adapter."""
ByThreshold = Mapping[float, tuple[float, float]]


class StopExplorer(Explorer):
    """Choose an exit layer, a threshold eta and at most gamma tokens, and see the steps of
    decoding at T = 0: CR, drafted and wasted tokens, the speedup predicted from what steps cost,
    the one measured where it was measured, and the paper's curves beside.

    The steps are those that a decoding would have
    (:meth:`specwb.lab.papers.kangaroo.Rounds.simulate`); nothing is run.

    Args:
        traces: name of an adapter -> :class:`Rounds`.
        costs: name -> milliseconds of a step by its drafted tokens, 0 of a plain one.
        measured: (name, gamma) -> eta -> (CR, speedup).
        paper: name -> eta -> (CR, speedup).
    Attributes:
        rounds: the :class:`Simulation` shown.
    """

    traces: Mapping[str, Rounds]
    costs: Mapping[str, Mapping[int, float]]
    measured: Mapping[tuple[str, int], ByThreshold]
    paper: Mapping[str, ByThreshold]
    exit: Any = Control(of=lambda self: list(self.traces), slide=True)
    eta: Any = Control(0.6, step=STEP)
    gamma: Any = Control(6, low=1, high=lambda self: min(x.depth for x in self.traces.values()))

    def prepare(self) -> None:
        self._curve = cache(self.curve)

    @classmethod
    def of(cls, *documents: Mapping[str, Any], **at: Any) -> StopExplorer:
        """Of result files of ``specwb reproduce kangaroo``. The target's own adapter is called
        "own". ``at``: where the controls stand.
        """
        traces, costs = {}, {}
        measured: dict[tuple[str, int], dict[float, tuple[float, float]]] = defaultdict(dict)
        for document in documents:
            for variant, trace in document["traces"].items():
                name, cost = variant or "own", document["costs"][variant]
                traces[name] = rounds_of(trace)
                costs[name] = {0: cost["plain"], **{int(d): ms for d, ms in cost["round"].items()}}
            for row in document["rows"]:
                if row["speedup"] and (found := CHAIN.fullmatch(row["cell"])):
                    gamma, eta, variant = found.groups()
                    one = row["tau"], row["speedup"]
                    measured[variant or "own", int(gamma)][float(eta)] = one
        paper: dict[str, dict[float, tuple[float, float]]] = defaultdict(dict)
        for row in read_paper("kangaroo").tables["eta"]["rows"]:
            paper[f"gamma {row['gamma']}"][row["eta"]] = row["cr"], row["speedup"]
        return cls(traces, costs, measured, paper, **at)

    def curve(self, name: str, gamma: int) -> list[tuple[Simulation, float]]:
        """The steps at every threshold of :data:`ETAS`, and the speedup predicted of them."""
        every = (self.traces[name].simulate(eta, gamma) for eta in ETAS)
        return [(one, one.speedup(self.costs[name])) for one in every]

    def draw(self, name: str, eta: float, gamma: int) -> Drawn:
        rounds, speeds = zip(*self._curve(name, gamma), strict=True)
        chosen, measured = round(eta / STEP), self.measured.get((name, gamma), {})
        one, eta = rounds[chosen], ETAS[chosen]
        self.rounds, self.predicted = one, speeds[chosen]
        best = max(range(len(ETAS)), key=speeds.__getitem__)
        seen = f", measured {measured[eta][1]:.2f}x" if eta in measured else ""
        line = (
            f"{name}, eta {eta:.2f}, gamma {gamma}: {one.mean_drafted:.2f} tokens drafted per "
            f"step, {one.cr - 1:.2f} kept + 1 = CR {one.cr:.2f}, {one.wasted:.2f} wasted; "
            f"predicted speedup {self.predicted:.2f}x{seen}; the best eta here would be "
            f"{ETAS[best]:.2f} with {speeds[best]:.2f}x"
        )
        crs, drafted = zip(*((x.cr, x.mean_drafted) for x in rounds), strict=True)
        return line, figures.stopping(ETAS, crs, drafted, speeds, chosen, measured, self.paper)
