"""Every rule for several candidates, and every wrong one, on distributions that sliders shape."""

from __future__ import annotations

from functools import lru_cache

import ipywidgets as w
import numpy as np
from scipy.special import softmax

from specwb import figures
from specwb.analysis import DRAWN, RATES, optimum, residual
from specwb.errors import ArgumentError
from specwb.verify import exact
from specwb.verify.exact import Dist
from specwb.verify.mutants import MUTANTS
from specwb.widgets.figure import LiveFigure
from specwb.widgets.live import ROW, Panel, status

UNITS = 120
"""Probabilities are multiples of one over this, so that everything can be counted in fractions."""
NAMES = {"top": "top_and_sample", "coupling": "coupling (at least)"}
WRONG = {mutant.name: mutant for mutant in MUTANTS}


def pair(temperature: float, mismatch: float, vocabulary: int, seed: int) -> tuple[list, list]:
    """Two distributions in fractions: ``p = softmax(z / T)`` of normal logits z, and
    ``q = softmax((z + mismatch e) / T)`` with normal errors e, each rounded to multiples of
    ``1 / UNITS``, the largest token taking up the difference.

    Raises:
        ValueError: temperature not > 0, mismatch < 0, or vocabulary < 2.
    """
    if not (temperature > 0 and mismatch >= 0 and vocabulary >= 2):
        raise ArgumentError(
            f"temperature must be > 0, mismatch >= 0, vocabulary >= 2; got {temperature}, "
            f"{mismatch}, {vocabulary}"
        )
    z, e = np.random.default_rng(seed).normal(size=(2, vocabulary))
    distributions = []
    for logits in (1.5 * z, 1.5 * z + mismatch * e):
        units = [round(UNITS * float(x)) for x in softmax(logits / temperature)]
        units[int(np.argmax(units))] += UNITS - sum(units)
        distributions.append(exact.norm(units))
    return distributions[0], distributions[1]


@lru_cache(maxsize=512)
def came_out(verifier: str, p: tuple, q: tuple, k: int) -> list:
    """The distribution of the token that comes out, by enumeration: of a rule under the first
    sampling scheme that it is lossless for, or of a mutant.
    """
    if verifier in WRONG:
        wrong = WRONG[verifier]
        return exact.output_distribution(wrong.node, wrong.scheme, p, q, 1 if wrong.k == 1 else k)
    return exact.output_distribution(
        exact.RULES[verifier],
        exact.SCHEMES[exact.LOSSLESS[verifier][0]],
        p,
        q,
        1 if verifier == "rejection" else k,
    )


class RulesExplorer(Panel):
    """Shape p and q, choose how many candidates there are, and watch what every rule makes of them;
    then choose a wrong rule.

    Args:
        temperature, mismatch, vocabulary, k, seed, verifier: where the controls stand at first.
    Attributes:
        temperature, mismatch, vocabulary, k, seed, verifier: the controls; set ``.value``.
        p, q: the distributions, in fractions.
        out: the output's.
        rates, optima: rule -> acceptance, and sampling scheme -> alpha*.
        summary: one line about what is shown.
    """

    def __init__(
        self,
        *,
        temperature: float = 1.0,
        mismatch: float = 1.0,
        vocabulary: int = 5,
        k: int = 2,
        seed: int = 0,
        verifier: str = "rrsw",
    ) -> None:
        style = {"description_width": "90px"}
        self.temperature = w.FloatSlider(
            temperature,
            min=0.3,
            max=3,
            step=0.1,
            description="temperature",
            readout_format=".1f",
            style=style,
        )
        self.mismatch = w.FloatSlider(
            mismatch,
            min=0,
            max=3,
            step=0.1,
            description="mismatch",
            readout_format=".1f",
            style=style,
        )
        self.vocabulary = w.IntSlider(
            vocabulary, min=2, max=6, description="vocabulary", style=style
        )
        self.k = w.IntSlider(k, min=1, max=3, description="candidates", style=style)
        self.seed = w.IntSlider(seed, min=0, max=30, description="seed", style=style)
        lossless = [(NAMES.get(name, name), name) for name in exact.RULES]
        wrong = [(f"WRONG: {mutant.wrong}", mutant.name) for mutant in MUTANTS]
        self.verifier = w.Dropdown(
            options=lossless + wrong,
            value=verifier,
            description="verifier",
            style=style,
            layout={"width": "auto", "max_width": "620px"},
        )
        self._line, self.summary = w.HTML(), ""
        self._figures: list[LiveFigure] = []
        self._draw()
        controls = (
            self.temperature,
            self.mismatch,
            self.vocabulary,
            self.k,
            self.seed,
            self.verifier,
        )
        for control in controls:
            control.observe(lambda _: self._draw(), "value")
        sliders = w.HBox(list(controls[:-1]), layout=ROW)
        super().__init__([sliders, self.verifier, self._line, *self._figures])

    def _draw(self) -> None:
        k, chosen = self.k.value, self.verifier.value
        self.p, self.q = pair(
            self.temperature.value, self.mismatch.value, self.vocabulary.value, self.seed.value
        )
        after: list[Dist] = []
        while (
            len(after) < k and exact.overlap(left := after[-1] if after else self.p, self.q) < 1
        ):  # beyond, nothing is rejected
            after.append(list(residual(left, self.q)))
        p, q = (np.array(distribution, dtype=float) for distribution in (self.p, self.q))
        self.rates = {NAMES.get(name, name): float(rate(p, q, k)) for name, rate in RATES.items()}
        drawn = {NAMES.get(name, name): claim for name, claim in DRAWN.items()}
        self.optima = {
            claim: float(optimum(p, q, k, claim)) for claim in dict.fromkeys(drawn.values())
        }
        self.out = came_out(chosen, tuple(self.p), tuple(self.q), k)
        name = f"the WRONG rule {chosen}" if chosen in WRONG else NAMES.get(chosen, chosen)
        new = [
            figures.residuals(self.p, self.q, after),
            figures.rule_rates(self.rates, self.optima, drawn),
            figures.output(self.p, self.out, name),
        ]
        if self._figures:
            for shown, figure in zip(self._figures, new, strict=True):
                shown.figure = figure
        else:
            self._figures = [LiveFigure(figure) for figure in new]
        off = exact.tv(self.out, self.p)
        most = max(
            self.rates, key=lambda rule: round(self.rates[rule], 9)
        )  # the first of equal ones
        claim = (
            "the output has distribution p, TV = 0 in fractions"
            if off == 0
            else f"the output is off p, TV = {float(off):.4f}"
        )
        self.summary = (
            f"temperature {self.temperature.value:.1f}, mismatch {self.mismatch.value:.1f}, "
            f"{len(p)} tokens, k = {k}, seed {self.seed.value}: "
            f"1 - TV(p, q) = {self.rates['rejection']:.3f}; most accepted by {most}, "
            f"{self.rates[most]:.3f}. "
            f"{name}: {claim}"
        )
        self._line.value = status(self.summary)
