"""What trained heads guess right, and the trees that their measured accuracies ask for."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from specwb import figures
from specwb.analysis import path_values
from specwb.drafters.heads import ALL, accuracies, measured_tree
from specwb.verify.exact import depths
from specwb.widgets.controls import Control, Drawn, Explorer


class HeadsExplorer(Explorer):
    """Choose a head, a kind of text and a number of nodes, and see how often its guesses are right,
    the tree that these accuracies make best (:func:`specwb.drafters.heads.measured_tree`, what the
    methods take where no tree is named), and what each further node is expected to bring.

    Args:
        cards: head -> its ``card.json``.
        most: the largest tree.
    Attributes:
        parents: the tree shown.
        tau: tokens a round that it is expected to give at T = 0.
    """

    cards: Mapping[str, Mapping[str, Any]]
    most: int = 32
    head: Any = Control(of=lambda self: list(self.cards))
    nodes: Any = Control(10, low=2, high=lambda self: self.most)
    domain: Any = Control(of=lambda self: self._domains, label="text")

    def prepare(self) -> None:
        measured = (d for card in self.cards.values() for d in card.get("held_out", {}))
        self._domains = [ALL, *dict.fromkeys(measured)]
        self._rates = {
            (name, d): accuracies(card, d)
            for name, card in self.cards.items()
            for d in self._domains
        }
        self._tree = cache(self._best)

    def _best(self, head: str, domain: str, nodes: int) -> tuple[list[int], list[float]]:
        """Parents and values."""
        found = self.cards[head]["held_out"]
        card = {"held_out": {d: found[d] for d in found if domain in (ALL, d)}}
        parents = list(measured_tree(card, nodes).host[0])
        return parents, path_values(self._rates[head, domain], parents)

    def draw(self, head: str, nodes: int, domain: str) -> Drawn:
        rates = self._rates[head, domain]
        self.parents, values = self._tree(head, domain, nodes)
        self.tau = float(sum(values))
        taus = {
            name: [1.0, *(sum(self._tree(name, domain, n)[1]) for n in range(2, self.most + 1))]
            for name in self.cards
        }
        deep = max(depths(self.parents))
        line = (
            f"{head}, {domain} text, {len(values)} nodes in {deep} level{'s' if deep > 1 else ''}: "
            f"{self.tau - 1:.2f} accepted + 1 = {self.tau:.2f} "
            "tokens a round expected at T = 0; first guess right at "
            f"{', '.join(f'{row[0]:.0%}' for row in rates)} of places by position, "
            f"one of {len(rates[0])} at {', '.join(f'{sum(row):.0%}' for row in rates)}"
        )
        return line, figures.heads(rates, self.parents, values, taus, head)
