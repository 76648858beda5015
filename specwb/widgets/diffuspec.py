"""Drafting with a diffusion model: a lattice and the search through it, and adaptive draft length
on a text.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, partial
from typing import Any

import numpy as np

from specwb import figures
from specwb.errors import ArgumentError
from specwb.evaluation.lattices import Place, Replay, expected_length
from specwb.figures.style import label
from specwb.inputs import integer
from specwb.lattice import beam, viterbi
from specwb.models.target import Target
from specwb.proxy import Proxy
from specwb.widgets.controls import Control, Drawn, Explorer


class LatticeExplorer(Explorer):
    """Choose a place of a text and the search's settings, and see the lattice there, the target's
    greedy path through it, the beam's path and the path of the best score; what they keep at T = 0,
    and on average at T = 1.

    Args:
        target, found, proxy: of :func:`specwb.evaluation.lattices.places`.
        temperature: of what is expected.
    Attributes:
        paths: the beam's, best first.
        best: of all paths.
    """

    target: Target
    found: Sequence[Place]
    proxy: Proxy
    temperature: float = 1.0
    place: Any = Control(1, low=1, high=lambda self: len(self.found))
    lam: Any = Control(0.5, step=0.05, label="lambda", row=1)
    mass: Any = Control(0.8, low=0.05, step=0.05, row=1)
    top: Any = Control(15, low=1, high=lambda self: self._most, label="M tokens", row=2)
    beams: Any = Control(3, low=1, high=10, label="B paths", row=2)

    def prepare(self) -> None:
        if not self.found:
            raise ArgumentError("there is no place to look at")
        self._most = min(one.ids.shape[1] for one in self.found)
        self._expected = cache(self._kept)

    def _kept(self, place: int, path: tuple[int, ...]) -> float:
        """What the point-mass rule keeps of a path at a place, on average."""
        text = self.found[place - 1].text
        return expected_length(self.target, text, [path], self.temperature)[0]

    def draw(self, place: int, lam: float, mass: float, top: int, beams: int) -> Drawn:
        at, name = self.found[place - 1], partial(label, self.target.tokenizer)
        lattice, context = at.lattice(mass, top), at.text
        self.paths = beam(lattice, self.proxy, context, lam, beams)
        self.best = viterbi(lattice, self.proxy, context, lam)
        chosen, row = self.paths[0], lattice.row
        ranks = [rank if rank < top else None for rank in at.ranks.tolist()]
        drawn = figures.lattice(
            [[name(x) for x in column] for column in at.ids[:, :top].tolist()],
            np.exp(at.logq[:, :top]).round(4).tolist(),
            {"target": ranks, "beam": chosen.ranks, "best score": self.best.ranks},
            kept=[*map(len, lattice.ids), *[0] * (len(at.ids) - lattice.depth)],
            below=["" if r is not None else name(x) for r, x in zip(ranks, at.greedy.tolist())],
            title=f"behind: …{''.join(map(name, context[-2:]))}" if len(context) > 1 else "",
        )
        paths = (row, chosen.tokens, self.best.tokens)
        kept = [at.kept(path) for path in paths]
        hot = ", ".join(f"{self._expected(place, tuple(path)):.2f}" for path in paths)
        lower = abs(chosen.mean - self.best.mean) > 1e-12
        same = f"the best of all{f' has {self.best.mean:.3f}' * lower}"
        line = (
            f"place {place}, lambda {lam:.2f}, mass {mass:.2f}, M = {top}, B = {beams}: "
            f"{sum(map(len, lattice.ids))} candidates in {lattice.depth} places; the target's "
            f"path stays in the lattice for {at.reach(lattice)} of {len(at.greedy)} tokens; T = 0 "
            f"keeps {kept[0]} of the first choices, {kept[1]} of the beam's path, {kept[2]} of the "
            f"best score's; T = {self.temperature:g} is expected to keep {hot}; the beam's score "
            f"a token is {chosen.mean:.3f}, {same}"
        )
        return line, drawn


class LengthExplorer(Explorer):
    """Choose the constants of adaptive draft length and see its steps on a text of the target: k,
    what was generated and accepted, the averages.

    Every step is drafted as the method would (:class:`specwb.evaluation.lattices.Replay`), so that
    the steps are those of a decoding at T = 0.

    Args:
        replay: the text.
        top: the largest k that can be chosen.
    Attributes:
        rounds: what is shown.
        tau: tokens per step.
    """

    replay: Replay
    top: int = 30
    least: Any = Control(4, low=1, high=lambda self: self.top, label="k_min")
    most: Any = Control(8, low=1, high=lambda self: self.top, label="k_max")
    delta: Any = Control(2, high=12)
    rho: Any = Control(0.5, low=0.05, step=0.05, row=1)
    share: Any = Control(1.0, step=0.05, row=1)

    def prepare(self) -> None:
        integer("top, for which the context must have room,", self.top, 1, self.replay.most)

    def draw(self, least: int, most: int, delta: int, rho: float, share: float) -> Drawn:
        least, most = sorted((least, most))  # either slider may pass the other
        self.rounds = self.replay.rounds(least=least, most=most, delta=delta, rho=rho, share=share)
        n = len(self.rounds)
        self.tau = len(self.replay.text) / n
        whole = next((i for i, r in enumerate(self.rounds) if r.accepted < r.generated), n)
        rises = [i + 1 for i in range(1, n) if self.rounds[i].k > self.rounds[i - 1].k]
        first = f"the first step that is not whole is step {whole + 1}"
        moved = f"k rises before {len(rises)} of them, the last one step {max(rises, default=0)}"
        line = (
            f"k from {least} to {most}, delta {delta}, rho {rho:.2f}, share {share:.2f}: "
            f"{n} steps, {sum(r.k for r in self.rounds) / n:.1f} tokens drafted per step, "
            f"{self.tau - 1:.2f} accepted + 1 = {self.tau:.2f}; "
            f"{first if whole < n else 'every step is whole'}; "
            f"{moved if rises else 'k never rises'}; k = {self.rounds[-1].k} in the last step"
        )
        return line, figures.adaptive(self.rounds, least, most)
