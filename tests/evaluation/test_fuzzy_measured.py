"""What fuzzy execution changes, measured: cosines, the drift of a cache, times."""

from __future__ import annotations

from itertools import pairwise

import pytest
import tape
import tiny
import torch
from torch.nn import functional as F

import specwb
from specwb.evaluation import fuzzy
from specwb.models.fuzzy import Groups, grouping

LAYERS = 6


@pytest.fixture(scope="module", params=["llama", "qwen3"])
def pair(request) -> tuple[specwb.Target, specwb.Target]:
    target = specwb.load(tiny.build(request.param, seed=tiny.SEEDS[request.param], num_hidden_layers=LAYERS))
    return target, specwb.load(tiny.perturbed(target.model, 0.02))


@pytest.fixture(scope="module")
def windows() -> torch.Tensor:
    return torch.randint(tiny.VOCABULARY, (2, 16), generator=torch.Generator().manual_seed(0))


def cosine(a: torch.Tensor, b: torch.Tensor) -> float:
    return F.cosine_similarity(a.double(), b.double(), dim=-1).mean().item()


def test_layers_alone_change_nothing_and_groups_do(pair, windows):
    alone = fuzzy.similarity(pair[1], windows, grouping(LAYERS, 1))
    assert set(alone) == set(fuzzy.KINDS)
    assert all(x == pytest.approx(1, abs=1e-9) for found in alone.values() for x in found)
    found = fuzzy.similarity(pair[1], windows, grouping(LAYERS, 3))  # 0; 1, 2; 3, 4; 5
    assert all(len(x) == LAYERS for x in found.values())
    for kind, x in found.items():
        # a group's first layer reads what it would, as long as nothing above it was fuzzy
        exact = 3 if kind == "hidden" else 2
        assert x[:exact] == pytest.approx([1] * exact, abs=1e-9)
        assert max(x[exact:]) < 0.9999
    whole = fuzzy.similarity(pair[1], windows, grouping(LAYERS, 3), whole=True)
    assert whole["hidden"][3] < found["hidden"][3], "MLPs side by side are further from exact"


def test_cosines_are_those_of_the_librarys_states(pair, windows):
    draft, groups = pair[1], ((0,), (1, 2), (3,), (4,), (5,))
    states = [tiny.states(draft, windows, [i]) for i in range(LAYERS + 1)]
    assert fuzzy.consecutive(draft, windows) == pytest.approx([cosine(a, b) for a, b in pairwise(states)], abs=1e-6)
    found = fuzzy.similarity(draft, windows, groups)
    layer = draft.model.model.layers[2]
    with torch.no_grad():
        exact, read = (layer.input_layernorm(states[i]) for i in (2, 1))
        for kind in "qkv":
            project, norm = getattr(layer.self_attn, f"{kind}_proj"), getattr(layer.self_attn, f"{kind}_norm", None)
            made = [project(x) for x in (exact, read)]
            if norm is not None:
                made = [norm(x.unflatten(-1, (-1, draft.backbone.head_dim))).flatten(-2) for x in made]
            assert found[kind][2] == pytest.approx(cosine(*made), abs=1e-6)


def test_keys_and_values_are_as_similar_as_in_the_caches(pair, windows):
    stack, groups = pair[1].backbone, grouping(LAYERS, 4)
    rows, m = windows.shape
    at, caches = torch.arange(m).expand(rows, m), [stack.cache(rows, m) for _ in range(2)]
    with torch.inference_mode():
        for cache, run in zip(caches, (stack.run, Groups(groups).on(stack)), strict=True):
            run(stack.embed(windows), at, at, cache, m, None, causal=True)
    found = fuzzy.similarity(pair[1], windows, groups)
    for kind, half in (("k", 0), ("v", 1)):  # keys lie there rotated
        exact, made = (cache.data.chunk(2, 3)[half].flatten(3) for cache in caches)
        assert found[kind] == pytest.approx([cosine(a, b) for a, b in zip(exact, made, strict=True)], abs=1e-6)


def test_calibration_removes_the_drift(pair):
    target, draft = pair
    for spec in ("easyspec:gamma=3", "easyspec:gamma=2,width=3"):
        found = fuzzy.drift(target, tiny.PROMPTS, specwb.method(spec, target, draft=draft), rounds=4)
        assert [one["round"] for one in found] == [1, 2, 3, 4]
        assert max(x for one in found for kind in ("key", "value") for x in one[f"{kind}_error"]) < 1e-5
        assert min(x for one in found for kind in ("key", "value") for x in one[f"{kind}_cosine"]) > 1 - 1e-9
        drifted = fuzzy.drift(target, tiny.PROMPTS, specwb.method(f"{spec},calibrate=false", target, draft=draft), rounds=4)
        for one in drifted:
            assert max(*one["key_error"][:2], *one["value_error"][:2]) < 1e-5, "what lies before the first fuzzy input"
            assert min(*one["key_error"][2:], *one["value_error"][2:]) > 1e-2
    assert max(x for one in fuzzy.drift(target, [[5]], specwb.method("sps", target, draft=draft), 3) for x in one["key_error"]) < 1e-5


def test_drift_is_of_the_rounds_that_the_engine_decodes(pair):
    target, draft = pair
    method = specwb.method("easyspec:gamma=3,calibrate=false", target, draft=draft)
    found = fuzzy.drift(target, tiny.PROMPTS[:1], method, rounds=4)
    out = specwb.decode(target, tiny.PROMPTS[:1], method, max_new_tokens=17)
    kept = out.accepted_lengths[0][:4]
    assert [one["accepted"] for one in found] == kept
    assert [one["places"] for one in found] == [1 + sum(k + 1 for k in kept[:i]) for i in range(4)]


def test_drift_is_refused_without_a_draft_model(pair):
    for spec, rounds in (("pld", 3), ("ar", 3)):
        with pytest.raises(ValueError, match="one draft model"):
            fuzzy.drift(pair[0], tiny.PROMPTS, spec, rounds)
    with pytest.raises(ValueError, match="rounds >= 1"):
        fuzzy.drift(pair[0], tiny.PROMPTS, specwb.method("sps", pair[0], draft=pair[1]), 0)


def test_times_of_all_parts():
    draft = specwb.load(tiny.build("llama", num_hidden_layers=LAYERS))
    for tokens in (1, 3):
        found = fuzzy.layer_times(draft, tokens, extent=32, repeats=3)
        assert set(found) == {"attention", "mlp", "head", "plain", "fused", "simulation"}
        assert min(found.values()) > 0
        assert found["plain"] > found["mlp"]
    for bad in ({"tokens": 0}, {"tokens": 33, "extent": 32}, {"repeats": 0}):
        with pytest.raises(ValueError, match="tokens must be in"):
            fuzzy.layer_times(draft, **bad)


def test_times_of_drafting(monkeypatch):
    target = specwb.load(tiny.build("llama", seed=2, num_hidden_layers=LAYERS))
    draft = specwb.load(tiny.perturbed(target.model, 0.02))
    methods = {spec: specwb.method(spec, target, draft=draft) for spec in ("easyspec:n=1,calibrate=false", "easyspec", "easyspec:width=3")}
    found = fuzzy.draft_times(target, methods, [1, 2, 3], 2)
    assert set(found) == set(methods)
    assert all(set(ms) == {"eager"} and ms["eager"] > 0 for ms in found.values())
    monkeypatch.setitem(fuzzy.RECORDERS, "cpu", tape.Tape)
    found = fuzzy.draft_times(target, methods, [1, 2, 3], 2)
    assert all(set(ms) == {"eager", "graph"} and ms["graph"] > 0 for ms in found.values())
    with pytest.raises(ValueError, match="repeats must be >= 1"):
        fuzzy.draft_times(target, methods, [1], 0)
