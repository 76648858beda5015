"""Rules in fractions: what holds of each besides being lossless, which ``test_lossless.py`` has."""

from __future__ import annotations

import math
from fractions import Fraction as F
from itertools import product

import pytest
from driven import TREES
from instances import pairs

from specwb.theory import exact as E
from specwb.theory.analysis import expected_point
from specwb.theory.instances import models
from specwb.theory.wrong_rules import WRONG_RULES

CHAINS = [tuple(range(-1, length)) for length in range(4)]
FORK = (-1, 0, 0, 1, 2)


def constant(p: E.Dist, q: E.Dist) -> tuple[E.Model, E.Model]:
    return (lambda _: p), (lambda _: q)


def paths_tree(k: int, length: int) -> tuple[int, ...]:
    return (-1, *[0] * k, *range(1, k * (length - 1) + 1))


# ----------------------------------------------------------------------------------------- one node


@pytest.mark.parametrize(("recursive", "scalar"), [(E.rrs, E.rrs_scalar), (E.rrsw, E.rrsw_scalar)])
def test_scalar_form_equals_recursive_form(recursive: E.NodeRule, scalar: E.NodeRule) -> None:
    """Whatever the tokens are."""
    for (p, q), k in product(pairs(160, seed=2), (1, 2, 3)):
        for scheme in (E.iid, E.without_replacement, E.top):
            for tokens, _ in scheme(q, k):
                assert scalar(p, q, tokens) == recursive(p, q, tokens)


def test_acceptance_closed_forms() -> None:
    for p, q in pairs(120, seed=3):
        one = E.acceptance(E.rejection, E.iid, p, q, 1)
        assert one == E.overlap(p, q) == 1 - E.tv(p, q)
        for k in (1, 2, 3):
            rrs = E.acceptance(E.rrs, E.iid, p, q, k)
            assert rrs == E.rrs_acceptance(p, q, k)
            left = p
            for level in E.rrs_levels(p, q, k):
                rest, left = E.minus(p, q, level), E.minus(left, q)
                assert bool(sum(rest)) == bool(sum(left))
                left = E.norm(left) if sum(left) else left
                assert not sum(rest) or E.norm(rest) == left
            rrsw = E.acceptance(E.rrsw, E.without_replacement, p, q, k)
            assert rrsw == E.rrsw_acceptance(p, q, k)
            naive = E.acceptance(E.naive, E.iid, p, q, k)
            ((tokens, _),) = E.top(q, k)
            assert E.acceptance(E.point, E.top, p, q, k) == sum(p[x] for x in tokens)
            assert rrsw >= rrs >= naive
            kseq = E.acceptance(E.kseq, E.iid, p, q, k)
            assert kseq >= rrs - F(k, 4096)  # its scale is rounded up
            assert E.optimum(E.without_replacement, p, q, k) >= E.optimum(E.iid, p, q, k)
            if k < 3:  # counting repeated drafts is no worse than dropping them
                assert rrs >= E.acceptance(E.rrsw, E.iid, p, q, k)
    # of three it can be worse (theorem 8.5)
    p, q = [F(0), F(13, 16), F(3, 16)], [F(1, 6), F(2, 3), F(1, 6)]
    assert E.rrs_acceptance(p, q, 3) == F(427, 432) < F(1711, 1728)
    assert E.acceptance(E.rrsw, E.iid, p, q, 3) == F(1711, 1728)


def test_k_seq_is_lossless_at_every_scale_that_is_large_enough() -> None:
    """And within its guarantee at the smallest. That is rounded up by less than k / 4096, which
    costs less than the slack of the bound."""
    for (p, q), k in product(pairs(40, seed=8), (1, 2, 3)):
        least = E.kseq_rho(tuple(p), tuple(q), k)
        assert 1 <= least <= k
        guaranteed = (1 - (1 - F(1, k)) ** k) * E.optimum(E.iid, p, q, k)
        assert E.acceptance(E.kseq, E.iid, p, q, k) >= guaranteed
        for rho in (least, least + F(2, 7), F(k + 1)):

            def at_rho(p: E.Dist, q: E.Dist, tokens: E.Tokens, rho: F = rho) -> E.Decision:
                return E.kseq(p, q, tokens, rho)

            assert E.output_distribution(at_rho, E.iid, p, q, k) == p


# ------------------------------------------------------------------------------------- whole rounds


def test_expected_accepted_closed_forms() -> None:
    chain, siblings = TREES["chain3"], TREES["siblings3"]
    for seed in range(12):
        target, draft = models(seed, 3)
        level = E.expected_accepted(E.rrsw, E.without_replacement, target, draft, siblings)
        assert level == E.rrsw_acceptance(target(()), draft(()), 3)
        ((paths, chance),) = E.trees(E.top, draft, TREES["mixed6"])
        assert chance == 1
        point = E.expected_accepted(E.point, E.top, target, draft, TREES["mixed6"])
        assert point == expected_point(target, [path for path in paths if path])
        # a draft that is the target is accepted whole
        assert E.expected_accepted(E.rrs, E.iid, target, target, chain) == 3


# -------------------------------------------------------------------------------- block, traversal


def test_traversal_of_a_chain_is_block_verification() -> None:
    for seed in range(10):
        target, draft = models(seed, 3)
        for paths, _ in E.trees(E.iid, draft, CHAINS[3]):
            drafted = target, draft, CHAINS[3], paths
            assert E.traversal_tests(*drafted) == E.block_tests(*drafted)


def test_traversal_at_depth_one_is_rrsw() -> None:
    for (p, q), k in product(pairs(60, sizes=(3, 4), seed=8), (1, 2, 3)):
        for tokens, _ in E.without_replacement(q, k):
            paths = ((), *[(x,) for x in tokens])
            *children, (_, _, bonus) = E.traversal_tests(*constant(p, q), (), paths)
            untested, accept = F(1), []
            for _, passes, _ in children:
                accept.append(untested * passes)
                untested *= 1 - passes
            assert (accept, bonus if untested else None) == E.rrsw(p, q, tokens)


# ---------------------------------------------------------------------------------- gbv, coupling


@pytest.mark.parametrize(("k", "length"), [(2, 1), (2, 2), (3, 1), (3, 2), (2, 3)])
def test_q_skew_is_the_distribution_of_the_largest_path(k: int, length: int) -> None:
    for seed, kind in product(range(6), ("any", "dense")):
        target, draft = models(seed, 2 if k + length > 3 else 3, kind)
        distribution: dict[E.Tokens, F] = {}
        for paths, chance in E.trees(E.iid, draft, paths_tree(k, length)):
            best = E.largest(target, draft, paths[-k:])  # type: ignore[arg-type]
            distribution[best] = distribution.get(best, F(0)) + chance
        skewed = E.target_distribution(E.skewed(target, draft, k), length)
        assert E.tv(distribution, skewed) == 0


def test_coupled_candidates_and_output_have_the_right_marginals() -> None:
    for (p, q), k in product(pairs(24, sizes=(2, 3, 4), seed=9), (1, 2, 3)):
        joint = E.coupled(p, q, k)
        assert min(joint.values()) > 0
        for y in range(len(p)):
            assert sum((c for (_, x), c in joint.items() if x == y), F(0)) == p[y]
        for xs in product(range(len(q)), repeat=k):
            chance = sum((c for (other, _), c in joint.items() if other == xs), F(0))
            assert chance == math.prod((q[x] for x in xs), start=F(1))


# ---------------------------------------------------------------------------- wrong rules, refusals


def test_shared_lists_harm_only_below_several_siblings() -> None:
    for seed in range(5):
        both = models(seed, 3, "dense")
        shared = WRONG_RULES["shared_lists"]
        wrong = [shared.off(*both, tree) for tree in (CHAINS[3], (-1, 0, 0, 0), FORK)]
        assert wrong[0] == wrong[1] == 0 < wrong[2]


def test_block_keeps_i_tokens_with_their_weight() -> None:
    """``P(at least i are kept | x^i) = w_i``, hence the other form of the expected length: ``sum_i
    sum q(x^i) w_i``."""
    for seed in range(8):
        target, draft = models(seed, 3)
        total = F(0)
        for paths, chance in E.trees(E.iid, draft, CHAINS[3]):
            path, w = paths[-1], F(1)
            assert path is not None
            for i, x in enumerate(path):
                w = min(F(1), w * target(path[:i])[x] / draft(path[:i])[x])
                total += chance * w
        assert total == E.block_expected_accepted(target, draft, CHAINS[3])
