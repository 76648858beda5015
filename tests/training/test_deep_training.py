"""The deep draft model's recipe: how it begins, what it learns, what is saved, what is refused."""

from __future__ import annotations

import copy
from functools import cache
from pathlib import Path

import pytest
import tiny
import torch
from killed import trained
from transformers import AutoModelForCausalLM, AutoTokenizer

import specwb
from specwb.training import fit
from specwb.training.deep import SPREAD, DeepDraft, DeepRecipe
from specwb.training.heads import step_loss, target_outputs
from specwb.training.recipe import Moment

V = tiny.VOCABULARY
SMALL = {"layers": 6, "hidden": 16, "heads": 2, "kv_heads": 1, "ffn": 24}


pytestmark = pytest.mark.usefixtures("in_float32")


@cache
def target() -> specwb.Target:
    other = copy.copy(tiny.target())
    other.tokenizer = tiny.tokenizer()
    return other


def train(out: Path, model: specwb.Target | None = None) -> Path:
    return trained("deep", out, SMALL, model or target())


def first_model() -> DeepDraft:
    torch.manual_seed(0)
    return DeepRecipe(target(), SMALL).make(None)


def ids(rows: int, length: int = 9) -> torch.Tensor:
    return torch.randint(V, (rows, length), generator=torch.Generator().manual_seed(rows))


# ---------------------------------------------------------------------------------- where it begins


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
    assert recipe.adam_matrices(head) is None  # its embeddings
    assert head.net.lm_head.weight is head.net.model.embed_tokens.weight
    step_loss(recipe, head, target_outputs(target(), ids(2), ()), Moment(0.0, 0, 0, 2)).backward()
    assert all(p.grad is not None and bool(p.grad.abs().sum() > 0) for p in head.parameters())


def trained_state(folder: Path) -> dict[str, torch.Tensor]:
    return torch.load(folder / "deep.checkpoint.pt", weights_only=True)["model"]


# ------------------------------------------------------------------------------------ what is saved


@pytest.fixture(scope="module")
def family(tmp_path_factory) -> Path:
    """Returns the folder of a target with its trained draft model, as the lab's are."""
    folder = tmp_path_factory.mktemp("family")
    target().model.save_pretrained(folder / "target")
    target().tokenizer.save_pretrained(folder / "target")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fit, "fast_bfloat16_products", lambda device: False)
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
