"""Drafting with a diffusion model: a lattice and the search through it, and adaptive draft length
on a text.
"""

from __future__ import annotations

from collections.abc import Sequence

import ipywidgets as w
import numpy as np
import plotly.graph_objects as go

from specwb import figures
from specwb.analysis.diffusion import AdlRound
from specwb.errors import ArgumentError
from specwb.evaluation.lattices import Place, Replay, expected_length
from specwb.figures.style import label
from specwb.lattice import Path, beam, viterbi
from specwb.models.target import Target
from specwb.proxy import Proxy
from specwb.widgets.live import STYLE, Explorer


def _whole(value: int, low: int, high: int, name: str) -> w.IntSlider:
    return w.IntSlider(
        value, min=low, max=high, description=name, continuous_update=False, style=STYLE
    )


def _part(value: float, low: float, name: str, step: float = 0.05) -> w.FloatSlider:
    return w.FloatSlider(
        value,
        min=low,
        max=1,
        step=step,
        description=name,
        readout_format=".2f",
        continuous_update=False,
        style=STYLE,
    )


class LatticeExplorer(Explorer):
    """Choose a place of a text and the search's settings, and see the lattice there, the target's
    greedy path through it, the beam's path and the path of the best score; what they keep at T = 0,
    and on average at T = 1.

    Args:
        target, found, proxy: of :func:`specwb.evaluation.lattices.places`.
        place, lam, mass, top, beams: where the controls stand at first; place is a number from 1,
            top at most as many candidates as the places have.
        temperature: of what is expected.
    Attributes:
        place, lam, mass, top, beams: the controls; set ``.value``.
        paths: the beam's, best first.
        best: of all paths.
        summary: one line about them.
    Raises:
        ValueError: no place.
    """

    def __init__(
        self,
        target: Target,
        found: Sequence[Place],
        proxy: Proxy,
        *,
        place: int = 1,
        lam: float = 0.5,
        mass: float = 0.8,
        top: int = 15,
        beams: int = 3,
        temperature: float = 1.0,
    ) -> None:
        if not found:
            raise ArgumentError("there is no place to look at")
        self._target, self._found, self._proxy, self._temperature = (
            target,
            list(found),
            proxy,
            temperature,
        )
        self._kept: dict[tuple[int, tuple[int, ...]], float] = {}
        most = min(one.ids.shape[1] for one in found)
        self.place = _whole(place, 1, len(found), "place")
        self.lam, self.mass = _part(lam, 0, "lambda"), _part(mass, 0.05, "mass")
        self.top, self.beams = (
            _whole(min(top, most), 1, most, "M tokens"),
            _whole(beams, 1, 10, "B paths"),
        )
        self.paths: list[Path] = []
        self._build([self.place], [self.lam, self.mass], [self.top, self.beams])

    def expected(self, path: Sequence[int]) -> float:
        """What the point-mass rule keeps of a path at the place shown, on average."""
        key = self.place.value, tuple(path)
        if key not in self._kept:
            self._kept[key] = expected_length(
                self._target, self._found[key[0] - 1].text, [path], self._temperature
            )[0]
        return self._kept[key]

    def _new(self) -> tuple[str, go.Figure]:
        at, tokenizer = self._found[self.place.value - 1], self._target.tokenizer
        lattice = at.lattice(self.mass.value, self.top.value)
        lam, context = self.lam.value, at.text
        self.paths = beam(lattice, self._proxy, context, lam, self.beams.value)
        self.best = viterbi(lattice, self._proxy, context, lam)
        chosen, row = self.paths[0], lattice.row
        ids, chances = (
            at.ids[:, : self.top.value].tolist(),
            np.exp(at.logq[:, : self.top.value]).round(4).tolist(),
        )
        ranks = [rank if rank < self.top.value else None for rank in at.ranks.tolist()]
        outside = [
            "" if rank is not None else label(tokenizer, x)
            for rank, x in zip(ranks, at.greedy.tolist())
        ]
        drawn = figures.lattice(
            [[label(tokenizer, x) for x in column] for column in ids],
            chances,
            {"target": ranks, "beam": chosen.ranks, "best score": self.best.ranks},
            kept=[*map(len, lattice.ids), *[0] * (len(ids) - lattice.depth)],
            below=outside,
            title=f"behind: …{label(tokenizer, context[-2])}{label(tokenizer, context[-1])}"
            if len(context) > 1
            else "",
        )
        same = (
            "the best of all"
            if abs(chosen.mean - self.best.mean) < 1e-12
            else f"the best of all has {self.best.mean:.3f}"
        )
        line = (
            f"place {self.place.value}, lambda {lam:.2f}, mass {self.mass.value:.2f}, M = "
            f"{self.top.value}, B = {self.beams.value}: "
            f"{sum(map(len, lattice.ids))} candidates in {lattice.depth} places; the target's "
            f"path stays in the lattice for {at.reach(lattice)} of "
            f"{len(at.greedy)} tokens; T = 0 keeps {at.kept(row)} of the first choices, "
            f"{at.kept(chosen.tokens)} of the beam's path, "
            f"{at.kept(self.best.tokens)} of the best score's; T = {self._temperature:g} is "
            f"expected to keep {self.expected(row):.2f}, "
            f"{self.expected(chosen.tokens):.2f}, {self.expected(self.best.tokens):.2f}; the "
            f"beam's score a token is {chosen.mean:.3f}, {same}"
        )
        return line, drawn


class LengthExplorer(Explorer):
    """Choose the constants of adaptive draft length and see its rounds on a text of the target: k,
    what was generated and accepted, the averages.

    Every round is drafted as the method would (:class:`specwb.evaluation.lattices.Replay`), so that
    the rounds are those of a decoding at T = 0.

    Args:
        replay: the text.
        least, most, delta, rho, share: where the controls stand at first.
        top: the largest k that can be chosen.
    Attributes:
        least, most, delta, rho, share: the controls; set ``.value``.
        rounds: what is shown.
        tau: tokens a round.
        summary: one line about it.
    Raises:
        ValueError: a largest k for which the context has no room.
    """

    def __init__(
        self,
        replay: Replay,
        *,
        least: int = 4,
        most: int = 8,
        delta: int = 2,
        rho: float = 0.5,
        share: float = 1.0,
        top: int = 30,
    ) -> None:
        if top > replay.most:
            raise ArgumentError(
                f"top can be at most {replay.most}, the context has no more room; got {top}"
            )
        self._replay = replay
        self.least, self.most = _whole(least, 1, top, "k_min"), _whole(most, 1, top, "k_max")
        self.delta = _whole(delta, 0, 12, "delta")
        self.rho, self.share = _part(rho, 0.05, "rho"), _part(share, 0, "share")
        self.rounds: list[AdlRound] = []
        self._build([self.least, self.most, self.delta], [self.rho, self.share])

    @property
    def tau(self) -> float:
        return len(self._replay.text) / len(self.rounds)

    def _new(self) -> tuple[str, go.Figure]:
        least, most = sorted(
            (self.least.value, self.most.value)
        )  # either slider may pass the other
        delta, rho, share = self.delta.value, self.rho.value, self.share.value
        self.rounds = self._replay.rounds(least=least, most=most, delta=delta, rho=rho, share=share)
        whole = next(
            (i for i, r in enumerate(self.rounds) if r.accepted < r.generated), len(self.rounds)
        )
        rises = [
            i + 1 for i, (a, b) in enumerate(zip(self.rounds, self.rounds[1:]), 1) if b.k > a.k
        ]
        first = (
            f"the first round that is not whole is round {whole + 1}"
            if whole < len(self.rounds)
            else "every round is whole"
        )
        moved = (
            f"k rises before {len(rises)} of them, the last one round {rises[-1]}"
            if rises
            else "k never rises"
        )
        drafted = sum(r.k for r in self.rounds) / len(self.rounds)
        line = (
            f"k from {least} to {most}, delta {delta}, rho {rho:.2f}, share {share:.2f}: "
            f"{len(self.rounds)} rounds, {drafted:.1f} tokens drafted a "
            f"round, {self.tau - 1:.2f} accepted + 1 = {self.tau:.2f}; {first}; {moved}; k = "
            f"{self.rounds[-1].k} in the last round"
        )
        return line, figures.adaptive(self.rounds, least, most)
