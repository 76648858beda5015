"""What a hook or a patched forward adds is not run here, so a model that has one is refused."""

from __future__ import annotations

import pytest
import tiny
import torch
from torch.nn.utils import parametrize

import specwb
from specwb.models.backbone import check_unhooked

PLACES = ("", "model", "model.layers.1", "model.layers.0.mlp", "model.norm", "lm_head")


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


def test_hooks_of_the_library_that_copy_outputs_are_none(target):
    target.model(torch.tensor([[1, 2]]), output_hidden_states=True)
    assert any(module._forward_hooks for module in target.model.modules()), "it puts them there"
    check_unhooked(target.model)
