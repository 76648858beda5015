"""What a hook or a patched forward adds is not computed by the fast backbone, so a model that has
one is refused; by the generic one it is computed."""

from __future__ import annotations

import copy

import pytest
import tiny
import torch
from torch import nn
from torch.nn.utils import parametrize

import specwb

PLACES = ("", "model.layers.0.mlp", "model.norm")


@pytest.fixture(scope="module")
def target() -> specwb.Target:
    return specwb.load(tiny.build("llama"))


def keep(module, given, out=None):
    """A hook that changes nothing: whether it does cannot be known."""


def plug(target):
    ids, pld = torch.tensor([[1, 2]]), specwb.hf("pld")
    return target.model.generate(ids, max_new_tokens=2, pad_token_id=0, custom_generate=pld)


@pytest.mark.parametrize("before", [False, True], ids=["forward hook", "pre-hook"])
@pytest.mark.parametrize("path", PLACES)
def test_hooks_are_refused_by_name_after_loading_too(target, path, before):
    module = target.model.get_submodule(path)
    register = module.register_forward_pre_hook if before else module.register_forward_hook
    hook, named = register(keep), f"module {path or 'itself'!r} has a forward hook .keep."
    named = named if path else "module itself has a forward hook .keep."
    try:
        with pytest.raises(specwb.UnsupportedModel, match=named):
            specwb.rounds(target, [1])
        with pytest.raises(specwb.UnsupportedModel, match=named):
            plug(target)
        with pytest.raises(specwb.UnsupportedModel, match=named):
            specwb.load(target.model)
    finally:
        hook.remove()
    assert specwb.decode(target, [1], max_new_tokens=1).tokens


def test_a_patched_forward_and_a_parametrised_weight(target):
    layer = target.model.model.layers[1]
    layer.forward = layer.forward
    with pytest.raises(specwb.UnsupportedModel, match=r"layers\.1' has a forward of its own"):
        specwb.rounds(target, [1])
    del layer.forward
    parametrize.register_parametrization(layer.mlp.down_proj, "weight", torch.nn.Identity())
    with pytest.raises(specwb.UnsupportedModel, match=r"down_proj' has a parametrised weight"):
        specwb.rounds(target, [1])
    parametrize.remove_parametrizations(layer.mlp.down_proj, "weight")
    specwb.rounds(target, [1])


def weight(model):
    module = model.model.layers[1].self_attn.k_proj
    module.weight = nn.Parameter(module.weight * 2)


REPLACED = {
    "a weight": weight,
    "data": lambda model: setattr(
        model.model.layers[2].self_attn.v_proj.weight, "data", torch.ones(16, 32)
    ),
    "a norm": lambda model: setattr(model.model.layers[1], "input_layernorm", nn.LayerNorm(32)),
    "the layers": lambda model: setattr(model.model, "layers", model.model.layers[:2]),
    "the number type": lambda model: model.bfloat16(),
}


@pytest.mark.parametrize("what", REPLACED)
def test_what_is_replaced_after_loading_is_refused(what):
    """Of the weights, those of products that were fused; a generic target computes them."""
    target = specwb.load(tiny.build("llama"))
    generic = specwb.load(copy.deepcopy(target.model), generic=True)
    specwb.rounds(target, [1])
    REPLACED[what](target.model)
    with pytest.raises(
        specwb.UnsupportedModel, match="replaced, moved or cast after it was loaded"
    ):
        specwb.rounds(target, [1])
    again = specwb.load(target.model)
    specwb.rounds(again, [1])
    specwb.rounds(generic, [1])


def test_targets_of_one_model_share_its_fused_weights():
    model = tiny.build("llama", attention_bias=True, dtype=tiny.EXACT)
    first, second = specwb.load(model), specwb.load(model)
    for name in ("model.layers.1.self_attn.k_proj.bias", "model.layers.0.mlp.up_proj.weight"):
        model.get_parameter(name).data.mul_(3)
    ids = torch.tensor([[3, 1, 4, 1, 5]])
    settings = {"max_new_tokens": 12, "do_sample": False, "pad_token_id": 0}
    wanted = model.generate(ids, **settings)[0, 5:].tolist()
    for target in (first, second, copy.copy(first)):
        assert specwb.decode(target, ids[0].tolist(), max_new_tokens=12).tokens == [wanted]


def test_by_the_generic_way_hooks_are_computed():
    model = tiny.build("llama", dtype=tiny.EXACT)

    def steer(module, given, out):
        return out + 0.3

    model.model.layers[1].register_forward_hook(steer)
    model.lm_head.register_forward_hook(lambda module, given, out: out.roll(1, -1))
    target = specwb.load(model, generic=True)
    prompts = [[3, 1, 4, 1, 5], [9]]
    settings = {"max_new_tokens": 12, "do_sample": False, "pad_token_id": 0}
    expected = [
        model.generate(torch.tensor([p]), **settings)[0, len(p) :].tolist() for p in prompts
    ]
    draft = specwb.load(tiny.build("llama", dtype=tiny.EXACT))
    out = specwb.decode(target, prompts, "mcsd", tree=(2, 2), draft=draft, max_new_tokens=12)
    assert out.tokens == expected
    assert expected[0] != specwb.decode(draft, prompts[0], max_new_tokens=12).tokens[0]


def test_what_two_halves_of_a_forward_would_not_compute_is_refused_in_either_way():
    model = tiny.build("llama")
    target = specwb.load(model, generic=True)
    hook = model.register_forward_pre_hook(lambda module, given: None)
    with pytest.raises(specwb.UnsupportedModel, match="the model itself has a hook on its inputs"):
        specwb.rounds(target, [1])
    hook.remove()
    model.forward = model.forward
    with pytest.raises(specwb.UnsupportedModel, match="the model itself has a forward of its own"):
        specwb.rounds(target, [1])
