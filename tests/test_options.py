"""Options as they are typed."""

from __future__ import annotations

import pytest

from specwb.options import MethodError, parse_value, shape, specs, spell
from specwb.tree import Tree


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("medusa,eagle", ["medusa", "eagle"]),
        ("mcsd:draw=top,tree=4-1 sps", ["mcsd:draw=top,tree=4-1", "sps"]),
        ("medusa,eagle:nodes=4,draw=top,sps:gamma=3 pld", ["medusa", "eagle:nodes=4,draw=top", "sps:gamma=3", "pld"]),
        (" a,  b ", ["a", "b"]),
        ("", []),
    ],
)
def test_methods_are_parted_by_spaces_and_commas(text, found):
    assert specs(text) == found


@pytest.mark.parametrize("tree", [Tree.chain(1), Tree.chain(4), Tree.branching(4), Tree.branching(4, 2, 2), Tree.parents([-1, 0, 0, 1, 1, 2])])
def test_a_tree_is_what_its_spelling_says(tree):
    assert shape("x", parse_value(spell(tree))).host == tree.host


@pytest.mark.parametrize("tree", ["4-x", 0.5, (0,), "0.7", ()])
def test_what_is_no_tree_is_refused(tree):
    if tree == ():
        assert shape("x", tree).n == 1
        return
    with pytest.raises(MethodError, match=r"^x: "):
        shape("x", tree)
