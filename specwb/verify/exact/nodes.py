"""Node rules: what a verifier does among the children of one node, as conditional laws."""

from __future__ import annotations

from fractions import Fraction

from specwb.verify.exact.basics import Decision, Dist, NodeRule, Tokens, minus, norm

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
            rest = [_0 if y == x else b for y, b in enumerate(q)]
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
    return accept, norm([_0 if y in tokens else a for y, a in enumerate(p)])


naive = point
"""The point-mass rule on sampled children: MCSD's naive sampling (MCNS), multi-draft NSS."""


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


RULES: dict[str, NodeRule] = {"rejection": rejection, "rrs": rrs, "rrsw": rrsw, "point": point, "naive": naive}

LOSSLESS: dict[str, tuple[str, ...]] = {
    "rejection": ("IID", "WITHOUT_REPLACEMENT"),
    "rrs": ("IID",),
    "rrsw": ("WITHOUT_REPLACEMENT", "IID"),
    "point": ("POINT", "IID", "WITHOUT_REPLACEMENT"),
    "naive": ("IID", "WITHOUT_REPLACEMENT", "POINT"),
}
"""The draft laws each rule is lossless for (rejection: one child only)."""
