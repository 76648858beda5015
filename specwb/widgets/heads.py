"""What trained heads guess right, and the trees that their measured accuracies ask for."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import ipywidgets as w
import plotly.graph_objects as go

from specwb import figures
from specwb.analysis import path_values
from specwb.drafters.heads import ALL, accuracies, measured_tree
from specwb.errors import ArgumentError
from specwb.verify.exact import depths
from specwb.widgets.live import Explorer


class HeadsExplorer(Explorer):
    """Choose a head, a kind of text and a number of nodes, and see how often its guesses are right,
    the tree that these accuracies make best (:func:`specwb.drafters.heads.measured_tree`, what the
    methods take where no tree is named), and what each further node is expected to bring.

    Args:
        cards: head -> its ``card.json``.
        head, nodes, domain: where the controls stand at first.
        most: the largest tree.
    Attributes:
        head, nodes, domain: the controls; set ``.value``.
        parents: the tree shown.
        tau: tokens a round that it is expected to give at T = 0.
        summary: one line about it.
    Raises:
        ValueError: no card, or one without measured accuracies.
    """

    def __init__(
        self,
        cards: Mapping[str, Mapping[str, Any]],
        *,
        head: str | None = None,
        nodes: int = 10,
        domain: str = ALL,
        most: int = 32,
    ) -> None:
        if not cards:
            raise ArgumentError("cards must have at least one head")
        domains = [
            ALL,
            *dict.fromkeys(d for card in cards.values() for d in card.get("held_out", {})),
        ]
        self._rates = {
            (name, d): accuracies(card, d) for name, card in cards.items() for d in domains
        }
        self._cards, self._most = cards, most
        self._tree = cache(self._best)
        style = {"description_width": "70px"}
        self.head = w.Dropdown(options=list(cards), value=head, description="head", style=style)
        if head is None:
            self.head.index = 0
        self.nodes = w.IntSlider(
            nodes, min=2, max=most, description="nodes", continuous_update=False, style=style
        )
        self.domain = w.Dropdown(options=domains, value=domain, description="text", style=style)
        self.parents, self.tau = [-1], 1.0
        self._build([self.head, self.nodes, self.domain])

    def _best(self, head: str, domain: str, nodes: int) -> tuple[list[int], list[float]]:
        """Parents and values."""
        found = self._cards[head]["held_out"]
        parents = list(
            measured_tree(
                {"held_out": {d: found[d] for d in found if domain in (ALL, d)}}, nodes
            ).host[0]
        )
        return parents, path_values(self._rates[head, domain], parents)

    def _new(self) -> tuple[str, go.Figure]:
        head, domain = self.head.value, self.domain.value
        rates = self._rates[head, domain]
        self.parents, values = self._tree(head, domain, self.nodes.value)
        self.tau = float(sum(values))
        taus = {
            name: [1.0, *(sum(self._tree(name, domain, n)[1]) for n in range(2, self._most + 1))]
            for name in self._cards
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
