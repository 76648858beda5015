"""Heads that draft some of the target's tokens: what they learn, at which positions."""

from __future__ import annotations

import math

import numpy as np
import pytest
import tiny
import torch
from torch import Tensor, nn

import specwb
from specwb.training import corpus
from specwb.training.heads import RECIPES, step_loss, target_outputs
from specwb.training.recipe import POSITIONS, Moment, Predictions, Recipe
from specwb.training.settings import Objective

V, LENGTH = tiny.VOCABULARY, POSITIONS["cpu"] + 6  # a row in two parts
WORDS = torch.tensor([1, 4, 5, 9, 17, 30, 31, 62])
MANY = torch.arange(2, V, 2)
SETTINGS = {
    "medusa": {"heads": 2, "shared": 1},
    "eagle": {"unroll": 2, "regression": 0.0},
    "eagle3": {"unroll": 2, "own_head": 0},
    "falcon": {"layers": 1, "unroll": 2, "glance": 0.0, "hard": 0.0, "regression": 0.0},
    "kangaroo": {"exit": 2},
    "draft": {"layers": 1},
}
MIXTURE = {"text": 1.0}


pytestmark = pytest.mark.usefixtures("in_float32")


@pytest.fixture(scope="module")
def target() -> specwb.Target:
    return specwb.load(tiny.build("llama", seed=2, num_hidden_layers=6))


def some_text() -> Tensor:
    return torch.randint(V, (2, LENGTH), generator=torch.Generator().manual_seed(0))


def data(ids: Tensor) -> corpus.Corpus:
    """A text of these tokens, each more often than others."""
    stream = ids.repeat(50).numpy().astype(np.uint16)
    return corpus.Corpus({"text": stream}, {"text": stream}, [], "")


def probabilities(target: specwb.Target, ids: Tensor) -> Tensor:
    return torch.stack([tiny.forward(target.model, row) for row in ids.tolist()]).softmax(-1)


@pytest.mark.parametrize("kind", list(SETTINGS))
def test_a_recipe_takes_the_texts_most_frequent_tokens(target, kind):
    own = SETTINGS[kind]
    text = torch.cat([WORDS.flip(0), WORDS, torch.arange(V)])
    recipe = RECIPES[kind](target, {**own, "vocabulary": len(WORDS)})
    head = recipe.make(recipe.frequent(data(text), MIXTURE))
    assert torch.equal(head.words, WORDS)
    assert torch.equal(recipe.words(head), WORDS)
    assert "lm_head.weight" not in head.state_dict()
    everything = RECIPES[kind](target, {**own, "vocabulary": V + 1})
    assert everything.make(everything.frequent(data(text), MIXTURE)).words is None


@pytest.mark.parametrize("kind", list(SETTINGS))
def test_the_loss_is_that_of_the_words_where_the_best_token_is_one(target, kind):
    recipe = RECIPES[kind](target, {**SETTINGS[kind], "vocabulary": len(MANY)})
    torch.manual_seed(0)
    head = recipe.make(recipe.frequent(data(MANY), MIXTURE))
    with torch.no_grad():
        for weight in head.parameters():
            weight.add_(torch.randn_like(weight) * 0.1)
    outputs = target_outputs(target, some_text(), head.features)
    moment, p = Moment(0.0, 0, 0, 2), probabilities(target, some_text())
    total = 0.0
    for j, level in enumerate(recipe.training_levels(head, outputs, moment)):
        here = level.select(p)
        learnable = torch.isin(here.argmax(-1), MANY)
        given = here[..., MANY] / here[..., MANY].sum(-1, keepdim=True)
        cost = -(given * level.logits.detach().log_softmax(-1)).sum(-1)
        total += 0.8**j * float((cost * learnable).mean())
    loss = step_loss(recipe, head, outputs, moment, Objective("kl"))
    assert loss.item() == pytest.approx(total, rel=1e-4)
    loss.backward()
    assert target.backbone.lm_head.weight.grad is None
    assert all(p.grad is not None for p in head.parameters())


@pytest.mark.parametrize("loss", ["tv", "lk", "kl"])
def test_a_token_that_is_learnt_counts_whatever_the_target_thinks_of_it(target, loss):
    """A head that is sure of its labels has nothing to lose, however little mass the words have."""
    outputs = target_outputs(target, some_text(), ())
    labels = WORDS[torch.arange(outputs.ids.numel()) % len(WORDS)].view(outputs.ids.shape)
    places = torch.searchsorted(WORDS, labels)

    class Labelled(Recipe):
        sure = 1.0

        def words(self, head):
            return WORDS

        def training_levels(self, head, outputs, moment):
            states = torch.eye(len(WORDS))[places] * 40 * self.sure
            output = nn.Linear(len(WORDS), len(WORDS), bias=False)
            output.weight.data = torch.eye(len(WORDS))
            yield Predictions(states, output, 0, labels=labels)

    recipe = Labelled(target, {})
    moment, objective = Moment(0.0, 0, 0, 2), Objective(loss)
    assert not outputs.wanted(WORDS).learnable.all()
    assert abs(step_loss(recipe, None, outputs, moment, objective).item()) < 1e-3
    recipe.sure = 0.0  # all words alike, at every position
    alike = {"tv": 1 - 1 / len(WORDS), "kl": math.log(len(WORDS))}
    if loss in alike:
        value = step_loss(recipe, None, outputs, moment, objective).item()
        assert value == pytest.approx(alike[loss], rel=1e-4)
