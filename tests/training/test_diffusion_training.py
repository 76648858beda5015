"""Training a diffusion drafter sees what drafting sees, puts what it says beside the right laws and tokens, and weighs them as the objective does."""

from __future__ import annotations

import copy
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import tiny
import torch
from killed import resumed_alike, weights
from terminal import call
from torch import Tensor

import specwb
from specwb.models.diffusion import DiffusionModel
from specwb.models.masked import block
from specwb.training import corpus, fit, heads
from specwb.training.diffusion import LEAST, DiffusionRecipe, ended
from specwb.training.fit import TrainingError
from specwb.training.heads import look, measure
from specwb.training.recipe import Found, Level, Moment

V, MASK = tiny.VOCABULARY, tiny.MASK
WORDS = [f"w{i}" for i in range(V)]
ENDS = (2, 5)
SIZES = {"layers": 2, "hidden": 32, "heads": 2, "kv_heads": 1, "ffn": 64, "block": 8}


@pytest.fixture(autouse=True)
def float32(monkeypatch):
    monkeypatch.setattr(fit, "fast_bfloat16", lambda device: False)


@cache
def target() -> specwb.Target:
    return tiny.with_mask(tiny.target())


def recipe(**settings) -> DiffusionRecipe:
    return DiffusionRecipe(target(), {**SIZES, **settings})


@cache
def head(ends: tuple[int, ...] = ()) -> DiffusionModel:
    """Random, of large weights: what any place says depends on all that it sees."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        made = recipe().make(None, {})  # type: ignore[arg-type]
        for name, weight in made.named_parameters():
            weight.data = torch.randn_like(weight) * 0.25 + ("norm" in name)
    made.ends = ends
    return made.eval()


def found(rows: int = 3, length: int = 30, seed: int = 0) -> Found:
    ids = torch.randint(MASK, (rows, length), generator=torch.Generator().manual_seed(seed))
    return look(target(), ids, ())


@torch.no_grad()
def said(model: DiffusionModel, text: list[int], shown: list[int]) -> Tensor:
    """``[k, V]`` of the k tokens behind a text, ``shown`` standing in its block of k - 1: the library's forward over the two, as drafting has it."""
    n, m = len(text), len(shown)
    sees = torch.ones(n + m, n + m, dtype=torch.bool)
    sees[:n] = torch.arange(n + m) <= torch.arange(n)[:, None]
    mask = torch.zeros(n + m, n + m).masked_fill(~sees, torch.finfo(torch.float32).min)
    places = torch.arange(n + m)[None]
    out = model.net.model(input_ids=torch.tensor([[*text, *shown]]), position_ids=places, attention_mask=mask[None, None]).last_hidden_state
    return model.net.lm_head(out)[0, n - 1 :]


def close(a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-3)


class Step:
    """One training step: where its blocks begin (``first``), their length ``k``, which places are ``hidden``, and the levels."""

    def __init__(self, made: DiffusionRecipe, model: DiffusionModel, text: Found, moment: Moment) -> None:
        states = made.states

        def seen(head, ids, first, k, hidden):
            self.first, self.k, self.hidden = first, k, hidden
            return states(head, ids, first, k, hidden)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(made, "states", seen)
            self.plain, self.blocks = made.training(model, text, moment)


# ------------------------------------------------------------------------------------------- training sees what drafting sees


@pytest.mark.parametrize(("k", "first"), [(2, 1), (2, 2), (3, 2), (7, 1), (7, 5), (13, 4)])
def test_masked_blocks_are_what_drafting_says(k, first):
    """For every text that a block stands behind, one pass of masks: the first token by the text's last place, the others by the masks."""
    model, ids = head(), found().ids
    blocks = (30 - first) // k
    with torch.no_grad():
        plain, masked = recipe().states(model, ids, first, k, torch.ones(3, blocks, k - 1, dtype=torch.bool))
        plain, masked = model.logits(plain), model.logits(masked)
    for row in range(3):
        for b in range(blocks):
            start = first + b * k
            draft = block(model, ids[row, :start].tolist(), k)
            close(plain[row, start - 1], draft[0])
            close(masked[row, b], draft[1:])


@pytest.mark.parametrize("ends", [(), ENDS], ids=["no ends", "ends"])
@pytest.mark.parametrize("k", [2, 4, 8])
def test_partly_masked_blocks_are_what_a_later_step_of_drafting_says(k, ends):
    """What is shown stands at its place; behind an end of text, that end. The text is read as by any causal model."""
    model, ids, first = head(ends), found().ids, 3
    ids = torch.where(torch.rand(ids.shape, generator=torch.Generator().manual_seed(1)) < 0.15, 2 + 3 * (ids % 2), ids)
    blocks, filled = (30 - first) // k, 0
    hidden = torch.rand(3, blocks, k - 1, generator=torch.Generator().manual_seed(2)) < 0.5
    with torch.no_grad():
        plain, masked = (model.logits(x) for x in recipe().states(model, ids, first, k, hidden))
        close(plain, model.net(input_ids=ids).logits)
    for row in range(3):
        for b in range(blocks):
            start = first + b * k
            text, own = ids[row, :start].tolist(), ids[row, start : start + k].tolist()
            at = next((i for i, x in enumerate(own) if x in ends), k)
            filled += sum(x != own[at] for x in own[at:]) if at < k else 0
            own[at:] = [own[at]] * (k - at) if at < k else []
            shown = [MASK if hidden[row, b, i] else own[i] for i in range(k - 1)]
            close(masked[row, b], said(model, text, shown)[1:])
    assert bool(filled) is bool(ends)


def test_ends_fill_the_rest_of_a_block():
    tokens = torch.tensor([[[7, 2, 8, 5, 9], [1, 1, 1, 1, 1], [5, 2, 2, 7, 7], [1, 1, 1, 1, 2]]])
    full, after = ended(tokens, ENDS)
    assert full[0].tolist() == [[7, 2, 2, 2, 2], [1, 1, 1, 1, 1], [5, 5, 5, 5, 5], [1, 1, 1, 1, 2]]
    assert after[0].int().tolist() == [[0, 0, 1, 1, 1], [0] * 5, [0, 1, 1, 1, 1], [0] * 5]
    same, none = ended(tokens, ())
    assert torch.equal(same, tokens)
    assert not none.any()


# ------------------------------------------------------------------------------------------------ what is learnt, place by place


def moments(count: int, rows: int = 3) -> list[Moment]:
    return [Moment(0.0, 0, step, rows) for step in range(count)]


def test_blocks_of_every_length_begin_everywhere():
    """k log-uniform in 2..block, blocks at 1..k and within the text."""
    model, text, made, seen = head(), found(1, 40), recipe(block=6), set()
    for moment in moments(300, 1):
        step = Step(made, model, text, moment)
        assert 1 <= step.first <= step.k
        blocks = step.hidden.shape[1]
        assert 40 - step.k < step.first + blocks * step.k <= 40
        seen.add((step.k, step.first))
    assert seen == {(k, first) for k in range(2, 7) for first in range(1, k + 1)}
    lengths = [int(2 * 3 ** moment.number(0) + 0.5) for moment in moments(3000)]
    wanted = [np.log((min(k + 0.5, 6) if k < 6 else 6) / max(k - 0.5, 2)) / np.log(3) for k in range(2, 7)]
    assert [lengths.count(k) / 3000 for k in range(2, 7)] == pytest.approx(wanted, abs=0.03)


@pytest.mark.parametrize("ends", [(), ENDS], ids=["no ends", "ends"])
@pytest.mark.parametrize("full", [0.0, 0.5, 1.0])
def test_what_a_step_puts_beside_what(full, ends):
    """Law or token, weight, and what is said, of every place; the tokens are told apart by where they stand."""
    model, text, made = head(ends), found(3, 34), recipe(full=full, decay=0.8)
    text.ids = torch.where(torch.rand(text.ids.shape, generator=torch.Generator().manual_seed(1)) < 0.1, 2, text.ids)
    place = torch.arange(34).expand(3, -1)
    learnt = {"law": 0, "token": 0, "filled": 0, "nothing": 0}
    for moment in moments(8):
        step = Step(made, model, text, moment)
        k, level = step.k, step.blocks
        own = torch.arange(moment.step % 2, 34, 2)
        assert step.plain.counted is None
        assert torch.equal(step.plain.of(place)[0], own)
        with torch.no_grad():
            close(step.plain.logits[0], model.net(input_ids=text.ids).logits[0, own])
        assert level.counted is not None
        assert level.tokens is not None
        where, slot = level.of(place), 0
        for b in range(step.hidden.shape[1]):
            start = step.first + b * k
            for i in range(k - 1):  # the token j = i + 1 into its block
                for row in range(3):
                    ids, hidden = text.ids[row, start : start + k].tolist(), step.hidden[row, b].tolist()
                    at = next((j for j, x in enumerate(ids) if x in ends), k)
                    assert int(where[row, slot]) == start + i  # whose law is of token start + i + 1
                    weight, token = float(level.counted[row, slot]), int(level.tokens[row, slot])
                    j, asked = i + 1, i + 2 == k or hidden[i + 1]
                    if not asked:
                        assert weight == 0
                        learnt["nothing"] += 1
                        continue
                    if j + 1 == k:
                        assert weight == pytest.approx(0.8**j)
                    elif full == 1:
                        assert all(hidden)
                        assert weight == pytest.approx(0.8**j)
                    else:
                        assert 0.8**j * 0.999 <= weight <= 0.8**j / LEAST * 1.001
                    shown = not all(hidden[j + 1 :])
                    if j > at:
                        assert token == ids[at]
                        learnt["filled"] += 1
                    elif shown:
                        assert token == ids[j]
                        learnt["token"] += 1
                    else:
                        assert token == -1
                        learnt["law"] += 1
                slot += 1
        assert slot == level.logits.shape[1] == len(level.index)
        for row in range(3):  # and it is said of these places
            b = step.hidden.shape[1] - 1
            start = step.first + b * k
            ids, _ = ended(text.ids[row, start : start + k][None, None], ends)
            shown = torch.where(step.hidden[row, b], MASK, ids[0, 0, : k - 1]).tolist()
            close(level.logits[row, -(k - 1) :].detach(), said(model, text.ids[row, :start].tolist(), shown)[1:])
    assert learnt["law"] > 50
    assert bool(learnt["token"]) is bool(learnt["nothing"]) is (full < 1)
    assert bool(learnt["filled"]) is bool(ends)


def test_hidden_places_weigh_one_over_the_share_that_is_hidden():
    """So that every place weighs 1 on average, whatever t; t is one for all places of a block, and 1 for the share ``full`` of the blocks."""
    rows, length = 400, 16
    text = Found(torch.randint(MASK, (rows, length)), *(torch.zeros(rows, length, 1) for _ in range(4)))
    made, model = recipe(block=8, full=0.25, decay=1.0), SimpleNamespace(ends=(), logits=lambda x: x)
    made.states = lambda head, ids, first, k, hidden: (torch.zeros(rows, length, 1), (_keep(hidden), torch.zeros(*hidden.shape, 1))[1])  # type: ignore
    kept: list[Tensor] = []
    _keep = kept.append
    whole, weights, shares = [], [], []
    for moment in moments(60, rows):
        _, level = made.training(model, text, moment)
        hidden, k = kept[-1], kept[-1].shape[2] + 1
        weight = level.counted.view(rows, hidden.shape[1], k - 1)
        if k < 6:
            continue
        weights.append(weight[:, :, :-1].flatten(0, 1).mean(0))
        for row, block_ in zip(weight[:, 0, :-1].tolist(), hidden[:, 0].tolist()):
            said_ = {round(w, 4) for w in row if w}
            assert len(said_) <= 1
            if said_ and not all(block_):
                shares.append((1 / said_.pop(), sum(block_[1:]) / (k - 2)))
        whole.append(hidden.all(-1).float().mean())
    assert float(torch.cat(weights).mean()) == pytest.approx(1, abs=0.03)
    assert min(t for t, _ in shares) < 0.2
    assert max(t for t, _ in shares) > 0.9
    # a quarter whole by choice, and of the others those whose every place happened to be hidden
    assert 0.25 < float(torch.stack(whole).mean()) < 0.45
    low, high = ([share for t, share in shares if a <= t < b] for a, b in ((0.2, 0.4), (0.6, 0.8)))
    assert np.mean(low) < 0.5 < np.mean(high)


def test_the_loss_place_by_place():
    text, model, moment = found(2, 26), head(ENDS), Moment(0.0, 0, 5, 2)
    made = recipe(decay=0.7)
    step = Step(made, model, text, moment)
    total = 0.0
    for scale, level in ((1.0, step.plain), (made.decay, step.blocks)):
        logits, (rows, m) = level.logits.detach(), level.logits.shape[:2]
        at = level.of(torch.arange(26).expand(rows, -1))
        for row in range(rows):
            for n in range(m):
                p = text.logits[row, at[row, n]].softmax(-1)
                if level.tokens is not None and level.tokens[row, n] >= 0:
                    p = torch.eye(V)[level.tokens[row, n]]
                weight = 1.0 if level.counted is None else float(level.counted[row, n])
                total += scale * weight * float(-(p * logits[row, n].log_softmax(-1)).sum()) / (rows * m)
    assert heads.step_loss(made, model, text, moment).item() == pytest.approx(total, rel=1e-5)
    assert (step.blocks.tokens >= 0).any()


def test_the_loss_of_a_perfect_model_is_the_entropy():
    """Of one that says the target's law everywhere, where all is masked; and any other's is more."""
    text, moment = found(2, 26), Moment(0.0, 0, 4, 2)
    made, model = recipe(full=1.0, decay=1.0), SimpleNamespace(ends=(), logits=lambda x: x)

    def losses(logits: Tensor) -> float:
        def states(head, ids, first, k, hidden):
            place = first + torch.arange(hidden.shape[1])[:, None] * k + torch.arange(k - 1)
            made.asked = place.flatten()
            return logits, logits[:, place]

        made.states = states  # type: ignore[method-assign]
        return heads.step_loss(made, model, text, moment).item()

    perfect = losses(text.logits)
    entropy = torch.distributions.Categorical(logits=text.logits).entropy()
    assert perfect == pytest.approx(float(entropy[:, ::2].mean() + made.decay * entropy[:, made.asked].mean()), rel=1e-5)
    assert losses(text.logits * 1.05) > perfect
    assert losses(text.logits.roll(1, 1)) > perfect + 0.1


def test_two_processes_make_the_rows_of_one(monkeypatch):
    text, made, moment = found(4), recipe(), Moment(0.1, 5, 7, 4)
    whole = Step(made, head(), text, moment)
    for index in range(2):
        monkeypatch.setattr(fit, "_processes", lambda index=index: SimpleNamespace(num_processes=2, process_index=index))
        part = Step(made, head(), Found(*(x[index::2] for x in vars(text).values())), moment)
        assert (part.k, part.first) == (whole.k, whole.first)
        assert torch.equal(part.hidden, whole.hidden[index::2])
        assert torch.equal(part.blocks.counted, whole.blocks.counted[index::2])
        assert torch.equal(part.blocks.tokens, whole.blocks.tokens[index::2])
    assert not whole.hidden.all()


# --------------------------------------------------------------------------------------------------- what is measured is drafted


@pytest.mark.parametrize("depth", [2, 3, 8])
def test_measured_depths_are_the_drafters(depth):
    """Level d is the law at place d of a draft behind every depth-th text, beside the target's law of that token."""
    model, text, made = head(), found(2, 27), recipe()
    made.measured = depth
    with torch.no_grad():
        levels: list[Level] = list(made.levels(model, text, depth))
    many = (27 - 1) // depth
    assert [level.logits.shape[1] for level in levels] == [many] * depth
    hits, overlap = np.zeros((depth, heads.RANKS)), np.zeros(depth)
    for row in range(2):
        for n in range(many):
            draft = block(model, text.ids[row, : 1 + n * depth].tolist(), depth)
            for d, level in enumerate(levels):
                close(level.logits[row, n], draft[d])
                wanted = text.logits[row, n * depth + d]
                assert torch.equal(level.of(text.logits)[row, n], wanted)
                hits[d] += (draft[d].topk(heads.RANKS).indices == wanted.argmax()).numpy()
                overlap[d] += float(torch.minimum(draft[d].softmax(-1), wanted.softmax(-1)).sum())
    found_ = measure(made, model, text.ids)
    assert np.array(found_["rank"]) == pytest.approx(hits / (2 * many), abs=1e-3)
    assert found_["sampled"] == pytest.approx(overlap / (2 * many), abs=1e-3)


@pytest.mark.parametrize("size", [2, 8, 11])
def test_the_shortest_row_has_places_at_every_depth(size):
    """The shortest that training takes, with any length of block and any offset."""
    made, model = recipe(block=size), head()
    with pytest.raises(TrainingError, match=f"rows of {made.least()} tokens are too short, diffusion needs {made.least() + 1}"):
        heads._check("diffusion", made.settings, target(), made.least(), "read")
    heads._check("diffusion", made.settings, target(), made.least() + 1, "read")
    text = found(2, made.least() + 1)
    for moment in moments(60, 2):
        for level in made.training(model, text, moment):
            assert level.logits.shape[1] > 0
    assert all(level.logits.shape[1] > 0 for level in made.levels(model, text))


# ------------------------------------------------------------------------------------------------------------- fast start


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("layers", [3, 5])
def test_started_from_the_draft_the_first_level_says_what_the_draft_says(tmp_path, tied, layers):
    """Of every token but the mask, whose row is another; further layers do nothing yet."""
    net = tiny.build("llama", seed=7, tie_word_embeddings=tied, rope_parameters={"rope_type": "default", "rope_theta": 300.0})
    net.save_pretrained(tmp_path)
    tiny.tokenizer(WORDS).save_pretrained(tmp_path)
    own = copy.copy(target())
    own.draft = str(tmp_path)
    made = DiffusionRecipe(own, {"layers": layers, "start": "draft", "block": 8})
    model, text = made.make(None, {}).eval(), found()  # type: ignore[arg-type]
    with torch.no_grad():
        first = next(iter(made.levels(model, text, 4)))
        wanted = net(input_ids=text.ids).logits[:, : first.logits.shape[1] * 4 : 4]
    close(first.logits[..., :MASK], wanted[..., :MASK])
    assert len(model.net.model.layers) == layers
    torch.testing.assert_close(model.net.model.embed_tokens.weight[MASK], net.model.embed_tokens.weight.mean(0))
    assert (model.net.lm_head.weight is model.net.model.embed_tokens.weight) is tied
    fresh = DiffusionRecipe(own, {**SIZES, "start": "none"}).make(None, {})  # type: ignore[arg-type]
    assert fresh.net.config.hidden_size == 32


def test_a_draft_of_another_kind_is_refused(tmp_path):
    tiny.build("qwen2").save_pretrained(tmp_path)
    tiny.tokenizer(WORDS).save_pretrained(tmp_path)
    own = copy.copy(target())
    own.draft = str(tmp_path)
    with pytest.raises(TrainingError, match="is no Llama with the target's tokens; use start=none"):
        DiffusionRecipe(own, {}).make(None, {})  # type: ignore[arg-type]


# ------------------------------------------------------------------------------------------------------- stopped and resumed


def train(out: Path, **settings) -> Path:
    rng = np.random.default_rng(0)
    text = corpus.Corpus({"text": rng.integers(0, MASK, 2000).astype(np.uint16)}, {"text": rng.integers(0, MASK, 500).astype(np.uint16)}, [], "x")
    budget = {"steps": 10, "rows": 4, "length": 32}
    return heads.train_head("diffusion", target(), out, {**SIZES, **settings}, budget, text, {"text": 1.0}, seed=3, source="read")


@pytest.mark.slow
def test_killed_training_resumes_bit_for_bit(monkeypatch, tmp_path):
    """SIGKILL in the middle of a step, after a checkpoint; what is masked when is a function of the step."""
    whole = resumed_alike(monkeypatch, tmp_path, train, 10)
    # masking is part of it
    other = weights(train(tmp_path / "other", full=1.0))
    assert not torch.equal(other["model.layers.0.mlp.up_proj.weight"], whole["model.layers.0.mlp.up_proj.weight"])
    # and the files are a model that drafts
    method = specwb.method("diffuspec", tiny.target(), head=tmp_path / "part", k=4)
    texts = [specwb.decode(tiny.target(), tiny.PROMPTS, m, max_new_tokens=8).tokens for m in (method, "ar")]
    assert texts[0] == texts[1]
    card = specwb.models.diffusion.load_diffusion(tmp_path / "part", tiny.target()).card
    assert (card["start"], card["block"], card["steps"]) == ("none", 8, 10)


# ------------------------------------------------------------------------------------------------------------- bad settings


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("diffusion")
    for name in ("target", "no mask"):
        tiny.build("llama", seed=2).save_pretrained(root / name)
        tokenizer = tiny.tokenizer(WORDS)
        if name == "target":
            tokenizer.mask_token = WORDS[MASK]
        tokenizer.save_pretrained(root / name)
    (root / "corpus.txt").write_text(" ".join(WORDS * 60))
    return root


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ("block=1", "diffusion: full is in [0, 1], decay in (0, 1], block at least 2; got 0.5, 0.9, 1"),
        ("block=0", "diffusion: block must be an integer >= 1, got 0"),
        ("block=many", "diffusion: block must be an integer >= 1, got 'many'"),
        ("block=32", "rows of 32 tokens are too short, diffusion needs 64"),
        ("full=1.5", "diffusion: full is in [0, 1]"),
        ("full=-0.5", "diffusion: full must be a number >= 0, got -0.5"),
        ("decay=0", "decay in (0, 1]"),
        ("decay=1.1", "decay in (0, 1]"),
        ("decay=nan", "diffusion: decay must be a number >= 0, got nan"),
        ("start=target", "diffusion: start must be draft, none, got 'target'"),
        ("layers=0", "diffusion: layers must be an integer >= 1, got 0"),
        ("hidden=30,heads=4", "diffusion: hidden=30 must be a multiple of twice heads=4"),
        ("heads=3,kv_heads=2", "and heads of kv_heads=2"),
        ("unroll=2", "diffusion: settings are layers, start, hidden, heads, kv_heads, ffn, block, full, decay, written name=value; got 'unroll=2'"),
        ("block", "written name=value; got 'block'"),
        ("no mask", "has no mask token; give it one (tokenizer.mask_token) among the ids it has"),
    ],
)
def test_a_bad_setting_is_one_line_and_exit_2(monkeypatch, capsys, place, tmp_path, given, named):
    bare = given == "no mask"
    arguments = {
        "target": place / ("no mask" if bare else "target"), "out": tmp_path / "head", "budget": "smoke", "steps": 2, "rows": 4, "length": 32,
        "set": "block=8" if bare else given, "corpus": place / "corpus.txt", "generated": tmp_path / "generated", "device": "cpu",
    }  # fmt: skip
    typed = [part for name, value in arguments.items() for part in (f"--{name}", str(value))]
    code, out, err = call(monkeypatch, capsys, "train", "diffusion", *typed)
    lines = [line for line in err.strip().splitlines() if line != "reading the training text"]
    assert code == 2, err
    assert named in err
    assert len(lines) == 1, err
    assert not out
    assert not list(tmp_path.iterdir())
