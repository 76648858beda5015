"""Measurements of what fuzzy execution changes: cosines, the drift of a cache, times."""

from __future__ import annotations

from itertools import pairwise

import pytest
import tape
import tiny
import torch
from torch.nn import functional as F

import specwb
from specwb.lab.evaluation import fuzzy
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


def test_calibration_removes_the_drift(pair):
    target, draft = pair
    for spec in ("easyspec:gamma=3", "easyspec:gamma=2,width=3"):
        method = specwb.method(spec, target, draft=draft)
        steps = fuzzy.drift(target, tiny.PROMPTS, method, rounds=4)
        assert [step["round"] for step in steps] == [1, 2, 3, 4]
        for step in steps:
            assert max(*step["key_error"], *step["value_error"]) < 1e-5
            assert min(*step["key_cosine"], *step["value_cosine"]) > 1 - 1e-9
        uncalibrated = specwb.method(f"{spec},calibrate=false", target, draft=draft)
        for step in fuzzy.drift(target, tiny.PROMPTS, uncalibrated, rounds=4):
            before_fuzzy = max(*step["key_error"][:2], *step["value_error"][:2])
            assert before_fuzzy < 1e-5, "layers before the first fuzzy input are exact"
            assert min(*step["key_error"][2:], *step["value_error"][2:]) > 1e-2
    plain = fuzzy.drift(target, [[5]], specwb.method("sps", target, draft=draft), 3)
    assert max(x for step in plain for x in step["key_error"]) < 1e-5


def test_drift_is_of_the_steps_that_the_engine_decodes(pair):
    target, draft = pair
    method = specwb.method("easyspec:gamma=3,calibrate=false", target, draft=draft)
    steps = fuzzy.drift(target, tiny.PROMPTS[:1], method, rounds=4)
    out = specwb.decode(target, tiny.PROMPTS[:1], method, max_new_tokens=17)
    accepted = out.accepted_lengths[0][:4]
    assert [step["accepted"] for step in steps] == accepted
    positions = [1 + sum(a + 1 for a in accepted[:i]) for i in range(4)]
    assert [step["places"] for step in steps] == positions


def test_times_of_all_parts():
    draft = specwb.load(tiny.build("llama", num_hidden_layers=LAYERS))
    for tokens in (1, 3):
        times = fuzzy.layer_times(draft, tokens, extent=32, repeats=3)
        assert set(times) == {"attention", "mlp", "head", "plain", "fused", "simulation"}
        assert min(times.values()) > 0
        assert times["plain"] > times["mlp"]


def test_times_of_drafting(monkeypatch):
    target = specwb.load(tiny.build("llama", seed=2, num_hidden_layers=LAYERS))
    draft = specwb.load(tiny.perturbed(target.model, 0.02))
    methods = {
        spec: specwb.method(spec, target, draft=draft)
        for spec in ("easyspec:n=1,calibrate=false", "easyspec", "easyspec:width=3")
    }
    times = fuzzy.draft_times(target, methods, [1, 2, 3], 2)
    assert set(times) == set(methods)
    assert all(set(ms) == {"eager"} and ms["eager"] > 0 for ms in times.values())
    monkeypatch.setattr("specwb.models.products.compiled_pass", lambda: None)
    monkeypatch.setitem(fuzzy.RECORDERS, "cpu", tape.Tape)
    times = fuzzy.draft_times(target, methods, [1, 2, 3], 2)
    assert all(set(ms) == {"eager", "graph"} and ms["graph"] > 0 for ms in times.values())
