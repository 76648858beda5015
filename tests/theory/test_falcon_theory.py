"""theory/10_falcon.md: laws in fractions, entropies of small tables by brute force, and what its
theorems say of the code."""

from __future__ import annotations

import math
import random
from fractions import Fraction as F
from functools import reduce
from itertools import pairwise, product

import numpy as np
import pytest
import torch
from instances import divergence

from specwb.core.mask import block_ends
from specwb.theory import analysis, exact
from specwb.theory.analysis import dependence
from specwb.training.falcon import glance_mask

# ----------------------------------------------------------------------------------- 10.1, blocks


def test_ends_of_blocks():
    for k, n in product(range(1, 5), range(1, 12)):
        last = torch.tensor(n - 1)
        right, left = (
            block_ends(torch.arange(n), last, k, align).tolist() for align in ("right", "left")
        )
        assert right == [n - 1 - (n - 1 - i) // k * k for i in range(n)]
        assert left == [min(i // k * k + k - 1, n - 1) for i in range(n)]


# ----------------------------------------------------------------------------- 10.6, shared lists


def two_tokens(rule, p1, q1, p2, q2, joint) -> dict:
    """The law of two tokens where all children of the root have the same list: ``joint`` is the law
    of (list of the root, list of its children)."""
    target, draft = (lambda text: p2[text[0]] if text else p1), (lambda text: q2 if text else q1)
    first, second = (len(tokens) for tokens in joint[0][:2])
    parents = (-1, *[0] * first, *(1 + i for i in range(first) for _ in range(second)))
    drafts = [(((), *((x,) for x in a), *product(a, b)), chance) for a, b, chance in joint]
    law: dict = {}
    outcomes = exact.walk(rule, target, draft, parents, drafts)
    for text, chance in exact.completed(outcomes, target, 3).items():
        law[text[:2]] = law.get(text[:2], F(0)) + chance
    return law


def wanted(p1, p2) -> dict:
    return {(x, y): a * b for x, a in enumerate(p1) for y, b in enumerate(p2[x]) if a * b}


def test_one_draw_for_parent_and_child():
    half = [F(1, 2), F(1, 2)]
    p1, p2 = [F(1), F(0)], [half, half]
    same = [(a, a, c) for a, c in exact.without_replacement(half, 1)]
    distribution = two_tokens(exact.rrsw, p1, half, p2, half, same)
    assert distribution == {(0, 0): F(3, 4), (0, 1): F(1, 4)}
    drawn_once = exact.without_replacement(half, 1)
    apart = [(a, b, c * d) for (a, c), (b, d) in product(drawn_once, repeat=2)]
    assert exact.tv(two_tokens(exact.rrsw, p1, half, p2, half, apart), wanted(p1, p2)) == 0


# ----------------------------------------------------------------------------------- 10.7, passes


def test_a_chain_of_blocks():
    rng = random.Random(3)
    for k, m in product((1, 2, 3), (1, 2, 4)):
        rates = [F(rng.randint(1, 9), 10) for _ in range(k)]
        reach = [math.prod(rates[:j], start=F(1)) for j in range(1, k + 1)]
        tau = 1 + sum(reach) * sum(reach[-1] ** b for b in range(m))
        assert tau == sum(analysis.path_values([[a] for a in rates * m], [-1, *range(k * m)]))


def table(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).dirichlet(np.full(math.prod(shape), 0.5)).reshape(shape)


def given(joint: np.ndarray, j: int, shown: tuple[int, ...]) -> np.ndarray:
    """The law of X_j (from 1) after the tokens ``shown``."""
    distribution = joint[shown].sum(
        axis=tuple(i - len(shown) for i in range(len(shown), joint.ndim) if i != j - 1)
    )
    return distribution / distribution.sum()


@pytest.mark.parametrize("k", [2, 3])
def test_the_floor_of_product_distributions(k):
    for seed in range(6):
        joint = table(seed, *[3] * k)
        marginals = [given(joint, j, ()) for j in range(1, k + 1)]

        def against(distributions, joint=joint) -> float:
            return divergence(joint.ravel(), reduce(np.multiply.outer, distributions).ravel())

        tc = dependence.total_correlation(joint)
        assert against(marginals) == pytest.approx(tc)
        assert tc == pytest.approx(
            sum(dependence.mutual_information(joint, (j,), range(1, j)) for j in range(2, k + 1))
        )
        assert tc > 0.001
        if k == 3:
            assert dependence.total_correlation(joint.sum(-1)) <= tc
        for other in range(20):
            distributions = [table(100 + other + 50 * j, 3) for j in range(k)]
            assert against(distributions) == pytest.approx(
                tc + sum(divergence(m, q) for m, q in zip(marginals, distributions))
            )
    independent = np.multiply.outer(table(1, 3), table(2, 4))
    assert dependence.total_correlation(independent) == pytest.approx(0, abs=1e-12)


def test_a_determined_text_has_no_dependence():
    joint = np.zeros((3, 3, 3))
    joint[1, 2, 0] = 1
    assert dependence.block_loss(joint) == dependence.autoregressive_loss(joint) == 0
    drawn_first = np.zeros((3, 3))
    # the second is determined by the first alone: the block still loses
    drawn_first[0, 1] = drawn_first[1, 2] = 0.5
    assert dependence.total_correlation(drawn_first) == pytest.approx(math.log(2))


@pytest.mark.parametrize("k", [2, 3, 4])
def test_prefixes_are_what_the_trainer_replaces(k):
    """Every block glanced, lengths from a fine grid: prefixes of 1..k-1 pairs, each length as
    often, which is the table of g = 1."""
    blocks = 6 * (k - 1)
    order, lengths = torch.rand(1, blocks), (torch.arange(blocks) + 0.5)[None] / blocks
    found = glance_mask(torch.tensor([k * blocks]), k * blocks, k, order, lengths).view(blocks, k)
    shown = found.sum(1)
    assert torch.equal(found, torch.arange(k) < shown[:, None])
    assert torch.bincount(shown, minlength=k).tolist() == [0] + [6] * (k - 1)
    distribution = torch.bincount(shown, minlength=k).double() / blocks
    for j, row in enumerate(dependence.prefix_reveal(k, 1.0), 1):
        if j > 1:
            assert row == pytest.approx((distribution[:j] / distribution[:j].sum()).tolist())


def overlap(p, q) -> float:
    return float(np.minimum(p, q).sum())


def test_dependence_bounds_acceptance():
    better = 0
    for seed in range(40):
        near = np.diag(table(seed, 4)) * 0.9 + 0.1 * table(seed, 4, 4)
        joint = table(seed, 3, 4) if seed % 2 else near
        first, second = joint.sum(1), joint.sum(0)
        rows = joint / first[:, None]
        d = sum(a * (1 - overlap(row, second)) for a, row in zip(first, rows))
        information = dependence.mutual_information(joint, (1,), (2,))
        below = sum(
            a * (1 - a) / math.log(1 / a) * divergence(row, second) for a, row in zip(first, rows)
        )
        assert below - 1e-12 <= d <= math.sqrt(information / 2) + 1e-12
        for other in range(30):
            q = table(1000 * seed + other, joint.shape[1])
            kept = sum(a * overlap(row, q) for a, row in zip(first, rows))
            assert kept <= 1 - d / 2 + 1e-12
            better += kept > 1 - d + 1e-6
    assert better > 10, "the law of Y is not always the best draft"
    p = table(3, 5)
    below = sum(a * (1 - a) / math.log(1 / a) * math.log(1 / a) for a in p)
    assert below == pytest.approx(sum(a * (1 - overlap(np.eye(5)[x], p)) for x, a in enumerate(p)))
    assert dependence.mutual_information(np.diag(p), (1,), (2,)) == pytest.approx(
        dependence.entropy(p)
    )
    w = [(1 - a) / math.log(1 / a) for a in np.linspace(1e-6, 0.999, 50)]
    assert all(a < b for a, b in pairwise(w))
