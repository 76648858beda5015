"""Options that do not go together, or do not fit the models, are refused in one line.

What a single option may be, by its type and range, is in tests/test_options.py.
"""

from __future__ import annotations

import numpy as np
import pytest
import ranked
import test_falcon_drafts
import test_kangaroo_drafts
import tiny

import specwb
from specwb.drafters.diffuspec_parts.ngram import NGram
from specwb.models.checkpoint import HeadError
from specwb.models.decision import DecisionModel
from specwb.models.eagle import Eagle3Head, EagleHead, eagle_config
from specwb.models.medusa import MedusaHeads

BY_DEPTH = specwb.Tree.parents([-1, 0, 1, 0])
ROOT = specwb.Tree.chain(0)
LOSSY = {"roots": 2, "lossy": True}
DEEP = test_falcon_drafts.head(2, "lstm", 3)
OTHER = Eagle3Head(eagle_config(tiny.target()), 32, (0, 2, 5), 10, 64)
NAME = "'LlamaForCausalLM'"

ROWS: dict[str, list[tuple[dict, str]]] = {
    "diffuspec": [
        ({"k_min": 9}, "k_min=9 is more than k_max=8"),
        ({"draw": "sample", "lam": 0.2}, "lam=0.2 has no effect with draw=sample"),
        ({"k": 3, "k_max": 9}, "k_max=9 has no effect with k"),
        ({"ngram": "onlin"}, "both, own, online, none or a file, and there is no file onlin"),
        ({"paths": 2}, "paths are sampled ones, with draw=sample"),
        ({"draw": "sample", "steps": 2}, "draw=sample is for one forward"),
        ({"k": 200, "tree": True, "beams": 60}, "60 paths of 200 tokens have more than"),
        ({"ngram": "small.npz"}, f"counts 10 tokens, {NAME} has 64"),
        ({"ngram": "broken.npz"}, "broken.npz"),
        ({"rule": "rejection"}, "point"),
    ],
    "easyspec": [
        ({"n": 6}, "n=6 is more than its 6 layers allow: n=5 has all that do not stand alone"),
        ({"groups": "1-3", "n": 3}, "groups says which layers run side by side; leave n out"),
        ({"groups": "1-3.3-5"}, "a layer is in one group; layer 3 is in two"),
        ({"groups": "3-1"}, "groups must be ranges such as 1-3.4-6"),
        ({"groups": "1-6"}, "there are layers 0..5; got the group 1-6"),
        ({"groups": [1, 2]}, "groups must be ranges such as 1-3.4-6"),
        ({"tree": "0.1.0"}, "give one tree for all rows, its nodes in level order"),
        ({"width": 65}, "65 nodes per level but the draft model's vocabulary has 64 tokens"),
        ({"width": 4, "tree": (2, 2)}, "width makes a tree of its own"),
        ({"tree": (2, 2), "gamma": 3}, "a static tree has its own depth; leave gamma out"),
        ({"execution": "streams"}, "execution=streams needs a CUDA device"),
        ({"execution": "ranks"}, "execution=ranks needs several processes"),
        ({"draft": tiny.draft(), "n": 2}, "its 3 layers make no group of two"),
    ],
    "falcon": [
        ({"passes": 1, "tree": (2, 2, 1)}, "make trees of depth 2 at most, this one has 3"),
        ({"tree": ROOT}, "one tree for all rows, of at least one candidate"),
        ({"tree": BY_DEPTH}, "its nodes in level order"),
        ({"tree": (65,)}, "65 children per node but the head's vocabulary has 64 tokens"),
        ({"head": DEEP}, "need a head of at most two layers, this one has 3; use align=left"),
        ({"tree": (2, 2), "rule": "traversal"}, "one shared list of children"),
        ({"head": EagleHead(eagle_config(tiny.target()), 32)}, "or a loaded FalconHead"),
    ],
    "falcon_dynamic": [
        ({"head": DEEP}, "need a head of at most two layers, this one has 3; use align=left"),
        ({"top": 64, "head": test_falcon_drafts.head(3)}, "262144 combinations, a tree at most"),
        ({"nodes": 4}, "4 levels of 4 tokens each make trees of 5 to 101 nodes, got nodes=4"),
    ],
    "kangaroo": [
        ({"eta": 0, "stop": "entropy"}, "stop has no effect with eta=0"),
        ({"exit": 2}, "the adapter reads the states of layer 1, not of layer 2"),
        ({"head": test_kangaroo_drafts.head(3)}, f"exit layer 3, but {NAME} has 3 layers"),
        ({"top": 3}, "top and nodes are of tree=true, a chain has none"),
        ({"gamma": 3, "tree": (2, 2)}, "a static tree has its own depth; leave gamma out"),
        ({"tree": True, "stop": "entropy"}, "stop=entropy is for chains and static trees"),
        ({"tree": True, "nodes": 4}, "make trees of 7 to 25 nodes, got nodes=4"),
    ],
    "mcsd_ti": [
        ({"roots": 2}, "several roots change the output's distribution"),
        ({**LOSSY, "draw": "top"}, "are drawn without or with replacement, got draw='top'"),
        ({**LOSSY, "tree": tiny.LOPSIDED}, "below several roots give children per node by level"),
        ({**LOSSY, "rule": "rrsw"}, "candidates are ROOTS"),
        ({"rule": "longest"}, "'longest' is made for ROOTS"),
        ({"threshold": 0.3}, "threshold has no effect with stop=none"),
        ({"stop": "soft"}, "has no decision model of its own; name one with head="),
        ({"stop": "top", "head": DecisionModel(32)}, "stop=top has none"),
        ({"stop": "soft", "head": DecisionModel(48)}, "reads 48 numbers"),
        ({"stop": "top", "tree": (2, 1), "draw": "with", "rule": "gbv"}, "lossless for IID_PATHS"),
    ],
    "recycling": [
        ({"tree": ROOT}, "one tree for all rows, of at least one candidate"),
        ({"tree": BY_DEPTH}, "its nodes in level order"),
        ({"tree": (65,)}, "65 children per node but the vocabulary has 64 tokens"),
    ],
    "medusa": [
        ({"tree": (1, 1, 1, 1)}, "a tree of depth 4 needs 4 heads, there are 3"),
        ({"tree": (65,)}, "65 children per node but the head's vocabulary has 64 tokens"),
        ({"head": 3}, "head must be a folder, a hub id or a loaded MedusaHeads, got 3"),
        ({"head": MedusaHeads(16, 64)}, "hidden size 16, 64 tokens"),
        ({"head": MedusaHeads(32, 64).double()}, "the head is float64 on cpu"),
    ],
    "eagle": [
        ({"tree": BY_DEPTH}, "its nodes in level order"),
        ({"head": tiny.head("eagle3"), "tree": (49,)}, "the head's vocabulary has 48 tokens"),
    ],
    "eagle2": [
        ({"nodes": 9, "depth": 2, "top": 2}, "make trees of 3 to 7 nodes, got nodes=9"),
    ],
    "eagle3": [
        ({"top": 49}, "eagle3: 49 children per node but the head's vocabulary has 48 tokens"),
        ({"head": tiny.head("eagle")}, "this is an EAGLE-1 head, whose dynamic tree is eagle2"),
        ({"head": OTHER}, "64 tokens and 5 layers or more; "),
    ],
}


def models(key: str) -> dict:
    """What the method needs to be built."""
    if key in ("sps", "mcsd_ti"):
        return {"draft": tiny.draft(), **({"stop": "none"} if key == "mcsd_ti" else {})}
    if key == "easyspec":
        return {"draft": ranked.deep()}
    if key == "recycling":
        return {}
    kinds = {"diffuspec": "diffusion", "eagle2": "eagle", "falcon_dynamic": "falcon"}
    return {"head": tiny.head(kinds.get(key, key))}


@pytest.mark.parametrize(
    ("key", "options", "words"),
    [(key, *row) for key, rows in ROWS.items() for row in rows],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_options_that_do_not_fit(key, options, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    NGram.count([np.arange(200) % 10], 10, 3).save(tmp_path / "small.npz")
    (tmp_path / "broken.npz").write_bytes(b"PK")
    with pytest.raises((specwb.MethodError, specwb.RuleMismatch)) as caught:
        specwb.method(key, tiny.target(), **{**models(key), **options})
    assert words in str(caught.value)
    assert "\n" not in str(caught.value).partition("got ")[0]


HEADS = [key for key, entry in specwb.METHODS.items() if "head" in entry.options]


@pytest.mark.parametrize("key", [key for key in HEADS if key != "mcsd_ti"])
def test_a_head_that_is_not_there(key):
    with pytest.raises(specwb.MethodError, match=r" head of its own; name one with head= \(specwb"):
        specwb.method(key, tiny.target())
    with pytest.raises(HeadError, match=r"folder \./nowhere does not exist"):
        specwb.method(key, tiny.target(), head="./nowhere")


@pytest.mark.parametrize("key", ["sps", "easyspec"])
def test_a_draft_model_that_does_not_fit(key):
    with pytest.raises(specwb.MethodError, match="no draft model of its own; name one with draft="):
        specwb.method(key, tiny.target())
    small = tiny.build("llama", num_hidden_layers=6, vocab_size=60)
    with pytest.raises(specwb.LoadError, match="vocabulary mismatch"):
        specwb.method(key, tiny.target(), draft=specwb.load(small))
    made = specwb.method(key, tiny.target(), draft=ranked.deep())
    with pytest.raises(specwb.LoadError, match="vocabulary mismatch"):  # when it meets another
        specwb.decode(specwb.load(small), [[1, 2, 3]], made, max_new_tokens=4)
