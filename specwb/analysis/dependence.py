"""What a drafter of blocks does not know: how much the tokens of one block say of each other, exactly, on joint tables. All in nats.

A table is the joint law of the k tokens of a block given its context: ``joint [V]*k`` for one context, or ``joint [C, *[V]*k]`` with ``weights [C]``,
how likely each context is; entropies are then conditional on the context C. Places of a block are counted from 1.

A drafter that says a block at once has for every place j one law ``q_j(. | C)``: a product of laws. What its loss is above an autoregressive
drafter's is mutual information, and stays so at drafting time; glancing (Falcon's CSGD) lowers the loss in training only, by showing the first r
tokens of the block to the places after them.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import entr

Reveal = Sequence[Sequence[float]]
"""``reveal[j - 1][r]``, r = 0..j-1: probability that the first r tokens are shown, given that place j's own is not."""


def entropy(joint: ArrayLike, places: Collection[int] | None = None, given: Collection[int] = (), weights: ArrayLike | None = None) -> float:
    """``H(X_places | C, X_given)``.

    Args: joint, weights: see the module. places: None for all. given: places whose tokens are known.
    Raises:
        ValueError: no law, weights that do not fit, a place that the block does not have.
    """
    table, w = _read(joint, weights)
    k = table.ndim - 1
    known = _checked(given, k)
    every = _checked(range(1, k + 1) if places is None else places, k) | known
    return _plain_entropy(table, w, every) - _plain_entropy(table, w, known)


def mutual_information(
    joint: ArrayLike, a: Collection[int], b: Collection[int], given: Collection[int] = (), weights: ArrayLike | None = None
) -> float:
    """``I(X_a; X_b | C, X_given) = H(X_a | C, X_given) - H(X_a | C, X_given, X_b)``, 0 where b is empty. Arguments and errors as :func:`entropy`."""
    return entropy(joint, a, given, weights) - entropy(joint, a, {*given, *b}, weights)


def block_loss(joint: ArrayLike, weights: ArrayLike | None = None) -> float:
    """Least loss of a drafter that says a block at once: ``sum_j H(X_j | C)``. Errors as :func:`entropy`."""
    return sum(entropy(joint, (j,), (), weights) for j in _places(joint, weights))


def autoregressive_loss(joint: ArrayLike, weights: ArrayLike | None = None) -> float:
    """Least loss of one that sees every token before it: ``H(X_1..X_k | C) = sum_j H(X_j | C, X_<j)``. Errors as :func:`entropy`."""
    return entropy(joint, None, (), weights)


def total_correlation(joint: ArrayLike, weights: ArrayLike | None = None) -> float:
    """``TC = sum_j H(X_j | C) - H(X_1..X_k | C) = sum_j I(X_j; X_<j | C)``: how far the nearest product of laws is from the joint law.

    ``KL(joint || prod_j q_j) = TC + sum_j KL(p_j || q_j)``, so the marginals p_j are nearest and TC is what every drafter of whole blocks lacks,
    however it was trained; 0 iff the tokens of a block are independent given the context. Errors as :func:`entropy`.

    Source: Watanabe 1960; Gloeckle et al. 2404.19737 for k = 2 (Falcon's equations 9 and 10).
    """
    return block_loss(joint, weights) - autoregressive_loss(joint, weights)


def prefix_reveal(k: int, g: float) -> list[list[float]]:
    """The table of glancing as Falcon's trainer does it: a block is glanced with probability g, and then its first r tokens are shown, r uniform on
    1..k-1.

    Place j's own token is not shown with probability ``n_j = 1 - g + g (j - 1) / (k - 1)``. Given that, ``P(0 | j) = (1 - g) / n_j`` and
    ``P(r | j) = g / (k - 1) / n_j`` for r = 1..j-1. Place 1 is never counted with anything shown; at g = 1 it is never counted at all, and its
    row is the limit.

    Raises:
        ValueError: k < 1 or g outside 0..1.
    Source: Falcon (arXiv 2412.12639) 3.2, figure 2. Differs from it in: it glances a number of pairs, lambda times the mistakes of a first pass;
        g is the share of blocks that this comes to.
    """
    if k < 1 or not 0 <= g <= 1:
        raise ValueError(f"a block has k >= 1 tokens and is glanced with probability 0..1, got k={k}, g={g}")
    rows = [[1.0]]
    for j in range(2, k + 1):
        n = 1 - g + g * (j - 1) / (k - 1)
        rows.append([(1 - g) / n] + [g / (k - 1) / n] * (j - 1))
    return rows


def glanced_loss(joint: ArrayLike, reveal: Reveal, weights: ArrayLike | None = None) -> float:
    """Least loss of a drafter that is shown the first r tokens of a block: ``sum_j sum_{r<j} P(r | j) H(X_j | C, X_{<=r})``.

    Each place's loss is a mean over the times when its own token is not shown; the trainer's own sum weighs it by how often that
    is, P(R < j). It supposes that the drafter can tell
    how many are shown, and that what is shown does not depend on the tokens.

    Args: reveal: see :data:`Reveal`, such as :func:`prefix_reveal`.
    Raises:
        ValueError: as :func:`entropy`, or a table whose rows are no laws over r = 0..j-1.
    """
    return sum(
        share * entropy(joint, (j,), range(1, r + 1), weights)
        for j, row in enumerate(_rows(reveal, joint, weights), 1)
        for r, share in enumerate(row)
    )  # fmt: skip


def excess(joint: ArrayLike, reveal: Reveal, weights: ArrayLike | None = None) -> float:
    """What :func:`glanced_loss` is above an autoregressive drafter's: ``sum_j sum_{r<j} P(r | j) I(X_j; X_{r+1..j-1} | C, X_{<=r})``.

    For k = 2 it is ``(1 - g) I(X_1; X_2 | C)``; for larger k it is
    ``sum_j (1 - g_j) I(X_j; X_<j | C)`` only where all or nothing before a place is shown, with probability g_j. Arguments and errors as
    :func:`glanced_loss`.
    """
    return sum(
        share * mutual_information(joint, (j,), range(r + 1, j), range(1, r + 1), weights)
        for j, row in enumerate(_rows(reveal, joint, weights), 1)
        for r, share in enumerate(row)
    )  # fmt: skip


# ------------------------------------------------------------------------------------------------------------------------ inside


def _read(joint: ArrayLike, weights: ArrayLike | None) -> tuple[np.ndarray, np.ndarray]:
    """``[C, *[V]*k]`` and ``[C]``."""
    table = np.asarray(joint, dtype=float)
    w = np.ones(1) if weights is None else np.asarray(weights, dtype=float)
    if weights is None:
        table = table[None]
    if table.ndim < 2 or w.shape != table.shape[:1]:
        raise ValueError(f"a table [V, .., V], or [C, V, .., V] with weights [C]; got {list(np.shape(joint))} and weights {list(w.shape)}")
    sums = table.sum(axis=tuple(range(1, table.ndim)))
    # negated, so that nan is refused as well
    if not (table.min(initial=0) >= 0 and w.min() >= 0 and abs(w.sum() - 1) < 1e-6 and bool((abs(sums - 1) < 1e-6).all())):
        raise ValueError(f"every context's table and the weights must be laws: entries >= 0, sum 1; sums are {sums.tolist()} and {w.sum()}")
    return table, w


def _plain_entropy(table: np.ndarray, w: np.ndarray, places: set[int]) -> float:
    rest = tuple(i for i in range(1, table.ndim) if i not in places)
    marginal = table.sum(axis=rest)
    return float(w @ entr(marginal).reshape(len(w), -1).sum(1))


def _places(joint: ArrayLike, weights: ArrayLike | None) -> range:
    return range(1, _read(joint, weights)[0].ndim)


def _checked(places: Collection[int], k: int) -> set[int]:
    if bad := [i for i in places if not 1 <= i <= k]:
        raise ValueError(f"places of a block of {k} are 1..{k}, got {bad}")
    return set(places)


def _rows(reveal: Reveal, joint: ArrayLike, weights: ArrayLike | None) -> Reveal:
    k = len(_places(joint, weights))
    if [len(row) for row in reveal] != list(range(1, k + 1)):
        raise ValueError(f"reveal has a row of 1..{k} probabilities for each of the {k} places, got rows of {[len(row) for row in reveal]}")
    for row in reveal:
        if not (min(row) >= 0 and abs(sum(row) - 1) < 1e-9):
            raise ValueError(f"every row of reveal must be a law, got {list(row)}")
    return reveal
