"""What theory/ states beyond single rules: properties, and every instance that a page computes by
hand."""

from __future__ import annotations

import json
import random
from fractions import Fraction as F
from itertools import accumulate, product
from pathlib import Path

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
            missing = drafted - E.rrs_acceptance_scalar(p, q, k)
            assert 0 <= missing <= largest / k
        assert E.rrsw_acceptance(p, q, sum(map(bool, q))) == drafted


# ------------------------------------------------------------------------------------------- page 7


def test_block_against_token_by_token() -> None:
    p, q = distributions("3/4 1/4", "1/4 3/4")
    constant = (lambda _: p), (lambda _: q)
    assert E.expected_accepted(E.rejection, E.iid, *constant, (-1, 0, 1)) == F(3, 4)
    assert E.block_expected_accepted(*constant, (-1, 0, 1)) == F(7, 8)


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
