"""Improved multi-candidate decoding: slices of a mask, rules that stop drafting, several roots."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from statistics import fmean

import ipywidgets as w
import plotly.graph_objects as go

from specwb import figures
from specwb.analysis.roots import first_stays, kept_root
from specwb.errors import ArgumentError
from specwb.evaluation.exits import Rounds, Simulation
from specwb.options import parse_value, shape
from specwb.tree import Tree
from specwb.verify.exact import tv
from specwb.widgets.live import STYLE, Explorer

FIXED = "fixed depth"
STEPS = 20  # of a slider from 0 to 1
EXAMPLE = (Fraction(4, 10), Fraction(3, 10), Fraction(2, 10), Fraction(1, 10))


class MaskExplorer(Explorer):
    """Choose a tree and how many of its levels are left, and see the block of the whole mask that
    the cut tree's mask is.

    Args:
        trees: what can be chosen, as for the methods: children a node by level (4-2-2), or parents.
        cut: levels left at first.
    Attributes:
        tree, cut: the controls; set ``.value``.
        summary: one line about them.
    Raises:
        ValueError: no tree, or one whose nodes are not in level order.
    """

    def __init__(
        self, trees: Sequence[str] = ("4-1-1-1-1", "4-2-2-1", "4-2-1-1-1"), cut: int = 2
    ) -> None:
        self._trees = {name: shape("tree", parse_value(name)) for name in trees}
        if not self._trees or not all(
            tree.in_level_order and tree.D for tree in self._trees.values()
        ):
            raise ArgumentError(
                "trees are one or more shapes in level order with at least one candidate, got "
                f"{list(trees)}"
            )
        self.tree = w.Dropdown(options=list(self._trees), description="tree", style=STYLE)
        most = max(tree.D for tree in self._trees.values())
        self.cut = w.IntSlider(
            min(cut, most),
            min=0,
            max=most,
            description="levels left",
            continuous_update=False,
            style=STYLE,
        )
        self._build([self.tree, self.cut])

    def _new(self) -> tuple[str, go.Figure]:
        tree = self._trees[self.tree.value]
        cut = min(self.cut.value, tree.D)
        piece = tree.prefix(cut)
        built = Tree.parents(tree.host[0][: piece.n])  # from the parents alone, all tables new
        same = all(
            bool((getattr(piece, name) == getattr(built, name)).all())
            for name in ("mask", "parent", "depth", "rank", "kids", "trail")
        ) and (
            piece.D,
            piece.K,
            piece.widths,
        ) == (built.D, built.K, built.widths)
        levels = "level" if cut == 1 else "levels"
        line = (
            f"tree {self.tree.value}, {cut} of {tree.D} levels: {piece.n} of {tree.n} nodes, the "
            f"leading {piece.n} x {piece.n} block of the mask; "
            f"{'equal to' if same else 'NOT equal to'} a tree of {cut} {levels} built anew; the "
            f"last node sees {int(piece.mask[0, -1].sum())} nodes, "
            f"so it stands at position +{int(piece.mask[0, -1].sum()) - 1}"
        )
        return line, figures.mask_slices(tree, cut)


class StopRulesExplorer(Explorer):
    """Choose a rule that stops drafting, its threshold and the most levels, and see where the
    rounds of decoding at T = 0 end: levels drafted and kept, tokens a round, predicted speedup,
    among all thresholds of all rules.

    The rounds are those that a decoding would have
    (:meth:`specwb.evaluation.exits.Rounds.simulate`), nothing is run.

    Args:
        rounds: with the sureness of every rule.
        costs: name of a rule, and ``"fixed depth"`` -> what a round of 1..D levels costs, in plain
            steps.
        rule, threshold: where the controls stand at first.
    Attributes:
        rule, threshold, levels: the controls; set ``.value``.
        rounds: the :class:`Simulation` shown.
        speed: its predicted speedup.
        summary: one line.
    Raises:
        ValueError: a rule without costs, or costs of another depth.
    """

    def __init__(
        self,
        rounds: Rounds,
        costs: Mapping[str, Sequence[float]],
        *,
        rule: str | None = None,
        threshold: float = 0.4,
    ) -> None:
        names = [*rounds.sure, FIXED]
        if any(len(costs.get(name, ())) != rounds.depth for name in names):
            raise ArgumentError(
                f"costs must have {rounds.depth} numbers for each of {', '.join(names)}; got "
                f"{ ({k: len(v) for k, v in costs.items()}) }"
            )
        self._rounds, self._costs = rounds, costs
        self.rule = w.Dropdown(
            options=names, value=rule or names[0], description="rule", style=STYLE
        )
        self.threshold = w.FloatSlider(
            threshold,
            min=0,
            max=1,
            step=1 / STEPS,
            description="threshold",
            readout_format=".2f",
            continuous_update=False,
            style=STYLE,
        )
        self.levels = w.IntSlider(
            rounds.depth,
            min=1,
            max=rounds.depth,
            description="most levels",
            continuous_update=False,
            style=STYLE,
        )
        self._curves: dict[str, list[tuple[float, float]]] | None = None
        self._build([self.rule, self.threshold, self.levels])

    def simulated(self, rule: str, threshold: float, levels: int | None = None) -> Simulation:
        """The rounds under a rule; the fixed depth has no threshold."""
        if rule == FIXED:
            return self._rounds.simulate(next(iter(self._rounds.sure)), 0.0, levels)
        return self._rounds.simulate(rule, threshold, levels)

    def predicted(self, rule: str, simulated: Simulation) -> float:
        """Tokens of the rounds over what they cost, in plain steps: speedup."""
        return simulated.cr / fmean(self._costs[rule][d - 1] for d in simulated.drafted)

    def best(self, rule: str) -> tuple[float, float, int]:
        """The largest predicted speedup of a rule over all thresholds (of the fixed depth over all
        depths), the threshold, and the most levels.
        """
        if rule == FIXED:
            return max(
                (self.predicted(rule, self.simulated(rule, 0.0, d)), 0.0, d)
                for d in range(1, self._rounds.depth + 1)
            )
        etas = [i / STEPS for i in range(STEPS + 1)]
        return max(
            (self.predicted(rule, self.simulated(rule, eta)), eta, self._rounds.depth)
            for eta in etas
        )

    def _points(self) -> dict[str, list[tuple[float, float]]]:
        if self._curves is None:
            self._curves = {}
            for name in (*self._rounds.sure, FIXED):
                if name == FIXED:
                    found = [self.simulated(name, 0.0, d) for d in range(1, self._rounds.depth + 1)]
                else:
                    found = [self.simulated(name, i / STEPS) for i in range(STEPS + 1)]
                self._curves[name] = sorted(
                    {(one.mean_drafted, self.predicted(name, one)) for one in found}
                )
        return self._curves

    def _new(self) -> tuple[str, go.Figure]:
        rule, threshold, levels = self.rule.value, round(self.threshold.value, 2), self.levels.value
        self.rounds = self.simulated(rule, threshold, levels)
        self.speed = self.predicted(rule, self.rounds)
        drafted, kept = self.rounds.mean_drafted, self.rounds.cr - 1
        setting = (
            f"{rule}, {levels} levels"
            if rule == FIXED
            else f"{rule}, threshold {threshold:.2f}, at most {levels} levels"
        )
        line = (
            f"{setting}: {drafted:.2f} levels drafted a round, {kept:.2f} kept + 1 = "
            f"{self.rounds.cr:.2f} tokens; {kept / drafted:.2f} of the levels "
            f"drafted are kept; predicted speedup {self.speed:.2f}x; the best fixed depth has "
            f"{self.best(FIXED)[0]:.2f}x"
        )
        return line, figures.stop_rules(
            self.rounds.drafted,
            self.rounds.kept,
            self._rounds.depth,
            self._points(),
            (drafted, self.speed),
            xaxis="levels drafted a round",
            yaxis="speedup",
            title="predicted speedup of all thresholds",
        )


class RootsExplorer(Explorer):
    """Choose how many roots the target draws, how deep is drafted below them and how likely each is
    to be gone on from, and see the exact distribution of the root that stays beside the target's.

    Args:
        P: the target's distribution, fractions.
        rates: of every token, with which the draft tokens below it are accepted one after another.
        roots, depth: where the controls stand at first.
    Attributes:
        roots, depth: controls; set ``.value``.
        rates: a control a token, in twentieths.
        distribution: of the root that stays.
        tv: its distance from P.
    Raises:
        ValueError: not a distribution, or not one rate a token.
    """

    def __init__(
        self,
        P: Sequence[Fraction] = EXAMPLE,
        rates: Sequence[float] = (0.2, 0.2, 0.9, 0.9),
        *,
        roots: int = 2,
        depth: int = 1,
    ) -> None:
        if sum(P) != 1 or min(P) <= 0 or len(rates) != len(P):
            raise ArgumentError(
                "P must be positive and sum to 1, with a rate for each token; got "
                f"{list(map(str, P))} and {list(rates)}"
            )
        self._P = [Fraction(x) for x in P]
        self.roots = w.IntSlider(
            roots, min=1, max=len(P), description="roots", continuous_update=False, style=STYLE
        )
        self.depth = w.IntSlider(
            depth, min=1, max=5, description="levels below", continuous_update=False, style=STYLE
        )
        self.rates = [
            w.FloatSlider(
                a,
                min=0,
                max=1,
                step=0.05,
                description=f"below {name}",
                readout_format=".2f",
                continuous_update=False,
                style=STYLE,
            )
            for name, a in zip(self._names, rates, strict=True)
        ]
        self._build([self.roots, self.depth], self.rates)

    @property
    def _names(self) -> list[str]:
        return [chr(ord("a") + i) for i in range(len(self._P))]

    def _new(self) -> tuple[str, go.Figure]:
        W, D = self.roots.value, self.depth.value
        rates = [Fraction(round(20 * control.value), 20) for control in self.rates]
        lengths = [[*(a**n * (1 - a) for n in range(D)), a**D] for a in rates]
        self.distribution = list(kept_root(self._P, lengths, W))
        self.tv = tv(self.distribution, self._P)
        other = 1 - first_stays(self._P, lengths, W)
        exact = f"{self.tv} = " if self.tv.denominator < 10**6 else ""
        roots = f"{W} root{'s' if W > 1 else ''}"
        line = (
            f"{roots}, {D} level{'s' if D > 1 else ''} below, "
            f"rates {' '.join(f'{float(a):.2f}' for a in rates)}: the root that stays has "
            f"distribution {' '.join(f'{float(x):.3f}' for x in self.distribution)}, "
            f"TV = {exact}{float(self.tv):.3f} from the target's; "
            f"another than the first root stays with {float(other):.3f}"
        )
        shares = {
            "the target's": list(map(float, self._P)),
            f"of {roots}, the one that stays": list(map(float, self.distribution)),
        }
        return line, figures.kept_roots(self._names, shares, f"TV = {float(self.tv):.3f}")
