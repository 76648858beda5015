"""Each explorer shows the library's numbers, at settings whose results are counted another way."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from drawn import every_figure, numbers, picture, shown
from explorers import (
    PAIRS,
    RATES,
    deep,
    windows,
)

from specwb import Tree
from specwb.lab.papers.easyspec import similarity
from specwb.models.fuzzy import grouping
from specwb.show import figures, widgets
from specwb.show.widgets import designer
from specwb.show.widgets.acceptance import shaped
from specwb.show.widgets.rules import NAMES, UNITS, pair
from specwb.theory import analysis, exact
from specwb.theory.analysis import dependence
from specwb.theory.exact import depths
from specwb.theory.wrong_rules import AT_ONE_NODE


def said(view) -> list[float]:
    return list(map(float, numbers(view)))


# ------------------------------------------------------------------------------------- one node


def test_acceptance():
    view = widgets.AcceptanceExplorer(draws=500, seed=3, temperature=0.2, shift=-5.0)
    p, q = shaped(0.2, -5.0, 1.0)
    counts, accepted = analysis.simulate(p, q, 500, 3)
    assert shown(view) == picture(figures.acceptance(p, q, counts.tolist()))
    three = analysis.acceptance_rate(p, q), accepted / 500, abs(counts / 500 - p).max()
    assert [x for x in numbers(view) if len(x) == 5] == [f"{x:.3f}" for x in three]
    assert shaped(1.0, 0.0, 1.0)[0].tolist() == shaped(1.0, 0.0, 1.0)[1].tolist()


def test_speed():
    measured = {1: 1.1, 4: 1.3}
    view = widgets.SpeedExplorer(
        *(8, lambda gamma: 1 + 0.1 * gamma, measured), alpha=0.8, c=0.05, gamma=6
    )
    for scoring, v in zip(view.scoring.options, (view.v, lambda gamma: 1.0)):
        view.scoring.value = scoring
        curve = [analysis.speedup(0.8, g, 0.05, v(g)) for g in range(9)]
        line, chosen, points = (list(trace.y) for trace in view._figures[0].figure.data)
        assert (line, chosen) == (pytest.approx(curve, abs=1e-4), [line[6]])
        assert points == list(measured.values())
        best = analysis.best_gamma(0.8, 0.05, v, 8)
        tokens = analysis.expected_tokens(0.8, 6)
        wanted = [0.8, 0.05, 6, v(6), 6, tokens, curve[6], best, curve[best]]
        assert said(view) == pytest.approx(wanted, abs=0.0051)


@pytest.mark.parametrize(("rows", "balance"), [(1, 1), (5, 8), (6, 24), (7, 100)])
def test_batch(rows, balance):
    """By trying all numbers of draft tokens of all rows."""
    view = widgets.BatchExplorer(most=3, c=0.03, rows=rows, balance=balance)
    rates = np.linspace(0.9, 0.4, rows) if rows > 1 else [0.65]

    def speed(numbers) -> float:
        tokens = rows + sum(r**d for r, n in zip(rates, numbers) for d in range(1, n + 1))
        forward = max(balance, rows + sum(numbers)) / max(balance, rows)
        return tokens / rows / (forward + 0.03 * max(numbers))

    every = [x for x in product(range(4), repeat=rows) if list(x) == sorted(x, reverse=True)]
    best = max(map(speed, every))
    assert speed(view.verified) == pytest.approx(best, abs=1e-12)
    same = max(range(4), key=lambda n: speed([n] * rows))
    wanted = [same, speed([same] * rows), sum(view.verified), min(view.verified)]
    assert said(view)[-6:] == pytest.approx([*wanted, max(view.verified), best], abs=0.0051)


@pytest.mark.parametrize("k", [1, 2, 3])
def test_rules_give_p_and_wrong_ones_do_not(k):
    rules, wrong = widgets.RulesExplorer(k=k), {mutant.name: mutant for mutant in AT_ONE_NODE}
    names = [value for _, value in rules.verifier.options]
    assert set(names) == {*exact.RULES, *wrong}
    for name in names:
        rules.verifier.value = name
        off = exact.tv(rules.out, rules.p)
        assert numbers(rules)[-1] == (f"{float(off):.4f}" if off else "0")
        assert (off > 0 or k < wrong[name].k) if name in wrong else off == 0


@pytest.mark.parametrize("seed", [0, 7])
def test_rules_and_what_they_accept(seed):
    rules, (p, q) = widgets.RulesExplorer(seed=seed), pair(1.0, 1.0, 5, seed)
    assert sum(p) == sum(q) == 1
    assert all(UNITS % x.denominator == 0 for x in p + q)
    drawn = {NAMES.get(name, name): scheme for name, scheme in analysis.DRAWN.items()}
    assert all(rate <= rules.optima[drawn[n]] + 1e-9 for n, rate in rules.rates.items())
    assert {f"{max(rules.rates.values()):.3f}", f"{float(exact.overlap(p, q)):.3f}"} < {
        *numbers(rules)
    }
    assert every_figure(rules) == [
        picture(figures.rule_rates(rules.rates, rules.optima, drawn)),
        picture(figures.output(p, p, "rrsw")),
        picture(figures.slices(p, q, exact.rrs_levels(p, q, 2))),
    ]


# ------------------------------------------------------------------------------------------ trees


def dear(parents) -> float:
    return 1 + 0.08 * (len(parents) - 1) + 0.05 * max(depths(parents))


def designed(**at) -> widgets.TreeDesigner:
    return widgets.TreeDesigner(RATES, cost=dear, most=32, **at)


@pytest.mark.parametrize("ks", [(4, 2, 2), (3,), (2, 2, 1, 1)])
def test_a_tree_made_by_hand(ks):
    view = designed(tree=ks)
    parents = list(Tree.branching(*ks).host[0])
    tau = float(sum(analysis.path_values(RATES, parents)))
    assert view.parents == parents
    wanted = [*ks, len(parents), len(ks), tau - 1, 1, tau, dear(parents), tau / dear(parents)]
    assert said(view)[: len(wanted)] == pytest.approx(wanted, abs=0.0051)
    with view.at(level_1=4, level_2=4, level_3=2, level_4=0):
        assert "4-4-2 has 53 nodes, more than 32" in view.summary


@pytest.mark.parametrize(("nodes", "depth"), [(1, 6), (9, 2), (32, 8), (20, 0)])
def test_best_trees_are_the_librarys(nodes, depth):
    view = designed(nodes=nodes, depth=depth, shape=designer.TOKENS, balance=8)
    assert view.parents == analysis.best_tree(RATES, nodes, depth)
    for costs, seconds in (
        (designer.MEASURED, dear),
        (designer.ROOFLINE, lambda t: analysis.roofline(len(t) - 1, 1, 8) + 0.1 * max(depths(t))),
    ):
        with view.at(costs=costs, shape=designer.SPEED):
            parents, speed = analysis.choose_tree(RATES, seconds, nodes, depth)
            assert (view.parents, view.speed) == (parents, pytest.approx(speed))
            assert numbers(view)[-3:] == [str(depth), str(len(parents)), f"{speed:.2f}"]


# ----------------------------------------------------------------------------------------- blocks


@pytest.mark.parametrize(("d", "g"), [(0.0, 0.5), (0.35, 0.2), (1.0, 1.0)])
def test_dependence_at_the_same_margins(d, g):
    chances = np.array([0.5, 0.3, 0.2])
    view = widgets.DependenceExplorer(PAIRS, chances.tolist(), d=d, g=g)
    assert view.joint.sum(0) == pytest.approx(chances) == view.joint.sum(1)
    lacking = dependence.total_correlation(view.joint)
    training = dependence.excess(view.joint, dependence.prefix_reveal(2, g))
    entropy, kept = dependence.entropy(np.diag(chances)), 1 - d * (1 - chances @ chances)
    wanted = (d, 100 * g, lacking, entropy, training, lacking, kept)
    assert said(view) == pytest.approx(wanted, abs=6e-4)


# ------------------------------------------------------------------------------ layers in parallel


@pytest.mark.parametrize(
    ("n", "first", "last", "whole"), [(4, False, False, False), (3, True, False, True)]
)
def test_cosines_are_the_librarys(n, first, last, whole):
    view = widgets.FuzzyExplorer(deep(), windows(), n=n, first=first, last=last, whole=whole)
    direct = similarity(deep(), windows(), grouping(5, n, first, last), whole)
    assert view.found == direct
    for trace, (kind, values) in zip(shown(view)["data"], direct.items(), strict=True):
        assert (trace["name"], trace["y"]) == (kind, pytest.approx(values, abs=1e-4))
    assert numbers(view)[-len(direct) :] == [f"{min(values):.3f}" for values in direct.values()]
