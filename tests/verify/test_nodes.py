"""Node rules in fractions: they do not exceed the optimum, and are checked at other scales and
weights, on independent paths and under a wrong q."""

from __future__ import annotations

import random
from fractions import Fraction as F

import pytest
from driven import WITHOUT_Q

from specwb.verify import exact as E
from specwb.verify.instances import TREES, dense_pairs, models, pairs
from specwb.verify.mutants import COUNTEREXAMPLES, MUTANTS, no_residual_update, noise_reused

PAIRS = [(rule, scheme) for rule, schemes in E.LOSSLESS.items() for scheme in schemes]
READS_Q = [(rule, E.LOSSLESS[rule][0]) for rule in E.RULES if rule not in WITHOUT_Q]
PATHS = [(-1, 0, 1), (-1, 0, 0), (-1, 0, 0, 1, 2), (-1, 0, 0, 0, 1, 2, 3)]


# ------------------------------------------------------------------------------------------ optimum


@pytest.mark.parametrize(("rule", "scheme"), PAIRS)
def test_no_lossless_rule_exceeds_the_optimum(rule: str, scheme: str) -> None:
    attained, below = 0, 0
    for p, q in pairs(60, sizes=(2, 3, 4), seed=7):
        for k in (1,) if rule == "rejection" else (1, 2, 3):
            accepted = E.acceptance(E.RULES[rule], E.SCHEMES[scheme], p, q, k)
            optimum = E.optimum(E.SCHEMES[scheme], p, q, k)
            assert 0 <= accepted <= optimum <= 1
            attained += accepted == optimum
            below += accepted < optimum
    assert attained
    # with one child, one drawn beside fixed ones, or fixed ones only, nothing is left to gain
    optimal = {
        ("rejection", "IID"),
        ("rejection", "WITHOUT_REPLACEMENT"),
        ("top", "TOP_AND_SAMPLE"),
    }
    assert (below == 0) == ((rule, scheme) in optimal or scheme == "POINT")


def test_the_optimum_of_one_instance() -> None:
    """These are theorem 5.4's numbers and the two ends: children that are certain to hold
    everything, and none at all."""
    p, q = ([F(x) for x in row.split()] for row in ("1/2 3/10 1/5 0", "1/10 1/5 3/10 2/5"))
    assert E.optimum(E.iid, p, q, 2) == F(69, 100)
    assert E.optimum(E.without_replacement, p, q, 2) == F(617, 840)
    assert E.optimum(E.top, p, q, 4) == 1
    assert E.optimum(E.iid, p, q, 0) == 0


def test_a_mutant_may_exceed_the_optimum() -> None:
    """A wrong rule can accept more than the optimum, which bounds lossless rules only."""
    (mutant,) = (m for m in MUTANTS if m.name == "no_update_top")
    gains = [
        E.acceptance(mutant.node, mutant.scheme, p, q, mutant.k)
        - E.optimum(mutant.scheme, p, q, mutant.k)
        for p, q in dense_pairs(20)
    ]
    assert max(gains) > 0


# ------------------------------------------------------------------------ k-SEQ, race, top, typical


def test_k_seq_is_lossless_at_every_scale_that_is_large_enough() -> None:
    rng = random.Random(8)
    for p, q in pairs(40, seed=8):
        for k in (1, 2, 3):
            least = E.kseq_rho(tuple(p), tuple(q), k)
            assert 1 <= least <= k
            for rho in (least, least + F(rng.randint(1, 9), 7), F(k + 1)):

                def at_rho(p: E.Dist, q: E.Dist, tokens: E.Tokens, rho: F = rho) -> E.Decision:
                    return E.kseq(p, q, tokens, rho)

                assert E.output_distribution(at_rho, E.iid, p, q, k) == p
                assert E.acceptance(at_rho, E.iid, p, q, k) == E.kseq_acceptance(p, q, k, rho)


def test_a_scale_below_the_smallest_is_not_lossless() -> None:
    """One grid step of the bisection below what it returns, the residual would be negative
    somewhere."""
    off = 0
    for p, q in dense_pairs(20, seed=9):
        rho = E.kseq_rho(tuple(p), tuple(q), 3, halvings=8)
        lower = rho - F(2, 2**8)
        if p != q and lower > 1:

            def too_low(p: E.Dist, q: E.Dist, tokens: E.Tokens, rho: F = lower) -> E.Decision:
                return E.kseq(p, q, tokens, rho)

            out = E.output_distribution(too_low, E.iid, p, q, 3)
            assert E.tv(out, p) > 0
            off += 1
    assert off > 10


def test_k_seq_is_within_its_guarantee() -> None:
    for p, q in pairs(60, sizes=(2, 3, 4), seed=10):
        for k in (1, 2, 3):
            # the scale is rounded up by less than k / 4096, which costs less than the slack of this
            # bound
            assert E.kseq_acceptance(p, q, k) >= (1 - (1 - F(1, k)) ** k) * E.optimum(
                E.iid, p, q, k
            )


def test_the_race_is_lossless_whatever_the_weights() -> None:
    rng = random.Random(11)
    for p, q in pairs(50, seed=11):
        for k in (1, 2, 3):
            w = tuple(F(rng.choice([0, 1, 1, rng.randint(1, 50)]), rng.randint(1, 9)) for _ in p)

            def weighted(p: E.Dist, q: E.Dist, tokens: E.Tokens, w: E.Dist = w) -> E.Decision:
                return E.race(p, q, tokens, w)

            assert E.output_distribution(weighted, E.iid, p, q, k) == p
            assert E.acceptance(weighted, E.iid, p, q, k) >= E.race_acceptance(p, q, k, w)
            assert sum(E.race_distribution(tuple(q), w, k)) <= 1
    p, q = dense_pairs(1)[0]
    assert E.race_distribution(tuple(q), tuple(F(1) for _ in q), 3) == tuple(
        q
    )  # equal weights select as q draws
    assert E.race(p, q, (2,), (F(3), F(1), F(4), F(1))) == E.rejection(
        p, q, (2,)
    )  # of one child there is nothing to select


def test_top_and_sample_draws_the_last_child_from_the_rest() -> None:
    q = [F(1, 2), F(1, 6), F(0), F(1, 3)]
    assert E.top_and_sample(q, 1) == E.iid(q, 1)
    assert E.top_and_sample(q, 2) == [((0, 1), F(1, 3)), ((0, 3), F(2, 3))]
    assert E.top_and_sample(q, 3) == [((0, 3, 1), F(1))]
    assert E.top_and_sample(q, 4) == E.top_and_sample(q, 5) == E.top(q, 4)


def test_top_and_sample_of_the_whole_support_is_the_point_mass_rule() -> None:
    for p, q in pairs(40, seed=12):
        for tokens, _ in E.top_and_sample(q, len(p)):
            assert sorted(
                E.conditional_distribution(E.top_rule(p, q, tokens), tokens, len(p))
            ) == sorted(p)
            assert E.top_rule(p, q, tokens)[0] == E.point(p, q, tokens)[0]


def test_typical_acceptance_is_not_lossless() -> None:
    """With p = (3/5, 2/5) the threshold is 0.09, so token 1 is taken for certain where it is the
    child, and token 0 never comes out."""
    p = [F(3, 5), F(2, 5)]
    assert E.typical(p, p, (1,)) == ([1], None)
    assert E.typical(p, p, (1, 0)) == ([0, 1], None)
    assert E.typical(p, p, (1,), epsilon=0.5, delta=1.0) == (
        [0],
        p,
    )  # min(1/2, e^-H) = 1/2 is more than 2/5
    assert E.typical([F(1, 20)] * 20, p, (1,)) == ([1], None)  # 0.3 / 20 is the threshold here
    for scheme in (E.top, E.iid):
        assert max(
            E.tv(E.output_distribution(E.typical, scheme, p, q, 2), p) for p, q in dense_pairs(20)
        ) > F(1, 3)


# -------------------------------------------------------------------------- closed forms, and paths


@pytest.mark.parametrize(("rule", "scheme"), E.CHILD_TABLES)
def test_expected_lengths_in_closed_form(rule: str, scheme: str) -> None:
    """The tables of accepted children and tokens add up to the enumerated length of every tree."""
    for name, parents in TREES.items():
        if len(parents) <= 6 and (
            rule != "rejection" or name.startswith("chain") or name == "leaf"
        ):
            for seed in range(3):
                target, draft = models(seed, 2 if len(parents) > 5 else 3)
                enumerated = E.expected_accepted(
                    E.RULES[rule], E.SCHEMES[scheme], target, draft, parents
                )
                assert (
                    E.expected_from_table(E.CHILD_TABLES[rule, scheme], target, draft, parents)
                    == enumerated
                )


@pytest.mark.parametrize("parents", PATHS, ids=str)
@pytest.mark.parametrize("rule", ["rrs", "rrsw", "kseq", "race", "naive"])
def test_lossless_on_independent_paths(rule: str, parents: tuple[int, ...]) -> None:
    length = max(E.depths(parents)) + 1
    for seed in range(6):
        target, draft = models(seed, 2, "dense" if seed % 2 else "any")
        output = E.completed(
            E.paths_outcomes(E.RULES[rule], target, draft, parents), target, length
        )
        assert E.tv(output, E.target_distribution(target, length)) == 0


def test_independent_paths_see_a_wrong_rule_and_refuse_other_trees() -> None:
    target, draft = models(1, 2, "dense")
    output = E.completed(E.paths_outcomes(no_residual_update, target, draft, PATHS[2]), target, 3)
    assert E.tv(output, E.target_distribution(target, 3)) > 0
    with pytest.raises(ValueError, match="not a tree of equally long paths"):
        list(E.paths_outcomes(E.rrs, target, draft, (-1, 0, 0, 1)))


# ----------------------------------------------------------------------------------- what breaks it


@pytest.mark.parametrize(("rule", "scheme"), READS_Q)
def test_the_error_is_at_most_that_of_q(rule: str, scheme: str) -> None:
    """Where children are drawn from one q and verified with another, TV(output, p) is at most the
    distance of the two distributions of the children."""
    rng, off = random.Random(13), 0
    scheme = E.SCHEMES[scheme]
    for _ in range(2000 if rule == "rejection" else 150):
        v = rng.choice([3, 4])
        p, sampled, used = (E.norm([rng.randint(1, 9) for _ in range(v)]) for _ in range(3))
        tuples_sampled, tuples_used = (
            dict(scheme(q, 1 if rule == "rejection" else 2)) for q in (sampled, used)
        )
        out = [F(0)] * v
        for tokens, prob in tuples_sampled.items():
            conditional = E.conditional_distribution(E.RULES[rule](p, used, tokens), tokens, v)
            out = [a + prob * b for a, b in zip(out, conditional, strict=True)]
        assert E.tv(out, p) <= E.tv(tuples_sampled, tuples_used)
        off += out != p
    assert off > 100


def test_noise_that_is_reused_by_counting() -> None:
    """One uniform draws the child and, after a rejection, the bonus token. Every edge is a multiple
    of 1/8, so eight cells hold all there is."""
    p, q, residual = (
        [F(x) for x in row.split()] for row in ("3/8 3/8 1/4", "1/8 1/8 3/4", "1/2 1/2 0")
    )
    assert E.rejection(p, q, (2,))[1] == residual
    out = [F(0)] * 3
    for i in range(8):
        x, y = (
            next(t for t in range(3) if F(i, 8) < sum(row[: t + 1], F(0))) for row in (q, residual)
        )
        passes = min(F(1), p[x] / q[x])
        out[x] += passes / 8
        out[y] += (1 - passes) / 8
    assert (
        E.output_distribution(noise_reused, E.iid, p, q, 1) == out == [F(7, 24), F(11, 24), F(1, 4)]
    )


COUNTED = {
    "sorted children": "0 1",
    "siblings without residual update": "1/4 3/4",
    "RRS without replacement": "0 0 1",
    "top-k siblings as samples": "3/4 1/4",
    "a searched path as a sample": "1/2 1/2",
    "sorted sequences": "1/9 8/9",
}


@pytest.mark.parametrize("case", COUNTEREXAMPLES, ids=lambda c: c.name)
def test_counterexamples(case) -> None:
    """These are small enough to be done by hand. Sorted children: all tokens are drawn, p = q, and
    the more probable token is always taken."""
    assert case.output() == [F(x) for x in COUNTED[case.name].split()]
    assert case.output() != list(case.p)
