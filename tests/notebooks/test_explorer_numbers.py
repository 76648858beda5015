"""Each explorer shows the library's numbers, at settings whose results are counted another way."""

from __future__ import annotations

import types
from fractions import Fraction
from statistics import fmean

import numpy as np
import pytest
import tiny
import torch
from drawn import every_figure, numbers, picture, shown
from explorers import (
    BLOCKS,
    EXITS,
    EXPLORERS,
    PAIRS,
    RATES,
    TABLES,
    TIMES,
    TOKENS,
    deep,
    found,
    proxy,
    replay,
    stop,
    traces,
    windows,
)

import specwb
from specwb import Tree
from specwb.core.blocks import BlockTree
from specwb.core.mask import sight_mask
from specwb.drafters.diffuspec_parts.lattice import beam, viterbi
from specwb.drafters.heads import accuracies, measured_tree
from specwb.lab.evaluation import lattices
from specwb.lab.evaluation.fuzzy import KINDS, similarity
from specwb.lab.papers import kangaroo as reproduced
from specwb.lab.papers.paper import read_paper
from specwb.models.fuzzy import grouping
from specwb.show import figures, widgets
from specwb.show.widgets import designer, easyspec
from specwb.show.widgets.acceptance import shaped
from specwb.show.widgets.kangaroo import ETAS
from specwb.show.widgets.rules import NAMES, UNITS, pair
from specwb.theory import analysis, exact
from specwb.theory.analysis import dependence
from specwb.theory.analysis import layer_parallel as parallel
from specwb.theory.analysis.diffusion import AdlRound
from specwb.theory.exact import depths
from specwb.theory.exact.roots import first_stays, kept_root
from specwb.theory.wrong_rules import AT_ONE_NODE
from specwb.training.falcon import glance_mask


def put(view, **values):
    """Set an explorer's controls, and return it."""
    for name, value in values.items():
        parts = view[name] if isinstance(view[name], list) else [view[name]]
        for control, one in zip(parts, value if len(parts) > 1 else [value], strict=True):
            control.value = one
    return view


def said(view) -> list[float]:
    return list(map(float, numbers(view)))


# --------------------------------------------------------------------------- acceptance and speed


def test_acceptance():
    view = put(widgets.AcceptanceExplorer(draws=500, seed=3), temperature=0.2, shift=-5.0)
    p, q = shaped(0.2, -5.0, 1.0)
    counts, accepted = analysis.simulate(p, q, 500, 3)
    assert shown(view) == picture(figures.acceptance(p, q, counts.tolist()))
    three = analysis.acceptance_rate(p, q), accepted / 500, abs(counts / 500 - p).max()
    assert [x for x in numbers(view) if len(x) == 5] == [f"{x:.3f}" for x in three]


def test_shaped_distributions():
    p, q = shaped(1.0, 0.0, 1.0)
    assert p.tolist() == q.tolist()
    assert p.sum() == pytest.approx(1)
    assert (p.argmax(), shaped(1.0, 3.0, 1.0)[1].argmax()) == (6, 9)
    for temperature in (0.5, 2.0):  # it is the draft's too
        hot, also = shaped(temperature, 0.0, 1.0)
        assert hot.tolist() == also.tolist()
    assert shaped(1.0, 0.0, 4.0)[1].max() > p.max() > shaped(2.0, 0.0, 1.0)[0].max()


def test_speed():
    measured = {1: 1.1, 4: 1.3}
    view = widgets.SpeedExplorer(most=8, v=lambda gamma: 1 + 0.1 * gamma, measured=measured)
    put(view, alpha=0.8, c=0.05, gamma=6)
    for scoring, v in zip(view.scoring.options, (view.v, lambda gamma: 1.0)):
        put(view, scoring=scoring)
        curve = [analysis.speedup(0.8, g, 0.05, v(g)) for g in range(9)]
        assert shown(view) == picture(figures.speedup({"predicted": curve}, measured, 6))
        best = analysis.best_gamma(0.8, 0.05, v, 8)
        tokens = analysis.expected_tokens(0.8, 6)
        wanted = [0.8, 0.05, 6, v(6), 6, tokens, curve[6], best, curve[best]]
        assert said(view) == pytest.approx(wanted, abs=0.0051)
    alone = widgets.SpeedExplorer(alpha=0.6559, c=0.1286)
    assert (alone.alpha.value, alone.c.value, len(alone.scoring.options)) == (0.66, 0.13, 1)


# ------------------------------------------------------------------------------------------ rules


@pytest.fixture(scope="module")
def every_rule() -> tuple[widgets.RulesExplorer, dict]:
    view = widgets.RulesExplorer()
    return view, view.settings()


@pytest.fixture
def rules(every_rule) -> widgets.RulesExplorer:
    view, at_first = every_rule
    return put(view, **at_first)


@pytest.mark.parametrize("k", [1, 2, 3])
def test_rules_give_p_and_wrong_ones_do_not(rules, k):
    put(rules, k=k)
    wrong = {mutant.name: mutant for mutant in AT_ONE_NODE}
    names = [value for _, value in rules.verifier.options]
    assert set(names) == {*exact.RULES, *wrong}
    for name in names:
        put(rules, verifier=name)
        off = exact.tv(rules.out, rules.p)
        assert numbers(rules)[-1] == (f"{float(off):.4f}" if off else "0")
        assert (off > 0 or k < wrong[name].k) if name in wrong else off == 0


@pytest.mark.parametrize("seed", range(8))
def test_rules_and_what_they_accept(rules, seed):
    put(rules, seed=seed)
    p, q = pair(1.0, 1.0, 5, seed)
    assert (rules.p, rules.q) == (p, q)
    drawn = {NAMES.get(name, name): scheme for name, scheme in analysis.DRAWN.items()}
    for name, rate in rules.rates.items():
        assert rate <= rules.optima[drawn[name]] + 1e-9
    assert f"{max(rules.rates.values()):.3f}" in numbers(rules)
    assert f"{float(exact.overlap(p, q)):.3f}" in numbers(rules)
    cut, rates, out = every_figure(rules)
    assert cut == picture(figures.slices(p, q, exact.rrs_levels(p, q, 2)))
    assert rates == picture(figures.rule_rates(rules.rates, rules.optima, drawn))
    assert out == picture(figures.output(p, p, NAMES.get("rrsw", "rrsw")))


def test_pairs_are_distributions_in_small_fractions():
    for seed in range(20):
        for distribution in pair(0.3, 3.0, 6, seed) + pair(3.0, 0.5, 2, seed):
            assert sum(distribution) == 1
            assert all(x >= 0 and UNITS % x.denominator == 0 for x in distribution)


def test_the_errors_of_a_draft_are_its_own():
    """They put its tokens into another order, and do not only sharpen the target's distribution."""
    pairs = [pair(1.0, 3.0, 5, seed) for seed in range(6)]
    assert any(p.index(max(p)) != q.index(max(q)) for p, q in pairs)
    p, q = pair(2.5, 0.0, 5, 0)  # without errors it is the target, at every temperature
    assert p == q


# ------------------------------------------------------------------------------------------ trees


def dear(parents) -> float:
    return 1 + 0.08 * (len(parents) - 1) + 0.05 * max(depths(parents))


def designed(**at) -> widgets.TreeDesigner:
    return widgets.TreeDesigner(RATES, cost=dear, most=32, **at)


def tau(parents) -> float:
    return float(sum(analysis.path_values(RATES, parents)))


def test_a_tree_made_by_hand():
    view = designed()
    for ks in ((4, 2, 2), (3,), (2, 2, 1, 1)):
        put(view, levels=[*ks, 0, 0, 0][:4])
        parents = list(Tree.branching(*ks).host[0])
        assert view.parents == parents
        head = [*ks, len(parents), len(ks)]
        speed = tau(parents) / dear(parents)
        wanted = [*head, tau(parents) - 1, 1, tau(parents), dear(parents), speed]
        assert said(view)[: len(wanted)] == pytest.approx(wanted, abs=0.0051)
    put(view, levels=[4, 4, 2, 0])
    assert "4-4-2 has 53 nodes, more than 32" in view.summary
    assert view.parents == list(Tree.branching(4, 2, 1, 1).host[0])  # the last one drawn
    few = widgets.TreeDesigner([[0.5, 0.2], [0.4, 0.1]], most=8, nodes=8, tree=(2, 1))
    few.levels[2].value = 1
    assert "no rate for depth 3" in few.summary
    assert len(few.costs.options) == 1


@pytest.mark.parametrize(("nodes", "depth"), [(1, 6), (9, 2), (16, 6), (32, 8), (20, 0)])
def test_best_trees_are_the_librarys(nodes, depth):
    view = designed(nodes=nodes, depth=depth, shape=designer.TOKENS)
    assert view.parents == analysis.best_tree(RATES, nodes, depth)
    for costs, seconds in (
        (designer.MEASURED, dear),
        (designer.ROOFLINE, lambda t: analysis.roofline(len(t) - 1, 1, 8) + 0.1 * max(depths(t))),
    ):
        put(view, costs=costs, balance=8, shape=designer.SPEED)
        parents, speed = analysis.choose_tree(RATES, seconds, nodes, depth)
        assert (view.parents, view.speed) == (parents, pytest.approx(speed))
        assert numbers(view)[-3:] == [str(depth), str(len(parents)), f"{speed:.2f}"]


def test_free_nodes_make_wide_trees():
    view = designed(shape=designer.SPEED, nodes=32, depth=8)
    here = view.parents
    put(view, costs=designer.ROOFLINE, balance=32, c=0.2)
    assert len(view.parents) == 32 > len(here)
    deep = max(depths(view.parents))
    put(view, c=0.0)
    assert max(depths(view.parents)) > deep  # levels that cost nothing make it deeper
    put(view, balance=1)
    assert view.parents == [-1]  # where every node costs a step, no draft pays


@pytest.mark.parametrize(("name", "cut"), [("4-1-1-1-1", 0), ("4-2-2-1", 2), ("4-2-1-1-1", 5)])
def test_the_block_shown_is_the_cut_trees_mask(name, cut):
    view = put(widgets.MaskExplorer(), tree=name, cut=cut)
    ks = tuple(map(int, name.split("-")))
    whole, built = Tree.branching(*ks), Tree.branching(*ks[:cut])
    (cells,) = shown(view)["data"]
    assert [[v is not None for v in row] for row in cells["z"]] == whole.mask[0].tolist()
    own = [[v == 1 for v in row[: built.n]] for row in cells["z"][: built.n]]
    assert own == built.mask[0].tolist()
    assert sum(v == 1 for row in cells["z"] for v in row) == int(built.mask.sum())
    assert f"tree {name}, {built.D} of {whole.D} levels: {built.n} of {whole.n}" in view.summary
    assert "NOT" not in view.summary
    assert numbers(view)[-1] == str(built.D)


def test_a_wrong_slice_is_told(monkeypatch):
    view, right = widgets.MaskExplorer(), Tree.prefix

    def wrong(self, d):
        cut = right(self, d)
        mask = cut.mask.clone()
        mask[0, -1, 0] = False
        return cut._with(mask=mask)

    monkeypatch.setattr(Tree, "prefix", wrong)
    assert "NOT equal to" in put(view, cut=3).summary


@pytest.mark.parametrize(
    ("W", "D", "rates"), [(1, 1, (0.2, 0.2, 0.9, 0.9)), (4, 3, (0.5, 0.05, 1.0, 0.0))]
)
def test_the_root_that_stays(W, D, rates):
    view = put(widgets.RootsExplorer(), roots=W, depth=D, rates=rates)
    P = [Fraction(n, 10) for n in (4, 3, 2, 1)]
    exactly = [Fraction(round(100 * rate), 100) for rate in rates]
    lengths = [[*(a**n - a ** (n + 1) for n in range(D)), a**D] for a in exactly]
    distribution = kept_root(P, lengths, W)
    assert (view.distribution, view.tv) == (distribution, exact.tv(distribution, P))
    target, kept = shown(view)["data"]
    assert target["y"] == [0.4, 0.3, 0.2, 0.1]
    assert kept["y"] == pytest.approx([float(x) for x in distribution], abs=1e-4)
    wanted = [f"{float(x):.3f}" for x in (*distribution, view.tv, 1 - first_stays(P, lengths, W))]
    assert [x for x in numbers(view) if "." in x][4:] == wanted
    assert (view.tv == 0) == (W == 1)


# ----------------------------------------------------------------------------------------- blocks


@pytest.mark.parametrize(("k", "pairs", "align"), [(2, 7, "left"), (3, 8, "right"), (1, 5, "left")])
def test_who_sees_whom(k, pairs, align):
    view = put(widgets.BlockExplorer(), k=k, pairs=pairs, align=align)
    (cells,) = [t for t in shown(view)["data"] if t["type"] == "heatmap"]
    ends = [
        min(i // k * k + k, pairs) if align == "left" else pairs - (pairs - 1 - i) // k * k
        for i in range(pairs)
    ]
    mask = sight_mask(torch.tensor([ends]) - 1, pairs, torch.float32)[0] == 0
    assert [[v is not None for v in row] for row in cells["z"]] == mask.tolist()
    assert [sum(v == 1 for v in row) for row in cells["z"]] == [ends.count(end) for end in ends]
    assert view.sees == ends[-k:]
    assert numbers(view)[:2] == [str(k), str(pairs)]
    assert ("without the newest pair" in view.summary) == any(end < pairs for end in ends[-k:])


@pytest.mark.parametrize(("d", "g"), [(0.0, 0.5), (0.35, 0.2), (1.0, 1.0)])
def test_dependence_at_the_same_margins(d, g):
    chances = np.array([0.5, 0.3, 0.2])
    view = widgets.DependenceExplorer(PAIRS, chances.tolist(), d=d, g=g)
    assert view.joint.sum(0) == pytest.approx(chances) == view.joint.sum(1)
    assert np.diag(view.joint) == pytest.approx(chances * (chances + d * (1 - chances)))
    lacking = dependence.total_correlation(view.joint)
    training = dependence.excess(view.joint, dependence.prefix_reveal(2, g))
    entropy, kept = dependence.entropy(np.diag(chances)), 1 - d * (1 - chances @ chances)
    wanted = (d, 100 * g, lacking, entropy, training, lacking, kept)
    assert said(view) == pytest.approx(wanted, abs=6e-4)


@pytest.mark.parametrize(("k", "ratio", "wrong", "seed"), [(2, 0.4, 0.5, 0), (3, 1.0, 0.6, 4)])
def test_which_pairs_glance(k, ratio, wrong, seed):
    view = put(widgets.GlancingExplorer(TABLES), k=k, ratio=ratio, wrong=wrong, seed=seed)
    rng, texts, blocks = np.random.default_rng(seed), view.TEXTS, view.BLOCKS
    u = [torch.from_numpy(rng.random((texts, blocks))) for _ in range(2)]
    counted = torch.full((texts,), int(round(ratio * wrong, 6) * k * blocks))
    mask = glance_mask(counted, k * blocks, k, *u)
    assert view.replaced == mask.tolist()
    lengths = mask.view(-1, k).sum(1).tolist()
    assert view.share == pytest.approx(sum(map(bool, lengths)) / len(lengths))
    joint, weights = TABLES[k]
    total = 0.0  # the excess of these texts, counted place by place
    for j in range(2, k + 1):
        trained = [r for r in lengths if r < j]
        parts = [((j,), range(r + 1, j), range(1, r + 1)) for r in trained]
        found = [dependence.mutual_information(joint, *part, weights) for part in parts]
        total += sum(found) / max(1, len(found))
    assert view.excess == pytest.approx(total)
    floor = dependence.total_correlation(joint, weights)
    wanted = [k, ratio, 100 * wrong, int(mask.sum()), mask.numel(), 100 * view.share]
    assert said(view) == pytest.approx([*wanted, total, floor], abs=0.51)


@pytest.mark.parametrize(
    ("head", "passes", "nodes", "costs"),
    [("falcon", 2, 16, (0.02, 0.1, 0.01)), ("eagle", 2, 9, (0.1, 0, 0))],
)
def test_trees_by_passes(head, passes, nodes, costs):
    view, (v, c, f) = widgets.BlockDesigner(BLOCKS), costs
    put(view, head=head, passes=passes, nodes=nodes, v=v, c=c, f=f)
    k, card = BLOCKS[head]
    rates = accuracies(card)
    tree = measured_tree(card, nodes, min(k * passes, len(rates)))
    made, tau = BlockTree(tree, k), sum(analysis.path_values(rates, tree.host[0]))
    fed = k * sum(len(one.blocks) for one in made.passes[1:])
    speed = tau / (1 + v * (tree.n - 1) + c * len(made.passes) + f * fed)
    assert view.tree.tree.host == tree.host
    assert (view.tau, view.speed) == pytest.approx((tau, speed))
    assert len(made.passes) <= passes
    blocks = [len(one.blocks) for one in made.passes]
    wanted = [k, tree.n, tree.D, *blocks, tau - 1, 1, tau]
    assert said(view)[: len(wanted)] == pytest.approx(wanted, abs=0.0051)
    (here,) = [t for t in shown(view)["data"] if t.get("name") == "this tree"]
    assert (here["x"], here["y"]) == ([tree.n], [pytest.approx(speed, abs=1e-4)])
    highest = max(max(t["y"]) for t in shown(view)["data"] if "pass" in t.get("name", "")
                  and t["mode"] == "lines")  # fmt: skip
    assert said(view)[-1] == pytest.approx(highest, abs=0.0051)


# ------------------------------------------------------------------------------------- early exit


@pytest.mark.parametrize(("eta", "gamma"), [(0.6, 4), (0.0, 5), (1.0, 2)])
def test_the_rounds_shown_are_those_of_decodings(eta, gamma):
    view = put(stop(), eta=eta, gamma=gamma)
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
    wanted += [1.25] * ((eta, gamma) == (0.6, 4)) + [-best[1], best[0]]
    assert said(view) == pytest.approx(wanted, abs=0.0051)


def series(view, name: str) -> list[tuple[list, list]]:
    """x and y of the series of this name, in every panel."""
    return [(t["x"], t["y"]) for t in shown(view)["data"] if t.get("name") == name]


def test_curves_and_points_of_an_exit():
    view = stop(eta=0.3, gamma=4)
    tau, drafted, both, *_, speed, chosen, _, _ = shown(view)["data"]
    every = [traces()["own"].simulate("top", eta, 4) for eta in ETAS]
    speeds = [one.speedup(EXITS["own"].seconds, EXITS["own"].plain) for one in every]
    assert tau["x"] == drafted["x"] == speed["x"] == list(ETAS)
    assert tau["y"] == pytest.approx([one.cr for one in every], abs=1e-4)
    assert drafted["y"] == pytest.approx([one.mean_drafted + 1 for one in every], abs=1e-4)
    assert speed["y"] == pytest.approx(speeds, abs=1e-4)
    assert (both["x"], both["y"]) == ([0.3, 0.3], [tau["y"][6], drafted["y"][6]])
    assert (chosen["x"], chosen["y"]) == ([0.3], [speed["y"][6]])
    assert series(view, "measured") == [([0.6, 0.3], [2.0, 2.1]), ([0.6, 0.3], [1.25, 1.2])]
    assert series(view, "paper, g") == [([0.0, 0.5], [2.5, 2.0]), ([0.0, 0.5], [1.1, 1.5])]
    put(view, exit="other")
    assert view.rounds == traces()["other"].simulate("top", 0.3, 4)
    assert series(view, "measured") == [([], [])] * 2  # nothing was measured of it


def test_what_reproduce_has_stored():
    cells = {0.6: reproduced.chain(0.6, 4), 0.3: reproduced.chain(0.3, 4)}
    cells[0] = reproduced.chain(0, 4, "exit2")
    rows = [{"cell": cell, "tau": 2 + eta, "speedup": 1 + eta} for eta, cell in cells.items()]
    names = {"": "own", "exit2": "other"}
    document = {
        "rows": [*rows, {"cell": "ar", "tau": 1.0, "speedup": None}],
        "traces": {key: reproduced.trace_to_json(traces()[name]) for key, name in names.items()},
        "costs": {key: reproduced.costs_to_json(EXITS[n]) for key, n in names.items()}
        | {"mlp": {}},
    }
    view = widgets.StopExplorer.of(document, gamma=4, eta=0.3)
    assert view.exit.options == ("own", "exit2")
    assert series(view, "measured") == [([0.3, 0.6], [2.3, 2.6]), ([0.3, 0.6], [1.3, 1.6])]
    assert "measured 1.30x" in view.summary
    for gamma in (4, 6, 8):
        published = [r for r in read_paper("kangaroo").tables["eta"]["rows"] if r["gamma"] == gamma]
        (etas, cr), _ = series(view, f"paper, gamma {gamma}")
        assert dict(zip(etas, cr, strict=True)) == {r["eta"]: r["cr"] for r in published}
    for name, cost in EXITS.items():
        one = traces()[name].simulate("top", 0.3, 4)
        assert (view.rounds, view.predicted) == (one, one.speedup(cost.seconds, cost.plain))
        put(view, exit="exit2")
    assert series(view, "measured")[0] == ([0], [2])


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
    drawn = {t.get("name"): t for t in shown(view)["data"]}
    drafter, reader = drawn["drafter, −λ log q"], drawn["trigrams, −(1 − λ) log r"]
    for cost, r, path in zip(drafter["x"], reader["x"], view.paths.values(), strict=True):
        assert cost == pytest.approx(-lam * sum(path.logq) / len(path.tokens), abs=1e-4)
        assert cost + r == pytest.approx(-path.mean, abs=2e-4)
    wanted = [str(text), str(reached), str(whole.depth), f"{lam:.2f}", str(beams), f"{mass:.2f}"]
    wanted += [str(top), str(sum(map(len, part.ids))), f"{-paths[0].mean:.3f}"]
    wanted += [f"{-best.mean:.3f}"]
    if reached >= whole.depth:
        three = [part.row, paths[0].tokens, best.tokens]
        hot = lattices.expected_length(tiny.target(), at.text, three)
        wanted += ["0", *(str(at.kept(path)) for path in three), "1", *(f"{x:.2f}" for x in hot)]
    assert numbers(view) == wanted


@pytest.mark.parametrize(("text", "reached", "beams"), [(1, 5, 1), (3, 3, 4)])
def test_the_walk_shown_is_the_one_drafted(text, reached, beams):
    """By a learned score; lambda and mass do not count, and cannot be moved."""
    view = EXPLORERS["LatticeExplorer"](text=text, reached=reached, beams=beams, top=8)
    assert not view.lam.disabled
    put(view, score="pair")
    assert view.lam.disabled
    assert view.mass.disabled
    at, scorer = found()[text - 1], tiny.scorer(tiny.target(), 6)
    paths = [path for name, path in view.paths.items() if name.startswith("beam")]
    walk = list(paths[0].tokens)
    if beams == 1:
        assert walk == at.walk(scorer)[: len(walk)]
    *_, drawn = shown(view)["data"]
    costs = [-path.score / len(path.tokens) for path in view.paths.values()]
    assert list(drawn["x"]) == pytest.approx(costs, abs=1e-4)
    assert costs[1] == min(costs)
    assert f"pair, B = {beams}, M = 6: {6 * reached} candidates" in view.summary
    if reached == 5:
        assert f"keeps {at.kept(view.paths['first choices'].tokens)} of the first" in view.summary
        assert f"{at.kept(walk)} of the beam" in view.summary
    before = view.summary
    put(view, lam=1.0, mass=0.1)
    assert view.summary == before
    put(view, score="n-grams", lam=0.5, mass=0.8)
    assert not view.mass.disabled
    assert "lambda 0.50" in view.summary


@pytest.mark.parametrize(
    ("least", "most", "delta", "rho", "share"), [(4, 8, 2, 0.5, 1.0), (9, 3, 2, 0.5, 0.8)]
)
def test_rounds_under_adaptive_length(least, most, delta, rho, share):
    view = widgets.LengthExplorer(replay(), top=12)
    put(view, least=least, most=most, delta=delta, rho=rho, share=share)
    low, high = min(least, most), max(least, most)
    rounds = replay().rounds(low, high, delta, rho, share)
    assert view.rounds == rounds
    assert rounds == analysis.adl_trace(
        [r.generated for r in rounds], [r.accepted for r in rounds], low, high, delta, rho, share
    )
    assert view.tau == pytest.approx(30 / len(rounds))
    assert shown(view) == picture(figures.adaptive(rounds, low, high))
    rises = [i + 1 for i in range(1, len(rounds)) if rounds[i].k > rounds[i - 1].k]
    broken = [i for i, r in enumerate(rounds, 1) if r.accepted < r.generated]
    drafted = sum(r.k for r in rounds) / len(rounds)
    wanted = [low, high, delta, rho, share, len(rounds), drafted, view.tau - 1, 1, view.tau]
    wanted += [*broken[:1], *((len(rises), rises[-1]) if rises else ()), rounds[-1].k]
    assert said(view) == pytest.approx(wanted, abs=0.051)


def test_what_is_drafted_behind_an_end_of_text_counts():
    rounds = [AdlRound(6, 2, 2, 2.0, 2.0, False, 4), AdlRound(4, 4, 1, 3.0, 1.5, False, 4)]
    text = types.SimpleNamespace(most=9, text=[1, 2, 3, 4, 5], rounds=lambda **_: rounds)
    assert numbers(widgets.LengthExplorer(text, top=9))[5:10] == ["2", "5.0", "1.50", "1", "2.50"]


# ------------------------------------------------------------------------------ layers in parallel


def test_cosines_are_the_librarys():
    view = easyspec.FuzzyExplorer(deep(), windows(), n=3)
    assert "groups 0 1-2 3 4, R = 4 of 5" in view.summary
    for n, first, last, whole in ((4, False, False, False), (3, True, False, True)):
        put(view, n=n, first=first, last=last, whole=whole)
        groups = grouping(5, n, first, last)
        direct = similarity(deep(), windows(), groups, whole)
        assert (view.groups, view.found) == (groups, direct)
        for trace, (kind, values) in zip(shown(view)["data"], direct.items(), strict=True):
            assert (trace["name"], trace["y"]) == (kind, pytest.approx(values, abs=1e-4))
        assert numbers(view)[-len(KINDS) :] == [f"{min(direct[kind]):.3f}" for kind in KINDS]
    put(view, n=1, last=True, whole=False)
    assert min(min(values) for values in view.found.values()) == pytest.approx(1)  # is the model


@pytest.mark.parametrize(
    ("n", "width", "devices", "exchange", "calibrate"),
    [(4, 1, 4, 0.0, True), (3, 4, 2, 0.05, True), (4, 1, 1, 0.5, True), (6, 4, 3, 0.1, False)],
)
def test_a_round_on_devices_takes_what_the_closed_form_says(n, width, devices, exchange, calibrate):
    view = easyspec.DevicesExplorer(TIMES, 8)
    put(view, n=n, width=width, devices=devices, exchange=exchange, calibrate=calibrate)
    at, groups, alone = TIMES[width], grouping(8, n), [(i,) for i in range(8)]
    a, m, head = at["attention"], at["mlp"], at["head"]
    fuzzy, layers = (parallel.step_time(g, a, m, exchange, devices, head) for g in (groups, alone))
    assert view.drafting == pytest.approx(4 * fuzzy + (layers if calibrate else fuzzy))
    assert view.plain == pytest.approx(5 * (8 * (a + m) + head))
    # a shorter exchange than the limit is a gain, a longer one is not
    waits = exchange if devices > 1 else 0
    assert (view.drafting < view.plain - 1e-9) == (waits < view.limit - 1e-12)
    busy = {t["name"]: sum(t["x"]) for t in shown(view)["data"]}
    assert busy["attention"] == pytest.approx(5 * 8 * a)  # each once a step, wherever it runs
    assert busy["mlp"] == pytest.approx(5 * 8 * m * devices)
    collectives = 4 * len(groups) + (8 if calibrate else len(groups))
    assert busy["exchange"] == pytest.approx(collectives * waits * devices)
    wanted = [n, width, devices, exchange, view.drafting, view.plain, view.plain / view.drafting]
    assert said(view)[:7] == pytest.approx(wanted, abs=0.0051)
    assert ("no exchange is short enough" in view.summary) == (view.limit == 0) == (devices == 1)


def test_the_busy_share_is_of_all_devices():
    """8 layers, groups 0 1-3 4-6 7, on 4 devices: an exact step takes 8 x 0.75 + 0.125 ms and four
    fuzzy ones 4 x 0.5 + 8 x 0.25 + 0.125 ms each, 22.625 together. 40 attentions run once, 40 MLPs
    and 5 heads on every device: 20 + 40 + 2.5 of 4 x 22.625 ms."""
    view = easyspec.DevicesExplorer(TIMES, 8, n=4, devices=4)
    assert view.drafting == pytest.approx(22.625)
    assert numbers(view)[7] == "69"
    assert numbers(put(view, devices=1))[7] == "100"


def test_the_cost_model_and_the_papers_numbers():
    view = easyspec.StageExplorer({"here": (0.6, 1.3)})
    assert view.implied == pytest.approx(parallel.implied_share(1.62, 5, 10, 32))
    put(view, share=view.implied)
    assert view.stage == pytest.approx(1.62, abs=0.01)  # of a slider in hundredths
    for layers, n, depth, share, wanted, calibrate in (
        (24, 3, 4, 0.24, 3.0, True),
        (8, 7, 8, 0.9, 2.5, False),
        (40, 1, 5, 0.5, 4.17, True),
    ):
        put(view, layers=layers, n=n, depth=depth, share=share, wanted=wanted, calibrate=calibrate)
        rounds = len(grouping(layers, n))
        assert view.ratio == parallel.fuzzy_ratio(share, rounds, layers)
        assert view.stage == parallel.stage_speedup(view.ratio, depth, calibrate)
        # at the dearest price everything that is drafted is needed
        needed = parallel.needed_tokens(wanted, depth, view.dearest / view.stage)
        assert needed == pytest.approx(depth + 1)
        calibrated, not_calibrated, *_, plain, grouped = shown(view)["data"]
        at = (calibrated if calibrate else not_calibrated)["y"][round(50 * share)]
        assert at == pytest.approx(view.stage, abs=1e-4)
        assert plain["y"][10] == pytest.approx(wanted * (depth * 0.1 + 1), abs=1e-3)
        assert grouped["y"][10] == pytest.approx(wanted * (depth * 0.1 / view.stage + 1), abs=1e-3)
        wanted_words = [layers, n, rounds, depth, share, view.ratio, view.stage]
        assert said(view)[:7] == pytest.approx(wanted_words, abs=0.0051)
    assert view.implied is None  # n = 1
    assert put(view, wanted=7.5).dearest == 0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: widgets.LatticeExplorer(tiny.target(), [], proxy()), "no place"),
        (lambda: widgets.LengthExplorer(replay(6), top=600), "got 600"),
        (
            lambda: easyspec.FuzzyExplorer(
                specwb.load(tiny.build("llama", num_hidden_layers=2)), windows()
            ),
            "stand alone",
        ),
        (
            lambda: easyspec.StageExplorer({str(i): (0.1, 1.0) for i in range(4)}),
            "three points",
        ),
        (lambda: easyspec.DevicesExplorer({}, 8), "nothing to choose width from"),
        (lambda: widgets.GlancingExplorer({}), "nothing to choose k from"),
        (lambda: widgets.GlancingExplorer({3: TABLES[2]}), "a joint distribution"),
        (lambda: widgets.BlockDesigner({}), "nothing to choose head from"),
        (lambda: widgets.BlockDesigner({"falcon": (2, {})}), "the card has none"),
        (lambda: widgets.StopExplorer({}, EXITS, {}, {}), "nothing to choose exit from"),
        (
            lambda: widgets.StopExplorer({**traces(), "x": traces()["own"]}, EXITS, {}, {}),
            "x has none",
        ),
        (lambda: widgets.MaskExplorer([]), "nothing to choose tree from"),
        (lambda: widgets.MaskExplorer(["0.1.0"]), "level order"),
        (lambda: widgets.MaskExplorer(["4-x"]), "4-x"),
        (lambda: widgets.RootsExplorer([Fraction(1, 2)] * 3), "sum to 1"),
        (lambda: widgets.RootsExplorer(rates=[0.5]), "rates must be 4 values"),
    ],
)
def test_data_that_cannot_be_shown(call, message):
    with pytest.raises(ValueError, match=message):
        call()
