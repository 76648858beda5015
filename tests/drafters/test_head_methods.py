"""Methods with trained heads: which tree they take, and what they refuse before any work."""

from __future__ import annotations

import pytest
import tiny
import torch

import specwb
from specwb.drafters.eagle import EAGLE_TREE
from specwb.drafters.heads import measured_tree
from specwb.models.checkpoint import HeadError
from specwb.models.eagle import Eagle3Head, EagleHead, eagle_config
from specwb.models.medusa import MedusaHeads


def wrong_size(kind: str):
    other = specwb.load(tiny.build("llama", hidden_size=16))
    return MedusaHeads(16, 64) if kind == "medusa" else EagleHead(eagle_config(other), 16)


HEADLESS = [
    ("medusa", {}, "has no medusa head of its own; name one with head= .*specwb train medusa"),
    ("eagle", {}, "has no eagle head of its own"),
    ("eagle2", {}, "has no eagle head of its own"),
    ("eagle3", {}, "has no eagle3 head of its own"),
    (
        "medusa",
        {"head": 3},
        "medusa: head must be a folder, a hub id or a loaded MedusaHeads, got 3",
    ),
]
BAD = [
    ("medusa", {"tree": (1, 1, 1, 1)}, "medusa: a tree of depth 4 needs 4 heads, there are 3"),
    (
        "medusa",
        {"tree": (65,)},
        "medusa: 65 children a node but the head's vocabulary has 64 tokens",
    ),
    ("medusa", {"tree": specwb.Tree.chain(0)}, "of at least one candidate"),
    ("medusa", {"tree": "x"}, "medusa: tree must be children a node by level"),
    ("medusa", {"nodes": 1}, "medusa: nodes must be an integer in 2..4096, got 1"),
    ("medusa", {"head": "eagle"}, "head must be a folder, a hub id or a loaded MedusaHeads"),
    ("eagle", {"tree": specwb.Tree.parents([-1, 0, 1, 0])}, "its nodes in level order"),
    ("eagle", {"tree": specwb.Tree([[-1, 0], [-1, -1]])}, "one tree for all rows"),
    (
        "eagle",
        {"draw": "best"},
        "eagle: draw must be one of without, with, top, coupled, greedy, got 'best'",
    ),
    ("eagle", {"draw": "coupled", "tree": (2, 2)}, "eagle: draw=coupled couples whole paths"),
    (
        "eagle",
        {"head": "eagle3", "tree": (49,)},
        "eagle: 49 children a node but the head's vocabulary has 48 tokens",
    ),
    ("eagle", {"head": "medusa"}, "head must be a folder, a hub id or a loaded EagleHead"),
    ("eagle2", {"top": 65}, "eagle2: 65 children a node but the head's vocabulary has 64 tokens"),
    ("eagle2", {"depth": 0}, "eagle2: depth must be an integer >= 1, got 0"),
    (
        "eagle2",
        {"nodes": 9, "depth": 2, "top": 2},
        "eagle2: 2 levels of 2 tokens each make trees of 3 to 7 nodes, got nodes=9",
    ),
    ("eagle2", {"nodes": 4, "depth": 4}, "eagle2: .* got nodes=4"),
    ("eagle3", {"top": 49}, "eagle3: 49 children a node but the head's vocabulary has 48 tokens"),
    ("eagle3", {"top": 2.5}, "eagle3: top must be an integer >= 1, got 2.5"),
]


@pytest.mark.parametrize(("key", "options", "message"), HEADLESS)
def test_no_head_is_said(key, options, message):
    with pytest.raises(specwb.MethodError, match=message):
        specwb.method(key, tiny.target(), **options)


@pytest.mark.parametrize(("key", "options", "message"), BAD)
def test_settings_that_cannot_be_used(key, options, message):
    head = tiny.head(options.get("head", "eagle" if key == "eagle2" else key))
    with pytest.raises(specwb.MethodError, match=message):
        specwb.method(key, tiny.target(), **{**options, "head": head})


def test_a_head_folder_that_is_not_there():
    with pytest.raises(HeadError, match=r"folder \./nowhere does not exist"):
        specwb.method("medusa", tiny.target(), head="./nowhere")


@pytest.mark.parametrize("key", ["medusa", "eagle", "eagle2"])
def test_a_head_of_another_targets_size(key):
    with pytest.raises(
        specwb.MethodError, match=r"for a target of hidden size 16, 64 tokens .* has 32, 64 and 3"
    ):
        specwb.method(key, tiny.target(), head=wrong_size(key))


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


@pytest.mark.parametrize("key", ["medusa", "eagle", "eagle3"])
def test_a_head_of_another_precision(key):
    half = specwb.load(tiny.build("llama").to(torch.bfloat16))
    with pytest.raises(
        specwb.MethodError,
        match=r"the head is float32 on cpu, .* is bfloat16 on cpu; save the head",
    ):
        specwb.method(key, half, head=tiny.head(key))


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


def test_a_measured_tree_is_no_deeper_than_there_are_heads():
    carded = MedusaHeads(32, 64, heads=3)
    carded.card = {"held_out": {"a": {"rank": [[0.9, 0.0]] * 4}}}
    assert specwb.method("medusa", tiny.target(), head=carded, nodes=5).drafter.tree.D == 3


def test_the_published_tree_of_eagle():
    assert EAGLE_TREE.n == 26
    assert [stop - start for start, stop in EAGLE_TREE.levels] == [1, 4, 8, 8, 3, 2]
    assert EAGLE_TREE.widths == (4, 3, 3, 3, 2)
    assert (
        specwb.method(
            "eagle", tiny.target(), head=tiny.head("eagle"), tree="published"
        ).drafter.tree.host
        == EAGLE_TREE.host
    )
