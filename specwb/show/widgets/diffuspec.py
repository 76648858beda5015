"""Drafting with a diffusion model: a lattice and the search through it, and adaptive draft length
on a text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any

import numpy as np

from specwb.core.errors import ArgumentError
from specwb.core.inputs import integer
from specwb.drafters.diffuspec_parts.lattice import Lattice, beam, viterbi
from specwb.drafters.diffuspec_parts.proxy import Proxy
from specwb.lab.evaluation.lattices import BlockCandidates, Replay, expected_length
from specwb.models.path import KIND, PathScorer
from specwb.models.target import Target
from specwb.show import figures
from specwb.show.figures.style import label
from specwb.show.widgets.controls import Control, Drawn, Explorer

NGRAMS = "n-grams"
PARTS = "drafter, −λ log q", "trigrams, −(1 − λ) log r"


class LatticeExplorer(Explorer):
    """Choose a text and the search's settings, and grow the beam place by place: its paths through
    the lattice, and what a token of them costs, next to the first choices and the path of the best
    score. At the last place: what they keep of the target's greedy path at T = 0, and on average at
    T = 1. With a learned score the beam looks for probable walks through all M candidates of each
    place, and neither lambda nor the mass counts.

    Args:
        target, found, proxy: of :func:`specwb.lab.evaluation.lattices.places`.
        scorer: a learned score that can take the proxy's place.
    Attributes:
        paths: name -> path up to the place that was reached: "first choices", the beam's from
            "beam 1" on, best first, and "best score" where no path of the beam has it.
    """

    target: Target
    found: Sequence[BlockCandidates]
    proxy: Proxy
    scorer: PathScorer | None = None
    text: Any = Control(1, low=1, high=lambda self: len(self.found))
    reached: Any = Control(8, low=1, high=lambda self: self._longest, label="places")
    score: Any = Control(of=lambda self: self._scores, label="path by", row=1)
    lam: Any = Control(0.5, step=0.05, label="lambda", row=1)
    beams: Any = Control(3, low=1, high=10, label="B paths", row=1)
    mass: Any = Control(0.8, low=0.05, step=0.05, row=2)
    top: Any = Control(15, low=1, high=lambda self: self._most, label="M tokens", row=2)

    def prepare(self) -> None:
        if not self.found:
            raise ArgumentError("there is no place to look at")
        self._most = min(one.ids.shape[1] for one in self.found)
        self._longest = max(one.ids.shape[0] for one in self.found)
        self._expected = cache(self._kept)
        self._scores = [NGRAMS] if self.scorer is None else [NGRAMS, KIND]

    def _kept(self, text: int, path: tuple[int, ...]) -> float:
        """What the point-mass rule keeps of a path behind a text, on average."""
        ids = self.found[text - 1].text
        return expected_length(self.target, ids, path)

    def draw(
        self, text: int, reached: int, score: str, lam: float, beams: int, mass: float, top: int
    ) -> Drawn:
        at, name = self.found[text - 1], partial(label, self.target.tokenizer)
        scorer, proxy = None if score == NGRAMS else self.scorer, self.proxy
        self["lam"].disabled = self["mass"].disabled = scorer is not None
        if scorer is None:
            whole = at.lattice(mass, top)
        else:
            top, lam = min(top, scorer.top), 0.0
            whole, proxy = at.learned(scorer, top)
        search = proxy, at.text, lam
        part = replace(whole, ids=whole.ids[:reached], logq=whole.logq[:reached])
        row = part.row  # up to an end of text
        first = Lattice([[x] for x in row], [x[:1] for x in part.logq[: len(row)]], part.ends)
        found = beam(part, *search, beams)
        best = viterbi(part, *search) if scorer is None else found[0]
        self.paths = {"first choices": viterbi(first, *search)}
        self.paths |= {f"beam {i}": path for i, path in enumerate(found, 1)}
        if best.mean - found[0].mean > 1e-12:
            self.paths["best score"] = best
        done = reached >= whole.depth
        ranks = [rank if rank < top else None for rank in at.ranks]
        costs = {}
        for kind, path in self.paths.items():
            drafter = -lam * sum(path.logq) / len(path.tokens)
            costs[kind] = drafter, -path.mean - drafter, "".join(map(name, path.tokens))
        drawn = figures.lattice(
            [[name(x) for x in column] for column in at.ids[:, :top].tolist()],
            np.exp(at.logq[:, :top]).round(4).tolist(),
            list(zip(ranks, map(name, at.greedy))),
            [path.ranks for path in found],
            costs,
            stay=[*map(len, whole.ids), *[0] * (len(at.ids) - whole.depth)],
            kept=at.kept(found[0].tokens) if done else None,
            title=f"after: …{''.join(map(name, at.text[-8:]))}",
            parts=PARTS if scorer is None else ("", "learned, −log q of a walk's step"),
        )
        how, cost = f"{score}, B = {beams}", f"{-found[0].mean:.3f} on the beam's best path"
        if scorer is None:
            how = f"lambda {lam:.2f}, B = {beams}, mass {mass:.2f}"
            cost += f", {-best.mean:.3f} on the best of all"
        line = (
            f"text {text}, {reached} of {whole.depth} places, {how}, M = {top}: "
            f"{sum(map(len, part.ids))} candidates; a token costs {cost}"
        )
        if done:
            named = {"first choices": self.paths["first choices"], "beam": found[0]}
            named |= {"best": best} if scorer is None else {}
            cold = ", ".join(f"{at.kept(x.tokens)} of the {kind}" for kind, x in named.items())
            hot = ", ".join(f"{self._expected(text, x.tokens):.2f}" for x in named.values())
            line += f"; T = 0 keeps {cold}; T = 1 is expected to keep {hot}"
        return line, drawn


class LengthExplorer(Explorer):
    """Choose the constants of adaptive draft length and see its steps on a text of the target: k,
    what was generated and accepted, the averages.

    Every step is drafted as the method would (:class:`specwb.lab.evaluation.lattices.Replay`), so
    that the steps are those of a decoding at T = 0.

    Args:
        replay: the text.
        top: the largest k that can be chosen.
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
