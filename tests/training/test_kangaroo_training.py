"""Adapters are trained on what they draft, decision models on what is accepted."""

from __future__ import annotations

from functools import cache, partial

import pytest
import tiny
import torch

import specwb
from specwb.drafters.kangaroo import KangarooDrafter
from specwb.models.decision import KINDS, DecisionModel
from specwb.models.eagle import eagle_config
from specwb.models.kangaroo import KangarooAdapter
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


@pytest.mark.parametrize(
    ("adapter", "exit", "kind"),
    [("attention", 0, "llama"), ("layer", 1, "qwen3"), ("mlp", 2, "llama")],
)
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


def test_labels_by_hand():
    """The soft net's label is min(1, p / q) of the token that a uniform draws from q.

    The hard net's label is whether both models' best tokens agree.
    """
    target, text, u = pair(), ids(2), torch.rand(2, 9, dtype=torch.float64)
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
    assert 0 < float(labels["hard"].mean()) < 1


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


@pytest.mark.parametrize(("yes", "no"), [(1, 9), (30, 30), (0, 3)])
def test_the_area_is_counted_pair_by_pair(yes, no):
    generator = torch.Generator().manual_seed(yes)
    # few values, so that many are equal
    a, b = (torch.randint(6, (n,), generator=generator).float() for n in (yes, no))
    pairs = [(x > y) + 0.5 * (x == y) for x in a.tolist() for y in b.tolist()]
    wanted = sum(pairs) / len(pairs) if pairs else 0.5
    assert area(a, b) == pytest.approx(wanted)
