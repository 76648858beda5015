"""Adapters are trained on what they draft, beside the right places; decision models on what happens; both survive being killed."""

from __future__ import annotations

import copy
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import tiny
import torch
from killed import resumed_alike

import specwb
from specwb.drafters.kangaroo import KangarooDrafter
from specwb.models.decision import KINDS, DecisionModel, load_decision
from specwb.models.eagle import eagle_config
from specwb.models.kangaroo import ADAPTERS, KangarooAdapter, load_kangaroo
from specwb.options import MethodError
from specwb.training import corpus, fit, heads
from specwb.training.decision import DecisionRecipe, area
from specwb.training.fit import TrainingError
from specwb.training.heads import RECIPES, look, measure, step_loss
from specwb.training.recipe import KangarooRecipe, Moment

V = tiny.VOCABULARY


@pytest.fixture(autouse=True)
def float32(monkeypatch):
    monkeypatch.setattr(fit, "fast_bfloat16", lambda device: False)


@cache
def head(adapter: str = "attention", exit: int = 1, own_head: bool = False, kind: str = "llama") -> KangarooAdapter:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(exit)
        made = KangarooAdapter(eagle_config(tiny.target(kind)), exit, adapter, own_head)
        for name, weight in made.named_parameters():
            weight.data = torch.randn_like(weight) * 0.25 + ("norm" in name)
    return made.eval()


def ids(rows: int = 1, length: int = 9) -> torch.Tensor:
    return torch.randint(V, (rows, length), generator=torch.Generator().manual_seed(rows))


# -------------------------------------------------------------------------------------------------------------- adapters


@pytest.mark.parametrize("kind", ["llama", "qwen3"])
@pytest.mark.parametrize("exit", [0, 1, 2])
@pytest.mark.parametrize("adapter", ADAPTERS)
def test_what_is_trained_is_what_is_drafted(adapter, exit, kind):
    """The law at every place of a text is the one a draft begins with after it, and the target's own stands beside it."""
    target, model = tiny.target(kind), head(adapter, exit, exit == 2, kind)
    text = ids()[0].tolist()
    found = look(target, torch.tensor([text]), model.features)
    (level,) = KangarooRecipe(target, {"exit": exit, "adapter": adapter}).levels(model, found)
    said, beside = level.logits.detach(), level.of(found.logits)
    assert said.shape == beside.shape == (1, len(text), V)
    prompts = [text[:n] for n in range(1, len(text) + 1)]
    drafter = KangarooDrafter(model.requires_grad_(False), specwb.Tree.chain(2))
    method = specwb.Method("kangaroo", drafter, None, specwb.Exactness.LOSSLESS)
    step = next(specwb.rounds(target, prompts, method, max_new_tokens=4, temperature=1.0, trace=True))
    torch.testing.assert_close(step.draft.q[:, 0], said[0].softmax(-1), atol=1e-5, rtol=1e-3)
    torch.testing.assert_close(step.scores.logits[:, 0], beside[0], atol=1e-4, rtol=1e-4)


def test_no_place_sees_what_comes_later():
    for adapter in ADAPTERS:
        f = torch.randn(1, 6, 32, requires_grad=True)
        out = head(adapter)(f)
        for place in range(6):
            (moved,) = torch.autograd.grad(out[0, place].square().sum(), f, retain_graph=True)
            seen = (moved[0].abs().sum(-1) > 0).tolist()
            assert seen == [i == place if adapter == "mlp" else i <= place for i in range(6)]


def test_the_loss_and_the_measure_place_by_place():
    """Soft cross-entropy to the target's law, a mean over all places, the first one too; ranks of the target's best token, sum min(p, q)."""
    target, model = tiny.target(), head()
    recipe, text = KangarooRecipe(target, {"exit": 1}), ids(2)
    found = look(target, text, model.features)
    logits = model.logits(model(tiny.states(target, text, (1,))), target.backbone.lm_head).detach()
    truth = torch.stack([tiny.forward(target.model, row) for row in text.tolist()])
    p, q = truth.softmax(-1), logits.softmax(-1)
    loss = step_loss(recipe, model, found, Moment(0.0, 0, 0, 2))
    assert loss.item() == pytest.approx(float(-(p * q.log()).sum(-1).mean()), rel=1e-4)
    said = measure(recipe, model, text)
    order = logits.argsort(-1, descending=True)
    best = truth.argmax(-1, keepdim=True)
    assert said["rank"] == [[pytest.approx(float((order[..., r : r + 1] == best).float().mean()), abs=1e-4) for r in range(heads.RANKS)]]
    assert said["sampled"] == [pytest.approx(float(torch.minimum(p, q).sum(-1).mean()), abs=1e-4)]


def test_the_targets_head_is_not_trained():
    target = tiny.target()
    for own_head in (False, True):
        model = KangarooAdapter(eagle_config(target), 1, own_head=own_head).start_from(target)
        step_loss(KangarooRecipe(target, {"exit": 1}), model, look(target, ids(2), (1,)), Moment(0.0, 0, 0, 2)).backward()
        assert all(p.grad is not None and bool(p.grad.abs().sum() > 0) for p in model.parameters())
        assert target.backbone.lm_head.weight.grad is None
        assert KangarooRecipe(target, {"exit": 1}).with_adam(model) == ({"lm_head.weight"} if own_head else set())


# -------------------------------------------------------------------------------------------------------- decision models


def pair() -> specwb.Target:
    return tiny.with_draft(tiny.target(), tiny.draft(noise=0.04))


def test_labels_by_hand():
    """The soft net's: min(1, p / q) of the token that a uniform draws from q; the hard net's: whether both models' best tokens agree."""
    target, text, u = pair(), ids(2), torch.rand(2, 9, dtype=torch.float64)
    logits, normed, labels = DecisionRecipe(target, {}).places(look(target, text, ()), u)
    for row in range(2):
        truth, own = (tiny.forward(model.model, text[row].tolist()) for model in (target, target.draft))
        torch.testing.assert_close(logits[row], own, atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(target.draft.backbone.lm_head(normed[row]), own, atol=1e-4, rtol=1e-4)
        p, q = truth.softmax(-1), own.softmax(-1)
        for place in range(9):
            total, x = 0.0, -1
            while total <= float(u[row, place]):  # the first token whose cumulated probability is above the uniform
                x += 1
                total += float(q[place, x])
            assert float(labels["soft"][row, place]) == pytest.approx(min(1.0, float(p[place, x] / q[place, x])), rel=1e-4)
            assert bool(labels["hard"][row, place]) == (int(p[place].argmax()) == int(q[place].argmax()))
    assert 0 < float(labels["hard"].mean()) < 1
    assert float(labels["soft"].min()) < 0.9


def test_what_the_soft_net_learns_is_how_much_the_laws_overlap():
    """The mean of its labels over the drawn token is sum min(p, q), theorem 13.2."""
    target, text = pair(), ids(1, 4)
    found, recipe = look(target, text, ()), DecisionRecipe(target, {})
    n = 4000
    drawn = torch.stack([recipe.places(found, torch.full((1, 4), (i + 0.5) / n, dtype=torch.float64))[2]["soft"][0] for i in range(0, n, 10)])
    q = tiny.forward(target.draft.model, text[0].tolist()).softmax(-1)
    p = tiny.forward(target.model, text[0].tolist()).softmax(-1)
    torch.testing.assert_close(drawn.mean(0), torch.minimum(p, q).sum(-1), atol=0.02, rtol=0)


def test_the_loss_of_both_nets():
    target, text = pair(), ids(2)
    recipe, found, moment = DecisionRecipe(target, {}), look(target, text, ()), Moment(0.0, 1, 5, 2)
    model = DecisionModel(32)
    logits, normed, labels = recipe.places(found, moment.uniforms(9, 0, torch.device("cpu")).double())
    total = 0.0
    for kind in KINDS:
        said = model(kind, logits, normed).sigmoid().detach()
        total -= float((labels[kind] * said.log() + (1 - labels[kind]) * (1 - said).log()).mean())
    loss = step_loss(recipe, model, found, moment)
    assert loss.item() == pytest.approx(total, rel=1e-4)
    loss.backward()
    assert all(bool(p.grad.abs().sum() > 0) for p in model.parameters())
    assert step_loss(recipe, model, found, Moment(0.0, 1, 6, 2)).item() != loss.item(), "every step draws anew"


def test_a_trained_net_knows_more_than_the_mean():
    """The draft agrees with the target on what it is sure of; measured on texts it has not seen."""
    target = pair()
    model = tiny.trained("decision", tiny.target(), draft=target.draft)
    found = DecisionRecipe(target, {}).measure(model, look(target, ids(24, 24), ()))
    for kind in KINDS:
        loss, of_mean, roc = found[kind]
        assert min(loss, of_mean) > 0
        assert 0 <= roc <= 1
    assert found["hard"][2] > 0.55
    assert 0 <= found["rank"][0][0] <= 1


def test_models_in_half_precision(tmp_path):
    """Trained in float32 beside them, used in their own type."""
    target, draft = (specwb.load(copy.deepcopy(m.model), dtype="bfloat16") for m in (tiny.target(), tiny.draft()))
    out = train("decision", tmp_path / "d", target=tiny.with_draft(target, draft))
    model = load_decision(out, target, draft)
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}
    assert torch.load(tmp_path / "d.checkpoint.pt", weights_only=True)["model"].popitem()[1].dtype is torch.float32
    for stop in KINDS:
        method = specwb.method("mcsd_ti", target, draft=draft, head=model, stop=stop, threshold=0.5)
        assert len(specwb.decode(target, [[1, 2, 3]], method, max_new_tokens=6, temperature=1.0).tokens[0]) == 6


@pytest.mark.parametrize(("yes", "no"), [(7, 5), (1, 9), (30, 30), (0, 3), (3, 0)])
def test_the_area_is_counted_pair_by_pair(yes, no):
    generator = torch.Generator().manual_seed(yes)
    a, b = (torch.randint(6, (n,), generator=generator).float() for n in (yes, no))  # few values, so that many are equal
    wanted = sum(1.0 if x > y else 0.5 if x == y else 0.0 for x in a for y in b) / (yes * no) if yes * no else 0.5
    assert area(a, b) == pytest.approx(wanted)


# ----------------------------------------------------------------------------------------------- stopped, resumed, refused


def train(kind: str, out: Path, steps: int = 4, target: specwb.Target | None = None, **settings) -> Path:
    rng = np.random.default_rng(0)
    text = corpus.Corpus({"text": rng.integers(0, V, 2000).astype(np.uint16)}, {"text": rng.integers(0, V, 500).astype(np.uint16)}, [], "x")
    target = target or (pair() if kind == "decision" else tiny.target())
    return heads.train_head(kind, target, out, settings, {"steps": steps, "rows": 4, "length": 24}, text, {"text": 1.0}, seed=3, source="read")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "settings"), [("kangaroo", {"exit": 1}), ("kangaroo", {"exit": 0, "adapter": "layer", "own_head": 1}), ("decision", {})]
)
def test_killed_training_resumes_bit_for_bit(kind, settings, monkeypatch, tmp_path):
    found = resumed_alike(monkeypatch, tmp_path, lambda out: train(kind, out, **settings), 4)
    if kind == "kangaroo":
        made = load_kangaroo(tmp_path / "whole", tiny.target())
        assert made.exit == settings["exit"]
        assert made.adapter == settings.get("adapter", "attention")
        assert (made.lm_head is not None) == bool(settings.get("own_head"))
        assert made.card["exit"] == settings["exit"]
    else:
        assert {key.split(".")[0] for key in found} == set(KINDS)
    before = (tmp_path / "whole" / "model.safetensors").stat().st_mtime_ns
    train(kind, tmp_path / "whole", **settings)
    assert (tmp_path / "whole" / "model.safetensors").stat().st_mtime_ns == before, "a finished run is left as it is"
    if kind == "kangaroo":
        with pytest.raises(TrainingError, match="what another run made"):
            train(kind, tmp_path / "whole", **{**settings, "exit": 2})


@pytest.mark.parametrize(
    ("kind", "settings", "message"),
    [
        ("kangaroo", {"exit": 3}, "exit must be a layer with one behind it, 0..2 here, got 3"),
        ("kangaroo", {"exit": -1}, "exit must be an integer >= 0"),
        ("kangaroo", {"exit": 1.5}, "exit must be an integer >= 0"),
        ("kangaroo", {"exit": 1, "adapter": "ffn"}, "adapter must be attention, layer, mlp, got 'ffn'"),
        ("kangaroo", {"exit": 1, "own_head": 2}, "own_head must be 0 or 1, got 2"),
        ("kangaroo", {"exit": 1, "layers": 0}, "layers must be an integer >= 1"),
        ("kangaroo", {"exit": 1, "adapter": "mlp", "layers": 2}, "adapter=mlp has one layer, got layers=2"),
        ("kangaroo", {"eta": 0.5}, "kangaroo has no setting 'eta'; its settings: exit, adapter, own_head, layers"),
        ("decision", {"hidden": 3}, "decision has no setting 'hidden'"),
    ],
)
def test_settings_that_cannot_be_used(kind, settings, message, tmp_path):
    with pytest.raises((TrainingError, MethodError, ValueError), match=message) as caught:
        train(kind, tmp_path / "out", **settings)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_a_target_without_a_draft_has_no_decision_model():
    with pytest.raises(MethodError, match="has no draft model of its own"):
        RECIPES["decision"](tiny.target(), {})


def test_other_models_are_other_runs(tmp_path):
    """What is trained beside another draft is another run."""
    origins = {DecisionRecipe(tiny.with_draft(tiny.target(), draft), {}).begun_from() for draft in (tiny.draft(), tiny.draft(noise=0.1))}
    assert len(origins) == 2
