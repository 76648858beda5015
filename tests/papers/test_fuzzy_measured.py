"""Measurements of what fuzzy execution changes: cosines, the drift of a cache."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import tiny
import torch
from torch.nn import functional as F

import specwb
from specwb.lab.papers import easyspec as fuzzy
from specwb.models.fuzzy import grouping

LAYERS = 6


@pytest.fixture(scope="module", params=["llama", "qwen3"])
def pair(request) -> tuple[specwb.Target, specwb.Target]:
    target = specwb.load(
        tiny.build(request.param, seed=tiny.SEEDS[request.param], num_hidden_layers=LAYERS)
    )
    return target, specwb.load(tiny.perturbed(target.model, 0.02))


@pytest.fixture(scope="module")
def windows() -> torch.Tensor:
    return torch.randint(tiny.VOCABULARY, (2, 16), generator=torch.Generator().manual_seed(0))


def cosine(a: torch.Tensor, b: torch.Tensor) -> float:
    return F.cosine_similarity(a.double(), b.double(), dim=-1).mean().item()


def test_layers_alone_change_nothing_and_groups_do(pair, windows):
    single = fuzzy.similarity(pair[1], windows, grouping(LAYERS, 1))
    assert set(single) == set(fuzzy.KINDS)
    assert all(x == pytest.approx(1, abs=1e-9) for cosines in single.values() for x in cosines)
    groups = fuzzy.similarity(pair[1], windows, grouping(LAYERS, 3))  # 0; 1, 2; 3, 4; 5
    assert all(len(cosines) == LAYERS for cosines in groups.values())
    for kind, cosines in groups.items():
        # a group's first layer reads its exact input, as long as nothing above it was fuzzy
        exact = 3 if kind == "hidden" else 2
        assert cosines[:exact] == pytest.approx([1] * exact, abs=1e-9)
        assert max(cosines[exact:]) < 0.9999
    mlps = fuzzy.similarity(pair[1], windows, grouping(LAYERS, 3), whole=True)
    assert mlps["hidden"][3] < groups["hidden"][3], "MLPs side by side are further from exact"


def test_cosines_are_those_of_the_librarys_states(pair, windows):
    draft, groups = pair[1], ((0,), (1, 2), (3,), (4,), (5,))
    states = [tiny.states(draft, windows, [i]) for i in range(LAYERS + 1)]
    assert fuzzy.consecutive(draft, windows) == pytest.approx(
        [cosine(a, b) for a, b in pairwise(states)], abs=1e-6
    )
    cosines = fuzzy.similarity(draft, windows, groups)
    layer, dim = draft.model.model.layers[2], draft.backbone.head_dim
    with torch.no_grad():
        exact, group_input = (layer.input_layernorm(states[i]) for i in (2, 1))
        for kind in "qkv":
            project = getattr(layer.self_attn, f"{kind}_proj")
            norm = getattr(layer.self_attn, f"{kind}_norm", None)
            both = [project(x) for x in (exact, group_input)]
            if norm is not None:
                both = [norm(x.unflatten(-1, (-1, dim))).flatten(-2) for x in both]
            assert cosines[kind][2] == pytest.approx(cosine(*both), abs=1e-6)


@pytest.mark.parametrize("spec", ["easyspec:gamma=3", "easyspec:gamma=2,width=3"])
def test_calibration_removes_the_drift(pair, spec):
    target, draft = pair
    ways = [
        specwb.method(f"{spec},calibrate={on}", target, draft=draft) for on in ("true", "false")
    ]
    calibrated, not_ = (fuzzy.drift(target, tiny.PROMPTS, way, rounds=4) for way in ways)
    for step in calibrated:
        assert max(*step["key_error"], *step["value_error"]) < 1e-5
    for step in not_:
        for errors in (step["key_error"], step["value_error"]):
            assert max(errors[:2]) < 1e-5, "layers before the first fuzzy input are exact"
            assert min(errors[2:]) > 1e-2
    lengths = specwb.decode(target, tiny.PROMPTS, ways[1], max_new_tokens=17).accepted_lengths
    assert [step["accepted"] for step in not_] == np.mean([row[:4] for row in lengths], 0).tolist()
