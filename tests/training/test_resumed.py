"""Training that is killed resumes to the same weights; a head that is there is known."""

from __future__ import annotations

from typing import Any

import pytest
import tiny
import torch
from killed import card_of, random_corpus, resumed_alike, trained, weights

import specwb
from specwb.training import fit, run
from specwb.training.fit import TrainingError

DIFFUSION = {"layers": 2, "hidden": 32, "heads": 2, "kv_heads": 1, "ffn": 64, "block": 8}
DEEP = {"layers": 6, "hidden": 16, "heads": 2, "kv_heads": 1, "ffn": 24}
FALCON = {"k": 3, "unroll": 2, "layers": 1, "glance": 0.5, "noise": 0.02}
# of what draws at random, and of what is saved in another way: its settings, others, which would be
# another training, and the method that drafts with it
KINDS: list[tuple[str, dict[str, Any], dict[str, Any], str]] = [
    ("falcon", FALCON, {"glance": 0}, "falcon:head="),
    ("diffusion", DIFFUSION, {"full": 1.0}, "diffuspec:k=4,head="),
    ("decision", {}, {"lr": 1e-3}, ""),
    ("deep", DEEP, {"layers": 5}, "easyspec:n=3,draft="),
]


def target(kind: str) -> specwb.Target:
    if kind == "decision":
        return tiny.with_draft(tiny.target(), tiny.draft(noise=0.04))
    model = tiny.with_mask(tiny.target())
    if kind == "deep":  # which is saved with it
        model.tokenizer = tiny.tokenizer()
    return model


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "settings", "other", "spec"), KINDS)
def test_killed_training_resumes_bit_for_bit(monkeypatch, tmp_path, kind, settings, other, spec):
    """Which positions are masked, or glance, is a function of the step."""
    monkeypatch.setattr(fit, "fast_bfloat16_products", lambda device: False)
    model = target(kind)
    data = random_corpus(tiny.MASK if kind == "diffusion" else tiny.VOCABULARY)

    def train(out, **changes):
        return trained(kind, out, {**settings, **changes}, model, data, steps=10)

    full = resumed_alike(monkeypatch, tmp_path, train, 10)
    file = next((tmp_path / "whole").glob("*.safetensors"))
    before = file.stat().st_mtime_ns
    train(tmp_path / "whole")
    assert file.stat().st_mtime_ns == before, "a finished run is left as it is"
    with pytest.raises(TrainingError, match="what another run made"):
        train(tmp_path / "whole", **other)
    changed = weights(train(tmp_path / "other", **other))
    shared = full.keys() & changed.keys()
    assert any(not torch.equal(full[name].float(), changed[name].float()) for name in shared)
    if spec:
        texts = [
            specwb.decode(tiny.target(), tiny.PROMPTS, method, max_new_tokens=8).tokens
            for method in (f"{spec}{tmp_path / 'part'}", "ar")
        ]
        assert texts[0] == texts[1]


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("eagle", {"vocabulary": 24}),
        ("medusa", {"heads": 2}),
        ("falcon", {"k": 2, "vocabulary": 24}),
        ("kangaroo", {"exit": 1}),
        ("draft", {"layers": 1, "vocabulary": 24}),
        ("diffusion", {"start": "target", "layers": 3, "block": 8, "vocabulary": 24}),
    ],
)
def test_a_training_that_begins_with_a_trained_head(kind, settings, tmp_path):
    """So low a learning rate leaves the weights and words that it began with."""
    other = random_corpus(below=30)  # whose frequent words are others
    first = trained(kind, tmp_path / "first", settings)
    still = {**settings, "lr": 1e-12, "lr_matrix": 1e-12}
    made = tmp_path / "next"
    begin = run.first_head(first, kind, tiny.target())
    how: dict[str, Any] = {"source": "read", "begin": begin}
    budget = {"steps": 1, "rows": 4, "length": 32}
    arguments = kind, tiny.target(), made, {**still, **budget}, other, {"text": 1.0}
    run.train_head(*arguments, **how)
    before, after = weights(first), weights(made)
    assert before.keys() == after.keys()
    for name, weight in before.items():
        torch.testing.assert_close(after[name], weight, rtol=1e-3, atol=1e-6)
    assert card_of(made)["begun_from"]
    run.train_head(*arguments, **how)  # finished
    with pytest.raises(TrainingError, match="another run"):
        run.train_head(*arguments, **{**how, "begin": None})
    wrong = "kangaroo" if kind == "medusa" else "medusa"
    with pytest.raises(TrainingError, match=f"{wrong} cannot begin with .* holds {kind}"):
        run.first_head(first, wrong, tiny.target())


def test_a_training_cannot_begin_with_a_head_of_other_sizes(tmp_path):
    first = trained("eagle", tmp_path / "first", {"vocabulary": 24})
    budget = {"steps": 1, "rows": 4, "length": 32, "vocabulary": 12}
    arguments = "eagle", tiny.target(), tmp_path / "next", budget, random_corpus(), {"text": 1.0}
    with pytest.raises(TrainingError, match="a head of other sizes or settings"):
        run.train_head(
            *arguments, source="read", begin=run.first_head(first, "eagle", tiny.target())
        )
    assert not (tmp_path / "next").exists()


def test_a_training_cannot_begin_with_a_whole_model():
    with pytest.raises(TrainingError, match="draft: a whole model begins anew, not with draft"):
        run.first_head("draft", "draft", specwb.load("lab", device="cpu"))
