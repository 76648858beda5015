"""Rounds that would begin at every place, and what they say about every threshold."""

from __future__ import annotations

import numpy as np
import pytest
import tiny

import specwb
from specwb.drafters.stopping import Entropy, Top
from specwb.evaluation.exits import Rounds, costs, every_round


def drawn(rng: np.random.Generator, places: int = 40, depth: int = 7) -> Rounds:
    """Of a drafter whose first choice at every place is right or not, and sure to some degree, whatever round comes there."""
    right, sure = rng.random(places + depth) < rng.uniform(0.3, 0.95), rng.random(places + depth)
    kept = np.array([next((d for d in range(depth) if not right[x + d]), depth) for x in range(places)])
    confidence = np.array([sure[x : x + depth - 1] for x in range(places)])
    return Rounds({"top": confidence}, kept, np.zeros(places, dtype=int), tuple(range(1, depth + 2)))


def test_a_lower_threshold_never_takes_more_rounds():
    rng, strict = np.random.default_rng(0), 0
    for _ in range(60):
        one = drawn(rng)
        for gamma in (1, 3, 7):
            counts = [len(one.simulate("top", eta, gamma).kept) for eta in np.linspace(0, 1, 11)]
            assert counts == sorted(counts)
            strict += counts[0] < counts[-1]
        longer = [len(one.simulate("top", 0.3, gamma).kept) for gamma in range(1, 8)]
        assert longer == sorted(longer, reverse=True)
    assert strict > 60


@pytest.mark.parametrize("spec", ["kangaroo:gamma=5,eta=0", "kangaroo:tree=2-2-1,eta=0", "sps:gamma=4"])
def test_simulating_is_decoding(spec):
    target, prompts = tiny.target(), tiny.PROMPTS
    own = {"draft": tiny.draft()} if spec.startswith("sps") else {"head": tiny.head("kangaroo")}
    method = specwb.method(spec, target, **own)
    found = every_round(target, prompts, method, {"top": Top(), "entropy": Entropy()}, tokens=20)
    assert found.kept.shape == found.text.shape == (60,)
    assert found.sure["entropy"].shape == (60, method.drafter.tree.D - 1)
    if spec.startswith("sps"):
        return  # sps compares another confidence
    name = spec.split(",")[0]
    lengths = set()
    for stop, eta in (("top", 0.0), ("top", 0.3), ("top", 0.7), ("entropy", 0.3), ("top", 1.0)):
        one = found.simulate(stop, eta)
        spoken = f"{name},eta={eta}" + (f",stop={stop}" if eta else "")
        out = specwb.decode(target, prompts, specwb.method(spoken, target, **own), max_new_tokens=20 + 6, trace=True)
        for row in range(3):
            mine = [k for k, text in zip(one.kept, one.text, strict=True) if text == row]
            assert out.accepted_lengths[row][: len(mine)] == mine
        lengths.add(len(one.kept))
        assert one.cr == pytest.approx(1 + sum(one.ctar(w) for w in range(1, found.depth + 1)))
        assert one.wasted == pytest.approx(one.mean_drafted - one.cr + 1)
    assert len(lengths) > 2


def test_costs_are_of_this_machine():
    found = costs(tiny.target(), tiny.head("kangaroo"), [1, 2, 3], depths=(1, 3), count=3, repeats=1)
    assert found.r > 0
    assert found.a > 0
    assert found.seconds(1) == found.round[1]
    assert min(found.round[1], found.round[3]) <= found.seconds(2) <= max(found.round[1], found.round[3])


def test_what_cannot_be_simulated():
    target, own = tiny.target(), {"draft": tiny.draft()}
    for spec in ("pld", "mcsd_ti:roots=2,lossy=true,stop=none", "kangaroo:tree=true"):
        method = specwb.method(spec, target, **({"head": tiny.head("kangaroo")} if "kangaroo" in spec else own if "mcsd" in spec else {}))
        with pytest.raises(ValueError, match="level by level"):
            every_round(target, [[1, 2]], method)
    one = drawn(np.random.default_rng(1))
    for wrong in (("other", 0.5, 3), ("top", 1.5, 3), ("top", 0.5, 9)):
        with pytest.raises(ValueError, match=r"gamma in 1\.\.7"):
            one.simulate(*wrong)
    with pytest.raises(ValueError, match="depths"):
        costs(target, tiny.head("kangaroo"), depths=())
