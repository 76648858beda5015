"""The deep draft model's recipe: how it begins, what it learns, what is saved, what is refused."""

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
from specwb.training import corpus, fit, heads, run
from specwb.training.deep import SPREAD, DeepDraft, DeepRecipe
from specwb.training.fit import TrainingError
from specwb.training.heads import RECIPES, measure, step_loss, target_outputs
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
    stream, held_out = (rng.integers(0, V, n).astype(np.uint16) for n in (2000, 500))
    return corpus.Corpus({"text": stream}, {"text": held_out}, [], "x")


def train(out: Path, steps: int = 4, model: specwb.Target | None = None, **settings) -> Path:
    settings, model = {**SMALL, **settings}, model or target()
    budget, mixture = {"steps": steps, "rows": 4, "length": 24}, {"text": 1.0}
    more = {"seed": 3, "source": "read"}
    return run.train_head("deep", model, out, {**settings, **budget}, text(), mixture, **more)


def first_model(**settings) -> DeepDraft:
    torch.manual_seed(0)
    return DeepRecipe(target(), {**SMALL, **settings}).make(text(), {"text": 1.0})


def ids(rows: int, length: int = 9) -> torch.Tensor:
    return torch.randint(V, (rows, length), generator=torch.Generator().manual_seed(rows))


# ---------------------------------------------------------------------------------- where it begins


def test_the_default_model():
    assert RECIPES["deep"] is DeepRecipe
    defaults = {"layers": 8, "hidden": 128, "heads": 4, "kv_heads": 2, "ffn": 192}
    assert DeepRecipe.defaults() == defaults
    config = first_model().net.config
    sizes = (
        config.num_hidden_layers,
        config.hidden_size,
        config.num_attention_heads,
        config.num_key_value_heads,
        config.intermediate_size,
    )
    assert sizes == (6, 16, 2, 1, 24)
    assert config.vocab_size == V
    assert config.max_position_embeddings == target().context
    assert config.tie_word_embeddings
    specwb.load(first_model().net)  # the backbone runs it


def test_it_begins_with_the_targets_embeddings():
    """It has their projection onto the first principal directions, but for signs.

    Of all sets of as many directions none keeps more of them.
    """
    table = target().backbone.embed.weight.detach().double()
    embeddings = first_model().net.model.embed_tokens.weight.detach().double()
    assert float(embeddings.std()) == pytest.approx(SPREAD, rel=1e-4)
    u, s, _ = torch.linalg.svd(table)
    wanted = (u[:, :32] * s)[:, :16]
    cosines = torch.cosine_similarity(embeddings, wanted, dim=0).abs()
    assert float(cosines.min()) > 0.999
    scale = float(embeddings.norm() / wanted.norm())
    products = embeddings @ embeddings.T / scale**2
    torch.testing.assert_close(products, wanted @ wanted.T, atol=1e-4, rtol=1e-3)


def test_rows_of_the_vocabulary_are_adams_and_the_tied_head_is_one_of_them():
    head = first_model()
    recipe = DeepRecipe(target(), SMALL)
    assert recipe.adam_matrices(head) == {"net.model.embed_tokens.weight"}
    assert head.net.lm_head.weight is head.net.model.embed_tokens.weight
    step_loss(recipe, head, target_outputs(target(), ids(2), ()), Moment(0.0, 0, 0, 2)).backward()
    assert all(p.grad is not None and bool(p.grad.abs().sum() > 0) for p in head.parameters())


# ----------------------------------------------------------------------------------- what it learns


def test_the_loss_and_the_measurement():
    """Cross-entropy with the target's distribution of the next token, a mean over all positions.

    It is an ordinary model that sees the text before.
    """
    recipe, head, rows = DeepRecipe(target(), SMALL), first_model(), ids(2)
    logits = torch.stack([tiny.forward(head.net, row) for row in rows.tolist()])
    truth = torch.stack([tiny.forward(target().model, row) for row in rows.tolist()])
    p, q = truth.softmax(-1), logits.softmax(-1)
    outputs = target_outputs(target(), rows, head.features)
    loss = step_loss(recipe, head, outputs, Moment(0.0, 0, 0, 2))
    assert loss.item() == pytest.approx(float(-(p * q.log()).sum(-1).mean()), rel=1e-4)
    measurements = measure(recipe, head, rows)
    order = logits.argsort(-1, descending=True)
    hits = order[..., : heads.RANKS] == p.argmax(-1, keepdim=True)
    (ranks,) = measurements["rank"]
    assert ranks == pytest.approx(hits.float().mean((0, 1)).tolist(), abs=1e-4)
    overlap = float(torch.minimum(p, q).sum(-1).mean())
    assert measurements["sampled"] == [pytest.approx(overlap, abs=1e-4)]


def test_it_learns(tmp_path):
    card = json.loads((train(tmp_path / "deep", steps=25) / "card.json").read_text())
    before, after = first_model().net.eval(), first_model().net.eval()
    after.load_state_dict({k.removeprefix("net."): v for k, v in trained_state(tmp_path).items()})
    row = ids(1, 64)[0].tolist()
    p = tiny.forward(target().model, row).softmax(-1)

    def cross_entropy(net) -> float:
        return float(-(p * tiny.forward(net, row).log_softmax(-1)).sum(-1).mean())

    assert cross_entropy(after) < cross_entropy(before) - 0.05
    assert card["last_training_loss"] > 0
    assert set(card["held_out"]) == {"text"}


def trained_state(folder: Path) -> dict[str, torch.Tensor]:
    return torch.load(folder / "deep.checkpoint.pt", weights_only=True)["model"]


# ------------------------------------------------------------------------------------ what is saved


@pytest.mark.slow
def test_killed_training_resumes_bit_for_bit_and_other_runs_are_refused(monkeypatch, tmp_path):
    resumed_alike(monkeypatch, tmp_path, lambda out: train(out), 4)
    before = (tmp_path / "whole" / "model.safetensors").stat().st_mtime_ns
    train(tmp_path / "whole")
    after = (tmp_path / "whole" / "model.safetensors").stat().st_mtime_ns
    assert after == before, "a finished run is left as it is"
    with pytest.raises(TrainingError, match="what another run made"):
        train(tmp_path / "whole", layers=5)


@pytest.fixture(scope="module")
def family(tmp_path_factory) -> Path:
    """Returns the folder of a target with its trained draft model, as the lab's are."""
    folder = tmp_path_factory.mktemp("family")
    target().model.save_pretrained(folder / "target")
    target().tokenizer.save_pretrained(folder / "target")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fit, "fast_bfloat16", lambda device: False)
        train(folder / "deep", model=specwb.load(folder / "target"))
    return folder


def test_the_folder_is_an_ordinary_model(family):
    """It has the trained weights in fp16, for the library and us, and the target's tokenizer."""
    state = trained_state(family)
    theirs = AutoModelForCausalLM.from_pretrained(family / "deep", dtype=torch.float16)
    ours = specwb.load(family / "deep")
    assert {p.dtype for p in ours.model.parameters()} == {torch.float32}
    names = dict(theirs.named_parameters())
    assert {f"net.{name}" for name in names} == set(state) - {"net.lm_head.weight"}
    for name, weight in names.items():
        assert torch.equal(weight, state[f"net.{name}"].half())
        assert torch.equal(ours.model.get_parameter(name), weight.float())
    tokenizer = AutoTokenizer.from_pretrained(family / "deep")
    assert tokenizer.get_vocab() == target().tokenizer.get_vocab()
    size = sum(p.stat().st_size for p in (family / "deep").glob("*.safetensors"))
    assert size < 3 * sum(p.numel() for p in theirs.parameters())


def test_the_card_names_the_target_and_the_files(family):
    card = json.loads((family / "deep" / "card.json").read_text())
    assert card["target_sha256"] == specwb.load(family / "target").sha256
    assert card["sha256"] == weights_hash(family / "deep")
    assert {name: card[name] for name in SMALL} == SMALL
    model = specwb.load(family / "deep").model
    assert card["parameters"] == sum(p.numel() for p in model.parameters())


def test_easyspec_drafts_with_what_lies_beside_the_target(family):
    loaded = specwb.load(family / "target")
    assert loaded.own_head("deep") == family / "deep"
    method = specwb.method("easyspec:n=3", loaded)
    assert method.drafter.draft.folder == family / "deep"
    assert method.drafter.groups.layers == ((0,), (1, 2), (3, 4), (5,))
    texts = [
        specwb.decode(loaded, tiny.PROMPTS, m, max_new_tokens=8, eos=()).tokens
        for m in (method, "ar")
    ]
    assert texts[0] == texts[1]
    other = specwb.load(tiny.build("llama", seed=9))
    other.heads = family
    assert other.own_head("deep") is None, "of another target"


def test_a_target_in_half_precision(tmp_path):
    """The draft model is trained in float32 beside it."""
    half = specwb.load(
        copy.deepcopy(tiny.target().model), dtype="bfloat16", tokenizer=target().tokenizer
    )
    train(tmp_path / "deep", model=half)
    assert {w.dtype for w in trained_state(tmp_path).values()} == {torch.float32}


# ---------------------------------------------------------------------------------- what is refused


def test_a_target_without_a_tokenizer(tmp_path):
    """A draft model is saved with one; it is refused before it is trained."""
    with pytest.raises(TrainingError, match="tokenizer"):
        train(tmp_path / "out", model=tiny.target())
    assert not (tmp_path / "out.checkpoint.pt").exists()
