"""From acceptance to tokens a round, and from there to speed.

A round drafts gamma tokens and always adds one closing token. ``reach[d]`` is the probability that at least d drafted tokens are
accepted; everything else follows from it: tau = sum of reach, and P(round adds k tokens) = reach[k - 1] - reach[k].
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from operator import mul
from typing import Any

from specwb.analysis.trees import path_values
from specwb.verify.exact import depths

Cost = float | Callable[[int], float]


def _chain(gamma: int) -> None:
    if isinstance(gamma, bool) or not isinstance(gamma, int) or gamma < 0:
        raise ValueError(f"gamma must be an integer >= 0, got {gamma!r}")


def expected_tokens(alpha: Any, gamma: int) -> Any:
    """If each drafted token is accepted with probability alpha, independently, a round adds ``tau = (1 - alpha^(gamma+1)) / (1 - alpha)`` tokens.

    Computed as ``1 + alpha + .. + alpha^gamma``, which also holds at alpha = 1 and keeps fractions exact.

    Args:
        alpha: acceptance rate, a number or an array. gamma: drafted tokens a round, 0 for plain decoding.
    Returns: tau, the closing token included; like alpha.
    Raises:
        ValueError: gamma is not an integer >= 0, or a number alpha is outside 0..1.
    Source: Leviathan et al. 2023, equation (1). Its limits: theory/03_speed.md, theorem 3.2.
    """
    _chain(gamma)
    if not hasattr(alpha, "shape") and not 0 <= alpha <= 1:
        raise ValueError(f"alpha must be in 0..1, got {alpha}")
    total = alpha * 0 + 1
    for _ in range(gamma):
        total = total * alpha + 1
    return total


def speedup(alpha: Any, gamma: int, c: Any, v: Any = 1) -> Any:
    """Tokens a second over plain decoding's: ``S = tau / (gamma c + v)``.

    Args:
        alpha, gamma: as in :func:`expected_tokens`.
        c: time of one draft step over time of one target step.
        v: time of a target pass over gamma + 1 tokens over its time for one token. The usual model has v = 1, which is true where
            reading the weights takes all the time (a GPU at batch 1) and false where arithmetic does (a CPU, a large batch).
    Returns: S; > 1 is faster.
    Raises:
        ValueError: a number c < 0 or v <= 0, or as :func:`expected_tokens`.
    Source: Leviathan et al. 2023, theorem 3.8. Differs from the paper in: v.
    """
    if (not hasattr(c, "shape") and c < 0) or (not hasattr(v, "shape") and v <= 0):
        raise ValueError(f"c must be >= 0 and v > 0, got c={c}, v={v}")
    return expected_tokens(alpha, gamma) / (gamma * c + v)


def best_gamma(alpha: Any, c: Any, v: Cost = 1, most: int = 32) -> int:
    """The gamma in 0..most of the largest :func:`speedup`, the smallest of equals; 0 means that drafting does not pay.

    With v = 1, c > 0 and alpha < 1 the speedup rises, then falls, so the first gamma with
    ``alpha^(gamma+1) <= c S(gamma)`` is the best one, and drafting pays iff alpha > c.

    Args:
        alpha, c: numbers, as in :func:`speedup`. v: a number, or a function of gamma with v(0) = 1. most: where to stop looking.
    """
    _chain(most)
    return max(range(most + 1), key=lambda g: speedup(alpha, g, c, v(g) if callable(v) else (v if g else 1)))


def roofline(gamma: int, batch: int, balance: float) -> float:
    """v of a target pass that takes as long as the slower of reading the weights once and computing its tokens:
    ``v(gamma) = max(n*, B (gamma + 1)) / max(n*, B)``.

    1 while ``B (gamma + 1) <= n*``; ``gamma + 1`` from ``B >= n*`` on, where no draft can pay.

    Args:
        gamma: drafted tokens a round. batch: rows B, >= 1.
        balance: n* > 0, the number of tokens whose arithmetic takes as long as reading the weights (some hundreds on a GPU, a few on a CPU).
    Raises:
        ValueError: an argument out of range.
    Source: Williams et al., "Roofline" (2009); attention and its cache are left out.
    """
    _chain(gamma)
    if batch < 1 or not balance > 0:
        raise ValueError(f"batch must be >= 1 and balance > 0, got batch={batch}, balance={balance}")
    return max(balance, batch * (gamma + 1)) / max(balance, batch)


def reach(rates: Sequence[Any]) -> list[Any]:
    """A chain reaches depth d with probability ``rate_1 .. rate_d``.

    Args:
        rates: for each depth the probability that its token is accepted, given that all before it were.
    Returns: ``[1, rate_1, rate_1 rate_2, ..]``; its sum is tau, its sum without the 1 the expected number of accepted tokens.
    """
    return list(accumulate(rates, mul, initial=1))


def tree_reach(rates: Sequence[Any], parents: Sequence[int]) -> list[Any]:
    """A tree reaches depth d with probability ``sum over its nodes of depth d of the product of rates along the path``.

    It takes acceptance to depend on a node's depth and rank among its siblings only, not on the tokens or on which sibling was accepted above
    it. Without replacement a candidate's test does not depend on the candidates after it, so rates of a wide tree hold for a narrower one.

    Args:
        rates: ``rates[d - 1][r]`` is the probability that at depth d the child of rank r (0 first) is the one accepted, given that its
            parent was; or ``rates[r]``, the same at every depth.
        parents: the tree, -1 for the root (node 0), siblings in drawing order; ``Tree.host[0]``.
    Returns: ``[1, P(at least one accepted), ..]``; its sum is tau.
    Raises:
        ValueError: not a tree, or rates for fewer depths or ranks than it has.
    Source: the positional acceptance assumption of Sequoia (Chen et al. 2402.12374). Differs from it in: rates by depth.
    """
    depth = depths(parents)
    total: list[Any] = [1] + [0] * max(depth)
    for d, value in zip(depth[1:], path_values(rates, parents)[1:], strict=True):
        total[d] = total[d] + value
    return total


def expected_rounds(reached: Sequence[Any], tokens: int) -> Any:
    """How many rounds it takes to add ``tokens`` tokens, the last block cut short: ``m(n) = 1 + sum_k P(k) m(n - k)``, m(n) = 0 for n <= 0.

    At least tokens / tau, since what the last round adds beyond the limit is lost. Rounds are taken as independent.

    Args:
        reached: what :func:`reach` or :func:`tree_reach` returns. tokens: how many are wanted, >= 0.
    """
    if tokens < 0:
        raise ValueError(f"tokens must be >= 0, got {tokens}")
    chance = [a - b for a, b in zip(reached, [*reached[1:], 0], strict=True)]  # of adding 1, 2, .. tokens
    rounds: list[Any] = [0]
    for n in range(1, tokens + 1):
        rounds.append(1 + sum(p * rounds[n - k] for k, p in enumerate(chance, 1) if k <= n))
    return rounds[tokens]
