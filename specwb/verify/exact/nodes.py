"""Node rules: what a verifier does among the children of one node, as conditional laws."""

from __future__ import annotations

import math
from fractions import Fraction
from functools import cache

from specwb.verify.exact.basics import Decision, Dist, NodeRule, Tokens, minus, norm, without
from specwb.verify.exact.laws import iid

_0, _1 = Fraction(0), Fraction(1)

# ---------------------------------------------------------------------------------------------------- rules, textbook form


def rejection(p: Dist, q: Dist, tokens: Tokens) -> Decision:
    """Token rejection is lossless for one child drawn from q.

    Accept x with probability ``min(1, p(x)/q(x))``; otherwise close with ``norm((p - q)+)``.

    Args:
        p, q: target and draft law at the node.
        tokens: the child, or nothing.
    Source: Leviathan et al. 2211.17192; Chen et al. 2302.01318.
    """
    if len(tokens) > 1:
        raise ValueError("token rejection takes one child; use rrs or rrsw for several")
    return rrs(p, q, tokens)


def rrs(p: Dist, q: Dist, tokens: Tokens) -> Decision:
    """Recursive rejection with replacement is lossless for children drawn independently from q.

    For each child in order: accept with ``min(1, p(x)/q(x))``; on rejection ``p <- norm((p - q)+)``, q unchanged.

    Args:
        p, q: target and draft law at the node.
        tokens: the children, in drawing order.
    Source: SpecInfer 2305.09781 (multi-step speculative sampling); MCSD 2401.06706 (with replacement).
    """
    return _recursive(p, q, tokens, remove=False)


def rrsw(p: Dist, q: Dist, tokens: Tokens) -> Decision:
    """Recursive rejection without replacement is lossless for children drawn one after the other without replacement.

    For each child in drawing order: accept with ``min(1, p(x)/q(x))``; on rejection ``p <- norm((p - q)+)``, then
    ``q(x) <- 0`` and ``q <- norm(q)``. A repeated child has q = 0 by then and is skipped, so independent drafts are
    verified as their distinct tokens, which is lossless too.

    Args:
        p, q: target and draft law at the node.
        tokens: the children, in drawing order (another order is not lossless).
    Source: MCSD 2401.06706 (without replacement); Sequoia 2402.12374.
    """
    return _recursive(p, q, tokens, remove=True)


def _recursive(p: Dist, q: Dist, tokens: Tokens, remove: bool) -> Decision:
    accept, left = [_0] * len(tokens), _1
    for i, x in enumerate(tokens):
        if q[x] == 0:
            continue
        passes = min(_1, p[x] / q[x])
        accept[i], left = left * passes, left * (1 - passes)
        if left == 0:
            return accept, None
        p = norm(minus(p, q))
        if remove:
            rest = without(q, (x,))
            q = norm(rest) if any(rest) else rest
    return accept, list(p)


def point(p: Dist, q: Dist, tokens: Tokens) -> Decision:
    """Drawing the next token from p and continuing if it is a child is lossless for any children, however they were chosen.

    Child i is accepted with ``p(x_i)`` (the first of equal ones); otherwise close with p without the children, normalised.

    Args:
        p: target law at the node.
        q: not read.
        tokens: the children.
    Source: EAGLE, vLLM and SGLang verifiers for deterministic children; "naive" (MCNS) when the children are sampled.
    """
    accept = [_0 if x in tokens[:i] else p[x] for i, x in enumerate(tokens)]
    if sum(accept, _0) == 1:
        return accept, None
    return accept, norm(without(p, tokens))


naive = point
"""The point-mass rule on sampled children: MCSD's naive sampling (MCNS), multi-draft NSS."""


def top_rule(p: Dist, q: Dist, tokens: Tokens) -> Decision:
    """Top and sample is lossless, and optimal, for the draft's most probable tokens A and a last child x drawn from the rest of q.

    With ``q' = norm(q outside A)``, A all children but the last: accept x with ``min(1, p(x)/q'(x))``; otherwise draw y from ``norm((p - q')+)``,
    go on under the child of A that carries it, or close with it. Where q has no more tokens than there are children, x is the only one left,
    and the rule is ``point``.

    Args:
        p, q: target and draft law at the node, q whole.
        tokens: A and then x.
    Source: Hu et al. 2502.18779 for the children; the rule is derived in theory/.
    """
    rest = without(q, tokens[:-1])
    if not any(rest):
        return point(p, q, tokens)
    if not tokens:
        return [], list(p)
    (passes,), residual = rejection(p, norm(rest), tokens[-1:])
    if residual is None:
        return [*[_0] * (len(tokens) - 1), passes], None
    accept = [*((1 - passes) * residual[x] for x in tokens[:-1]), passes]
    left = without(residual, tokens[:-1])
    return accept, norm(left) if any(left) else None


def kseq(p: Dist, q: Dist, tokens: Tokens, rho: Fraction | None = None) -> Decision:
    """k-SEQ is lossless for children drawn independently from q, at any scale rho that is not too small.

    For each child in order: accept with ``min(1, p(x) / (rho q(x)))``. With ``b = min(p/rho, q)``, ``beta = sum b`` and
    ``a = 1 - (1 - beta)^k``, close with ``norm((p - b a/beta)+)``; the rule is lossless iff nothing is cut off there, ``a <= rho beta``.

    Args:
        p, q: target and draft law at the node.
        tokens: the children.
        rho: default :func:`kseq_rho`.
    Source: SpecTr 2310.15141.
    """
    if not tokens:
        return [], list(p)
    rho = kseq_rho(tuple(p), tuple(q), len(tokens)) if rho is None else rho
    accept, left = [_0] * len(tokens), _1
    for i, x in enumerate(tokens):
        if q[x]:
            passes = min(_1, p[x] / (rho * q[x]))
            accept[i], left = left * passes, left * (1 - passes)
    if left == 0:
        return accept, None
    b = [min(a / rho, c) for a, c in zip(p, q, strict=True)]
    beta = sum(b, _0)
    share = (1 - (1 - beta) ** len(tokens)) / beta if beta else _0
    return accept, norm(minus(p, b, share))


@cache
def kseq_rho(p: Dist, q: Dist, k: int, halvings: int = 12) -> Fraction:
    """The smallest scale at which k-SEQ is lossless, rounded up to a multiple of ``(k - 1) / 2^halvings`` above 1.

    Args:
        p, q: target and draft law, as tuples. k: number of children. halvings: of [1, k], by bisection.
    """

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


def race(p: Dist, q: Dist, tokens: Tokens, weights: Dist | None = None) -> Decision:
    """The weighted race is lossless for children drawn independently from q, whatever the weights.

    Select child j with probability ``w(x_j) / sum_i w(x_i)``, accept it with ``min(1, p(x) / t(x))``, ``t`` the law of what is selected;
    otherwise close with ``norm((p - t)+)``. Where all children have weight 0 none is selected, and t sums to less than 1.

    Args:
        p, q: target and draft law at the node.
        tokens: the children.
        weights: one a token, default p/q (0 where q = 0).
    Source: Khisti et al. 2410.18234 for the decomposition; the weights are derived in theory/.
    """
    if not tokens:
        return [], list(p)
    w = ratio(p, q) if weights is None else weights
    t = race_law(tuple(q), tuple(w), len(tokens))
    total = sum((w[x] for x in tokens), _0)
    chosen = [w[x] / total if total else _0 for x in tokens]
    accept = [c * min(_1, p[x] / t[x]) if t[x] else _0 for x, c in zip(tokens, chosen, strict=True)]
    return accept, None if sum(accept, _0) == 1 else norm(minus(p, t))


def ratio(p: Dist, q: Dist) -> list[Fraction]:
    """``p / q``, 0 where q = 0: the weights that the race starts from."""
    return [a / b if b else _0 for a, b in zip(p, q, strict=True)]


@cache
def race_law(q: Dist, weights: Dist, k: int) -> tuple[Fraction, ...]:
    """The law of the child that is selected among k independent ones with probability proportional to its weight, by enumeration.

    Args:
        q: draft law. weights: one a token. k: number of children.
    """
    law = [_0] * len(q)
    for tokens, prob in iid(q, k):
        total = sum((weights[x] for x in tokens), _0)
        for x in tokens if total else ():
            law[x] += prob * weights[x] / total
    return tuple(law)


def typical(p: Dist, q: Dist, tokens: Tokens, epsilon: float = 0.09, delta: float = 0.3) -> Decision:
    """Typical acceptance is not lossless: it takes the most probable child with ``p(x) > min(epsilon, delta e^(-H(p)))``, for certain.

    Args:
        p: target law at the node. q: not read. tokens: the children. epsilon, delta: thresholds; H is the entropy in nats.
    Source: Medusa 2401.10774.
    """
    entropy = -sum(a * math.log(a) for a in p if a)
    passing = [i for i, x in enumerate(tokens) if p[x] > min(epsilon, delta * math.exp(-entropy))]
    if not passing:
        return [_0] * len(tokens), list(p)
    best = max(passing, key=lambda i: (p[tokens[i]], -i))
    return [Fraction(i == best) for i in range(len(tokens))], None


# ------------------------------------------------------------------------------------------------------ rules, scalar form


def rrs_scalar(p: Dist, q: Dist, tokens: Tokens) -> Decision:
    """Recursive rejection with replacement needs one scalar instead of a residual vector: ``rrs_scalar == rrs``.

    With ``R(c) = sum (p - c q)+``, ``m_1 = 1``, ``M_j = m_1 + .. + m_j``, ``m_{j+1} = R(M_j)``: accept x_j with
    ``min(1, (p(x_j) - M_{j-1} q(x_j))+ / (m_j q(x_j)))``; close with ``norm((p - M_k q)+)``.

    Args:
        p, q: target and draft law at the node.
        tokens: the children, in drawing order.
    Source: derived in theory/; SpecInfer and MCSD state the recursive form.
    """
    return _scalar(p, q, tokens, remove=False)


def rrsw_scalar(p: Dist, q: Dist, tokens: Tokens) -> Decision:
    """Recursive rejection without replacement needs one scalar instead of two vectors: ``rrsw_scalar == rrsw``.

    With ``A`` the children rejected so far, ``s_j = q(not in A_{j-1})``, ``c_j = c_{j-1} + m_j / s_j``,
    ``m_{j+1} = R(c_j)``: accept x_j with ``min(1, (p(x_j) - c_{j-1} q(x_j))+ s_j / (m_j q(x_j)))``; close with
    ``norm((p - c_k q)+)``, q unpruned: a rejected token stays at 0 because c only grows.

    Args:
        p, q: target and draft law at the node.
        tokens: the children, in drawing order.
    Source: derived in theory/; MCSD and Sequoia state the recursive form.
    """
    return _scalar(p, q, tokens, remove=True)


def _scalar(p: Dist, q: Dist, tokens: Tokens, remove: bool) -> Decision:
    accept, left = [_0] * len(tokens), _1
    c, mass, gone = _0, _1, set[int]()
    for i, x in enumerate(tokens):
        if q[x] == 0 or x in gone:
            continue
        stays = sum((b for y, b in enumerate(q) if y not in gone), _0)
        passes = min(_1, max(p[x] - c * q[x], _0) * stays / (mass * q[x]))
        accept[i], left = left * passes, left * (1 - passes)
        if left == 0:
            return accept, None
        c += mass / stays
        mass = sum(minus(p, q, c), _0)
        if remove:
            gone.add(x)
    return accept, norm(minus(p, q, c))


RULES: dict[str, NodeRule] = {
    "rejection": rejection,
    "rrs": rrs,
    "rrsw": rrsw,
    "kseq": kseq,
    "race": race,
    "top": top_rule,
    "point": point,
    "naive": naive,
}
"""The lossless node rules; ``typical`` is not among them."""

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
"""The draft laws each rule is lossless for (rejection: one child only)."""
