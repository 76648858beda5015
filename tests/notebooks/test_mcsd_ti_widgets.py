"""The views of sliced masks and of several roots show the library's masks and distributions."""

from __future__ import annotations

from fractions import Fraction

import pytest
from drawn import numbers, shown

from specwb import Tree
from specwb.analysis.roots import first_stays, kept_root
from specwb.verify import exact
from specwb.widgets import MaskExplorer, RootsExplorer


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
        (lambda: RootsExplorer([Fraction(1, 2)] * 3), "sum to 1"),
        (lambda: RootsExplorer(rates=[0.5]), "rates must be 4 values"),
    ):
        with pytest.raises(ValueError, match=message):
            call()
