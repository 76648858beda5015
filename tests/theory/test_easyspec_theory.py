"""theory/14_easyspec.md: what its theorems say of the code. Times and bounds are in
tests/theory/test_layer_parallel.py."""

from __future__ import annotations

from functools import cache

import pytest
import tiny
import torch

import specwb
from specwb.core.tree import Tree
from specwb.drafters.easyspec import EasyDrafter
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


LAYERS, GROUPS = 6, ((0,), (1,), (2, 3, 4), (5,))


@cache
def pair() -> tuple[specwb.Target, specwb.Target]:
    """A deep draft and a target that is nearly the same; branches small enough for layers side by
    side to be about right."""
    made = tiny.build("llama", seed=4, num_hidden_layers=LAYERS)
    for name, weight in made.named_parameters():
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            weight.data *= 0.5
    return specwb.load(tiny.perturbed(made, 0.01)), specwb.load(made)


class Looked(EasyDrafter):
    """Every round: the text, how far its entries are off in every layer ``[L,length]``, and how
    many tokens were kept."""

    def propose(self, state, noise):
        text = state.tokens[0, : int(state.length)]
        draft = super().propose(state, noise)
        wanted = tiny.recomputed(self.backbone, text)
        off = (self.cache.data[:, 0, : len(text)] - wanted).abs().amax((-1, -2))
        self.seen.append({"text": text.tolist(), "off": off})
        return draft

    def observe(self, state, draft, verdict, scores):
        super().observe(state, draft, verdict, scores)
        self.seen[-1]["kept"] = int(verdict.accepted)


def looked(calibrate: bool = True, depth: int = 3, groups=GROUPS) -> Looked:
    return Looked(pair()[1], Tree.chain(depth), Groups(groups), calibrate)


def decoded(drafter: Looked, length: int) -> list[dict]:
    drafter.seen = []
    method = specwb.Method("looked", drafter, None, specwb.Exactness.LOSSLESS)
    list(specwb.rounds(pair()[0], [[3, 1, 4, 1, 5]], method, max_new_tokens=length))
    return drafter.seen


def test_entries_are_exact_up_to_the_first_layer_of_the_first_group():
    """Never calibrated, and off in every layer behind it and in none before."""
    for groups, exact in (
        (((0,), (1, 2), (3, 4), (5,)), 2),
        (GROUPS, 3),
        (((0, 1, 2), (3,), (4,), (5,)), 1),
    ):
        rounds = decoded(looked(False, groups=groups), 12)
        off = torch.stack([seen["off"].amax(-1) for seen in rounds]).amax(0)
        assert float(off[:exact].max()) < 1e-4
        assert float(off[exact:].min()) > 1e-3
