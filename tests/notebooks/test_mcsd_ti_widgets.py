"""The views of sliced masks, of rules that stop and of several roots show the library's masks,
rounds and laws."""

from __future__ import annotations

from fractions import Fraction
from statistics import fmean

import numpy as np
import pytest
import tiny
from drawn import numbers, shown
from explorers import costs, rounds

import specwb
from specwb import Tree
from specwb.analysis.roots import first_stays, kept_root
from specwb.evaluation.exits import Rounds
from specwb.verify import exact
from specwb.widgets import MaskExplorer, RootsExplorer, StopRulesExplorer


@pytest.mark.parametrize(
    ("name", "cut"),
    [("4-1-1-1-1", 0), ("4-1-1-1-1", 3), ("4-2-2-1", 2), ("4-2-1-1-1", 5), ("4-2-2-1", 5)],
)
def test_the_block_shown_is_the_cut_trees_mask(name, cut):
    view = MaskExplorer()
    view.tree.value, view.cut.value = name, cut
    ks = tuple(map(int, name.split("-")))
    whole, built = Tree.branching(*ks), Tree.branching(*ks[:cut])
    (cells,) = shown(view)["data"]
    assert [[v is not None for v in row] for row in cells["z"]] == whole.mask[0].tolist()
    assert [[v == 1 for v in row[: built.n]] for row in cells["z"][: built.n]] == built.mask[
        0
    ].tolist()
    assert sum(v == 1 for row in cells["z"] for v in row) == int(built.mask.sum())
    frames = [shape["x1"] for shape in shown(view)["layout"]["shapes"]]
    assert frames == [Tree.branching(*ks[:d]).n - 0.5 for d in range(len(ks) + 1)]
    assert f"tree {name}, {built.D} of {whole.D} levels: {built.n} of {whole.n}" in view.summary
    assert "NOT" not in view.summary
    assert numbers(view)[-1] == str(built.D)


def test_a_wrong_slice_is_told(monkeypatch):
    view = MaskExplorer()
    right = Tree.prefix

    def wrong(self, d):
        cut = Tree.branching(*self.widths[:d]) if d else right(self, 0)
        mask = cut.mask.clone()
        mask[0, -1, 0] = False
        return cut._with(mask=mask)

    monkeypatch.setattr(Tree, "prefix", wrong)
    view.cut.value = 3
    assert "NOT equal to" in view.summary


@pytest.mark.parametrize(
    ("rule", "threshold", "levels"),
    [("top", 0.5, 4), ("entropy", 0.25, 3), ("fixed depth", 0.4, 2), ("top", 1.0, 4)],
)
def test_rounds_under_a_rule(rule, threshold, levels):
    view = StopRulesExplorer(rounds(), costs())
    view.rule.value, view.threshold.value, view.levels.value = rule, threshold, levels
    name, eta = ("top", 0.0) if rule == "fixed depth" else (rule, threshold)
    found = rounds().simulate(name, eta, levels)
    assert view.rounds == found
    assert view.speed == pytest.approx(
        (1 + fmean(found.kept)) / fmean(costs()[rule][d - 1] for d in found.drafted)
    )
    drafted, kept = fmean(found.drafted), fmean(found.kept)
    said = (drafted, kept, 1, found.cr, kept / drafted, view.speed)
    assert list(map(float, numbers(view)[-7:-1])) == pytest.approx(said, abs=0.0051)
    drawn = {t["name"]: t for t in shown(view)["data"]}
    assert drawn["drafted"]["y"] == [
        round(found.drafted.count(d) / len(found.drafted), 4) for d in range(5)
    ]
    assert drawn["kept"]["y"] == [round(found.kept.count(d) / len(found.kept), 4) for d in range(5)]
    assert (drawn["chosen"]["x"], drawn["chosen"]["y"]) == (
        [round(found.mean_drafted, 4)],
        [round(view.speed, 4)],
    )
    assert drawn["fixed depth"]["x"] == [1, 2, 3, 4]


def test_a_speedup_is_of_all_rounds_together():
    """One round drafts two levels and keeps both, one drafts one and keeps none: 4 tokens for
    3 plain steps."""
    sure, kept = np.array([[0.9], [0.9], [0.9], [0.1]]), np.array([2, 1, 0, 0])
    two = Rounds({"top": sure}, kept, np.zeros(4, int), (1, 2, 3))
    prices = {"top": [1.0, 2.0], "fixed depth": [1.0, 1.25]}
    view = StopRulesExplorer(two, prices, threshold=0.5)
    assert (view.rounds.drafted, view.rounds.kept) == ([2, 1], [2, 0])
    assert view.speed == pytest.approx(4 / 3)
    # of the fixed depths, one level gives 4 tokens in three rounds, two give 4 for 2.5 steps
    assert shown(view)["data"][3]["y"] == pytest.approx([4 / 3, 1.6], abs=1e-4)


def test_the_best_fixed_depth_is_the_largest_of_its_points():
    view = StopRulesExplorer(rounds(), costs())
    points = {t["name"]: t["y"] for t in shown(view)["data"]}
    assert numbers(view)[-1] == f"{max(points['fixed depth']):.2f}"
    assert set(points) >= {"top", "entropy"}


def test_rounds_shown_are_those_of_a_decoding():
    view = StopRulesExplorer(rounds(), costs(), rule="top", threshold=0.2)
    out = specwb.decode(
        tiny.target(),
        tiny.PROMPTS[0],
        "mcsd_ti",
        draft=tiny.draft(),
        tree=(2, 1, 1, 1),
        stop="top",
        threshold=0.2,
        max_new_tokens=16,
        eos=(),
    )
    kept = [k for k, text in zip(view.rounds.kept, view.rounds.text, strict=True) if not text]
    assert out.accepted_lengths[0][:-1] == kept[: len(out.accepted_lengths[0]) - 1]


@pytest.mark.parametrize(
    ("W", "D", "rates"),
    [(1, 1, (0.2, 0.2, 0.9, 0.9)), (2, 1, (0.2, 0.2, 0.9, 0.9)), (4, 3, (0.5, 0.05, 1.0, 0.0))],
)
def test_the_root_that_stays(W, D, rates):
    view = RootsExplorer()
    view.roots.value, view.depth.value = W, D
    for slider, rate in zip(view.rates, rates, strict=True):
        slider.value = rate
    P = [Fraction(n, 10) for n in (4, 3, 2, 1)]
    exactly = [Fraction(round(100 * rate), 100) for rate in rates]
    lengths = [[*(a**n - a ** (n + 1) for n in range(D)), a**D] for a in exactly]
    distribution = kept_root(P, lengths, W)
    assert view.distribution == distribution
    assert view.tv == exact.tv(distribution, P)
    target, kept = shown(view)["data"]
    assert target["y"] == [0.4, 0.3, 0.2, 0.1]
    assert kept["y"] == pytest.approx([float(x) for x in distribution], abs=1e-4)
    stays = 1 - first_stays(P, lengths, W)
    said = [f"{float(x):.3f}" for x in (*distribution, view.tv, stays)]
    assert [x for x in numbers(view) if "." in x][4:] == said
    assert (view.tv == 0) == (W == 1)


def test_what_is_missing():
    for call, message in (
        (lambda: MaskExplorer([]), "nothing to choose tree from"),
        (lambda: MaskExplorer(["0.1.0"]), "level order"),
        (lambda: MaskExplorer(["4-x"]), "4-x"),
        (lambda: StopRulesExplorer(rounds(), {"top": [1.0] * 4}), "entropy"),
        (lambda: StopRulesExplorer(rounds(), costs(3)), "4 numbers"),
        (lambda: RootsExplorer([Fraction(1, 2)] * 3), "sum to 1"),
        (lambda: RootsExplorer(rates=[0.5]), "rates must be 4 values"),
    ):
        with pytest.raises(ValueError, match=message):
            call()
    assert np.isfinite(StopRulesExplorer(rounds(), costs()).speed)
