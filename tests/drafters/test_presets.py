"""Settings of papers by name: they are what they say, and can be built; and the tree that a method
takes where none is given."""

from __future__ import annotations

import pytest
import tiny

import specwb
from specwb.drafters.eagle import EAGLE_TREE
from specwb.drafters.heads import measured_tree
from specwb.drafters.medusa import MEDUSA_TREE
from specwb.engine.methods import METHODS, read_spec

EVERY = [(key, name) for key, entry in METHODS.items() for name in entry.presets]


@pytest.mark.parametrize(("key", "name"), EVERY)
def test_a_preset_names_options_that_there_are(key, name):
    preset = METHODS[key].presets[name]
    entry, _, options = read_spec(f"{key}:preset={name}", None, {})
    assert options == {k: v for k, v in preset.options.items() if k != "rule"}
    entry.check(options)
    assert len(preset.source) > 10


def test_published_trees_have_their_published_sizes():
    """Candidates by depth, as the codes' lists have them."""

    def by_depth(tree):
        return [int((tree.depth[0] == d).sum()) for d in range(1, tree.D + 1)]

    assert by_depth(MEDUSA_TREE) == [10, 28, 23, 2]
    assert by_depth(EAGLE_TREE) == [4, 8, 8, 3, 2]
    assert (MEDUSA_TREE.n, EAGLE_TREE.n) == (64, 26)


def test_a_preset_is_its_options_and_what_is_given_beside_it_counts():
    target, draft = tiny.target(), tiny.draft()
    preset = specwb.method("mcsd:preset=published", target, draft=draft)
    written = specwb.method("mcsd:tree=4-2-2-1,draw=without", target, draft=draft)
    assert preset.key == written.key == "mcsd:tree=4-2-2-1"
    other = specwb.method("mcsd", target, draft=draft, preset="published", tree=(2, 1))
    assert other.key == "mcsd:tree=2-1"
    mended = specwb.method("mcsd_ti:preset=published,rule=longest", target, draft=draft)
    assert mended.exactness is specwb.Exactness.LOSSY
    assert mended.key.endswith("rule=longest")
    with pytest.raises(specwb.MethodError, match="no preset 'x'; its presets: published, spectr"):
        specwb.method("mcsd:preset=x", target, draft=draft)


def test_the_tree_is_the_best_under_the_measured_accuracies():
    """Of two domains the mean; as deep as there are heads."""
    deep = {
        "held_out": {
            "a": {"rank": [[0.9, 0.05], [0.8, 0.1], [0.7, 0.1]]},
            "b": {"rank": [[0.7, 0.05], [0.8, 0.1], [0.7, 0.1]]},
        }
    }
    wide = {"held_out": {"a": {"rank": [[0.5, 0.45], [0.1, 0.05], [0.1, 0.0]]}}}
    split = {
        "held_out": {
            "a": {"rank": [[1.0, 0.0], [0.0, 0.0]]},
            "b": {"rank": [[0.0, 1.0], [0.0, 0.0]]},
        }
    }
    assert measured_tree(deep, 4).host == ((-1, 0, 1, 2),)
    assert measured_tree(deep, 4, depth=2).D == 2
    assert measured_tree(wide, 3).host == ((-1, 0, 0),)
    assert measured_tree(split, 3).host == ((-1, 0, 0),)


def test_a_head_without_a_card_gets_the_tree_of_the_published_log():
    assert measured_tree({}, 10).n == 10
    assert measured_tree({}, 10).D > 1
    heads = tiny.head("medusa")
    assert specwb.method("medusa", tiny.target(), head=heads, nodes=6).drafter.tree.n == 6
