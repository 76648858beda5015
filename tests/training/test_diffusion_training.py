"""Training a diffusion drafter sees what drafting sees.

Predictions are compared with the right distributions and tokens, and weighed as the objective does.
"""

from __future__ import annotations

import copy
from functools import cache

import families
import numpy as np
import pytest
import tiny
import torch
from killed import random_corpus, trained
from safetensors.torch import load_file
from torch import Tensor

import specwb
from specwb.models.diffusion import DiffusionModel, load_diffusion
from specwb.models.masked import block
from specwb.training import heads, run
from specwb.training.diffusion import LEAST, DiffusionRecipe, fill_after_end
from specwb.training.fit import TrainingError
from specwb.training.heads import measure, target_outputs
from specwb.training.recipe import Moment, Predictions, TargetOutputs

V, MASK = tiny.VOCABULARY, tiny.MASK
ENDS = (2, 5)
TEXT = random_corpus(MASK)
SIZES = {"layers": 2, "hidden": 32, "heads": 2, "kv_heads": 1, "ffn": 64, "block": 8}


pytestmark = pytest.mark.usefixtures("in_float32")


@cache
def target() -> specwb.Target:
    return tiny.with_mask(tiny.target())


def diffusion_recipe(**settings) -> DiffusionRecipe:
    return DiffusionRecipe(target(), {**SIZES, **settings})


@cache
def head(ends: tuple[int, ...] = ()) -> DiffusionModel:
    model = tiny.loud(lambda: diffusion_recipe().make(None), 3)  # type: ignore[arg-type]
    model.ends = ends
    return model


def random_outputs(rows: int = 3, length: int = 30, seed: int = 0) -> TargetOutputs:
    ids = torch.randint(MASK, (rows, length), generator=torch.Generator().manual_seed(seed))
    return target_outputs(target(), ids, ())


@torch.no_grad()
def library_logits(model: DiffusionModel, text: list[int], shown: list[int]) -> Tensor:
    """Returns ``[k, V]``, the logits of the k tokens behind a text.

    They come from the library's forward over the text and ``shown``, its block of k - 1 tokens.
    """
    n, m = len(text), len(shown)
    sees = torch.ones(n + m, n + m, dtype=torch.bool)
    sees[:n] = torch.arange(n + m) <= torch.arange(n)[:, None]
    mask = torch.zeros(n + m, n + m).masked_fill(~sees, torch.finfo(torch.float32).min)
    states = model.net.model(
        input_ids=torch.tensor([[*text, *shown]]),
        position_ids=torch.arange(n + m)[None],
        attention_mask=mask[None, None],
    ).last_hidden_state
    return model.net.lm_head(states)[0, n - 1 :]


def close(a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-3)


class Step:
    """One training step and its intermediate results.

    Attributes:
        first: where its blocks begin.
        k: one more than their length.
        masked: which positions of the blocks are masked.
        text_level, block_level: what the loss is taken of.
    """

    def __init__(
        self, recipe: DiffusionRecipe, model: DiffusionModel, text: TargetOutputs, moment: Moment
    ) -> None:
        states = recipe.states

        def stored_states(head, outputs, first, k, masked):
            self.first, self.k, self.masked = first, k, masked
            return states(head, outputs, first, k, masked)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(recipe, "states", stored_states)
            self.text_level, self.block_level = recipe.training_levels(model, text, moment)


# ----------------------------------------------------------------------- what is learnt by position


def moments(count: int, rows: int = 3) -> list[Moment]:
    return [Moment(0.0, 0, step, rows) for step in range(count)]


@pytest.mark.parametrize(("full", "ends"), [(0.0, ()), (0.5, ENDS), (1.0, ENDS)])
def test_labels_weights_and_predictions_by_position(full, ends):
    """Each position learns the target's distribution or a token, with its weight."""
    model, text, recipe = head(ends), random_outputs(3, 34), diffusion_recipe(full=full, decay=0.8)
    is_end = torch.rand(text.ids.shape, generator=torch.Generator().manual_seed(1)) < 0.1
    text.ids = torch.where(is_end, 2, text.ids)
    positions = torch.arange(34).expand(3, -1)
    learnt = {"distribution": 0, "token": 0, "filled": 0, "nothing": 0}
    for moment in moments(5):
        step = Step(recipe, model, text, moment)
        k, level = step.k, step.block_level
        every_second = torch.arange(moment.step % 2, 34, 2)
        assert step.text_level.weights is None
        assert torch.equal(step.text_level.select(positions)[0], every_second)
        with torch.no_grad():
            wanted = model.net(input_ids=text.ids).logits[0, every_second]
            close(step.text_level.logits[0], wanted)
        assert level.weights is not None
        assert level.labels is not None
        selected, slot = level.select(positions), 0
        for b in range(step.masked.shape[1]):
            start = step.first + b * k
            for i in range(k - 1):  # the token j = i + 1 into its block
                for row in range(3):
                    ids = text.ids[row, start : start + k].tolist()
                    masked = step.masked[row, b].tolist()
                    end = next((j for j, x in enumerate(ids) if x in ends), k)
                    # position start + i predicts token start + i + 1
                    assert int(selected[row, slot]) == start + i
                    weight, label = float(level.weights[row, slot]), int(level.labels[row, slot])
                    j = i + 1
                    if j + 1 < k and not masked[j]:
                        assert weight == 0
                        learnt["nothing"] += 1
                        continue
                    if j + 1 == k:
                        assert weight == pytest.approx(0.8**j)
                    elif full == 1:
                        assert all(masked)
                        assert weight == pytest.approx(0.8**j)
                    else:
                        assert 0.8**j * 0.999 <= weight <= 0.8**j / LEAST * 1.001
                    if j > end:
                        assert label == ids[end]
                        learnt["filled"] += 1
                    elif not all(masked[j + 1 :]):
                        assert label == ids[j]
                        learnt["token"] += 1
                    else:
                        assert label == -1
                        learnt["distribution"] += 1
                slot += 1
        assert slot == level.logits.shape[1] == len(level.index)
        for row in range(3):  # the predictions of the last block
            b = step.masked.shape[1] - 1
            start = step.first + b * k
            ids, _ = fill_after_end(text.ids[row, start : start + k][None, None], ends)
            shown = torch.where(step.masked[row, b], MASK, ids[0, 0, : k - 1]).tolist()
            wanted = library_logits(model, text.ids[row, :start].tolist(), shown)[1:]
            close(level.logits[row, -(k - 1) :].detach(), wanted)
    assert learnt["distribution"] > 50
    assert bool(learnt["token"]) is bool(learnt["nothing"]) is (full < 1)
    assert bool(learnt["filled"]) is bool(ends)


# ---------------------------------------------------------------------- what is measured is drafted


@pytest.mark.parametrize("depth", [3, 8])
def test_measured_depths_are_the_drafters(depth):
    """Predictions d is what position d of a draft predicts, behind every depth-th text.

    It is compared with the target's distribution of that token.
    """
    model, text, recipe = head(), random_outputs(2, 27), diffusion_recipe()
    recipe.measured_levels = depth
    with torch.no_grad():
        levels: list[Predictions] = list(recipe.levels(model, text, depth))
    count = (27 - 1) // depth
    assert [level.logits.shape[1] for level in levels] == [count] * depth
    hits, overlap = np.zeros((depth, heads.RANKS)), np.zeros(depth)
    for row in range(2):
        for n in range(count):
            draft = block(model, text.ids[row, : 1 + n * depth].tolist(), depth)
            for d, level in enumerate(levels):
                close(level.logits[row, n], draft[d])
                wanted = text.logits[row, n * depth + d]
                assert torch.equal(level.select(text.logits)[row, n], wanted)
                hits[d] += (draft[d].topk(heads.RANKS).indices == wanted.argmax()).numpy()
                overlap[d] += float(torch.minimum(draft[d].softmax(-1), wanted.softmax(-1)).sum())
    measurements = measure(recipe, model, text.ids)
    assert np.array(measurements["rank"]) == pytest.approx(hits / (2 * count), abs=1e-3)
    assert measurements["sampled"] == pytest.approx(overlap / (2 * count), abs=1e-3)


@pytest.mark.parametrize("size", [2, 11])
def test_the_shortest_row_has_positions_at_every_depth(size):
    """The shortest row that training takes, with any length of block and any offset."""
    recipe, model = diffusion_recipe(block=size), head()
    short = recipe.min_tokens()
    settings = {**recipe.settings, "steps": 1, "rows": 1}
    message = f"rows of {short} tokens are too short, diffusion needs {short + 1}"
    with pytest.raises(TrainingError, match=message):
        run.checked_settings("diffusion", {**settings, "length": short}, target(), "read")
    run.checked_settings("diffusion", {**settings, "length": short + 1}, target(), "read")
    text = random_outputs(2, short + 1)
    for moment in moments(20, 2):
        for level in recipe.training_levels(model, text, moment):
            assert level.logits.shape[1] > 0
    assert all(level.logits.shape[1] > 0 for level in recipe.levels(model, text))


# --------------------------------------------------------------------------------------- fast start


@pytest.mark.parametrize(("tied", "layers"), [(True, 3), (False, 5)])
def test_the_first_level_begins_as_the_draft_model(tmp_path, tied, layers):
    """It predicts what the draft model does, but for the mask, which has a row of its own.

    Further layers do nothing yet.
    """
    net = tiny.build(
        "llama",
        seed=7,
        tie_word_embeddings=tied,
        rope_parameters={"rope_type": "default", "rope_theta": 300.0},
    )
    net.save_pretrained(tmp_path)
    tiny.tokenizer().save_pretrained(tmp_path)
    with_draft = copy.copy(target())
    with_draft.draft = str(tmp_path)
    recipe = DiffusionRecipe(with_draft, {"layers": layers, "start": "draft", "block": 8})
    model, text = recipe.make(None).eval(), random_outputs()  # type: ignore[arg-type]
    with torch.no_grad():
        first = next(iter(recipe.levels(model, text, 4)))
        wanted = net(input_ids=text.ids).logits[:, : first.logits.shape[1] * 4 : 4]
    close(first.logits[..., :MASK], wanted[..., :MASK])
    assert len(model.net.model.layers) == layers
    torch.testing.assert_close(
        model.net.model.embed_tokens.weight[MASK], net.model.embed_tokens.weight.mean(0)
    )
    assert (model.net.lm_head.weight is model.net.model.embed_tokens.weight) is tied


# ------------------------------------------- between the target's embedding and its output layer


@pytest.mark.parametrize("count", [0, 40])
def test_all_of_the_targets_layers_begin_as_the_target(count):
    """The text's own positions say what the target does, of the most frequent tokens."""
    settings = {"layers": 3, "block": 8, "start": "target", "vocabulary": count}
    recipe = DiffusionRecipe(tiny.target(), settings)
    model = recipe.make(recipe.frequent(TEXT, {"text": 1.0}))
    words = torch.arange(V)
    if count:
        often = np.bincount(TEXT.train["text"], minlength=V)
        words = torch.tensor(sorted(np.argsort(-often, kind="stable")[:count].tolist()))
        assert torch.equal(model.words, words)
    outputs = target_outputs(recipe.target, random_outputs().ids, ())
    with torch.no_grad():
        first = next(iter(recipe.levels(model, outputs, 4)))
    close(first.logits, first.select(outputs.logits)[..., words])
    embedding = recipe.target.backbone.embed.weight
    torch.testing.assert_close(model.net.model.embed_tokens.mask_embedding, embedding.mean(0))


def test_trained_saved_loaded_and_drafting(tmp_path):
    """From a target whose tokenizer has no mask, to texts that are those of plain decoding."""
    target = tiny.target()
    settings = {"start": "target", "layers": 3, "block": 4, "vocabulary": 40, "lr": 1e-4}
    out = trained("diffusion", tmp_path / "head", settings, target, TEXT, steps=3, rows=2)
    stored = load_file(out / "model.safetensors")
    others = {name for name in stored if ".layers." not in name}
    assert others == {"model.norm.weight", "model.embed_tokens.mask_embedding", "words"}
    card = load_diffusion(out, target).card
    assert (card["start"], card["vocabulary"]) == ("target", 40)
    method = specwb.method("diffuspec", target, head=out, k=4)
    drafted = specwb.decode(target, tiny.PROMPTS, method, max_new_tokens=12)
    assert drafted.tokens == specwb.decode(target, tiny.PROMPTS, "ar", max_new_tokens=12).tokens
    assert drafted.mean_tokens_per_step > 1.1


@pytest.mark.parametrize(
    ("family", "generic", "problem"),
    [
        ("qwen2", False, "have other parts than Llama's"),
        ("granite", False, "are not as Llama's"),
        ("llama", True, "run only together"),
    ],
)
def test_a_target_with_other_layers_is_refused(family, generic, problem):
    net = families.build(family) if family == "granite" else tiny.build(family)
    with pytest.raises(TrainingError, match=f"^diffusion: .* {problem}"):
        DiffusionRecipe(specwb.load(net, generic=generic), {"start": "target"})
