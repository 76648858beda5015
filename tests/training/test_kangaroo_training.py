"""Adapters are trained on what they draft, decision models on what is accepted."""

from __future__ import annotations

import copy
import math
from functools import cache, partial

import pytest
import tiny
import torch
from killed import trained
from transformers import GPT2Config, GPT2LMHeadModel

import specwb
from specwb.core.options import MethodError
from specwb.drafters.kangaroo import KangarooDrafter
from specwb.models.decision import KINDS, DecisionModel, load_decision
from specwb.models.eagle import eagle_config
from specwb.models.kangaroo import ADAPTERS, KangarooAdapter
from specwb.training import fit
from specwb.training.decision import DecisionRecipe, area
from specwb.training.heads import RECIPES, step_loss, target_outputs
from specwb.training.recipe import KangarooRecipe, Moment

V = tiny.VOCABULARY


@pytest.fixture(autouse=True)
def float32(monkeypatch):
    monkeypatch.setattr(fit, "fast_bfloat16", lambda device: False)


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


@pytest.mark.parametrize("adapter", ADAPTERS)
def test_no_position_sees_what_comes_later(adapter):
    f = torch.randn(1, 6, 32, requires_grad=True)
    states = head(adapter)(f)
    for position in range(6):
        value = states[0, position].square().sum()
        (gradient,) = torch.autograd.grad(value, f, retain_graph=True)
        seen = (gradient[0].abs().sum(-1) > 0).tolist()
        first = position if adapter == "mlp" else 0
        assert seen == [first <= i <= position for i in range(6)]


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


def test_the_soft_net_learns_how_much_the_distributions_overlap():
    """The mean of its labels over the drawn token is sum min(p, q), theorem 13.2."""
    target, text = pair(), ids(1, 4)
    outputs, recipe = target_outputs(target, text, ()), DecisionRecipe(target, {})
    grid = (torch.arange(0, 4000, 10) + 0.5) / 4000
    soft_labels = []
    for u in grid.double():
        _, _, labels = recipe.inputs(outputs, u.expand(1, 4))
        soft_labels.append(labels["soft"][0])
    q = tiny.forward(target.draft.model, text[0].tolist()).softmax(-1)
    p = tiny.forward(target.model, text[0].tolist()).softmax(-1)
    mean = torch.stack(soft_labels).mean(0)
    torch.testing.assert_close(mean, torch.minimum(p, q).sum(-1), atol=0.02, rtol=0)


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


def test_a_trained_net_knows_more_than_the_mean():
    """The draft agrees with the target on what it is sure of; measured on texts it has not seen."""
    target = pair()
    model = tiny.trained("decision", tiny.target(), draft=target.draft)
    outputs = target_outputs(target, ids(24, 24), ())
    measurements = DecisionRecipe(target, {}).measure(model, outputs)
    for kind in KINDS:
        loss, of_mean, roc = measurements[kind]
        assert min(loss, of_mean) > 0
        assert 0 <= roc <= 1
    assert measurements["hard"][2] > 0.55
    assert 0 <= measurements["rank"][0][0] <= 1


def test_a_net_is_compared_with_the_mean_label():
    """Who always says the share of ones among the labels loses its entropy."""
    target, text = pair(), ids(4)
    outputs, recipe = target_outputs(target, text, ()), DecisionRecipe(target, {})
    measurements = recipe.measure(DecisionModel(32).requires_grad_(False), outputs)
    p, q = (
        [tiny.forward(m, row) for row in text.tolist()] for m in (target.model, target.draft.model)
    )
    agree = [x.argmax(-1) == y.argmax(-1) for x, y in zip(p, q, strict=True)]
    share = float(torch.cat(agree).float().mean())
    entropy = -share * math.log(share) - (1 - share) * math.log(1 - share)
    assert entropy < 0.6 < math.log(2)
    assert measurements["hard"][1] == pytest.approx(entropy, abs=1e-4)


def test_models_in_half_precision(tmp_path):
    """The nets are trained in float32 beside them, and used in their type."""
    target, draft = (
        specwb.load(copy.deepcopy(m.model), dtype="bfloat16") for m in (tiny.target(), tiny.draft())
    )
    out = trained("decision", tmp_path / "d", {}, tiny.with_draft(target, draft))
    model = load_decision(out, target, draft)
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}
    state = torch.load(tmp_path / "d.checkpoint.pt", weights_only=True)["model"]
    assert {weight.dtype for weight in state.values()} == {torch.float32}
    for stop in KINDS:
        method = specwb.method("mcsd_ti", target, draft=draft, head=model, stop=stop, threshold=0.5)
        out = specwb.decode(target, [[1, 2, 3]], method, max_new_tokens=6, temperature=1.0)
        assert len(out.tokens[0]) == 6


@pytest.mark.parametrize(("yes", "no"), [(7, 5), (1, 9), (30, 30), (0, 3), (3, 0)])
def test_the_area_is_counted_pair_by_pair(yes, no):
    generator = torch.Generator().manual_seed(yes)
    # few values, so that many are equal
    a, b = (torch.randint(6, (n,), generator=generator).float() for n in (yes, no))
    pairs = [(x > y) + 0.5 * (x == y) for x in a.tolist() for y in b.tolist()]
    wanted = sum(pairs) / len(pairs) if pairs else 0.5
    assert area(a, b) == pytest.approx(wanted)


def test_a_target_without_a_draft_has_no_decision_model():
    with pytest.raises(MethodError, match="has no draft model of its own"):
        RECIPES["decision"](tiny.target(), {})


def test_other_models_are_other_runs(tmp_path):
    """What is trained beside another draft is another run."""
    origins = {
        DecisionRecipe(tiny.with_draft(tiny.target(), draft), {}).initial_weights()
        for draft in (tiny.draft(), tiny.draft(noise=0.1))
    }
    assert len(origins) == 2
