"""The block head, trained with glancing on a known source, has the losses that theory predicts."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from specwb.theory.analysis import dependence

sys.path.append(str(Path(__file__).parents[2] / "notebooks" / "lessons"))
from markov import MarkovSource, run

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
