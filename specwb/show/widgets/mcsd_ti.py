"""Improved multi-candidate decoding: several roots."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from specwb.show import figures
from specwb.show.widgets.controls import Control, Drawn, Explorer
from specwb.theory.exact import tv
from specwb.theory.exact.roots import first_stays, kept_root

TARGET = dict(zip("abcd", (Fraction(n, 10) for n in (4, 3, 2, 1))))
"""The target's distribution over the first tokens."""


class RootsExplorer(Explorer):
    """The exact distribution of the root that stays, next to the target's (:data:`TARGET`), for a
    number of roots, of levels drafted below each, and ``a`` to ``d``, the probabilities with which
    a draft token below a token is accepted.
    """

    roots: Any = Control(2, low=1, high=len(TARGET))
    depth: Any = Control(1, low=1, high=5, label="levels below")
    a: Any = Control(0.2, step=0.05, label="below a", row=1)
    b: Any = Control(0.2, step=0.05, label="below b", row=1)
    c: Any = Control(0.9, step=0.05, label="below c", row=1)
    d: Any = Control(0.9, step=0.05, label="below d", row=1)

    def draw(self, W: int, D: int, *sliders: float) -> Drawn:
        rates = [Fraction(round(20 * rate), 20) for rate in sliders]
        lengths = [[*(a**n * (1 - a) for n in range(D)), a**D] for a in rates]
        target = list(TARGET.values())
        self.distribution = list(kept_root(target, lengths, W))
        self.tv = tv(self.distribution, target)
        other = 1 - first_stays(target, lengths, W)
        exact = f"{self.tv} = " if self.tv.denominator < 10**6 else ""
        roots = f"{W} root{'s' if W > 1 else ''}"
        line = (
            f"{roots}, {D} level{'s' if D > 1 else ''} below, rates "
            f"{' '.join(f'{a:.2f}' for a in sliders)}: the root that stays has distribution "
            f"{' '.join(f'{float(x):.3f}' for x in self.distribution)}, TV = "
            f"{exact}{float(self.tv):.3f} from the target's; another than the first root stays "
            f"with {float(other):.3f}"
        )
        shares = {
            "the target's": dict(zip(TARGET, map(float, target))),
            f"of {roots}, the one that stays": dict(zip(TARGET, map(float, self.distribution))),
        }
        return line, figures.bars(shares, "probability", title=f"TV = {float(self.tv):.3f}")
