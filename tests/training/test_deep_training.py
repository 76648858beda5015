"""The deep draft model's recipe: where it begins, what it learns, what is saved, and what cannot be made."""

from __future__ import annotations

import copy
import json
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import tiny
import torch
from killed import resumed_alike
from transformers import AutoModelForCausalLM, AutoTokenizer

import specwb
from specwb.files import weights_hash
from specwb.training import corpus, fit, heads
from specwb.training.deep import SPREAD, DeepDraft, DeepRecipe
from specwb.training.fit import TrainingError
from specwb.training.heads import RECIPES, look, measure, step_loss
from specwb.training.recipe import Moment

V = tiny.VOCABULARY
SMALL = {"layers": 6, "hidden": 16, "heads": 2, "kv_heads": 1, "ffn": 24}


@pytest.fixture(autouse=True)
def float32(monkeypatch):
    monkeypatch.setattr(fit, "fast_bfloat16", lambda device: False)


@cache
def target() -> specwb.Target:
    other = copy.copy(tiny.target())
    other.tokenizer = tiny.tokenizer([f"w{i}" for i in range(V)])
    return other


@cache
def text() -> corpus.Corpus:
    rng = np.random.default_rng(0)
    return corpus.Corpus({"text": rng.integers(0, V, 2000).astype(np.uint16)}, {"text": rng.integers(0, V, 500).astype(np.uint16)}, [], "x")


def train(out: Path, steps: int = 4, of: specwb.Target | None = None, **settings) -> Path:
    budget = {"steps": steps, "rows": 4, "length": 24}
    return heads.train_head("deep", of or target(), out, {**SMALL, **settings}, budget, text(), {"text": 1.0}, seed=3, source="read")


def begun(**settings) -> DeepDraft:
    torch.manual_seed(0)
    return DeepRecipe(target(), {**SMALL, **settings}).make(text(), {"text": 1.0})


def ids(rows: int, length: int = 9) -> torch.Tensor:
    return torch.randint(V, (rows, length), generator=torch.Generator().manual_seed(rows))


# ---------------------------------------------------------------------------------------------------- where it begins


def test_the_usual_model():
    assert RECIPES["deep"] is DeepRecipe
    assert DeepRecipe.usual() == {"layers": 8, "hidden": 128, "heads": 4, "kv_heads": 2, "ffn": 192}
    config = begun().net.config
    sizes = config.num_hidden_layers, config.hidden_size, config.num_attention_heads, config.num_key_value_heads, config.intermediate_size
    assert sizes == (6, 16, 2, 1, 24)
    assert (config.vocab_size, config.max_position_embeddings, config.tie_word_embeddings) == (V, target().context, True)
    specwb.load(begun().net)  # the backbone runs it


def test_it_begins_with_the_targets_embeddings():
    """Their projection onto the first principal directions, but for signs; of all of as many directions none keeps more of them."""
    table = target().backbone.embed.weight.detach().double()
    found = begun().net.model.embed_tokens.weight.detach().double()
    assert float(found.std()) == pytest.approx(SPREAD, rel=1e-4)
    u, s, _ = torch.linalg.svd(table)
    wanted = (u[:, :32] * s)[:, :16]
    cosines = torch.cosine_similarity(found, wanted, dim=0).abs()
    assert float(cosines.min()) > 0.999
    scale = float(found.norm() / wanted.norm())
    torch.testing.assert_close(found @ found.T / scale**2, wanted @ wanted.T, atol=1e-4, rtol=1e-3)


def test_rows_of_the_vocabulary_are_adams_and_the_tied_head_is_one_of_them():
    head = begun()
    recipe = DeepRecipe(target(), SMALL)
    assert recipe.with_adam(head) == {"net.model.embed_tokens.weight"}
    assert head.net.lm_head.weight is head.net.model.embed_tokens.weight
    step_loss(recipe, head, look(target(), ids(2), ()), Moment(0.0, 0, 0, 2)).backward()
    assert all(p.grad is not None and bool(p.grad.abs().sum() > 0) for p in head.parameters())


# ------------------------------------------------------------------------------------------------------- what it learns


def test_the_loss_and_the_measure_place_by_place():
    """Soft cross-entropy to the target's law of the next token, a mean over all places; an ordinary model that sees the text before."""
    recipe, head, found = DeepRecipe(target(), SMALL), begun(), ids(2)
    logits = torch.stack([tiny.forward(head.net, row) for row in found.tolist()])
    truth = torch.stack([tiny.forward(target().model, row) for row in found.tolist()])
    p, q = truth.softmax(-1), logits.softmax(-1)
    loss = step_loss(recipe, head, look(target(), found, head.features), Moment(0.0, 0, 0, 2))
    assert loss.item() == pytest.approx(float(-(p * q.log()).sum(-1).mean()), rel=1e-4)
    said = measure(recipe, head, found)
    order = logits.argsort(-1, descending=True)
    assert said["rank"] == [[pytest.approx(float((order[..., r] == p.argmax(-1)).float().mean()), abs=1e-4) for r in range(heads.RANKS)]]
    assert said["sampled"] == [pytest.approx(float(torch.minimum(p, q).sum(-1).mean()), abs=1e-4)]


def test_it_learns(tmp_path):
    card = json.loads((train(tmp_path / "deep", steps=25) / "card.json").read_text())
    begin, end = (head.net.eval() for head in (begun(), begun()))
    end.load_state_dict({k.removeprefix("net."): v for k, v in trained_state(tmp_path).items()})
    p = tiny.forward(target().model, ids(1, 64)[0].tolist()).softmax(-1)
    cross = [float(-(p * tiny.forward(net, ids(1, 64)[0].tolist()).log_softmax(-1)).sum(-1).mean()) for net in (begin, end)]
    assert cross[1] < cross[0] - 0.05
    assert card["last_training_loss"] > 0
    assert set(card["held_out"]) == {"text"}


def trained_state(folder: Path) -> dict[str, torch.Tensor]:
    return torch.load(folder / "deep.checkpoint.pt", weights_only=True)["model"]


# -------------------------------------------------------------------------------------------------------- what is saved


@pytest.mark.slow
def test_killed_training_resumes_bit_for_bit_and_other_runs_are_refused(monkeypatch, tmp_path):
    resumed_alike(monkeypatch, tmp_path, lambda out: train(out), 4)
    before = (tmp_path / "whole" / "model.safetensors").stat().st_mtime_ns
    train(tmp_path / "whole")
    assert (tmp_path / "whole" / "model.safetensors").stat().st_mtime_ns == before, "a finished run is left as it is"
    with pytest.raises(TrainingError, match="what another run made"):
        train(tmp_path / "whole", layers=5)


@pytest.fixture(scope="module")
def family(tmp_path_factory) -> Path:
    """A target in a folder with its trained draft beside it, as the lab's are."""
    folder = tmp_path_factory.mktemp("family")
    target().model.save_pretrained(folder / "target")
    target().tokenizer.save_pretrained(folder / "target")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fit, "fast_bfloat16", lambda device: False)
        train(folder / "deep", of=specwb.load(folder / "target"))
    return folder


def test_the_folder_is_an_ordinary_model(family):
    """The trained weights in fp16, for the library and for us; the target's tokenizer."""
    state = trained_state(family)
    theirs, ours = AutoModelForCausalLM.from_pretrained(family / "deep", dtype=torch.float16), specwb.load(family / "deep")
    assert {p.dtype for p in ours.model.parameters()} == {torch.float32}
    names = dict(theirs.named_parameters())
    assert {f"net.{name}" for name in names} == set(state) - {"net.lm_head.weight"}
    for name, weight in names.items():
        assert torch.equal(weight, state[f"net.{name}"].half())
        assert torch.equal(ours.model.get_parameter(name), weight.float())
    assert AutoTokenizer.from_pretrained(family / "deep").get_vocab() == target().tokenizer.get_vocab()
    assert sum(p.stat().st_size for p in (family / "deep").glob("*.safetensors")) < 3 * sum(p.numel() for p in theirs.parameters())


def test_the_card_names_the_target_and_the_files(family):
    card = json.loads((family / "deep" / "card.json").read_text())
    made = specwb.load(family / "target")
    assert card["target_sha256"] == made.sha256
    assert card["sha256"] == weights_hash(family / "deep")
    assert {name: card[name] for name in SMALL} == SMALL
    assert card["parameters"] == sum(p.numel() for p in specwb.load(family / "deep").model.parameters())


def test_easyspec_drafts_with_what_lies_beside_the_target(family):
    made = specwb.load(family / "target")
    assert made.own_head("deep") == family / "deep"
    method = specwb.method("easyspec:n=3", made)
    assert method.drafter.draft.folder == family / "deep"
    assert method.drafter.groups.layers == ((0,), (1, 2), (3, 4), (5,))
    plain = specwb.decode(made, tiny.PROMPTS, "ar", max_new_tokens=8, eos=())
    assert specwb.decode(made, tiny.PROMPTS, method, max_new_tokens=8, eos=()).tokens == plain.tokens
    other = specwb.load(tiny.build("llama", seed=9))
    other.heads = family
    assert other.own_head("deep") is None, "of another target"


def test_models_in_half_precision(tmp_path):
    """Trained in float32 beside it."""
    half = specwb.load(copy.deepcopy(tiny.target().model), dtype="bfloat16", tokenizer=target().tokenizer)
    train(tmp_path / "deep", of=half)
    assert {w.dtype for w in trained_state(tmp_path).values()} == {torch.float32}


# --------------------------------------------------------------------------------------------------- what cannot be made


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"hidden": 18}, "deep: hidden=18 must be a multiple of twice heads=2, and heads of kv_heads=1"),
        ({"heads": 3}, "deep: hidden=16 must be a multiple of twice heads=3"),
        ({"heads": 4, "kv_heads": 3}, "deep: hidden=16 must be a multiple of twice heads=4, and heads of kv_heads=3"),
        ({"hidden": 64}, r"deep: hidden=64 is wider than the target's embeddings \(32\) that it begins from"),
        ({"layers": 0}, "deep: layers must be an integer >= 1"),
        ({"ffn": 1.5}, "deep: ffn must be an integer >= 1"),
        ({"kv_heads": 0}, "deep: kv_heads must be an integer >= 1"),
        ({"depth": 3}, "deep has no setting 'depth'; its settings: layers, hidden, heads, kv_heads, ffn"),
    ],
)
def test_settings_that_cannot_be_used(settings, message, tmp_path):
    with pytest.raises((TrainingError, ValueError), match=message) as caught:
        train(tmp_path / "out", **settings)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_a_target_without_a_tokenizer(tmp_path):
    """A draft model is saved with one; said before it is trained."""
    with pytest.raises(TrainingError, match="tokenizer"):
        train(tmp_path / "out", of=tiny.target())
    assert not (tmp_path / "out.checkpoint.pt").exists()
