"""The cure of loops: what may not follow, what is learnt of it, and what is kept."""

from __future__ import annotations

import numpy as np
import pytest
import tiny
import torch
from torch.nn import functional as F

from scripts.build_lab import loops
from specwb.training import corpus

V = tiny.VOCABULARY
MIXTURE = {"text": 1.0}
SETTINGS = {
    **{"steps": 8, "rows": 4, "length": 60, "own": 4, "renew": 4},
    **{"n": 3, "hold": 0.5, "times": 1, "weight": 1.0},
}


def data() -> corpus.Corpus:
    rng = np.random.default_rng(0)
    stream, held_out = (rng.integers(0, V, n).astype(np.uint16) for n in (3000, 800))
    return corpus.Corpus({"text": stream}, {"text": held_out}, [], "x")


def test_forbidden_tokens_complete_n_grams_seen_before():
    rows = np.array([[1, 2, 3, 1, 2, 4, 1, 2], [5, 5, 5, 5, 6, 5, 5, 5]])
    found, weights = loops.forbidden(rows, 3, times=1)
    assert found.tolist() == [
        [-1, -1, -1, -1, 3, -1, -1, 4],  # of 3 and 4, the one that came last
        [-1, -1, 5, 5, -1, -1, 6, 5],
    ]
    assert weights[1].tolist() == [0, 0, 1, 0.5, 0, 0, 1, pytest.approx(1 / 3)]
    again, weights = loops.forbidden(rows, 3, times=2)
    assert again.tolist() == [[-1] * 8, [-1, -1, -1, 5, -1, -1, 5, 5]]
    assert weights[1].tolist() == [0, 0, 0, 1, 0, 0, 1, 0.5]


def test_what_is_held_is_the_distribution_before(tmp_path):
    """At the beginning the model is what it was: held, a text costs the entropy of what the model
    says, and otherwise what its tokens cost."""
    model, text, costs = tiny.build("llama", seed=0), data(), []
    for hold in (1.0, 0.0):
        settings = {**SETTINGS, "hold": hold}
        loss = loops.cure_loss(loops.Target(model), model, text, MIXTURE, settings, 0, tmp_path)
        costs.append(loss(0).item())
    ids = torch.from_numpy(text.batch(0, 0, 4, 60, MIXTURE)[0])
    with torch.no_grad():
        logits = model(ids[:, :-1]).logits
    entropy = torch.distributions.Categorical(logits=logits).entropy().mean()
    of_tokens = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
    assert of_tokens > entropy + 0.5
    assert costs[1] - costs[0] == pytest.approx(float(of_tokens - entropy), rel=1e-3)
