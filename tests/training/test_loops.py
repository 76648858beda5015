"""The cure of loops: which tokens are unwanted, what they cost, and that the cost leads away."""

from __future__ import annotations

import math

import numpy as np
import pytest
import tiny
import torch

from specwb.training import corpus, loops

V = tiny.VOCABULARY
MIXTURE = {"text": 1.0}
SETTINGS = {
    **{"steps": 8, "rows": 4, "length": 60, "own": 4, "renew": 4},
    **{"n": 3, "times": 1, "hold": 0.5, "weight": 1.0},
}


def data() -> corpus.Corpus:
    rng = np.random.default_rng(0)
    stream, held_out = (rng.integers(0, V, n).astype(np.uint16) for n in (3000, 800))
    return corpus.Corpus({"text": stream}, {"text": held_out}, [], "x")


def test_repeats_are_the_ends_of_n_grams_seen_before():
    rows = np.array([[1, 2, 3, 1, 2, 3, 1], [5, 5, 5, 5, 6, 5, 5]])
    assert loops.repeats(rows, 3).astype(int).tolist() == [
        [0, 0, 0, 0, 0, 1, 1],
        [0, 0, 0, 1, 0, 0, 0],
    ]
    assert loops.repeats(rows, 2).astype(int).tolist() == [
        [0, 0, 0, 0, 1, 1, 1],
        [0, 0, 1, 1, 0, 0, 1],
    ]
    assert loops.repeats(rows, 2, times=2).astype(int).tolist() == [
        [0, 0, 0, 0, 0, 0, 0],
        [0, 0, 0, 1, 0, 0, 1],
    ]
    assert not loops.repeats(rows, 8).any()


def test_unlikelihood_is_its_formula():
    logits = torch.randn(2, 3, 5, generator=torch.Generator().manual_seed(0))
    ids = torch.tensor([[0, 1, 2], [3, 4, 0]])
    mask = torch.tensor([[True, False, True], [False, False, False]])
    p = logits.softmax(-1)
    expected = -(math.log(1 - p[0, 0, 0]) + math.log(1 - p[0, 2, 2])) / 6
    assert float(loops.unlikelihood(logits, ids, mask)) == pytest.approx(expected, rel=1e-5)
    # where the token is all but certain the gradient is that of -log(1 - p), about 1 a logit
    for logit in (15.0, 60.0):
        sure = torch.tensor([[[logit, 0.0]]], requires_grad=True)
        loops.unlikelihood(sure, torch.tensor([[0]]), torch.tensor([[True]])).backward()
        assert sure.grad.flatten().tolist() == pytest.approx([1.0, -1.0], rel=1e-3)


def test_looping_counts_texts():
    loop, free = [1, 2, 3, 4] * 8, list(range(32))
    assert loops.looping([loop, free, free, loop]) == 0.5


def test_the_cure_leads_away_from_repetition_and_holds_the_rest(tmp_path):
    model, before = (tiny.build("llama", seed=0) for _ in range(2))
    with torch.no_grad():
        for same in (model, before):
            same.model.norm.weight.mul_(6)  # sharp, so that it repeats itself for ever
    target, text = loops.Target(model), data()
    assert loops.loop_shares(target, text, 8)["text"] > 0.2
    settings = {**SETTINGS, "steps": 40, "weight": 2.0, "hold": 1.0}
    loss = loops.cure_loss(target, before, text, MIXTURE, settings, 0, tmp_path)
    own, mask = (
        torch.from_numpy(x) for x in loops._written(target, text, MIXTURE, settings, 0, 0, tmp_path)
    )

    def repeated(a_model) -> float:
        """The mean probability of the tokens that repeat what was there."""
        with torch.no_grad():
            p = a_model(own[:, :-1]).logits.softmax(-1).gather(-1, own[:, 1:, None])[..., 0]
        return float(p[mask[:, 1:]].mean())

    assert repeated(model) == pytest.approx(repeated(before), abs=1e-5)
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.0)
    for step in range(40):
        optimiser.zero_grad()
        loss(step).backward()
        optimiser.step()
    assert repeated(model) < 0.5 * repeated(before)
    ids = torch.from_numpy(text.windows("text", 4, 30))
    with torch.no_grad():
        p, q = before(ids).logits.softmax(-1), model(ids).logits.softmax(-1)
    assert torch.minimum(p, q).sum(-1).mean() > 0.6
    assert len(list(tmp_path.glob("*.npy"))) == 10


def test_what_was_written_is_learnt_from_again(tmp_path):
    """A run that goes on takes the text that the model wrote then; every step has its own rows."""
    target = loops.Target(tiny.build("llama", seed=0))  # its weights are changed below
    written = loops._written(target, data(), MIXTURE, SETTINGS, 0, 5, tmp_path)
    with torch.no_grad():
        target.model.lm_head.weight.neg_()
    again = loops._written(target, data(), MIXTURE, SETTINGS, 0, 5, tmp_path)
    assert np.array_equal(written[0], again[0])
    assert np.array_equal(written[1], again[1])
    steps = [
        loops._written(target, data(), MIXTURE, SETTINGS, 0, i, tmp_path)[0] for i in range(4, 8)
    ]
    assert len({row.tobytes() for rows in steps for row in rows}) > 12
    assert len(list(tmp_path.glob("*.npy"))) == 1
    other = loops._written(target, data(), MIXTURE, SETTINGS, 0, 9, tmp_path)
    assert not np.array_equal(written[0], other[0])
    assert not written[1][:, : loops.PROMPT].any()
