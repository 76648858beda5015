"""The block head, trained with glancing on a known source, has the losses that theory predicts."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from specwb.models.falcon import FalconHead
from specwb.theory.analysis import dependence
from specwb.training import markov
from specwb.training.markov import BlockwiseRecipe, MarkovSource, run
from specwb.training.recipe import Moment

SOURCE = MarkovSource.ring()


def test_the_source():
    p, pi = SOURCE.transition, SOURCE.stationary
    assert pi @ p == pytest.approx(pi)
    assert SOURCE.returns(1) == SOURCE.returns(2) == SOURCE.returns(3) == 0 < SOURCE.returns(4)
    joint = SOURCE.joint(3)
    for c, a, b, d in np.ndindex(joint.shape):
        assert joint[c, a, b, d] == p[c, a] * p[a, b] * p[b, d]
    for j in (1, 2, 3):
        for r in range(j):
            wanted = dependence.entropy(joint, (j,), range(1, r + 1), pi)
            assert SOURCE.entropy(j, r) == pytest.approx(wanted)
    text = SOURCE.sample(4000, 5, np.random.default_rng(0))
    for t in (0, 4):
        assert np.bincount(text[:, t], minlength=10) / 4000 == pytest.approx(pi, abs=0.03)
    counts = np.zeros((10, 10))
    np.add.at(counts, (text[:, :-1], text[:, 1:]), 1)
    assert not counts[p == 0].any()
    assert counts / counts.sum(1, keepdims=True) == pytest.approx(p, abs=0.06)


def test_the_source_stands_for_a_target():
    ids = torch.from_numpy(SOURCE.sample(2, 9, np.random.default_rng(0)))
    outputs = SOURCE.target_outputs(ids)
    p = torch.from_numpy(SOURCE.transition).float()[ids]
    assert torch.allclose(outputs.logits.softmax(-1), p, atol=1e-6)
    assert torch.allclose(SOURCE.lm_head()(outputs.features), outputs.logits)


@pytest.mark.parametrize("k", [2, 3])
def test_blocks_glance_as_often_as_the_theory_supposes(k):
    """How much is shown before a counted position, in the trainer's own masks.

    It is compared with :func:`prefix_reveal`.
    """
    recipe = BlockwiseRecipe(SOURCE, k, 0.6, "linear")
    head = recipe.make()
    outputs = SOURCE.target_outputs(torch.zeros(3000, 25, dtype=torch.long))
    (level,) = recipe.training_levels(head, outputs, Moment(0.0, 0, 0, 3000))
    m = level.logits.shape[1]
    usable = (m - 1) // k * k
    assert not level.weights[:, usable:].any()
    shown = ~level.weights[:, :usable].reshape(-1, k)
    for j, row in enumerate(dependence.prefix_reveal(k, 0.6)):
        lengths = shown[~shown[:, j]].sum(1)
        frequency = lengths.bincount(minlength=j + 1) / len(lengths)
        assert frequency.tolist() == pytest.approx(row, abs=0.02)


def near(value: float, stderr: float, predicted: float) -> bool:
    """Says whether the loss is no lower than any head's, and only a little higher."""
    return predicted - 4 * stderr < value < predicted + 4 * stderr + 0.03


@pytest.mark.parametrize(("k", "g", "steps"), [(3, 0.75, 300)])
@pytest.mark.slow
def test_measured_losses_lie_on_the_predicted_lines(k, g, steps):
    rows = run(SOURCE, k, [g], steps=steps)
    keys = [(row["k"], row["ratio"], row["place"]) for row in rows]
    assert keys == [(k, g, j) for j in range(1, k + 1)]
    for row in rows:
        assert row["stderr"] < 0.01
        assert near(row["loss"], row["stderr"], row["predicted"]), row
        # glancing in training does not lower what a draft costs
        assert near(row["drafting"], row["drafting_stderr"], row["predicted_drafting"]), row
    for row in rows[1:]:  # and the two lines are far apart
        assert row["predicted_drafting"] - row["predicted"] > 0.1
    excess = dependence.excess(SOURCE.joint(k), dependence.prefix_reveal(k, g), SOURCE.stationary)
    assert sum(row["predicted"] for row in rows) - k * SOURCE.entropy(1) == pytest.approx(excess)


def test_texts_are_the_units_of_a_standard_error():
    """The means of two texts are 1 and 3, however often each says so."""
    values = torch.tensor([[1.0, 1.0, 9.0], [3.0, 3.0, 9.0]])
    counts = torch.tensor([[1.0, 1.0, 0.0]]).expand(2, 3)
    assert markov._mean(values, counts) == pytest.approx((2.0, 0.5**0.5))
    assert markov._mean(values, torch.zeros(2, 3)) == (None, None)


def test_at_ratio_one_the_first_position_is_never_counted(monkeypatch):
    monkeypatch.setattr(markov, "HELD_OUT", 500)
    (first, second) = run(SOURCE, 2, [1.0], steps=1)
    assert first["loss"] is first["stderr"] is first["predicted_drafting"] is None
    assert second["predicted"] == pytest.approx(SOURCE.entropy(1))
    assert second["predicted_drafting"] is None
    assert second["loss"] > second["predicted"] + 0.3  # after one step nothing is learnt


def test_a_run_is_a_function_of_its_seed(monkeypatch):
    monkeypatch.setattr(markov, "HELD_OUT", 50)
    one, same, other = (run(SOURCE, 2, [0.5], seed, steps=2) for seed in (0, 0, 1))
    assert one == same != other
    assert isinstance(markov.train(SOURCE, 2, 0.5, 0, 1, "pointwise")[1], FalconHead)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: run(SOURCE, 1, [0.5]), "k must be 2..4, got 1"),
        (lambda: run(SOURCE, 2, [0.5, 1.5]), r"glancing ratios are 0..1, got \[1.5\]"),
        (lambda: run(SOURCE, 2, [0.5], steps=0), "steps must be >= 1, got 0"),
        (lambda: MarkovSource(np.ones((2, 2))), "rows are distributions"),
        (lambda: MarkovSource(np.eye(2)), "one stationary distribution"),
        (lambda: MarkovSource(np.ones((40, 40)) / 40), "at most 32 tokens here, got 40"),
        (lambda: MarkovSource.ring(4, 5), r"reach must be 1..4"),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(ValueError, match=message):
        call()
