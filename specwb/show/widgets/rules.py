"""Every rule for several candidates, and every wrong one, on distributions that sliders shape."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from scipy.special import softmax

from specwb.show import figures
from specwb.show.widgets.controls import Control, Explorer
from specwb.theory import exact
from specwb.theory.analysis import DRAWN, RATES, optimum
from specwb.theory.wrong_rules import AT_ONE_NODE

UNITS = 120  # probabilities are multiples of one over this, for fractions to stay small
NAMES = {"top": "top_and_sample", "coupling": "coupling (at least)"}
WRONG = {mutant.name: mutant for mutant in AT_ONE_NODE}


def pair(temperature: float, mismatch: float, vocabulary: int, seed: int) -> tuple[list, list]:
    """Two distributions in fractions: ``p = softmax(z / T)`` of normal logits z, and
    ``q = softmax((z + mismatch e) / T)`` with normal errors e, each rounded to multiples of
    ``1 / UNITS``, the largest token taking up the difference.
    """
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
    if wrong := WRONG.get(verifier):
        return wrong.output(p, q, 1 if wrong.k == 1 else k)
    node, scheme = exact.RULES[verifier], exact.SCHEMES[exact.LOSSLESS[verifier][0]]
    return exact.output_distribution(node, scheme, p, q, 1 if verifier == "rejection" else k)


def _name(rule: str) -> str:
    return NAMES.get(rule, rule)


LOSSLESS = [(_name(rule), rule) for rule in exact.RULES]
WRONGS = [(f"WRONG: {mutant.wrong}", mutant.name) for mutant in AT_ONE_NODE]


class RulesExplorer(Explorer):
    """Shape p and q (:func:`pair`), choose the number of candidates, and watch what every rule
    makes of them; then choose a wrong rule.

    Args:
        tab: the number of the figure that is seen at first.
    """

    tabs = "acceptance", "what comes out", "p, cut by lines"
    tab: int = 0

    temperature: Any = Control(1.0, low=0.3, high=3, step=0.1)
    mismatch: Any = Control(1.0, high=3, step=0.1)
    vocabulary: Any = Control(5, low=2, high=6)
    k: Any = Control(2, low=1, high=3, label="candidates")
    seed: Any = Control(0, high=30)
    verifier: Any = Control("rrsw", of=LOSSLESS + WRONGS, row=1, wide=True)
    continuous = True

    def draw(
        self, temperature: float, mismatch: float, vocabulary: int, k: int, seed: int, chosen: str
    ) -> tuple[Any, ...]:
        self.p, self.q = pair(temperature, mismatch, vocabulary, seed)
        p, q = (np.array(distribution, dtype=float) for distribution in (self.p, self.q))
        self.rates = {_name(rule): float(rate(p, q, k)) for rule, rate in RATES.items()}
        schemes = {_name(rule): scheme for rule, scheme in DRAWN.items()}
        self.optima = {x: float(optimum(p, q, k, x)) for x in dict.fromkeys(schemes.values())}
        self.out = came_out(chosen, tuple(self.p), tuple(self.q), k)
        name = f"the WRONG rule {chosen}" if chosen in WRONG else _name(chosen)
        # the first of equal ones
        most = max(self.rates, key=lambda rule: round(self.rates[rule], 9))
        off = float(exact.tv(self.out, self.p))
        claim = f"is off p, TV = {off:.4f}" if off else "has distribution p, TV = 0 in fractions"
        line = (
            f"temperature {temperature:.1f}, mismatch {mismatch:.1f}, {len(p)} tokens, k = {k}, "
            f"seed {seed}: 1 - TV(p, q) = {self.rates['rejection']:.3f}; most accepted by {most}, "
            f"{self.rates[most]:.3f}. {name}: the output {claim}"
        )
        rates = figures.rule_rates(self.rates, self.optima, schemes)
        cut = figures.slices(self.p, self.q, exact.rrs_levels(self.p, self.q, k))
        return line, rates, figures.output(self.p, self.out, name), cut
