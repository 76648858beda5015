"""What theory/ states beyond single rules: properties, and every instance that a page computes by
hand."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from fractions import Fraction as F
from itertools import accumulate, combinations, product
from pathlib import Path

import numpy as np
import pytest
import torch
from instances import pairs

from specwb.core.noise import _uniform
from specwb.core.probability import inverse_cdf
from specwb.theory import exact as E
from specwb.theory.instances import models
from specwb.theory.wrong_rules import WRONG_RULES, squared_q, uncapped_tests


def distributions(*rows: str) -> list[list[F]]:
    return [[F(x) for x in row.split()] for row in rows]


def random_distribution(rng: random.Random, v: int, least: int = 1) -> list[F]:
    weights = [rng.choice([least, 1, 2, 5, 30]) for _ in range(v)]
    return E.norm(weights if any(weights) else [1] * v)


# ------------------------------------------------------------------------------------------- page 1


def test_finite_uniforms() -> None:
    """Theorem 1.5.1: the bound holds, and the engine's draws are these."""
    rng = random.Random(9)
    for bits, v in product((2, 5, 32), (1, 2, 7)):
        for _ in range(10):
            p = random_distribution(rng, v, 0)
            finite = E.finite_draw(p, bits)
            assert sum(finite) == 1
            assert E.tv(finite, p) <= F(sum(map(bool, p)) - 1, 2 ** (bits + 1))
            assert all(b > 0 for b, a in zip(finite, p, strict=True) if a >= F(1, 2**bits))
    # probabilities of 40 bits, whose float64 sums are exact
    weights = [rng.randrange(2**30) for _ in range(500)]
    weights.append(2**40 - sum(weights))
    finite = E.finite_draw([F(w, 2**40) for w in weights])
    ends = torch.tensor([int(x * 2**32) for x in accumulate(finite)])[:-1]
    row = torch.tensor(weights, dtype=torch.float64).mul(2.0**-40).expand(500, -1)
    tokens = torch.arange(500)
    assert torch.equal(inverse_cdf(row, _uniform(ends - 1)), tokens)
    assert torch.equal(inverse_cdf(row, _uniform(ends)), tokens + 1)


# ------------------------------------------------------------------------------------------- page 5


def test_recursive_rejection_is_not_optimal() -> None:
    """And the two ends: children that hold everything for certain, and none at all."""
    p, q = distributions("1/2 3/10 1/5 0", "1/10 1/5 3/10 2/5")
    assert (E.rrs_acceptance(p, q, 2), E.optimum(E.iid, p, q, 2)) == (F(13, 20), F(69, 100))
    assert (E.rrsw_acceptance(p, q, 2), E.optimum(E.without_replacement, p, q, 2)) == (
        F(143, 210),
        F(617, 840),
    )
    assert (E.optimum(E.top, p, q, 4), E.optimum(E.iid, p, q, 0)) == (1, 0)


def test_any_selection_is_lossless() -> None:
    """Theorem 5.7 with random weights."""
    rng = random.Random(3)
    for _ in range(40):
        v, k = rng.choice([2, 3]), rng.choice([1, 2, 3])
        p = random_distribution(rng, v, 0)
        q, w = random_distribution(rng, v), random_distribution(rng, v)
        t = E.race_distribution(tuple(q), tuple(w), k)

        def rule(p: E.Dist, q: E.Dist, xs: E.Tokens, w: list[F] = w) -> E.Decision:
            return E.race(p, q, xs, w)

        assert E.output_distribution(rule, E.iid, p, q, k) == p
        assert E.overlap(p, t) <= E.acceptance(rule, E.iid, p, q, k) <= E.optimum(E.iid, p, q, k)


def test_acceptance_of_many_candidates() -> None:
    """Theorem 5.9.2: from below, and by at most max p/q over k for RRS."""
    for p, q in pairs(40, sizes=(2, 3, 4), seed=5):
        drafted = sum((a for a, b in zip(p, q, strict=True) if b), F(0))
        largest = max(a / b for a, b in zip(p, q, strict=True) if b)
        for k in (1, 3, 10, 40):
            missing = drafted - E.rrs_acceptance(p, q, k)
            assert 0 <= missing <= largest / k
        assert E.rrsw_acceptance(p, q, sum(map(bool, q))) == drafted


# ------------------------------------------------------------------------------------------- page 7


def test_block_against_token_by_token() -> None:
    """Theorem 7.3: block verification keeps more iff a later token can repay a debt."""
    chain = (-1, 0, 1)

    def kept(*models: E.Model) -> tuple[F, F]:
        by_token = E.expected_accepted(E.rejection, E.iid, *models, chain)
        return by_token, E.block_expected_accepted(*models, chain)

    p, q = distributions("3/4 1/4", "1/4 3/4")
    assert kept(lambda _: p, lambda _: q) == (F(3, 4), F(7, 8))
    outcomes = set()
    for seed in range(40):
        target, draft = models(seed, 2)
        repaid = any(
            0 < target(())[x] < draft(())[x] and 0 < draft((x,))[y] < target((x,))[y]
            for x, y in product((0, 1), repeat=2)
        )
        by_token, block = kept(target, draft)
        assert block > by_token if repaid else block == by_token
        outcomes.add(repaid)
    assert outcomes == {False, True}


def test_traversal_can_accept_less() -> None:
    """The instance of theorem 7.4, under both rules and the same sampling scheme."""
    half = [F(1, 2)] * 2
    table = {(): [F(1, 4), F(3, 4)], (0,): [F(0), F(1)]}
    target, draft = (lambda t: table.get(t, half)), (lambda t: half)
    up, down = E.TREE_RULES["traversal"], (E.rrsw, E.without_replacement)
    tree = target, draft, (-1, 0, 1, 1, 3)
    outcomes = list(up.outcomes("WITHOUT_REPLACEMENT", *tree))
    assert E.mean_accepted(outcomes) == F(3, 2)
    assert E.expected_accepted(*down, *tree) == F(13, 8)


# ------------------------------------------------------------------------------------------- page 8


def test_a_wrong_q() -> None:
    """Theorem 8.1: the distance of the distributions of single candidates is no bound for
    several."""
    p, q, sampled = distributions("0 2/5 3/5", "2/5 1/5 2/5", "2/5 2/5 1/5")
    output = E.output_distribution(lambda p, _, xs: E.rrs(p, q, xs), E.iid, p, sampled, 2)
    assert E.tv(output, p) == F(7, 25) > E.tv(q, sampled) == F(1, 5)
    (p,) = distributions("1/3 2/3")
    assert E.output_distribution(squared_q, E.iid, p, p, 1)[0] == F(4, 9)


def test_a_wrong_q_over_a_round() -> None:
    """Theorem 8.2 on chains: the expected sum of the errors at the positions reached bounds the
    error of the text."""
    worst = F(0)
    for seed in range(20):
        target, sampled = models(seed, 2, "dense")
        _, used = models(seed + 100, 2, "dense")

        def tested(p: E.Dist, q: E.Dist, xs: E.Tokens) -> E.Decision:
            return E.rejection(p, stated[tuple(p), tuple(q)], xs)  # noqa: B023

        stated = {(tuple(target(t)), tuple(sampled(t))): used(t) for t in [(), (0,), (1,)]}
        if len(stated) < 3:
            continue
        output = E.round_distribution(tested, E.iid, target, sampled, (-1, 0, 1))
        off = E.tv(output, E.target_distribution(target, 3))
        accepted = [min(F(1), a / b) for a, b in zip(target(()), used(()), strict=True)]
        bound = E.tv(sampled(()), used(()))
        for x, (b, a) in enumerate(zip(sampled(()), accepted, strict=True)):
            bound += b * a * E.tv(sampled((x,)), used((x,)))
        assert off <= bound
        worst = max(worst, off / bound if bound else F(0))
    assert worst > F(1, 2)


@pytest.mark.parametrize(
    ("name", "p", "q", "k", "off"),
    [
        ("sorted_by_q", "1/3 2/3", "1/3 2/3", 2, "1/3"),
        ("keep_larger_q", "1/3 2/3", "1/3 2/3", 2, "2/9"),
        ("rrs_without_replacement", "0 2/5 3/5", "3/5 1/5 1/5", 2, "1/10"),
        ("deduplicated", "0 2/5 3/5", "3/5 1/5 1/5", 2, "1/25"),
        ("residual_from_p", "1/3 2/3", "2/3 1/3", 1, "1/9"),
        ("no_update_sampled", "1/3 2/3", "2/3 1/3", 2, "1/9"),
        ("no_update_top", "1/2 1/2", "1/2 1/2", 2, "1/2"),
        ("rrsw_on_top", "1/2 1/2", "1/2 1/2", 2, "1/2"),
        ("argmax_with_ratio", "1/2 1/2", "1/2 1/2", 1, "1/2"),
    ],
)
def test_small_instances(name: str, p: str, q: str, k: int, off: str) -> None:
    """These are the instances of theorems 8.3 to 8.7."""
    a, b = distributions(p, q)
    assert E.tv(WRONG_RULES[name].output(a, b, k), a) == F(off)


def test_the_whole_path_without_a_cap() -> None:
    """Theorem 8.9: text (0, 1) comes out 5/16 of the time instead of 3/16."""
    p, q = distributions("3/4 1/4", "1/4 3/4")
    target, draft = (lambda _: p), (lambda _: q)
    outcomes = list(E.decided(uncapped_tests)("IID", target, draft, (-1, 0, 1)))
    output = E.completed(outcomes, target, 3)
    pairs = [output[x, y, 0] + output[x, y, 1] for x, y in product((0, 1), repeat=2)]
    assert [pairs] == distributions("7/16 5/16 3/16 1/16")
    assert E.mean_accepted(outcomes) == 1


# ---------------------------------------------------------------------------------------- the guide


def test_the_guides_table_is_the_result_file() -> None:
    root = Path(__file__).parents[2]
    rows = json.loads((root / "data/results/acceptance-lab.json").read_text())["rows"]
    measured = {(r["temperature"], r["k"], r["rule"]): r for r in rows if r["domain"] == "all"}
    table = [
        [x.strip() for x in line.strip("| ").split("|")]
        for line in (root / "theory/choosing_a_rule.md").read_text().splitlines()
        if "|" in line
    ]
    start = next(i for i, row in enumerate(table) if row[:2] == ["T", "k"])
    (_, _, *rules), lines = table[start], table[start + 2 :]
    assert len(lines) == 9
    for t, k, *cells in lines:
        assert cells == [f"{measured[float(t), int(k), rule]['mean']:.3f}" for rule in rules]
        race, top = measured[float(t), int(k), "race"], measured[float(t), int(k), "top_and_sample"]
        assert race["mean"] / race["optimum"] > 0.99
        assert (race["mean"] > top["mean"]) == (float(t) == 1)


def test_rows_that_do_not_sum_to_one() -> None:
    """Theorem 1.5.3: rows that do not sum to one move the output by what they are off."""
    rng, off = random.Random(11), 0
    for _ in range(60):
        v = rng.choice([2, 3, 4])
        p, q = random_distribution(rng, v, 0), random_distribution(rng, v)
        scale = F(rng.randint(5, 15), 10)
        row = [scale * a for a in p]  # s_q = 1: only s_p / s_q counts
        residual = E.minus(row, q)
        bonus = E.norm(residual) if any(residual) else p
        passed = [min(a, b) for a, b in zip(row, q, strict=True)]
        out = [a + (1 - sum(passed)) * b for a, b in zip(passed, bonus, strict=True)]
        assert out == [a + (1 - scale) * (b - a) for a, b in zip(p, bonus, strict=True)]
        assert E.tv(out, p) <= abs(1 - scale)
        off += out != p
    assert off > 20


def test_without_replacement_accepts_at_least_as_often() -> None:
    """Theorems 4.6 and 4.7: RRSw accepts at least as much as RRS, RRS as naive, and one candidate
    more never less."""
    rng, gains = random.Random(7), [0, 0]
    for _ in range(250):
        v, k = rng.choice([2, 3, 4, 5]), rng.choice([1, 2, 3, 4])
        p, q = random_distribution(rng, v, 0), random_distribution(rng, v, 0)
        without, independent = E.rrsw_acceptance(p, q, k), E.rrs_acceptance(p, q, k)
        naive = E.acceptance(E.naive, E.iid, p, q, k)
        assert without >= independent >= naive
        assert without >= E.acceptance(E.naive, E.without_replacement, p, q, k)
        assert E.rrsw_acceptance(p, q, k + 1) >= without
        assert E.rrs_acceptance(p, q, k + 1) >= independent
        support_mass = sum((a for a, b in zip(p, q, strict=True) if b), F(0))
        assert k < sum(map(bool, q)) or without == support_mass
        gains[0] += without > independent
        gains[1] += independent > naive
    assert min(gains) > 50
    p, q = distributions("0 1", "1/2 1/2")  # there is no order between ways to draw
    assert E.acceptance(E.naive, E.without_replacement, p, q, 2) == 1
    assert E.rrs_acceptance(p, q, 2) == F(3, 4)


def test_without_replacement_is_convex_relative_to_q() -> None:
    """Theorem 5.3: adding y to S is worth at least as much, per mass of q, as what x brought to S,
    and somewhere more."""
    rng, strict = random.Random(0), 0
    for _ in range(40):
        v = rng.choice([3, 4, 5])
        q, k = random_distribution(rng, v), rng.randint(1, min(3, v - 1))
        tuples = E.without_replacement(q, k)

        sets = [frozenset(s) for n in range(v + 1) for s in combinations(range(v), n)]
        within = {s: sum((c for xs, c in tuples if s.issuperset(xs)), F(0)) for s in sets}
        for s in sets:
            for x, y in product(s, set(range(v)) - s):
                before = (within[s] - within[s - {x}]) / q[x]
                after = (within[s | {y}] - within[s]) / q[y]
                assert before <= after
                strict += before < after
    assert strict > 100


def k_seq(p: E.Dist, q: E.Dist, k: int, rho: F) -> tuple[F, F, list[F]]:
    """The numbers a, rho beta and the masses of the residual."""
    b = [min(x / rho, y) for x, y in zip(p, q, strict=True)]
    beta = sum(b, F(0))
    a = 1 - (1 - beta) ** k
    return a, rho * beta, [x - y * (a / beta if beta else 0) for x, y in zip(p, b, strict=True)]


def test_k_seq_is_valid_from_one_rho_on() -> None:
    """Theorem 5.5, parts 1 to 3, on a grid of rho."""
    rng, invalid = random.Random(1), 0
    for _ in range(60):
        v, k = rng.choice([2, 3, 4]), rng.choice([2, 3])
        p, q = random_distribution(rng, v, 0), random_distribution(rng, v)
        before = False
        for step in range(21):
            rho = 1 + F(k - 1) * step / 20
            a, bound, residual = k_seq(p, q, k, rho)
            assert a <= bound or not before  # valid from one rho on
            before = a <= bound
            if any(0 < x <= rho * y for x, y in zip(p, q, strict=True)):
                assert (min(residual) >= 0) == before
            else:
                assert min(residual) >= 0 or not before
            invalid += min(residual) < 0
        assert before  # at rho = k at the latest
        assert k_seq(p, q, k, F(k))[0] >= (1 - (1 - F(1, k)) ** k) * E.optimum(E.iid, p, q, k)
    assert invalid > 50
    a, bound, residual = k_seq([F(1), F(0)], [F(1, 2), F(1, 2)], 2, F(1))
    assert a > bound
    assert min(residual) >= 0  # this is why part 1 asks for a token with p <= rho q


@pytest.mark.parametrize("scheme", [E.iid, E.without_replacement])
@pytest.mark.parametrize("k", [2, 3])
def test_weights_come_near_the_optimum_of_any_candidates(scheme: E.SamplingScheme, k: int) -> None:
    """Theorem 5.10: selections are listed with their probabilities, the iteration is in floats; it
    leads to p where no set of tokens is short of candidates, and elsewhere its best comes near the
    optimum, above recursive rejection."""
    rng = random.Random(5)
    cases = [(random_distribution(rng, 4, 0), random_distribution(rng, 4)) for _ in range(16)]
    for p, q in [*cases, (E.norm([5, 5, 4, 4]), E.norm([1, 1, 1, 1]))]:
        lists = [({*xs}, float(c)) for xs, c in scheme(q, k)]
        best, w = 0.0, [1.0] * 4
        optimum = float(E.optimum(scheme, p, q, k))
        for _ in range(2000):
            t = [0.0] * 4
            for some, chance in lists:
                total = sum(w[x] for x in some)
                for x in some:
                    t[x] += chance * w[x] / total
            best = max(best, sum(map(min, map(float, p), t)))
            w = [max(a * float(b) / c, 1e-200) if c else a for a, b, c in zip(w, p, t)]
            w = [a / max(w) for a in w]
        assert optimum * 0.97 < best <= optimum + 1e-12
    assert best > 1 - 1e-9  # of the last, where no set is short


def test_k_seq_is_never_below_rrs() -> None:
    """Theorem 5.5, part 5, with RRS's scalar as the scale."""
    rng = random.Random(6)
    for _ in range(60):
        v, k = rng.choice([2, 3, 5]), rng.choice([2, 3, 4])
        p, q = random_distribution(rng, v, 0), random_distribution(rng, v)
        m, scale = F(1), F(0)
        for _ in range(k):
            scale += m
            m = sum(E.minus(p, q, scale), F(0))
        a, accepted, _ = k_seq(p, q, k, scale)
        assert a >= accepted == 1 - m == E.rrs_acceptance(p, q, k)


def test_the_optimum_without_replacement_is_no_less() -> None:
    """Theorem 5.9.1, and the order at one node that follows from it."""
    more = 0
    for p, q in pairs(120, seed=3):
        for k in (1, 2, 3):
            independent, distinct = (E.optimum(x, p, q, k) for x in (E.iid, E.without_replacement))
            assert independent <= distinct
            more += independent < distinct
            assert E.rrs_acceptance(p, q, k) <= independent
            assert E.rrsw_acceptance(p, q, k) <= distinct
    assert more > 50


@pytest.mark.parametrize("gamma", [1, 2])
def test_no_rule_accepts_more_of_one_path(gamma: int) -> None:
    """Theorem 7.2 as a linear program over all lossless rules for a path of gamma tokens: the most
    that any of them accepts on average."""
    from scipy.optimize import linprog

    for seed in range(12):
        v = 2 + seed % 2
        target, draft = models(seed, v, "dense")
        texts = {y: i for i, y in enumerate(product(range(v), repeat=gamma + 1))}
        paths = E.target_distribution(draft, gamma)
        choices = [(x, n, y) for x in paths for n in range(gamma + 1) for y in range(v)]
        wanted = E.target_distribution(target, gamma + 1)
        rows = np.zeros((len(texts) + len(paths), len(choices)))
        right = np.zeros(len(rows))
        for text, i in texts.items():
            right[i] = wanted[text]
        for j, (x, n, y) in enumerate(choices):

            def after(
                t: E.Tokens, model: E.Model = target, before: E.Tokens = (*x[:n], y)
            ) -> E.Dist:
                return model((*before, *t))

            for rest, chance in E.target_distribution(after, gamma - n).items():
                rows[texts[(*x[:n], y, *rest)], j] = chance
            rows[len(texts) + list(paths).index(x), j] = 1
        right[len(texts) :] = [float(chance) for chance in paths.values()]
        best = linprog([-n for _, n, _ in choices], A_eq=rows, b_eq=right, method="highs")
        assert best.success
        block = E.block_expected_accepted(target, draft, range(-1, gamma))
        assert -best.fun == pytest.approx(float(block), abs=1e-9)


def output(
    rule: E.NodeRule, scheme: E.SamplingScheme, p: E.Dist, used: E.Dist, sampled: E.Dist, k: int
) -> list[F]:
    """The output where the candidates are sampled from one q and tested with another."""
    return E.output_distribution(lambda p, _, xs: rule(p, used, xs), scheme, p, sampled, k)


def test_noise_used_twice() -> None:
    """These are the three instances of theorem 8.8, over the midpoints of a grid that holds every
    threshold."""
    grid = [F(2 * i + 1, 96) for i in range(48)]

    def probability_of_0(output: Callable[[F], int]) -> F:
        return F(sum(output(u) == 0 for u in grid), len(grid))

    def tested_again(u: F) -> int:
        x = 0 if u < F(1, 2) else 1
        return x if u * F(1, 2) < [F(3, 4), F(1, 4)][x] else 0

    def bonus_again(u: F) -> int:
        return 2 if u < F(1, 4) else int(u >= F(2, 3))

    assert probability_of_0(tested_again) == 1
    assert probability_of_0(bonus_again) == F(5, 12)
    two_uniforms = sum(F(1, 4) for x, y in product((0, 1), repeat=2) if x == 0 or y != 1)
    assert two_uniforms == F(3, 4)
