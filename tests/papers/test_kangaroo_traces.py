"""The decoding steps that would begin at every position, and decodings simulated from them."""

from __future__ import annotations

import numpy as np
import pytest
import tiny

import specwb
from specwb.lab.papers.kangaroo import Rounds, every_round


def random_rounds(rng: np.random.Generator, positions: int = 40, depth: int = 7) -> Rounds:
    """The steps of a drafter that at every position is right or not, and confident to some degree.

    Both do not depend on the step that drafts the position.
    """
    right = rng.random(positions + depth) < rng.uniform(0.3, 0.95)
    sure = rng.random(positions + depth)
    accepted = [
        next((d for d in range(depth) if not right[x + d]), depth) for x in range(positions)
    ]
    confidence = np.array([sure[x : x + depth - 1] for x in range(positions)])
    texts = np.zeros(positions, dtype=int)
    return Rounds(confidence, np.array(accepted), texts)


def test_a_lower_threshold_never_takes_more_rounds():
    rng, strict = np.random.default_rng(0), 0
    for _ in range(60):
        trace = random_rounds(rng)
        for gamma in (1, 3, 7):
            counts = [len(trace.simulate(eta, gamma).kept) for eta in np.linspace(0, 1, 11)]
            assert counts == sorted(counts)
            strict += counts[0] < counts[-1]
        longer = [len(trace.simulate(0.3, gamma).kept) for gamma in range(1, 8)]
        assert longer == sorted(longer, reverse=True)
    assert strict > 60


@pytest.mark.parametrize(
    "spec", ["kangaroo:gamma=5,eta=0", "kangaroo:tree=2-2-1,eta=0", "sps:gamma=4"]
)
def test_simulating_is_decoding(spec):
    target, prompts = tiny.target(), tiny.PROMPTS
    options = {"draft": tiny.draft()} if spec.startswith("sps") else {"head": tiny.head("kangaroo")}
    method = specwb.method(spec, target, **options)
    trace = every_round(target, prompts, method, tokens=20)
    assert trace.kept.shape == trace.text.shape == (60,)
    assert trace.sure.shape == (60, method.drafter.tree.D - 1)
    if spec.startswith("sps"):
        return  # sps compares another confidence
    name = spec.split(",")[0]
    lengths = set()
    for eta in (0.0, 0.3, 0.7, 1.0):
        simulated = trace.simulate(eta)
        stopping = specwb.method(f"{name},eta={eta}", target, **options)
        out = specwb.decode(target, prompts, stopping, max_new_tokens=20 + 6, trace=True)
        for row in range(3):
            steps = zip(simulated.kept, simulated.text, strict=True)
            accepted = [kept for kept, text in steps if text == row]
            assert out.accepted_lengths[row][: len(accepted)] == accepted
        lengths.add(len(simulated.kept))
        ctar = sum(simulated.ctar(w) for w in range(1, trace.depth + 1))
        assert simulated.cr == pytest.approx(1 + ctar)
        assert simulated.wasted == pytest.approx(simulated.mean_drafted - simulated.cr + 1)
    assert len(lengths) > 2


def test_methods_that_cannot_be_simulated():
    target = tiny.target()
    options = {
        "pld": {},
        "mcsd_ti:roots=2,lossy=true,stop=none": {"draft": tiny.draft()},
        "kangaroo:tree=true": {"head": tiny.head("kangaroo")},
    }
    for spec in options:
        method = specwb.method(spec, target, **options[spec])
        with pytest.raises(ValueError, match="level by level"):
            every_round(target, [[1, 2]], method)
    trace = random_rounds(np.random.default_rng(1))
    for wrong in ((1.5, 3), (0.5, 9)):
        with pytest.raises(ValueError, match=r"gamma in 1\.\.7"):
            trace.simulate(*wrong)
