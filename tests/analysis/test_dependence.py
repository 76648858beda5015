"""The entropies of blocks by the formulas are those of a sum over every block."""

from __future__ import annotations

from functools import reduce
from itertools import product
from math import isclose, log

import numpy as np
import pytest

from specwb.analysis import dependence as dep


def table(seed: int, k: int, v: int = 3, contexts: int = 2) -> tuple[np.ndarray, np.ndarray]:
    """A random table of joint distributions with zeros among its entries, and the weights of its
    contexts."""
    rng = np.random.default_rng([seed, k])
    p = rng.gamma(0.5, size=(contexts, v**k)) * (rng.random((contexts, v**k)) < 0.8)
    p += (p.sum(1, keepdims=True) == 0) + 1e-9
    return (p / p.sum(1, keepdims=True)).reshape(contexts, *[v] * k), rng.dirichlet(
        np.ones(contexts)
    )


def conditional(joint: np.ndarray, w: np.ndarray, j: int, shown: int) -> float:
    """``H(X_j | C, X_<=shown)`` by its definition: the mean over blocks of minus the log of a
    conditional probability."""
    total = 0.0
    for c, context in enumerate(joint):
        for block in product(range(context.shape[0]), repeat=context.ndim):
            if not context[block]:
                continue
            tails = context[block[:shown]]
            same = sum(
                tails[tail]
                for tail in np.ndindex(tails.shape)
                if tail[j - 1 - shown] == block[j - 1]
            )
            total -= w[c] * context[block] * log(same / tails.sum())
    return total


def divergence(joint: np.ndarray, factors: list[np.ndarray]) -> float:
    """The Kullback-Leibler divergence of a joint distribution from a product of distributions."""
    return sum(
        joint[b] * log(joint[b] / np.prod([q[x] for q, x in zip(factors, b)]))
        for b in np.ndindex(joint.shape)
        if joint[b]
    )


@pytest.mark.parametrize("k", [1, 2, 3, 4])
def test_entropies_by_definition(k):
    joint, w = table(0, k, v=2 if k == 4 else 3)
    for j in range(1, k + 1):
        for shown in range(j):
            assert isclose(
                dep.entropy(joint, (j,), range(1, shown + 1), w),
                conditional(joint, w, j, shown),
                abs_tol=1e-12,
            )
    assert isclose(
        dep.autoregressive_loss(joint, w),
        sum(conditional(joint, w, j, j - 1) for j in range(1, k + 1)),
        abs_tol=1e-12,
    )
    assert isclose(
        dep.block_loss(joint, w),
        sum(conditional(joint, w, j, 0) for j in range(1, k + 1)),
        abs_tol=1e-12,
    )


@pytest.mark.parametrize("seed", range(5))
def test_the_papers_identities(seed):
    """These are Falcon's equations 9 and 10, with X the next token and Y the one after."""
    joint, w = table(seed, 2)
    x, y, i = (
        dep.entropy(joint, (1,), weights=w),
        dep.entropy(joint, (2,), weights=w),
        dep.mutual_information(joint, (1,), (2,), weights=w),
    )
    x_y, y_x = dep.entropy(joint, (1,), (2,), w), dep.entropy(joint, (2,), (1,), w)
    assert i > 0.01
    assert isclose(x, x_y + i, abs_tol=1e-12)
    assert isclose(x + y, y_x + 2 * i + x_y, abs_tol=1e-12)
    assert isclose(i, dep.mutual_information(joint, (2,), (1,), weights=w), abs_tol=1e-12)
    assert isclose(i, dep.total_correlation(joint, w), abs_tol=1e-12)


@pytest.mark.parametrize("k", [2, 3, 4])
@pytest.mark.parametrize("seed", range(4))
def test_what_glancing_leaves_over_an_autoregressive_loss(k, seed):
    """The formula holds with any table of what is shown, not only the trainer's."""
    joint, w = table(seed, k)
    rng = np.random.default_rng(seed)
    anything = [rng.dirichlet(np.ones(j)).tolist() for j in range(1, k + 1)]
    for reveal in (
        anything,
        dep.prefix_reveal(k, 0.3),
        dep.prefix_reveal(k, 0.0),
        dep.prefix_reveal(k, 1.0),
    ):
        over = dep.excess(joint, reveal, w)
        assert isclose(
            over,
            dep.glanced_loss(joint, reveal, w) - dep.autoregressive_loss(joint, w),
            abs_tol=1e-12,
        )
        # position by position, from the definition
        by_hand = sum(
            chance * (conditional(joint, w, j, r) - conditional(joint, w, j, j - 1))
            for j, row in enumerate(reveal, 1)
            for r, chance in enumerate(row)
        )
        assert isclose(over, by_hand, abs_tol=1e-12)
    assert isclose(
        dep.excess(joint, dep.prefix_reveal(k, 0.0), w),
        dep.total_correlation(joint, w),
        abs_tol=1e-12,
    )
    losses = [dep.glanced_loss(joint, dep.prefix_reveal(k, g), w) for g in (0, 0.25, 0.5, 0.75, 1)]
    assert losses == sorted(losses, reverse=True)
    assert losses[0] > losses[-1] + 0.01


@pytest.mark.parametrize("g", [0.0, 0.25, 0.7, 1.0])
def test_a_block_of_two_lies_on_a_line(g):
    joint, w = table(3, 2)
    assert isclose(
        dep.excess(joint, dep.prefix_reveal(2, g), w),
        (1 - g) * dep.mutual_information(joint, (1,), (2,), weights=w),
        abs_tol=1e-12,
    )


def test_all_or_nothing_is_a_special_case():
    """Where either everything before a position is shown or nothing, its part of the excess is (1 -
    g_j) I(X_j; X_<j | C). Where prefixes are shown, it is not: of three tokens whose third repeats
    the second, showing the first says nothing of the third."""
    joint, w = table(1, 3)
    shown = [0.0, 0.4, 0.9]
    reveal = [[1.0], [0.6, 0.4], [0.1, 0.0, 0.9]]
    before = [dep.mutual_information(joint, (j,), range(1, j), weights=w) for j in (1, 2, 3)]
    assert isclose(
        dep.excess(joint, reveal, w), sum((1 - g) * i for g, i in zip(shown, before)), abs_tol=1e-12
    )

    again = np.einsum("a,b,bc->abc", [0.5, 0.5], [0.5, 0.5], np.eye(2))
    prefixes = [
        [1.0],
        [1.0, 0.0],
        [0.5, 0.5, 0.0],
    ]  # before position 3, nothing or the first token is shown
    assert isclose(dep.excess(again, prefixes), log(2), abs_tol=1e-12)
    full = dep.mutual_information(again, (3,), (1, 2))
    assert isclose(full, log(2), abs_tol=1e-12)
    # g_3 read as "nothing shown" or as "all shown" gives 0.5 or 1: neither reading is right for the
    # trainer's table
    trained = dep.prefix_reveal(3, 0.5)
    assert isclose(
        dep.excess(again, trained), (trained[2][0] + trained[2][1]) * full, abs_tol=1e-12
    )
    joint, w = table(2, 3)
    i2, i3 = (dep.mutual_information(joint, (j,), range(1, j), weights=w) for j in (2, 3))
    truth = dep.excess(joint, trained, w)
    for g_3 in (trained[2][2], 1 - trained[2][0]):
        assert abs(truth - (trained[1][0] * i2 + (1 - g_3) * i3)) > 1e-3


@pytest.mark.parametrize(("k", "g"), [(2, 0.5), (3, 0.25), (4, 0.6), (4, 1.0), (3, 0.0)])
def test_the_trainers_table_by_counting(k, g):
    """A block is glanced with probability g and then shows a prefix of 1..k-1 tokens; a position
    counts where its own token is not shown."""
    cases = [(1 - g, 0)] + [(g / (k - 1), r) for r in range(1, k)]
    for j, row in enumerate(dep.prefix_reveal(k, g), 1):
        seen = [(p, r) for p, r in cases if r < j]
        total = sum(p for p, _ in seen)
        if total:
            assert row == pytest.approx([p / total for p, _ in seen])
        assert sum(row) == pytest.approx(1)
    assert dep.prefix_reveal(1, 0.4) == [[1.0]]


@pytest.mark.parametrize("k", [2, 3, 4])
def test_total_correlation(k):
    joint, w = table(5, k)
    tc = dep.total_correlation(joint, w)
    assert isclose(
        tc,
        sum(dep.mutual_information(joint, (j,), range(1, j), weights=w) for j in range(2, k + 1)),
        abs_tol=1e-12,
    )
    assert tc > 0.01
    # it is zero for independent tokens, and for tokens that depend on each other through the
    # context only
    rng = np.random.default_rng(k)
    rows = rng.dirichlet(np.ones(3), (2, k))
    independent = np.stack([reduce(np.multiply.outer, rows[c]) for c in range(2)])
    assert abs(dep.total_correlation(independent, w)) < 1e-12
    assert dep.total_correlation(np.tensordot(w, independent, 1)) > 1e-4


@pytest.mark.parametrize("k", [2, 3])
def test_no_product_of_distributions_is_nearer_than_the_marginals(k):
    joint = table(6, k)[0][0]
    marginals = [joint.sum(tuple(i for i in range(k) if i != j)) for j in range(k)]
    tc = dep.total_correlation(joint)
    assert isclose(divergence(joint, marginals), tc, abs_tol=1e-12)
    rng = np.random.default_rng(0)
    for _ in range(100):
        others = [0.9 * m + 0.1 * rng.dirichlet(np.ones(3)) for m in marginals]
        extra = sum(divergence(m, [q]) for m, q in zip(marginals, others))
        assert extra > 0
        assert isclose(divergence(joint, others), tc + extra, abs_tol=1e-12)


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda: dep.entropy([[0.5, 0.6], [0.0, 0.0]]), "must be distributions"),
        (lambda: dep.entropy([[0.5, float("nan")], [0.5, 0.0]]), "must be distributions"),
        (lambda: dep.entropy([[1.5, -0.5]]), "must be distributions"),
        (
            lambda: dep.entropy([[0.5, 0.5], [1.0, 0.0]], weights=[0.5, 0.6]),
            "must be distributions",
        ),
        (lambda: dep.entropy([[0.5, 0.5], [1.0, 0.0]], weights=[1.0]), "weights"),
        (lambda: dep.entropy(1.0), "a table"),
        (lambda: dep.entropy([0.5, 0.5], (2,)), r"positions of a block of 1 are 1..1, got \[2\]"),
        (
            lambda: dep.mutual_information([[0.5, 0], [0, 0.5]], (1,), (0,)),
            "positions of a block of 2",
        ),
        (
            lambda: dep.excess([[0.5, 0], [0, 0.5]], [[1.0]]),
            "reveal has a row of 1..2 probabilities",
        ),
        (
            lambda: dep.glanced_loss([[0.5, 0], [0, 0.5]], [[1.0], [0.5, 0.6]]),
            "every row of reveal must be a distribution",
        ),
        (lambda: dep.prefix_reveal(0, 0.5), "k=0"),
        (lambda: dep.prefix_reveal(2, 1.5), "g=1.5"),
    ],
)
def test_bad_tables(call, named):
    with pytest.raises(ValueError, match=named):
        call()
