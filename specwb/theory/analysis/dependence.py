"""The information that the tokens of a block carry about each other, which a drafter of blocks
cannot use.

Everything is computed exactly, on joint tables, in nats.

A table is the joint distribution of the k tokens of a block given its context. It is ``joint
[V]*k`` for one context, or ``joint [C, *[V]*k]`` for C contexts with ``weights [C]``, the
probability of each; entropies are then conditional on the context C. The positions of a block are
counted from 1.

A drafter that drafts a block at once has one distribution ``q_j(. | C)`` for every position j: a
product of distributions. Its least loss exceeds an autoregressive drafter's by the tokens' mutual
information (total correlation), also at drafting time. Glancing (Falcon's CSGD) lowers the loss in
training only, by showing the first r tokens of the block to the positions after them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import entr

from specwb.core.errors import ArgumentError

Reveal = Sequence[Sequence[float]]
"""``reveal[j - 1][r]``, r = 0..j-1, is the probability that the first r tokens are shown, given
that position j's own token is not."""


def entropy(
    joint: ArrayLike,
    positions: Collection[int] | None = None,
    given: Collection[int] = (),
    weights: ArrayLike | None = None,
) -> float:
    """``H(X_positions | C, X_given)`` in nats.

    Args:
        joint: The table ``[V]*k`` or ``[C, *[V]*k]``; see the module.
        positions: Those whose tokens are asked for, counted from 1; None for all.
        weights: The probability of each context ``[C]``; None for one context.
    Raises:
        ValueError: The table or the weights are no distribution, the weights do not fit, or the
            block does not have a position.
    """
    table, weights = _read(joint, weights)
    k = table.ndim - 1
    condition = _checked(given, k)
    union = condition | _checked(range(1, k + 1) if positions is None else positions, k)
    return _unconditional(table, weights, union) - _unconditional(table, weights, condition)


def mutual_information(
    joint: ArrayLike,
    a: Collection[int],
    b: Collection[int],
    given: Collection[int] = (),
    weights: ArrayLike | None = None,
) -> float:
    """``I(X_a; X_b | C, X_given) = H(X_a | C, X_given) - H(X_a | C, X_given, X_b)`` in nats.

    It is 0 where b is empty.

    Args:
        a: Positions on one side.
        b: Positions on the other side.
    """
    without_b = entropy(joint, a, given, weights)
    with_b = entropy(joint, a, {*given, *b}, weights)
    return without_b - with_b


def block_loss(joint: ArrayLike, weights: ArrayLike | None = None) -> float:
    """A drafter that drafts a block at once has at least the loss ``sum_j H(X_j | C)``.

    Arguments and errors are those of :func:`entropy`.
    """
    return sum(entropy(joint, (j,), (), weights) for j in _positions(joint, weights))


def autoregressive_loss(joint: ArrayLike, weights: ArrayLike | None = None) -> float:
    """A drafter that sees every token before has at least ``H(X_1..X_k | C)`` as its loss.

    By the chain rule this is ``sum_j H(X_j | C, X_<j)``. Arguments and errors are those of
    :func:`entropy`.
    """
    return entropy(joint, None, (), weights)


def total_correlation(joint: ArrayLike, weights: ArrayLike | None = None) -> float:
    """``TC = sum_j H(X_j | C) - H(X_1..X_k | C) = sum_j I(X_j; X_<j | C)``.

    This is how far the nearest product of distributions is from the joint distribution:
    ``KL(joint || prod_j q_j) = TC + sum_j KL(p_j || q_j)``, so the marginals p_j are nearest, and
    TC is what every drafter of whole blocks lacks, however it was trained. It is 0 iff the tokens
    of a block are independent given the context.

    Arguments and errors are those of :func:`entropy`.

    Source: Watanabe 1960; Gloeckle et al. 2404.19737 for k = 2 (Falcon's equations 9 and 10).
    """
    return block_loss(joint, weights) - autoregressive_loss(joint, weights)


def prefix_reveal(k: int, g: float) -> list[list[float]]:
    """The table :data:`Reveal` of glancing as Falcon's trainer does it.

    A block is glanced with probability g, and then its first r tokens are shown, r uniform on
    1..k-1. Position j's own token is not shown with probability
    ``n_j = 1 - g + g (j - 1) / (k - 1)``. Given that, ``P(0 | j) = (1 - g) / n_j`` and
    ``P(r | j) = g / (k - 1) / n_j`` for r = 1..j-1.

    Position 1 is never counted with anything shown. At g = 1 it is never counted at all, and its
    row is the limit.

    Args:
        k: Tokens of a block, >= 1.
        g: Probability that a block is glanced, in 0..1.
    Returns:
        k rows, of 1, 2, .., k probabilities.
    Raises:
        ValueError: k < 1 or g outside 0..1.
    Source: Falcon (arXiv 2412.12639) 3.2, figure 2. Differs from it in: it glances a number of
        pairs, lambda times the mistakes of a first pass; g is the fraction of blocks that this
        comes to.
    """
    if k < 1 or not 0 <= g <= 1:
        raise ArgumentError(
            f"a block has k >= 1 tokens and is glanced with probability 0..1, got k={k}, g={g}"
        )
    rows = [[1.0]]
    for j in range(2, k + 1):
        n = 1 - g + g * (j - 1) / (k - 1)
        nothing, each_length = (1 - g) / n, g / (k - 1) / n
        rows.append([nothing] + [each_length] * (j - 1))
    return rows


def glanced_loss(joint: ArrayLike, reveal: Reveal, weights: ArrayLike | None = None) -> float:
    """A drafter that is shown the first r tokens of a block has at least the loss ``sum_j sum_{r<j}
    P(r | j) H(X_j | C, X_{<=r})``.

    Each position's loss is a mean over the cases in which its own token is not shown; the trainer's
    sum weights it by their probability, P(R < j). The formula assumes that the drafter knows how
    many tokens are shown, and that this number does not depend on the tokens.

    Args:
        reveal: See :data:`Reveal`; for instance :func:`prefix_reveal`.
    Raises:
        ValueError: As :func:`entropy`, or a table whose rows are not distributions over r = 0..j-1.
    """
    return sum(
        chance * entropy(joint, (j,), range(1, r + 1), weights)
        for j, r, chance in _revealed(reveal, joint, weights)
    )


def excess(joint: ArrayLike, reveal: Reveal, weights: ArrayLike | None = None) -> float:
    """:func:`glanced_loss` is above an autoregressive drafter's loss by
    ``sum_j sum_{r<j} P(r | j) I(X_j; X_{r+1..j-1} | C, X_{<=r})``.

    For k = 2 this is ``(1 - g) I(X_1; X_2 | C)``. For larger k it is
    ``sum_j (1 - g_j) I(X_j; X_<j | C)`` only where all or nothing before a position is shown, with
    probability g_j. Arguments and errors are those of :func:`glanced_loss`.
    """
    return sum(
        chance * mutual_information(joint, (j,), range(r + 1, j), range(1, r + 1), weights)
        for j, r, chance in _revealed(reveal, joint, weights)
    )


# ----------------------------------------------------------------------------------------- inside


def _read(joint: ArrayLike, weights: ArrayLike | None) -> tuple[np.ndarray, np.ndarray]:
    """The table ``[C, *[V]*k]`` and the weights ``[C]``, checked."""
    table = np.asarray(joint, dtype=float)
    w = np.ones(1) if weights is None else np.asarray(weights, dtype=float)
    if weights is None:
        table = table[None]
    if table.ndim < 2 or w.shape != table.shape[:1]:
        raise ArgumentError(
            "joint must be a table [V, .., V], or [C, V, .., V] with weights [C]; "
            f"got {list(np.shape(joint))} and weights {list(w.shape)}"
        )
    sums = table.sum(axis=tuple(range(1, table.ndim)))
    # each condition is what must hold, so that nan is refused as well
    nonnegative = table.min(initial=0) >= 0 and w.min() >= 0
    normalised = abs(w.sum() - 1) < 1e-6 and bool((abs(sums - 1) < 1e-6).all())
    if not (nonnegative and normalised):
        raise ArgumentError(
            "every context's table and the weights must be distributions: entries >= 0, sum 1; "
            f"sums are {sums.tolist()} and {w.sum()}"
        )
    return table, w


def _unconditional(table: np.ndarray, weights: np.ndarray, positions: set[int]) -> float:
    """``H(X_positions | C)``."""
    others = tuple(i for i in range(1, table.ndim) if i not in positions)
    marginal = table.sum(axis=others)
    by_context = entr(marginal).reshape(len(weights), -1).sum(1)
    return float(weights @ by_context)


def _positions(joint: ArrayLike, weights: ArrayLike | None) -> range:
    return range(1, _read(joint, weights)[0].ndim)


def _checked(positions: Collection[int], k: int) -> set[int]:
    if bad := [i for i in positions if not 1 <= i <= k]:
        raise ArgumentError(f"positions of a block of {k} are 1..{k}, got {bad}")
    return set(positions)


def _revealed(
    reveal: Reveal, joint: ArrayLike, weights: ArrayLike | None
) -> Iterator[tuple[int, int, float]]:
    """``(j, r, P(r | j))`` of every position j and every number r of tokens shown."""
    k = len(_positions(joint, weights))
    lengths = [len(row) for row in reveal]
    if lengths != list(range(1, k + 1)):
        raise ArgumentError(
            f"reveal has a row of 1..{k} probabilities for each of the {k} positions, "
            f"got rows of {lengths}"
        )
    for row in reveal:
        if not (min(row) >= 0 and abs(sum(row) - 1) < 1e-9):
            raise ArgumentError(f"every row of reveal must be a distribution, got {list(row)}")
    for j, row in enumerate(reveal, 1):
        for r, chance in enumerate(row):
            yield j, r, chance
