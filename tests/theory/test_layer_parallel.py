"""With layers side by side, times of steps and rounds are the sums by hand, and bounds hold and are
attained; what the published numbers imply."""

from __future__ import annotations

import math
import random
from fractions import Fraction as F
from itertools import pairwise

import numpy as np
import pytest

from specwb.models.fuzzy import grouping
from specwb.theory.analysis import expected_tokens, speedup
from specwb.theory.analysis import layer_parallel as lp

SHAPES = [
    grouping(32, 4),
    grouping(8, 3),
    grouping(8, 3, first=False),
    grouping(5, 1),
    ((0, 1, 2, 3, 4, 5),),
    ((0,), (1, 2), (3, 4, 5, 6, 7)),
]


def single_layers(groups: lp.Groups) -> list[tuple[int, ...]]:
    return [(i,) for group in groups for i in group]


# -------------------------------------------------------------------------------------- 14.6, times


@pytest.mark.parametrize("groups", SHAPES)
def test_the_ratio_is_that_of_the_steps(groups) -> None:
    layers, rounds = sum(map(len, groups)), lp.attention_rounds(groups)
    for a, m in ((F(1), F(1)), (F(2), F(7)), (F(3), F(0)), (F(0), F(5))):
        exact = lp.step_time(single_layers(groups), a, m)
        assert exact == layers * (a + m)
        fuzzy = lp.step_time(groups, a, m, 0, devices=max(map(len, groups)))
        assert (
            fuzzy / exact
            == lp.fuzzy_ratio(a / (a + m), rounds, layers)
            == (rounds * a + layers * m) / (layers * (a + m))
        )
        for depth in (1, 2, 5):
            drafting = exact + (depth - 1) * fuzzy
            assert lp.stage_speedup(fuzzy / exact, depth) == depth * exact / drafting
            assert lp.stage_speedup(fuzzy / exact, depth, calibrate=False) == exact / fuzzy


def test_the_share_that_a_speedup_implies() -> None:
    rng = random.Random(0)
    for _ in range(100):
        layers = rng.randint(2, 40)
        rounds, depth, share, calibrate = (
            rng.randint(1, layers - 1),
            rng.randint(2, 9),
            F(rng.randint(0, 20), 20),
            rng.random() < 0.5,
        )
        ratio = lp.fuzzy_ratio(share, rounds, layers)
        stage = lp.stage_speedup(ratio, depth, calibrate)
        assert lp.implied_share(stage, depth, rounds, layers, calibrate) == share
        largest = lp.largest_stage_speedup(depth, rounds, layers, calibrate)
        assert largest == pytest.approx(
            depth * layers / (layers + (depth - 1) * rounds) if calibrate else layers / rounds
        )
        assert lp.implied_share(largest, depth, rounds, layers, calibrate) == pytest.approx(1)
        for wrong in (largest * 1.001, 0.99):
            with pytest.raises(ValueError, match="no share"):
                lp.implied_share(wrong, depth, rounds, layers, calibrate)


def test_break_even_is_where_the_speed_is_the_same() -> None:
    for c, v, stage, depth, alpha in (
        (0.1, 1, 1.62, 5, 0.8),
        (0.3, 2.5, 1.2, 4, 0.6),
        (0.05, 1, 2.2, 7, 0.9),
    ):
        loss = lp.break_even(stage, depth, c, v)
        tau, fuzzy = expected_tokens(alpha, depth), speedup(alpha, depth, c / stage, v)
        assert fuzzy * (1 - loss) == pytest.approx(speedup(alpha, depth, c, v))
        assert lp.needed_tokens(fuzzy, depth, c / stage, v) == pytest.approx(tau)
        assert 0 < loss < 1 - 1 / stage
    assert lp.break_even(F(1), 5, F(1, 3)) == 0
    # a draft that takes all the time may lose what its stage gains, a free one may lose nothing
    assert lp.break_even(F(3, 2), 5, 0) == 0


# ------------------------------------------------------------------------------------------ devices


def test_when_devices_gain() -> None:
    for n in range(1, 9):
        for devices in range(1, 9):
            limit = lp.exchange_limit(n, devices, F(3))
            slowest = -(-n // devices)
            for x in (limit - F(1, 9), limit, limit + F(1, 9)):
                assert (slowest * 3 + x < n * 3) == (x < limit)
    # more devices than attentions do not help, neither does a last one that has fewer
    assert [lp.exchange_limit(4, w, 1) for w in (1, 2, 3, 4, 8)] == [0, 2, 2, 3, 3]


@pytest.mark.parametrize("calibrate", [True, False])
@pytest.mark.parametrize("groups", SHAPES)
def test_a_timeline_ends_when_the_closed_form_says(groups, calibrate) -> None:
    a, m, x, head, verify, depth = F(5), F(3), F(1, 2), F(7), F(11), 3
    for devices in (1, 2, 3, 4, 8):
        spans = lp.timeline(groups, a, m, x, devices, depth, head, verify, calibrate)
        steps = [single_layers(groups) if calibrate else groups, *[groups] * (depth - 1)]
        closed = sum(lp.step_time(step, a, m, x, devices, head) for step in steps) + verify
        assert max(span.stop for span in spans) == closed
        layers = [i for group in groups for i in group]
        for device in range(devices):
            spans_of_device = [span for span in spans if span.device == device]
            assert all(
                before.stop <= after.start for before, after in pairwise(spans_of_device)
            )  # a device does one thing at a time
            assert (
                sum(s.stop - s.start for s in spans_of_device if s.kind == "mlp")
                == depth * len(layers) * m
            )
        # every attention runs once per step, on one device, the same in all steps
        attentions = [span for span in spans if span.kind == "attention"]
        assert sorted((s.step, s.layer) for s in attentions) == sorted(
            (step, i) for step in range(depth) for i in layers
        )


# ------------------------------------------------------------------------------- 14.4, 14.5, bounds


def test_a_gain_moves_a_cosine_within_its_bound_and_up_to_it() -> None:
    generator = np.random.default_rng(0)
    for _ in range(400):
        size = int(generator.integers(2, 6))
        u, gain = (
            generator.normal(size=size),
            generator.uniform(0.2, 1, size) * generator.choice([-1, 1], size),
        )
        v = u + generator.normal(size=size) * generator.choice([0.1, 1, 10])
        kappa = float(abs(gain).max() / abs(gain).min())
        low, high = lp.gained_cosine(cosine(u, v), kappa)
        assert low - 1e-12 <= cosine(gain * u, gain * v) <= high + 1e-12
    for kappa in (1.0, 1.5, 3.0, 10.0):
        for t in (0.1, 0.5, 1.0, 3.0):
            u, v = np.array([1, t]), np.array([1, -t])
            assert (
                cosine(u * [1, kappa], v * [1, kappa]),
                cosine(u * [kappa, 1], v * [kappa, 1]),
            ) == pytest.approx(lp.gained_cosine(cosine(u, v), kappa))


def cosine(u: np.ndarray, v: np.ndarray) -> float:
    return float(u @ v / np.linalg.norm(u) / np.linalg.norm(v))


def softmax(z: np.ndarray) -> np.ndarray:
    w = np.exp(z - z.max())
    return w / w.sum()


def test_logits_that_move_by_eps() -> None:
    """The bound is attained by two keys, one up and one down, with weights 1 : e^eps before."""
    generator = np.random.default_rng(2)
    for eps in (0.01, 0.3, 2.0):
        for _ in range(100):
            z = generator.normal(size=5) * 2
            shift = generator.uniform(-1, 1, 5)
            shift *= eps / (np.ptp(shift) / 2)  # half of its range is eps, wherever its middle is
            assert (
                abs(softmax(z + shift) - softmax(z)).sum() / 2 <= lp.attention_error(eps, 1) + 1e-12
            )
        before, after = softmax(np.array([0, eps])), softmax(np.array([eps, 0]))
        assert after[0] - before[0] == pytest.approx(lp.attention_error(eps, 1))
    assert lp.attention_error(0.3, 2, 0.1) == pytest.approx(2 * math.tanh(0.15) + 0.1)
