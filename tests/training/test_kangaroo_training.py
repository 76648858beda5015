"""Adapters are trained on what they draft, decision models on what is accepted."""

from __future__ import annotations

from functools import cache, partial

import pytest
import tiny
import torch
from transformers import GPT2Config, GPT2LMHeadModel

import specwb
from specwb.drafters.kangaroo import KangarooDrafter
from specwb.models.decision import KINDS, DecisionModel
from specwb.models.eagle import eagle_config
from specwb.models.kangaroo import ADAPTERS, KangarooAdapter
from specwb.training.decision import DecisionRecipe, area
from specwb.training.heads import step_loss, target_outputs
from specwb.training.recipe import KangarooRecipe, Moment

V = tiny.VOCABULARY


pytestmark = pytest.mark.usefixtures("in_float32")


@cache
def head(
    adapter: str = "attention", exit: int = 1, own_head: bool = False, kind: str = "llama"
) -> KangarooAdapter:
    config = eagle_config(tiny.target(kind))
    return tiny.loud(lambda: KangarooAdapter(config, exit, adapter, own_head), exit)


def ids(rows: int = 1, length: int = 9) -> torch.Tensor:
    return torch.randint(V, (rows, length), generator=torch.Generator().manual_seed(rows))


# ----------------------------------------------------------------------------------------- adapters


@pytest.mark.parametrize("kind", ["llama", "qwen3"])
@pytest.mark.parametrize("exit", [0, 1, 2])
@pytest.mark.parametrize("adapter", ADAPTERS)
def test_what_is_trained_is_what_is_drafted(adapter, exit, kind):
    """The prediction at every position of a text is the one that a draft begins with after it.

    It is compared with the target's at that position.
    """
    target, model = tiny.target(kind), head(adapter, exit, exit == 2, kind)
    text = ids()[0].tolist()
    outputs = target_outputs(target, torch.tensor([text]), model.features)
    recipe = KangarooRecipe(target, {"exit": exit, "adapter": adapter})
    (level,) = recipe.levels(model, outputs)
    logits, target_logits = level.logits.detach(), level.select(outputs.logits)
    assert logits.shape == target_logits.shape == (1, len(text), V)
    prompts = [text[:n] for n in range(1, len(text) + 1)]
    drafter = KangarooDrafter(model.requires_grad_(False), specwb.Tree.chain(2))
    method = specwb.Method("kangaroo", drafter, None, specwb.Exactness.LOSSLESS)
    settings = {"max_new_tokens": 4, "temperature": 1.0, "trace": True}
    step = next(specwb.rounds(target, prompts, method, **settings))
    q, target_row = step.draft.q[:, 0], step.scores.logits[:, 0]
    torch.testing.assert_close(q, logits[0].softmax(-1), atol=1e-5, rtol=1e-3)
    torch.testing.assert_close(target_row, target_logits[0], atol=1e-4, rtol=1e-4)


# ---------------------------------------------------------------------------------- decision models


def pair() -> specwb.Target:
    return tiny.with_draft(tiny.target(), tiny.draft(noise=0.04))


def with_gpt2() -> specwb.Target:
    """The target with a draft whose layers are the library's own."""
    torch.manual_seed(1)
    size = {"vocab_size": tiny.VOCABULARY, "n_embd": 32, "n_layer": 1, "n_head": 2}
    model = GPT2LMHeadModel(GPT2Config(**size, n_positions=64, initializer_range=0.3))
    return tiny.with_draft(tiny.target(), specwb.load(model.eval()))


@pytest.mark.parametrize("made", [pair, with_gpt2])
def test_labels_by_hand(made):
    """The soft net's label is min(1, p / q) of the token that a uniform draws from q.

    The hard net's label is whether both models' best tokens agree.
    """
    target, text, u = made(), ids(2), torch.rand(2, 9, dtype=torch.float64)
    logits, normed, labels = DecisionRecipe(target, {}).inputs(target_outputs(target, text, ()), u)
    close = partial(torch.testing.assert_close, atol=1e-4, rtol=1e-4)
    for row in range(2):
        tokens = text[row].tolist()
        target_logits = tiny.forward(target.model, tokens)
        draft_logits = tiny.forward(target.draft.model, tokens)
        close(logits[row], draft_logits)
        close(target.draft.backbone.lm_head(normed[row]), draft_logits)
        p, q = target_logits.softmax(-1), draft_logits.softmax(-1)
        for i in range(9):
            # the first token whose cumulated probability is above the uniform
            x = int((q[i].double().cumsum(0) > u[row, i]).int().argmax())
            ratio = min(1.0, float(p[i, x] / q[i, x]))
            assert float(labels["soft"][row, i]) == pytest.approx(ratio, rel=1e-4)
            agree = int(p[i].argmax()) == int(q[i].argmax())
            assert bool(labels["hard"][row, i]) == agree
    assert float(labels["soft"].min()) < 0.9
    assert made is with_gpt2 or 0 < float(labels["hard"].mean()) < 1


def test_the_loss_of_both_nets():
    target, text = pair(), ids(2)
    recipe, outputs = DecisionRecipe(target, {}), target_outputs(target, text, ())
    moment, model = Moment(0.0, 1, 5, 2), DecisionModel(32)
    u = moment.uniforms(9, 0, torch.device("cpu")).double()
    logits, normed, labels = recipe.inputs(outputs, u)
    total = 0.0
    for kind in KINDS:
        guess, label = model(kind, logits, normed).sigmoid().detach(), labels[kind]
        total -= float((label * guess.log() + (1 - label) * (1 - guess).log()).mean())
    loss = step_loss(recipe, model, outputs, moment)
    assert loss.item() == pytest.approx(total, rel=1e-4)
    loss.backward()
    assert all(bool(p.grad.abs().sum() > 0) for p in model.parameters())
    next_loss = step_loss(recipe, model, outputs, Moment(0.0, 1, 6, 2))
    assert next_loss.item() != loss.item(), "every step draws anew"


def test_a_decision_model_is_measured_where_it_counts():
    """The loss of the hard net, whose labels depend on no draw, at every third position."""
    text, model = ids(2), DecisionModel(32).requires_grad_(False)
    recipe = DecisionRecipe(pair(), {})
    outputs = target_outputs(recipe.target, text, ())
    every = recipe.measure(model, outputs)["hard"][0]
    outputs.counted = torch.arange(9).expand(2, -1) % 3 == 0
    u = torch.zeros(2, 9, dtype=torch.float64)
    logits, normed, labels = recipe.inputs(outputs, u)
    guess = model("hard", logits, normed).sigmoid().detach()[:, ::3]
    label = labels["hard"][:, ::3]
    loss = -float((label * guess.log() + (1 - label) * (1 - guess).log()).mean())
    assert recipe.measure(model, outputs)["hard"][0] == pytest.approx(loss, abs=2e-4)
    assert abs(every - loss) > 1e-3


@pytest.mark.parametrize(("yes", "no"), [(7, 5), (1, 9), (30, 30), (0, 3), (3, 0)])
def test_the_area_is_counted_pair_by_pair(yes, no):
    generator = torch.Generator().manual_seed(yes)
    # few values, so that many are equal
    a, b = (torch.randint(6, (n,), generator=generator).float() for n in (yes, no))
    pairs = [(x > y) + 0.5 * (x == y) for x in a.tolist() for y in b.tolist()]
    wanted = sum(pairs) / len(pairs) if pairs else 0.5
    assert area(a, b) == pytest.approx(wanted)
