"""Improved multi-candidate decoding: slices of a mask, several roots."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

from specwb.core.errors import ArgumentError
from specwb.core.options import parse_value, shape
from specwb.core.tree import Tree
from specwb.show import figures
from specwb.show.widgets.controls import Control, Drawn, Explorer
from specwb.theory.exact import tv
from specwb.theory.exact.roots import first_stays, kept_root

EXAMPLE = (Fraction(4, 10), Fraction(3, 10), Fraction(2, 10), Fraction(1, 10))


class MaskExplorer(Explorer):
    """Choose a tree and how many of its levels are left, and see the block of the whole mask that
    the cut tree's mask is.

    Args:
        trees: what can be chosen, as for the methods: children a node by level (4-2-2), or parents.
    """

    trees: Sequence[str] = ("4-1-1-1-1", "4-2-2-1", "4-2-1-1-1")
    tree: Any = Control(of=lambda self: list(self.trees))
    cut: Any = Control(2, high=lambda self: self._deepest, label="levels left")

    def prepare(self) -> None:
        self._trees = {name: shape("tree", parse_value(name)) for name in self.trees}
        if wrong := [x for x, t in self._trees.items() if not (t.in_level_order and t.D)]:
            raise ArgumentError(f"trees must be in level order with a candidate, got {wrong}")
        self._deepest = max((tree.D for tree in self._trees.values()), default=0)

    def draw(self, name: str, cut: int) -> Drawn:
        tree = self._trees[name]
        cut = min(cut, tree.D)
        piece = tree.prefix(cut)
        built = Tree.parents(tree.host[0][: piece.n])  # from the parents alone, all tables new
        tables = ("mask", "parent", "depth", "rank", "kids", "trail")
        same = all(bool((getattr(piece, x) == getattr(built, x)).all()) for x in tables)
        same &= (piece.D, piece.K, piece.widths) == (built.D, built.K, built.widths)
        seen = int(piece.mask[0, -1].sum())
        levels = "1 level" if cut == 1 else f"{cut} levels"
        line = (
            f"tree {name}, {cut} of {tree.D} levels: {piece.n} of {tree.n} nodes, the leading "
            f"{piece.n} x {piece.n} block of the mask; {'equal to' if same else 'NOT equal to'} a "
            f"tree of {levels} built anew; the last node sees {seen} nodes, "
            f"so it stands at position +{seen - 1}"
        )
        return line, figures.mask_slices(tree, cut)


class RootsExplorer(Explorer):
    """Choose how many roots the target draws, how deep is drafted below them and how likely each is
    to be gone on from, and see the exact distribution of the root that stays beside the target's.

    Args:
        P: the target's distribution, fractions.
        rates: of every token, with which the draft tokens below it are accepted one after another.
    """

    P: Sequence[Fraction] = EXAMPLE
    rates: Any = Control((0.2, 0.2, 0.9, 0.9), step=0.05, each=lambda self: self._below, row=1)
    roots: Any = Control(2, low=1, high=lambda self: len(self.P))
    depth: Any = Control(1, low=1, high=5, label="levels below")

    def prepare(self) -> None:
        if sum(self.P) != 1 or min(self.P) <= 0:
            raise ArgumentError(f"P must be positive and sum to 1, got {list(map(str, self.P))}")
        self._names = "abcdefghijklmnopqrstuvwxyz"[: len(self.P)]
        self._below = [f"below {name}" for name in self._names]

    def draw(self, sliders: Sequence[float], W: int, D: int) -> Drawn:
        rates = [Fraction(round(20 * rate), 20) for rate in sliders]
        lengths = [[*(a**n * (1 - a) for n in range(D)), a**D] for a in rates]
        self.distribution = list(kept_root(self.P, lengths, W))
        self.tv = tv(self.distribution, self.P)
        other = 1 - first_stays(self.P, lengths, W)
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
            "the target's": dict(zip(self._names, map(float, self.P))),
            f"of {roots}, the one that stays": dict(
                zip(self._names, map(float, self.distribution))
            ),
        }
        return line, figures.bars(shares, "probability", title=f"TV = {float(self.tv):.3f}")
