"""theory/14_easyspec.md: what its theorems say of the code. Times and bounds are in
tests/theory/test_layer_parallel.py."""

from __future__ import annotations

from functools import cache

import pytest
import tiny
import torch

from specwb.models.backbone import Backbone
from specwb.models.fuzzy import Groups
from specwb.models.place import Place

# ----------------------------------------------------------------------------- 14.8, whole layers


@cache
def scaled(eps: float) -> Backbone:
    """Branches multiplied by ``eps``, in float64."""
    made = tiny.build("llama", seed=4, num_hidden_layers=4).double()
    for name, weight in made.named_parameters():
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            weight.data *= eps
    return Backbone(made)


def test_side_by_side_is_right_to_first_order():
    """The error falls with the square of the branches' size; attentions side by side drop half the
    terms of whole layers."""
    tokens = torch.tensor([[3, 1, 4, 1, 5, 9, 2]])
    errors: dict[bool, list[torch.Tensor]] = {False: [], True: []}
    for eps in (1e-3, 5e-4):
        stack = scaled(eps)
        with torch.inference_mode():
            x = stack.embed(tokens)

            def out(run, stack=stack, x=x):
                return run(x, Place.text(1, 7), stack.cache(1, 7))[0]

            exact = out(stack.run)
            for parallel_mlp, found in errors.items():
                found.append(out(Groups(((0, 1, 2, 3),), parallel_mlp).on(stack)) - exact)
            # what the group adds is of the first order itself
            assert float((exact - x).norm()) > 20 * float(errors[True][-1].norm())
    for first, second in errors.values():
        assert float(first.norm() / second.norm()) == pytest.approx(4, rel=0.05)
    assert float(errors[False][1].norm()) < float(errors[True][1].norm())
