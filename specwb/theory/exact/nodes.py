"""Node rules: a verifier's decision among the children of one node, given them.

All rules share their first arguments and their result:

Args:
    p: The target's distribution at the node.
    q: The draft's distribution at the node.
    tokens: The children, in drawing order.
Returns:
    ``accept``, the probability of each child that it is the one accepted, and the distribution of
    the bonus token given that none is, None where that has probability 0.
"""

from __future__ import annotations

from fractions import Fraction
from functools import cache

from specwb.core.errors import ArgumentError
from specwb.theory.exact.basics import (
    Dist,
    ExactDecision,
    ExactNodeRule,
    Tokens,
    iid,
    minus,
    norm,
    without,
)

_0, _1 = Fraction(0), Fraction(1)

# ---------------------------------------------------------------------------- rules, textbook form


def rejection(p: Dist, q: Dist, tokens: Tokens) -> ExactDecision:
    """Token rejection is lossless for one child drawn from q.

    Accept x with ``min(1, p(x)/q(x))``; otherwise draw the bonus token from ``norm((p - q)+)``.

    Source: Leviathan et al. 2211.17192; Chen et al. 2302.01318.
    """
    if len(tokens) > 1:
        raise ArgumentError("token rejection takes one child; use rrs or rrsw for several")
    return rrs(p, q, tokens)


def rrs(p: Dist, q: Dist, tokens: Tokens) -> ExactDecision:
    """Recursive rejection with replacement is lossless for children drawn independently from q.

    For each child in order: accept with ``min(1, p(x)/q(x))``; on rejection
    ``p <- norm((p - q)+)``, q unchanged.

    Source: SpecInfer 2305.09781 (multi-step speculative sampling); MCSD 2401.06706 (with
        replacement).
    """
    return _recursive(p, q, tokens, remove=False)


def rrsw(p: Dist, q: Dist, tokens: Tokens) -> ExactDecision:
    """Recursive rejection without replacement is lossless for children drawn one after the other
    without replacement.

    For each child in drawing order: accept with ``min(1, p(x)/q(x))``; on rejection
    ``p <- norm((p - q)+)``, then ``q(x) <- 0`` and ``q <- norm(q)``. A repeated child has q = 0 by
    then and is skipped, so independent drafts are verified as their distinct tokens, which is
    lossless too. Another order than the drawing order is not lossless.

    Source: MCSD 2401.06706 (without replacement); Sequoia 2402.12374.
    """
    return _recursive(p, q, tokens, remove=True)


def _recursive(p: Dist, q: Dist, tokens: Tokens, remove: bool) -> ExactDecision:
    """:func:`rrs`, or :func:`rrsw` with ``remove``."""
    accept, not_accepted = [_0] * len(tokens), _1
    for i, x in enumerate(tokens):
        if q[x] == 0:
            continue
        passes = min(_1, p[x] / q[x])
        accept[i] = not_accepted * passes
        not_accepted *= 1 - passes
        if not_accepted == 0:
            return accept, None
        p = norm(minus(p, q))
        if remove:
            rest = without(q, (x,))
            q = norm(rest) if any(rest) else rest
    return accept, list(p)


def point(p: Dist, q: Dist, tokens: Tokens) -> ExactDecision:
    """The point-mass rule is lossless for any children, however they were chosen.

    It draws the next token from p and continues if that is a child. So child i is accepted with
    ``p(x_i)`` (the first of equal ones), and otherwise the bonus token is drawn from p without the
    children, normalised. q is not read.

    Source: EAGLE, vLLM and SGLang verifiers for deterministic children; "naive" (MCNS) when the
        children are sampled.
    """
    accept = [_0 if x in tokens[:i] else p[x] for i, x in enumerate(tokens)]
    if sum(accept, _0) == 1:
        return accept, None
    return accept, norm(without(p, tokens))


naive = point
"""The point-mass rule on sampled children: MCSD's naive sampling (MCNS), multi-draft NSS."""


def top_rule(p: Dist, q: Dist, tokens: Tokens) -> ExactDecision:
    """Top and sample is lossless, and optimal, for the draft's most probable tokens A and a last
    child x drawn from the rest of q.

    With ``q' = norm(q outside A)``, A all children but the last: accept x with
    ``min(1, p(x)/q'(x))``; otherwise draw y from ``norm((p - q')+)`` and go on under the child of A
    that carries it, or take it as the bonus token. Where q has no more tokens than there are
    children, x is the only one left, and the rule is :func:`point`.

    q is given as it is, not as q', and ``tokens`` are A and then x.

    Source: Hu et al. 2502.18779 for the children; the rule is derived in theory/.
    """
    fixed, drawn = tokens[:-1], tokens[-1:]
    rest = without(q, fixed)
    if not any(rest):
        return point(p, q, tokens)
    if not tokens:
        return [], list(p)
    (passes,), residual = rejection(p, norm(rest), drawn)
    if residual is None:
        return [*[_0] * len(fixed), passes], None
    accept = [*((1 - passes) * residual[x] for x in fixed), passes]
    bonus = without(residual, fixed)
    return accept, norm(bonus) if any(bonus) else None


def kseq(p: Dist, q: Dist, tokens: Tokens, rho: Fraction | None = None) -> ExactDecision:
    """k-SEQ is lossless for children drawn independently from q, at any scale rho that is not too
    small.

    For each child in order: accept with ``min(1, p(x) / (rho q(x)))``. With ``b = min(p/rho, q)``,
    ``beta = sum b`` and ``a = 1 - (1 - beta)^k``, the bonus token is drawn from
    ``norm((p - b a/beta)+)``. The rule is lossless iff nothing is cut off there, as
    is the case where ``a <= rho beta`` (theorem 5.5).

    Args:
        rho: The scale, default :func:`kseq_rho`.
    Source: SpecTr 2310.15141.
    """
    if not tokens:
        return [], list(p)
    rho = kseq_rho(tuple(p), tuple(q), len(tokens)) if rho is None else rho
    accept, not_accepted = [_0] * len(tokens), _1
    for i, x in enumerate(tokens):
        if q[x]:
            passes = min(_1, p[x] / (rho * q[x]))
            accept[i] = not_accepted * passes
            not_accepted *= 1 - passes
    if not_accepted == 0:
        return accept, None
    b = [min(x / rho, y) for x, y in zip(p, q, strict=True)]
    beta = sum(b, _0)
    a_over_beta = (1 - (1 - beta) ** len(tokens)) / beta if beta else _0
    return accept, norm(minus(p, b, a_over_beta))


@cache
def kseq_rho(p: Dist, q: Dist, k: int, halvings: int = 12) -> Fraction:
    """The smallest scale at which k-SEQ is lossless, rounded up to a multiple of
    ``(k - 1) / 2^halvings`` above 1, by bisection of [1, k]."""

    def valid(rho: Fraction) -> bool:
        beta = sum((min(a / rho, b) for a, b in zip(p, q, strict=True)), _0)
        return 1 - (1 - beta) ** k <= rho * beta

    low, high = _1, Fraction(k)
    if valid(low):
        return low
    for _ in range(halvings):
        rho = (low + high) / 2
        low, high = (low, rho) if valid(rho) else (rho, high)
    return high


def race(p: Dist, q: Dist, tokens: Tokens, weights: Dist | None = None) -> ExactDecision:
    """The weighted race is lossless for children drawn independently from q, whatever the weights.

    Select child j with probability ``w(x_j) / sum_i w(x_i)`` and accept it with
    ``min(1, p(x) / t(x))``, t being the distribution of the selected child; otherwise draw the
    bonus token from ``norm((p - t)+)``. Where all children have weight 0 none is selected, and t
    sums to less than 1.

    Args:
        weights: One per token, default p/q (0 where q = 0).
    Source: Khisti et al. 2410.18234 for the decomposition; the weights are derived in theory/.
    """
    if not tokens:
        return [], list(p)
    w = ratio(p, q) if weights is None else weights
    t = race_distribution(tuple(q), tuple(w), len(tokens))
    total = sum((w[x] for x in tokens), _0)
    selected = [w[x] / total if total else _0 for x in tokens]
    accept = [
        c * min(_1, p[x] / t[x]) if t[x] else _0 for x, c in zip(tokens, selected, strict=True)
    ]
    return accept, None if sum(accept, _0) == 1 else norm(minus(p, t))


def ratio(p: Dist, q: Dist) -> list[Fraction]:
    """``p / q``, 0 where q = 0: the weights that the race starts from."""
    return [a / b if b else _0 for a, b in zip(p, q, strict=True)]


@cache
def race_distribution(q: Dist, weights: Dist, k: int) -> tuple[Fraction, ...]:
    """The distribution of the child that the race selects, by enumeration.

    Among k independent children one is selected with probability proportional to its weight, of
    which there is one per token.
    """
    t = [_0] * len(q)
    for tokens, probability in iid(q, k):
        total = sum((weights[x] for x in tokens), _0)
        for x in tokens if total else ():
            t[x] += probability * weights[x] / total
    return tuple(t)


# ------------------------------------------------------------------------------ rules, scalar form


def rrs_scalar(p: Dist, q: Dist, tokens: Tokens) -> ExactDecision:
    """Recursive rejection with replacement needs one scalar instead of a residual vector:
    ``rrs_scalar == rrs``.

    With ``m(level) = sum (p - level q)+``, ``m_1 = 1``, ``M_j = m_1 + .. + m_j`` and
    ``m_{j+1} = m(M_j)``: accept x_j with ``min(1, (p(x_j) - M_{j-1} q(x_j))+ / (m_j q(x_j)))``;
    draw the bonus token from ``norm((p - M_k q)+)``.

    Source: derived in theory/; SpecInfer and MCSD state the recursive form.
    """
    return _scalar(p, q, tokens, remove=False)


def rrsw_scalar(p: Dist, q: Dist, tokens: Tokens) -> ExactDecision:
    """Recursive rejection without replacement needs one scalar instead of two vectors:
    ``rrsw_scalar == rrsw``.

    With ``A`` the children rejected so far, ``s_j = q(not in A_{j-1})``,
    ``c_j = c_{j-1} + m_j / s_j``, ``m_{j+1} = m(c_j)``: accept x_j with
    ``min(1, (p(x_j) - c_{j-1} q(x_j))+ s_j / (m_j q(x_j)))``; draw the bonus token from
    ``norm((p - c_k q)+)``, q unpruned: a rejected token stays at 0 because levels only grow.

    Source: derived in theory/; MCSD and Sequoia state the recursive form.
    """
    return _scalar(p, q, tokens, remove=True)


def _scalar(p: Dist, q: Dist, tokens: Tokens, remove: bool) -> ExactDecision:
    """:func:`rrs_scalar`, or :func:`rrsw_scalar` with ``remove``."""
    accept, not_accepted = [_0] * len(tokens), _1
    c, m, rejected = _0, _1, set[int]()
    for i, x in enumerate(tokens):
        if q[x] == 0 or x in rejected:
            continue
        s = sum((b for y, b in enumerate(q) if y not in rejected), _0)
        passes = min(_1, max(p[x] - c * q[x], _0) * s / (m * q[x]))
        accept[i] = not_accepted * passes
        not_accepted *= 1 - passes
        if not_accepted == 0:
            return accept, None
        c += m / s
        m = sum(minus(p, q, c), _0)
        if remove:
            rejected.add(x)
    return accept, norm(minus(p, q, c))


RULES: dict[str, ExactNodeRule] = {
    "rejection": rejection,
    "rrs": rrs,
    "rrsw": rrsw,
    "kseq": kseq,
    "race": race,
    "top": top_rule,
    "point": point,
    "naive": naive,
}
"""The lossless node rules."""

LOSSLESS: dict[str, tuple[str, ...]] = {
    "rejection": ("IID", "WITHOUT_REPLACEMENT"),
    "rrs": ("IID",),
    "rrsw": ("WITHOUT_REPLACEMENT", "IID"),
    "kseq": ("IID",),
    "race": ("IID",),
    "top": ("TOP_AND_SAMPLE",),
    "point": ("POINT", "IID", "WITHOUT_REPLACEMENT", "TOP_AND_SAMPLE"),
    "naive": ("IID", "WITHOUT_REPLACEMENT", "TOP_AND_SAMPLE", "POINT"),
}
"""The sampling schemes each rule is lossless for (rejection: one child only)."""
