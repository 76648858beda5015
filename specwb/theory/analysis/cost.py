"""From acceptance to tokens per decoding step, and from there to speed.

A decoding step drafts gamma tokens and always adds one bonus token. ``reach[d]`` is the
probability that at least d draft tokens are accepted (``alpha`` and ``c`` are the acceptance rate
and the time of a draft step over a target step's), and everything else follows from it:
tau = sum of reach, and P(a step adds k tokens) = reach[k - 1] - reach[k].
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from operator import mul
from typing import Any

import numpy as np

from specwb.theory.analysis.trees import path_values
from specwb.theory.exact import depths

Cost = float | Callable[[int], float]
"""Time of a target pass over gamma + 1 tokens over its time for one: a number, or a function of
gamma."""


def expected_tokens(alpha: Any, gamma: int) -> Any:
    """A decoding step adds ``tau = (1 - alpha^(gamma+1)) / (1 - alpha)`` tokens on average.

    Each draft token is taken to be accepted with probability alpha, independently of the others.
    The sum is computed as ``1 + alpha + .. + alpha^gamma``, which also holds at alpha = 1 and
    keeps fractions exact.

    Args:
        alpha: Acceptance rate, a number or an array.
        gamma: Draft tokens per step, 0 for plain decoding.
    Returns:
        tau, the bonus token included, of the same kind as alpha.
    Source: Leviathan et al. 2023, equation (1). Its limits: theory/03_speed.md, theorem 3.2.
    """
    total = alpha * 0 + 1
    for _ in range(gamma):
        total = total * alpha + 1
    return total


def speedup(alpha: Any, gamma: int, c: Any, v: Any = 1) -> Any:
    """Tokens per second over plain decoding's are ``sigma = tau / (gamma c + v)``.

    Args:
        c: Time of one draft step over the time of one target step.
        v: Time of a target pass over gamma + 1 tokens over its time for one token. The usual model
            has v = 1, which is true where reading the weights takes all the time (a GPU at batch 1)
            and false where arithmetic does (a CPU, a large batch).
    Returns:
        sigma; drafting is faster where sigma > 1.
    Source: Leviathan et al. 2023, theorem 3.8. Differs from the paper in: v.
    """
    return expected_tokens(alpha, gamma) / (gamma * c + v)


def best_gamma(alpha: Any, c: Any, v: Cost = 1, most: int = 32) -> int:
    """The gamma in 0..most with the largest :func:`speedup`, the smallest of equals.

    A result of 0 means that drafting does not pay. With v = 1, c > 0 and alpha < 1 the speedup
    rises, then falls, so the first gamma with ``alpha^(gamma+1) <= c sigma(gamma)`` is the best
    one, and drafting pays iff alpha > c.

    Args:
        alpha: Acceptance rate, a number, as in :func:`speedup`.
        c: Time of a draft step, a number, as in :func:`speedup`.
        v: A number, or a function of gamma with v(0) = 1.
        most: The largest gamma that is looked at.
    """

    def scoring_time(gamma: int) -> float:
        if callable(v):
            return v(gamma)
        # gamma = 0 is plain decoding, which scores one token whatever the price of scoring more
        return v if gamma else 1

    return max(range(most + 1), key=lambda gamma: speedup(alpha, gamma, c, scoring_time(gamma)))


def roofline(gamma: float, batch: int, balance: float) -> float:
    """A roofline gives ``v(gamma) = max(n*, B (gamma + 1)) / max(n*, B)``: the time of a target
    pass over gamma + 1 tokens per row over its time for one, for a batch of B rows.

    A target pass takes as long as the slower of reading the weights once and computing its
    tokens. v is 1 while ``B (gamma + 1) <= n*``, and ``gamma + 1`` from ``B >= n*`` on, where no
    draft can pay. ``balance`` is n* > 0, the number of tokens whose arithmetic takes as long as
    reading the weights (some hundreds on a GPU, a few on a CPU).

    Source: Williams et al., "Roofline" (2009); attention and its cache are left out.
    """
    return max(balance, batch * (gamma + 1)) / max(balance, batch)


def batch_speedups(
    rates: Sequence[float], most: int, balance: float, c: float
) -> tuple[dict[int, tuple[float, list[int]]], dict[int, tuple[float, list[int]]]]:
    """The speedup over plain decoding of verifying n draft tokens in all rows of a batch.

    The d-th draft token of row r survives with ``rates[r]^d``, d at most ``most``. A step takes
    :func:`roofline`'s time for its tokens, and ``c`` of a plain step for every level drafted.

    Returns:
        n -> the speedup and the draft tokens of each row: of the n tokens that survive most often
        (theorem 6.8) among the first levels, as many of these as are best; and of the same number
        in every row.
    """
    rows = len(rates)
    survival = np.asarray(rates, float)[:, None] ** np.arange(1, most + 1)
    ranked, same = ({0: (1.0, [0] * rows)} for _ in range(2))
    for levels in range(1, most + 1):
        order = np.argsort(-survival[:, :levels], axis=None, kind="stable")
        gained = survival[:, :levels].ravel()[order].cumsum().tolist()
        for n, accepted in enumerate(gained, 1):
            faster = (1 + accepted / rows) / (roofline(n / rows, rows, balance) + c * levels)
            if n not in ranked or faster > ranked[n][0]:
                ranked[n] = faster, np.bincount(order[:n] // levels, minlength=rows).tolist()
        same[rows * levels] = faster, [levels] * rows
    return ranked, same


def reach(rates: Sequence[Any]) -> list[Any]:
    """A chain reaches depth d with probability ``rate_1 .. rate_d``: ``[1, rate_1, rate_1 rate_2,
    ..]``.

    Each rate is the probability that the token of a depth is accepted, given that all before it
    were. The sum is tau, and without the 1 the expected number of accepted tokens.
    """
    return list(accumulate(rates, mul, initial=1))


def tree_reach(rates: Sequence[Any], parents: Sequence[int]) -> list[Any]:
    """A tree reaches depth d with the sum of its nodes' :func:`path_values` at depth d.

    The value of a node is the product of the rates along its path. This takes acceptance to depend
    on a node's depth and rank among its siblings only, not on the tokens or on which sibling was
    accepted above it. Without replacement a candidate's test does not depend on the candidates
    after it, so rates of a wide tree hold for a narrower one.

    Args:
        rates: ``rates[d - 1][r]`` is the probability that at depth d the child of rank r (0 first)
            is the one accepted, given that its parent was; or ``rates[r]``, the same at every
            depth.
        parents: The tree, -1 for the root (node 0), siblings in drawing order; ``Tree.host[0]``.
    Returns:
        ``[1, P(at least one accepted), ..]``, whose sum is tau.
    Raises:
        ValueError: ``parents`` is not a tree, or has depths or ranks without a rate.
    Source: the positional acceptance assumption of Sequoia (Chen et al. 2402.12374). Differs from
        it in: rates by depth.
    """
    depth = depths(parents)
    values = path_values(rates, parents)
    total: list[Any] = [1] + [0] * max(depth)
    for d, value in zip(depth[1:], values[1:], strict=True):
        total[d] = total[d] + value
    return total
