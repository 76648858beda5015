"""Draft models that borrow their target's embedding and output layer."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import tiny
import torch
from torch.nn import functional as F

import specwb
from specwb.core.errors import ArgumentError
from specwb.core.options import MethodError
from specwb.models.borrowed import borrowed, is_borrowed
from specwb.models.checkpoint import HeadError
from specwb.models.eagle import eagle_config
from specwb.models.folder import LoadError
from specwb.models.kangaroo import KangarooAdapter
from specwb.models.load import draft_model

PROMPTS = [[3, 1, 4, 1, 5, 9], [5], [2, 6, 5]]
METHODS = ["sps:gamma=3,confidence=0.02", "mcsd:tree=3-2-1", "easyspec:groups=1-2"]


def target() -> specwb.Target:
    model = specwb.load(tiny.build("llama", seed=2, dtype=torch.float64))
    model.sha256 = "1" * 64
    return model


def words(model: specwb.Target) -> torch.Tensor:
    """Half of the tokens, and not the first ones."""
    return torch.arange(1, model.vocabulary, 2)


def made(folder: Path, model: specwb.Target, some: torch.Tensor | None) -> KangarooAdapter:
    torch.manual_seed(0)
    adapter = KangarooAdapter(eagle_config(model, 4), 0, "layer", words=some).start_from(model)
    for weight in adapter.parameters():
        weight.data.add_(torch.randn_like(weight), alpha=0.02)
    adapter.save(folder, card={"name": "draft", "target_sha256": model.sha256})
    return adapter


def test_it_is_its_layers_between_the_targets_embedding_and_output(tmp_path):
    model = target()
    some = words(model)
    made(tmp_path / "draft", model, some)
    draft = borrowed(tmp_path / "draft", model)
    assert draft.name == str(tmp_path / "draft")
    model.heads = tmp_path
    assert model.own_head("draft") == tmp_path / "draft"
    assert draft_model(model, tmp_path / "draft").name == f"{model.name}-draft"
    assert draft_model(model, tmp_path / "draft") is draft_model(model, tmp_path / "draft")
    ids = torch.tensor([[3, 1, 4, 1, 5]])
    x = model.backbone.embed(ids)
    around = draft.model.model.rotary_emb(x, torch.arange(5)[None])
    for layer in draft.model.model.layers:
        x = layer(x, position_embeddings=around)
    weight = model.backbone.lm_head.weight
    wanted = F.linear(draft.model.model.norm(x), weight[some])
    logits = draft.model(ids).logits
    assert logits.shape[-1] == model.vocabulary
    torch.testing.assert_close(logits[..., some], wanted)
    outside = torch.ones(model.vocabulary, dtype=torch.bool)
    outside[some] = False
    assert (logits[..., outside] == -torch.inf).all()
    assert draft.vocabulary == model.vocabulary
    assert draft.model.model.embed_tokens is model.backbone.inner.embed_tokens


@pytest.mark.parametrize("spec", METHODS)
def test_methods_draft_its_words_and_nothing_else(spec, tmp_path):
    model = target()
    some = words(model)
    made(tmp_path / "draft", model, some)
    method = specwb.method(f"{spec},draft={tmp_path / 'draft'}", model)
    outside = torch.ones(model.vocabulary, dtype=torch.bool)
    outside[some] = False
    seen = 0
    for step in specwb.rounds(model, PROMPTS, method, max_new_tokens=16, temperature=1.0, seed=0):
        drafted = step.draft.tokens[:, 1:][step.draft.valid[:, 1:]]
        assert torch.isin(drafted, some).all()
        seen += drafted.numel()
        assert not step.draft.q[..., outside].any()
        torch.testing.assert_close(step.draft.q.sum(-1), torch.ones_like(step.draft.q[..., 0]))
    assert seen


def test_what_is_no_such_model(tmp_path):
    model = target()
    for other in (tmp_path, model, "a" * 5000, "a\0b"):
        assert not is_borrowed(other)
    attention = KangarooAdapter(eagle_config(model, 1), 0, "attention")
    attention.save(tmp_path / "attention")
    with pytest.raises(HeadError, match="whole layers"):
        draft_model(model, tmp_path / "attention")
    made(tmp_path / "other", model, None)
    card = json.loads((tmp_path / "other" / "card.json").read_text())
    card["target_sha256"] = "0" * 64
    (tmp_path / "other" / "card.json").write_text(json.dumps(card))
    with pytest.raises(HeadError, match="trained for the target"):
        draft_model(model, tmp_path / "other")


def test_other_uses_see_all_tokens_or_refuse_it(tmp_path):
    model = target()
    some = words(model)
    made(tmp_path / "draft", model, some)
    draft = draft_model(model, tmp_path / "draft")
    assert draft.drafts == len(some)
    with pytest.raises(ArgumentError, match="draft model"):
        specwb.decode(draft, PROMPTS, max_new_tokens=2)
    with pytest.raises(LoadError, match="give it as draft="):
        specwb.load(tmp_path / "draft")
    wide = f"{len(some) + 1}-1"
    for spec in (f"mcsd:tree={wide}", f"mcsd_ti:stop=none,tree={wide}"):
        with pytest.raises(MethodError, match="children per node"):
            specwb.method(f"{spec},draft={tmp_path / 'draft'}", model)
