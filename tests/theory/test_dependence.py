"""The entropies of blocks by the formulas are those of a sum over every block."""

from __future__ import annotations

from itertools import product
from math import log

import numpy as np
import pytest

from specwb.theory.analysis import dependence as dep


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


@pytest.mark.parametrize("k", [1, 2, 3, 4])
def test_entropies_by_definition(k):
    """Everything else is a sum of them; what is proved of it is tested in test_falcon_theory."""
    joint, w = table(0, k, v=2 if k == 4 else 3)
    after = {(j, r): conditional(joint, w, j, r) for j in range(1, k + 1) for r in range(j)}
    for (j, shown), by_hand in after.items():
        found = dep.entropy(joint, (j,), range(1, shown + 1), w)
        assert found == pytest.approx(by_hand, abs=1e-12)
    floor, block = (
        sum(after[j, r(j)] for j in range(1, k + 1)) for r in (lambda j: j - 1, lambda j: 0)
    )
    assert dep.autoregressive_loss(joint, w) == pytest.approx(floor, abs=1e-12)
    assert dep.block_loss(joint, w) == pytest.approx(block, abs=1e-12)
    assert dep.total_correlation(joint, w) == pytest.approx(block - floor, abs=1e-12)
    reveal = [np.random.default_rng(j).dirichlet(np.ones(j)).tolist() for j in range(1, k + 1)]
    glanced = sum(c * after[j, r] for j, row in enumerate(reveal, 1) for r, c in enumerate(row))
    assert dep.glanced_loss(joint, reveal, w) == pytest.approx(glanced, abs=1e-12)
    assert dep.excess(joint, reveal, w) == pytest.approx(glanced - floor, abs=1e-12)
    nothing_shown = dep.excess(joint, dep.prefix_reveal(k, 0.0), w)
    assert nothing_shown == pytest.approx(block - floor, abs=1e-12)
    losses = [dep.glanced_loss(joint, dep.prefix_reveal(k, g), w) for g in (0, 0.25, 0.75, 1)]
    assert losses == sorted(losses, reverse=True)


@pytest.mark.parametrize(("k", "g"), [(3, 0.25), (4, 1.0)])
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
