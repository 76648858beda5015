"""Each explorer shows the library's numbers, at settings whose results are counted another way."""

from __future__ import annotations

from fractions import Fraction
from statistics import fmean

import numpy as np
import pytest
import tiny
from drawn import every_figure, numbers, picture, shown
from explorers import (
    BLOCKS,
    EXPLORERS,
    PAIRS,
    RATES,
    TOKENS,
    deep,
    found,
    proxy,
    replay,
    stop,
    windows,
)

import specwb
from specwb import Tree
from specwb.drafters.diffuspec_parts.lattice import beam, viterbi
from specwb.drafters.heads import accuracies, measured_tree
from specwb.lab.evaluation import lattices
from specwb.lab.evaluation.fuzzy import similarity
from specwb.models.fuzzy import grouping
from specwb.show import figures, widgets
from specwb.show.widgets import designer
from specwb.show.widgets.acceptance import shaped
from specwb.show.widgets.kangaroo import ETAS
from specwb.show.widgets.rules import NAMES, UNITS, pair
from specwb.theory import analysis, exact
from specwb.theory.analysis import dependence
from specwb.theory.exact import depths
from specwb.theory.exact.roots import first_stays, kept_root
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
        assert shown(view) == picture(figures.speedup({"predicted": curve}, measured, 6))
        best = analysis.best_gamma(0.8, 0.05, v, 8)
        tokens = analysis.expected_tokens(0.8, 6)
        wanted = [0.8, 0.05, 6, v(6), 6, tokens, curve[6], best, curve[best]]
        assert said(view) == pytest.approx(wanted, abs=0.0051)


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


@pytest.mark.parametrize(
    ("W", "D", "rates"), [(1, 1, (0.2, 0.2, 0.9, 0.9)), (4, 3, (0.5, 0.05, 1.0, 0.0))]
)
def test_the_root_that_stays(W, D, rates):
    view = widgets.RootsExplorer(roots=W, depth=D, **dict(zip("abcd", rates, strict=True)))
    P = [Fraction(n, 10) for n in (4, 3, 2, 1)]
    exactly = [Fraction(round(100 * rate), 100) for rate in rates]
    lengths = [[*(a**n - a ** (n + 1) for n in range(D)), a**D] for a in exactly]
    distribution = kept_root(P, lengths, W)
    assert (view.distribution, view.tv) == (distribution, exact.tv(distribution, P))
    assert [t["y"] for t in shown(view)["data"]] == [
        *([0.4, 0.3, 0.2, 0.1], pytest.approx([float(x) for x in distribution], abs=1e-4))
    ]
    wanted = [f"{float(x):.3f}" for x in (*distribution, view.tv, 1 - first_stays(P, lengths, W))]
    assert [x for x in numbers(view) if "." in x][4:] == wanted
    assert (view.tv == 0) == (W == 1)


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


@pytest.mark.parametrize(
    ("head", "passes", "nodes", "costs"),
    [("falcon", 2, 16, (0.02, 0.1, 0.01)), ("eagle", 2, 9, (0.1, 0, 0))],
)
def test_trees_by_passes(head, passes, nodes, costs):
    settings = dict(zip("vcf", costs, strict=True))
    view = widgets.BlockDesigner(BLOCKS, head=head, passes=passes, nodes=nodes, **settings)
    k, card = BLOCKS[head]
    rates = accuracies(card)
    tree = measured_tree(card, nodes, min(k * passes, len(rates)))
    blocks = [len(one.blocks) for one in view.tree.passes]
    tau = sum(analysis.path_values(rates, tree.host[0]))
    steps = np.dot(costs, (tree.n - 1, len(blocks), k * sum(blocks[1:])))
    assert view.tree.tree.host == tree.host
    assert (view.tau, view.speed) == pytest.approx((tau, tau / (1 + steps)))
    wanted = [k, tree.n, tree.D, *blocks, tau - 1, 1, tau]
    assert said(view)[: len(wanted)] == pytest.approx(wanted, abs=0.0051)


# ------------------------------------------------------------------------------------- early exit


@pytest.mark.parametrize(("eta", "gamma"), [(0.6, 4), (0.0, 5), (1.0, 2)])
def test_the_rounds_shown_are_those_of_decodings(eta, gamma):
    view = stop(eta=eta, gamma=gamma)
    spec = f"kangaroo:gamma={gamma},eta={eta}"
    method = specwb.method(spec, tiny.target(), head=tiny.head("kangaroo"))
    kept, drafted, how = [], [], {"max_new_tokens": TOKENS + 8, "eos": ()}
    for prompt in tiny.PROMPTS:
        at = 0
        for step in specwb.rounds(tiny.target(), prompt, method, **how):
            if at >= TOKENS:
                break
            kept.append(int(step.verdict.accepted[0]))
            drafted.append(int(step.draft.valid.sum()) - 1)
            at += kept[-1] + 1
    assert (view.rounds.kept, view.rounds.drafted) == (kept, drafted)
    seconds = {1: 1.5, 2: 1.8, 3: 2.2, 4: 2.6, 5: 3.0}
    cr, speed = 1 + fmean(kept), (1 + fmean(kept)) / fmean(seconds[d] for d in drafted)
    assert view.predicted == pytest.approx(speed)
    wanted = [eta, gamma, fmean(drafted), fmean(kept), 1, cr, fmean(drafted) - fmean(kept), speed]
    best = max((s, -e) for e, (_, s) in zip(ETAS, view.curve("own", gamma)))
    measured = [1.25] if (eta, gamma) == (0.6, 4) else []
    assert said(view) == pytest.approx([*wanted, *measured, -best[1], best[0]], abs=0.0051)


# ---------------------------------------------------------------------- lattices and their lengths


@pytest.mark.parametrize(
    ("text", "reached", "lam", "mass", "top", "beams"),
    [(1, 5, 0.5, 0.8, 8, 3), (2, 2, 1.0, 0.3, 8, 1), (3, 5, 0.3, 1.0, 2, 2)],
)
def test_the_lattice_shown_is_the_one_searched(text, reached, lam, mass, top, beams):
    settings = {"text": text, "lam": lam, "mass": mass, "top": top, "beams": beams}
    view = EXPLORERS["LatticeExplorer"](reached=reached, **settings)
    at = found()[text - 1]
    whole = at.lattice(mass, top)
    part = lattices.Lattice(whole.ids[:reached], whole.logq[:reached], whole.ends)
    paths, best = beam(part, proxy(), at.text, lam, beams), viterbi(part, proxy(), at.text, lam)
    assert [path for name, path in view.paths.items() if name.startswith("beam")] == paths
    assert view.paths["first choices"].tokens == tuple(part.row)
    assert view.paths.get("best score", paths[0]).mean == pytest.approx(best.mean)
    wanted = [str(text), str(reached), str(whole.depth), f"{lam:.2f}", str(beams), f"{mass:.2f}"]
    wanted += [str(top), str(sum(map(len, part.ids))), f"{-paths[0].mean:.3f}"]
    wanted += [f"{-best.mean:.3f}"]
    if reached >= whole.depth:
        three = [part.row, paths[0].tokens, best.tokens]
        hot = [lattices.expected_length(tiny.target(), at.text, path) for path in three]
        wanted += ["0", *(str(at.kept(path)) for path in three), "1", *(f"{x:.2f}" for x in hot)]
    assert numbers(view) == wanted


def test_the_walk_shown_is_the_one_drafted():
    """By a learned score; lambda and mass do not count, and cannot be moved."""
    view = EXPLORERS["LatticeExplorer"](text=1, reached=5, beams=1, top=8, score="pair")
    assert view.lam.disabled
    assert view.mass.disabled
    walk = list(view.paths["beam 1"].tokens)
    assert walk == found()[0].walk(tiny.scorer(tiny.target(), 6))[: len(walk)]
    assert "pair, B = 1, M = 6: 30 candidates" in view.summary
    before = view.summary
    with view.at(lam=1.0, mass=0.1):
        assert view.summary == before


@pytest.mark.parametrize(
    ("least", "most", "delta", "rho", "share"), [(4, 8, 2, 0.5, 1.0), (9, 3, 2, 0.5, 0.8)]
)
def test_rounds_under_adaptive_length(least, most, delta, rho, share):
    settings = {"least": least, "most": most, "delta": delta, "rho": rho, "share": share}
    view = widgets.LengthExplorer(replay(), top=12, **settings)
    low, high = min(least, most), max(least, most)
    rounds = replay().rounds(low, high, delta, rho, share)
    assert view.rounds == rounds
    assert view.tau == pytest.approx(30 / len(rounds))
    assert shown(view) == picture(figures.adaptive(rounds, low, high))
    drafted = sum(r.k for r in rounds) / len(rounds)
    wanted = [low, high, delta, rho, share, len(rounds), drafted, view.tau - 1, 1, view.tau]
    assert said(view)[:10] == pytest.approx(wanted, abs=0.051)
    assert said(view)[-1] == rounds[-1].k


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


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: widgets.LatticeExplorer(tiny.target(), [], proxy()), "no place"),
        (lambda: widgets.LengthExplorer(replay(6), top=600), "got 600"),
        (lambda: widgets.BlockDesigner({"falcon": (2, {})}), "the card has no accuracies by rank"),
    ],
)
def test_data_that_cannot_be_shown(call, message):
    with pytest.raises(ValueError, match=message):
        call()
