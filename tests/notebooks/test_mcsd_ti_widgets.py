"""The views of sliced masks, of rules that stop and of several roots show the library's masks,
rounds and laws."""

from __future__ import annotations

from fractions import Fraction
from statistics import fmean

import numpy as np
import pytest
import tiny
from drawn import shown

import specwb
from specwb import Tree
from specwb.analysis.roots import first_stays, kept_root
from specwb.drafters.stopping import Entropy, Top
from specwb.evaluation.exits import Rounds, every_round
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
    assert view.summary.startswith(
        f"tree {name}, {built.D} of {whole.D} levels: {built.n} of {whole.n} nodes, the leading "
        f"{built.n} x {built.n} block"
    )
    assert "equal to a tree of" in view.summary
    assert "NOT" not in view.summary
    assert view.summary.endswith(f"so it stands at position +{built.D}")


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


@pytest.fixture(scope="module")
def rounds() -> Rounds:
    method = specwb.method(
        "mcsd_ti", tiny.target(), draft=tiny.draft(), tree=(2, 1, 1, 1), stop="none"
    )
    return every_round(
        tiny.target(), tiny.PROMPTS, method, {"top": Top(), "entropy": Entropy()}, tokens=16
    )


def costs(depth: int = 4) -> dict[str, list[float]]:
    base = [1 + 0.2 * d for d in range(1, depth + 1)]
    return {"top": base, "entropy": [c + 0.05 for c in base], "fixed depth": base}


@pytest.mark.parametrize(
    ("rule", "threshold", "levels"),
    [("top", 0.5, 4), ("entropy", 0.25, 3), ("fixed depth", 0.4, 2), ("top", 1.0, 4)],
)
def test_rounds_under_a_rule(rounds, rule, threshold, levels):
    view = StopRulesExplorer(rounds, costs())
    view.rule.value, view.threshold.value, view.levels.value = rule, threshold, levels
    name, eta = ("top", 0.0) if rule == "fixed depth" else (rule, threshold)
    found = rounds.simulate(name, eta, levels)
    assert view.rounds == found
    assert view.speed == pytest.approx(
        (1 + fmean(found.kept)) / fmean(costs()[rule][d - 1] for d in found.drafted)
    )
    assert (
        f"{fmean(found.drafted):.2f} levels drafted a round, {fmean(found.kept):.2f} kept + 1 = "
        f"{found.cr:.2f} tokens" in view.summary
    )
    assert (
        f"{fmean(found.kept) / fmean(found.drafted):.2f} of the levels drafted are kept; "
        f"predicted speedup {view.speed:.2f}x" in view.summary
    )
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
    assert view.best("fixed depth") == (pytest.approx(1.6), 0.0, 2)
    assert shown(view)["data"][3]["y"] == pytest.approx([4 / 3, 1.6], abs=1e-4)


def test_the_best_of_a_rule_is_the_largest_of_its_points(rounds):
    view = StopRulesExplorer(rounds, costs())
    points = {t["name"]: t["y"] for t in shown(view)["data"]}
    for rule in ("top", "entropy", "fixed depth"):
        speed, eta, levels = view.best(rule)
        assert speed == pytest.approx(max(points[rule]), abs=1e-4)
        assert speed == view.predicted(rule, view.simulated(rule, eta, levels))


def test_rounds_shown_are_those_of_a_decoding(rounds):
    view = StopRulesExplorer(rounds, costs(), rule="top", threshold=0.2)
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
    assert " ".join(f"{float(x):.3f}" for x in distribution) in view.summary
    assert (
        f"{float(view.tv):.3f} from the target's; another than the first root stays with "
        f"{float(1 - first_stays(P, lengths, W)):.3f}" in view.summary
    )
    assert (view.tv == 0) == (W == 1)


def test_controls_and_what_is_missing(rounds):
    for view in (MaskExplorer(), StopRulesExplorer(rounds, costs()), RootsExplorer()):
        controls = [
            c
            for row in view.children
            for c in getattr(row, "children", ())
            if hasattr(c, "description")
        ]
        assert controls
        assert all(c.description for c in controls)
        assert all(not getattr(c, "continuous_update", False) for c in controls)
        assert view.children[-2].value.count(view.summary[:40]) == 1
    for call, message in (
        (lambda: MaskExplorer([]), "one or more shapes"),
        (lambda: MaskExplorer(["0.1.0"]), "level order"),
        (lambda: MaskExplorer(["4-x"]), "4-x"),
        (lambda: StopRulesExplorer(rounds, {"top": [1.0] * 4}), "entropy"),
        (lambda: StopRulesExplorer(rounds, costs(3)), "4 numbers"),
        (lambda: RootsExplorer([Fraction(1, 2)] * 3), "sum to 1"),
        (lambda: RootsExplorer(rates=[0.5]), "a rate for each"),
    ):
        with pytest.raises(ValueError, match=message):
            call()
    assert np.isfinite(StopRulesExplorer(rounds, costs()).speed)
