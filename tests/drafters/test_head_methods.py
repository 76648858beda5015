"""Methods with trained heads: which tree they take, and what they refuse before any work."""

from __future__ import annotations

import pytest
import tiny

import specwb
from specwb.drafters.heads import measured_tree
from specwb.models.eagle import Eagle3Head, eagle_config


@pytest.mark.parametrize(
    ("features", "vocabulary"), [((0, 2, 5), 64), ((0, 1, 2), 65)], ids=["layers", "vocabulary"]
)
def test_a_head_of_another_targets_layers_or_vocabulary(features, vocabulary):
    head = Eagle3Head(eagle_config(tiny.target()), 32, features, 10, vocabulary)
    with pytest.raises(
        specwb.MethodError,
        match=f"{vocabulary} tokens and {max(features)} layers or more; .* has 32, 64 and 3",
    ):
        specwb.method("eagle3", tiny.target(), head=head)


# ------------------------------------------------------------------------------------------ trees


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
