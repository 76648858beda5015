"""The acceptance of every rule at one node agrees with enumeration over fractions, with published
golden values and with draws."""

from __future__ import annotations

import math
import random
from fractions import Fraction as F
from itertools import product

import numpy as np
import pytest
import torch

from specwb import analysis
from specwb.analysis import rules
from specwb.verify import exact
from specwb.verify.race import race_weights


def distributions(seed: int) -> tuple[list[F], list[F]]:
    """p and q; among them are zeros, ties, disjoint supports, p = q, one-hot and an overconfident
    q."""
    rng = random.Random(seed)
    v = rng.randint(1, 5)
    pick = [
        lambda: rng.randint(0, 9),
        lambda: rng.choice([0, 0, 1, 5]),
        lambda: rng.choice([1, 1, 10**9]),
    ]
    raw = [[draw() for _ in range(v)] for draw in rng.choices(pick, k=2)]
    p, q = ([*w[:-1], w[-1] or 1] for w in raw)
    return exact.norm(p), exact.norm(p if seed % 11 == 0 else q)


CASES = [(*distributions(seed), seed % 3 + 1) for seed in range(120)]


def top_and_sample(p, q, k):
    """The rate of top and sample, enumerated over the last child. A bonus token that is among the
    fixed children counts."""
    fixed = exact.top(q, k - 1)[0][0]
    rest = [F(0) if x in fixed else b for x, b in enumerate(q)]
    if not any(rest):
        return sum(p[x] for x in fixed)
    rest, total = exact.norm(rest), F(0)
    for (x,), chance in exact.iid(rest, 1):
        output = exact.conditional_distribution(exact.rejection(p, rest, (x,)), (x,), len(p))
        total += chance * sum(output[y] for y in {*fixed, x})
    return total


def kseq(rho):
    """The node rule of k-SEQ: each child is tested with p / (rho q), and the residual makes the
    output p."""

    def node(p, q, tokens):
        passed = [min(a / rho, b) for a, b in zip(p, q)]
        beta = sum(passed)
        accept, remaining = [], F(1)
        for x in tokens:
            accept.append(remaining * passed[x] / q[x])
            remaining -= accept[-1]
        ratio = sum(
            ((1 - beta) ** j for j in range(len(tokens))), F(0)
        )  # (1 - (1 - beta)^k) / beta
        rest = [a - c * ratio for a, c in zip(p, passed)]
        assert min(rest) >= 0
        return accept, exact.norm(rest) if any(rest) else None

    return node


def race(p, q, k):
    """The rate of the race, enumerated with the weights of the rule: one child is selected and
    verified by itself; then the bonus token may be among the children."""
    rows = torch.tensor([[float(a) for a in p], [float(b) for b in q]], dtype=torch.float64)
    w = race_weights(rows[:1], rows[1:], k)[0][0].tolist()
    tuples = [(xs, float(chance)) for xs, chance in exact.iid(q, k)]
    t = [
        sum(chance * xs.count(x) * w[x] / sum(w[y] for y in xs) for xs, chance in tuples)
        for x in range(len(q))
    ]
    accept = [min(1.0, float(a) / b) if b else 0.0 for a, b in zip(p, t)]
    residual = [max(float(a) - b, 0.0) for a, b in zip(p, t)]
    total = 0.0
    for xs, chance in tuples:
        for x in set(xs):
            selected = chance * xs.count(x) * w[x] / sum(w[y] for y in xs)
            hit = sum(residual[y] for y in set(xs)) / (sum(residual) or 1)
            total += selected * (accept[x] + (1 - accept[x]) * hit)
    return total


ENUMERATED = {
    "rejection": lambda p, q, k: exact.acceptance(exact.rejection, exact.iid, p, q, 1),
    "naive": lambda p, q, k: exact.acceptance(exact.naive, exact.iid, p, q, k),
    "rrs": lambda p, q, k: exact.acceptance(exact.rrs, exact.iid, p, q, k),
    "rrsw": lambda p, q, k: exact.acceptance(exact.rrsw, exact.without_replacement, p, q, k),
    "kseq": lambda p, q, k: exact.acceptance(
        kseq(F(float(analysis.kseq_rho(p, q, k)))), exact.iid, p, q, k
    ),
    "race": race,
    "top_and_sample": top_and_sample,
    "point": lambda p, q, k: exact.acceptance(exact.point, exact.top, p, q, k),
}


@pytest.mark.parametrize("name", ENUMERATED)
def test_rates_are_what_enumeration_gives(name):
    within = 1e-9 if name == "race" else 1e-12  # the race is an integral
    for p, q, k in CASES:
        assert analysis.RATES[name](p, q, k) == pytest.approx(
            float(ENUMERATED[name](p, q, k)), abs=within
        ), (p, q, k)


def test_every_rule_is_enumerated_or_has_a_test_of_its_own():
    assert set(analysis.RATES) == {*ENUMERATED, "coupling"} == set(analysis.DRAWN)


GOLDEN = {  # corner cases: p, q, then for k = 1, 2, .. with replacement, without, naive
    "A": (
        "5/10 3/10 2/10 0",
        "1/10 2/10 3/10 4/10",
        "1/2 1/2 .17, 13/20 143/210 .305, 137/200 684/875 .4133, 1433/2000 1 .50105",
    ),
    "B": (
        "4/10 1/10 1/10 2/10 2/10",
        "0 7/10 3/10 0 0",
        "1/5 1/5 .1, 1/5 1/5 .142, 1/5 1/5 .163, 1/5 1/5 .17518",
    ),
    "C": ("0 1 0", "1/2 1/4 1/4", "1/4 1/4 1/4, 7/16 7/12 7/16, 37/64 1 37/64"),
    "D": (
        "1/4 1/4 1/4 1/4",
        "7/10 1/10 1/10 1/10",
        "11/20 11/20 .25, 137/200 1 .37, 1559/2000 1 .4465",
    ),
}


@pytest.mark.parametrize("case", GOLDEN)
def test_golden_values(case):
    p, q, rows = GOLDEN[case]
    p, q = ([F(x) for x in row.split()] for row in (p, q))
    for k, row in enumerate(rows.split(","), 1):
        rates = [
            analysis.rrs_rate(p, q, k),
            analysis.rrsw_rate(p, q, k),
            analysis.naive_rate(p, q, k),
        ]
        assert rates == pytest.approx([float(F(x)) for x in row.split()], abs=1e-14)


def test_batches_tensors_and_arrays():
    rng = np.random.default_rng(0)
    p, q = rng.dirichlet(np.full(6, 0.5), (2, 3)), rng.dirichlet(np.full(6, 0.5), (2, 3))
    for name, rate in analysis.RATES.items():
        one_by_one = [[rate(a.tolist(), b.tolist(), 3) for a, b in zip(x, y)] for x, y in zip(p, q)]
        assert all(isinstance(x, float) for row in one_by_one for x in row)
        arrays, tensors = (
            rate(p, q, 3),
            rate(torch.tensor(p, dtype=torch.float32), torch.tensor(q, dtype=torch.float32), 3),
        )
        assert isinstance(arrays, np.ndarray)
        assert tensors.dtype == torch.float64
        assert arrays == pytest.approx(np.array(one_by_one), abs=1e-14), name
        assert tensors.numpy() == pytest.approx(np.array(one_by_one), abs=1e-6), name


def test_rho_is_rounded_up():
    inner = 0
    for p, q, k in CASES:
        rho = F(float(analysis.kseq_rho(p, q, k)))
        assert 1 <= rho <= k * (1 + F(1, 10**13))

        def over(rho, p=p, q=q, k=k):
            beta = sum(min(a / rho, b) for a, b in zip(p, q))
            return 1 - (1 - beta) ** k - rho * beta

        assert over(rho) <= 0  # over fractions it is valid, not nearly valid
        if 1.001 < rho < k - 0.001:
            inner += 1
            assert over(rho * (1 - F(1, 10**9))) > 0
    assert inner > 20


def test_a_larger_rho_is_lossless_too():
    p, q, k = exact.norm([4, 3, 2, 1]), exact.norm([1, 2, 3, 4]), 2
    rho = F(float(analysis.kseq_rho(p, q, k))) + F(1, 10)
    assert exact.output_distribution(kseq(rho), exact.iid, p, q, k) == p
    rate = analysis.kseq_rate(p, q, k, rho=float(rho))
    assert rate == pytest.approx(float(exact.acceptance(kseq(rho), exact.iid, p, q, k)), abs=1e-14)
    assert rate < analysis.kseq_rate(p, q, k)


def test_sampled_tuples_agree_with_the_enumerated_ones(monkeypatch):
    rng = np.random.default_rng(1)
    p, q = rng.dirichlet(np.full(12, 0.6), 40), rng.dirichlet(np.full(12, 0.6), 40)
    for k in (2, 3, 4):
        value, none = rules.rrsw_estimate(p, q, k)
        assert not none.any()
        monkeypatch.setattr(rules, "MAX_TUPLES", 1)
        estimate, error = rules.rrsw_estimate(p, q, k, samples=200, seed=k)
        monkeypatch.undo()
        assert error.any()
        z = (estimate - value)[error > 1e-9] / error[error > 1e-9]
        assert abs(z).max() < 5
        assert abs(z.mean()) < 4 / math.sqrt(len(z))
        assert 0.6 < z.std() < 1.5
        # where the scalars do not depend on which tokens were rejected, there is nothing to
        # estimate
        assert estimate[error <= 1e-9] == pytest.approx(value[error <= 1e-9], abs=1e-7)


def test_an_overconfident_draft_keeps_its_digits():
    """``1 - q(rejected)`` is computed as a sum over what remains, which keeps its digits."""
    small = F(1, 10**17)
    q = [1 - 3 * small, 2 * small, small]
    p = exact.norm([1, 3, 2])
    floats = [float(x) for x in q]
    for k in (2, 3):
        assert analysis.rrsw_rate(p, floats, k) == pytest.approx(
            float(exact.rrsw_acceptance(p, q, k)), abs=1e-12
        )


def test_the_coupling_bound_is_its_definition_and_bounds_what_happens():
    rng = np.random.default_rng(2)
    for k, (p, q) in product(
        (1, 2, 4), zip(rng.dirichlet(np.full(6, 0.7), 4), rng.dirichlet(np.full(6, 0.7), 4))
    ):
        defined = sum(
            k / (sum(max(p[x] / p[y], q[x] / q[y]) for x in range(6)) + (k - 1) / p[y])
            for y in range(6)
        )
        bound = analysis.coupling_bound(p, q, k)
        assert bound == pytest.approx(defined, abs=1e-12)
        n = 40_000
        race = rng.exponential(size=(n, k, 6))
        y = (race.min(1) / p).argmin(-1)
        met = ((race / q).argmin(-1) == y[:, None]).any(1).mean()
        slack = 4 * math.sqrt(0.25 / n)
        assert met > bound - slack
        if k == 1:
            assert met < bound + slack
    # a token that q lacks is never met, and one that p lacks never comes out
    assert analysis.coupling_bound([F(1, 2), F(1, 2), F(0)], [F(1), F(0), F(0)], 1) == 0.5
    assert analysis.coupling_bound([1.0, 0.0], [0.0, 1.0], 3) == 0
    assert analysis.coupling_bound([0.5, 0.5], [0.5, 0.5], 1) == 1


@pytest.mark.parametrize("name", analysis.RATES)
def test_bad_distributions_are_refused(name):
    rate = analysis.RATES[name]
    good = [0.5, 0.5]
    for bad in ([0.7, 0.5], [1.5, -0.5], [float("nan"), 0.5], [0.0, 0.0]):
        with pytest.raises(ValueError, match="p must be probabilities"):
            rate(bad, good, 2)
        with pytest.raises(ValueError, match="q must be probabilities"):
            rate(good, bad, 2)
    for p, q in ((good, [1.0]), (0.5, 0.5), ([], [])):
        with pytest.raises(ValueError, match="same tokens"):
            rate(p, q, 2)
    for k in (0, -1, 1.5, True):
        with pytest.raises(ValueError, match="k, the number of children, must be an integer >= 1"):
            rate(good, good, k)
    with pytest.raises(ValueError, match="samples must be >= 2"):
        rules.rrsw_estimate(good, good, 2, samples=1)
