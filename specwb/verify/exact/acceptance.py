"""The output's law at one node, and how often a child is accepted, in closed form."""

from __future__ import annotations

from fractions import Fraction
from itertools import chain, combinations

from specwb.verify.exact.basics import Decision, Dist, DraftLaw, NodeRule, Tokens, minus, norm, overlap
from specwb.verify.exact.nodes import kseq_rho, race_law, ratio
from specwb.verify.exact.places import top_and_sample_places, total

_0, _1 = Fraction(0), Fraction(1)


def conditional_law(decision: Decision, tokens: Tokens, vocabulary: int) -> list[Fraction]:
    """The law of the next token given the children: ``sum_i accept_i [x_i = y] + (1 - sum_i accept_i) residual(y)``.

    Args:
        decision: what a node rule returned. tokens: the children it was given. vocabulary: V.
    """
    accept, residual = decision
    law = [_0] * vocabulary
    for x, a in zip(tokens, accept, strict=True):
        law[x] += a
    if residual is not None:
        none = 1 - sum(accept, _0)
        law = [a + none * r for a, r in zip(law, residual, strict=True)]
    return law


def output_law(rule: NodeRule, law: DraftLaw, p: Dist, q: Dist, k: int) -> list[Fraction]:
    """The law of the next token at one node, ``P(Y = y) = sum_x P(x) P(y | x)``; the rule is lossless iff it equals p.

    Args:
        rule: node rule. law: draft law. p, q: target and draft law. k: number of children.
    """
    out = [_0] * len(p)
    for tokens, prob in law(q, k):
        given = conditional_law(rule(p, q, tokens), tokens, len(p))
        out = [a + prob * b for a, b in zip(out, given, strict=True)]
    return out


def acceptance(rule: NodeRule, law: DraftLaw, p: Dist, q: Dist, k: int) -> Fraction:
    """The probability that the next token is one of the children, ``P(Y in {x_1..x_k})``.

    A closing token that happens to equal a child counts (it never does under rejection, rrs, rrsw, top and point).

    Args:
        rule: node rule. law: draft law. p, q: target and draft law. k: number of children.
    """
    total = _0
    for tokens, prob in law(q, k):
        given = conditional_law(rule(p, q, tokens), tokens, len(p))
        total += prob * sum((given[x] for x in set(tokens)), _0)
    return total


def optimum(law: DraftLaw, p: Dist, q: Dist, k: int) -> Fraction:
    """No lossless rule accepts more often than ``1 + min over sets S of tokens of (p(S) - P(all children in S))``, and one reaches it.

    It is a minimum cut of the transport from tuples of children to tokens. The minimum is over all 2^V sets.

    Args:
        law: draft law. p, q: target and draft law. k: number of children.
    Source: the transport is SpecTr's (2310.15141), the subset form that of Hu et al. 2502.18779.
    """
    drawn = [(set(tokens), prob) for tokens, prob in law(q, k)]
    sets = map(set, chain.from_iterable(combinations(range(len(p)), n) for n in range(len(p) + 1)))
    return 1 + min(sum((p[x] for x in s), _0) - sum((prob for tokens, prob in drawn if tokens <= s), _0) for s in sets)


def rejection_acceptance(p: Dist, q: Dist) -> Fraction:
    """Token rejection accepts with probability ``sum min(p, q) = 1 - TV(p, q)``, the most any lossless rule can for one draft.

    Args:
        p, q: target and draft law.
    Source: Leviathan et al. 2211.17192.
    """
    return overlap(p, q)


def rrs_acceptance(p: Dist, q: Dist, k: int) -> Fraction:
    """Recursive rejection with replacement accepts with ``1 - prod_i (1 - beta_i)``, ``beta_i = sum min(p_i, q)``.

    ``p_1 = p``, ``p_{i+1} = norm((p_i - q)+)`` do not depend on the draws. Never less than
    :func:`naive_acceptance` (theorem 4.7).

    Args:
        p, q: target and draft law. k: number of children.
    Source: SpecInfer 2305.09781; MCSD 2401.06706.
    """
    rejected = _1
    for _ in range(k):
        beta = overlap(p, q)
        rejected *= 1 - beta
        if rejected == 0:
            break
        p = norm(minus(p, q))
    return 1 - rejected


def rrs_acceptance_scalar(p: Dist, q: Dist, k: int) -> Fraction:
    """Recursive rejection with replacement accepts with ``1 - m_{k+1}``, ``m_{j+1} = R(m_1 + .. + m_j)``, ``m_1 = 1``.

    Args:
        p, q: target and draft law. k: number of children.
    Source: derived in theory/.
    """
    c, mass = _0, _1
    for _ in range(k):
        c += mass
        mass = sum(minus(p, q, c), _0)
    return 1 - mass


def rrsw_acceptance(p: Dist, q: Dist, k: int) -> Fraction:
    """Recursive rejection without replacement accepts with ``1 - sum over ordered distinct tuples of prod_i (q_i - p_i)+(x_i)``.

    The sum runs over tuples as long as k or, if that is less, the support of q; it has no closed form, p_i and q_i
    depending on the tokens before. Never less than :func:`rrs_acceptance` (theorem 4.6), nor
    than ``naive`` on the same children (theorem 4.7).

    Args:
        p, q: target and draft law. k: number of children.
    Source: MCSD 2401.06706.
    """

    def rejected(p: Dist, q: Dist, k: int) -> Fraction:
        if k == 0 or not any(q):
            return _1
        loss = minus(q, p)
        if not any(loss):
            return _0
        after, total = norm(minus(p, q)), _0
        for x, amount in enumerate(loss):
            if amount:
                rest = [_0 if y == x else b for y, b in enumerate(q)]
                total += amount * rejected(after, norm(rest) if any(rest) else rest, k - 1)
        return total

    return 1 - rejected(p, q, k)


def point_acceptance(p: Dist, tokens: Tokens) -> Fraction:
    """The point-mass rule accepts with the target mass of the children, ``p({x_1..x_k})``; no rule that is lossless given them can do better.

    Args:
        p: target law. tokens: the deterministic children.
    """
    return sum((p[x] for x in set(tokens)), _0)


def naive_acceptance(p: Dist, q: Dist, k: int) -> Fraction:
    """The point-mass rule on k independent draws from q accepts with ``sum p (1 - (1 - q)^k)``.

    Args:
        p, q: target and draft law. k: number of children.
    """
    return sum((a * (1 - (1 - b) ** k) for a, b in zip(p, q, strict=True)), _0)


def kseq_acceptance(p: Dist, q: Dist, k: int, rho: Fraction | None = None) -> Fraction:
    """k-SEQ accepts with ``a + (1 - a) sum_y res(y) (1 - (1 - r(y))^k)``, of which the tests accept ``a = 1 - (1 - beta)^k``.

    ``b = min(p/rho, q)``, ``beta = sum b``, ``res = norm(p - b a/beta)`` the law of the closing token, ``r = norm(q - b)`` that of a rejected
    child: the sum is the chance that the closing token is a child after all. It is 0 at the smallest valid rho.

    Args:
        p, q: target and draft law. k: number of children. rho: default ``kseq_rho``.
    Source: SpecTr 2310.15141; the second term: reference code of 2602.16961.
    """
    rho = kseq_rho(tuple(p), tuple(q), k) if rho is None else rho
    b = [min(x / rho, y) for x, y in zip(p, q, strict=True)]
    beta = sum(b, _0)
    a = 1 - (1 - beta) ** k
    if a == 1:
        return a
    residual, rejected = norm(minus(p, b, a / beta if beta else _0)), norm(minus(q, b))
    return a + (1 - a) * sum((y * (1 - (1 - r) ** k) for y, r in zip(residual, rejected, strict=True)), _0)


def race_acceptance(p: Dist, q: Dist, k: int, weights: Dist | None = None) -> Fraction:
    """The weighted race accepts the child it selects with ``sum min(p, t)``, ``t`` the law of what is selected.

    Args:
        p, q: target and draft law. k: number of children. weights: default p/q.
    """
    return overlap(p, race_law(tuple(q), tuple(ratio(p, q) if weights is None else weights), k))


def top_and_sample_acceptance(p: Dist, q: Dist, k: int) -> Fraction:
    """Top and sample accepts with ``p(A) + sum over y not in A of min(p(y), q'(y))``, the optimum of its draft law.

    Args:
        p, q: target and draft law. k: number of children.
    Source: Hu et al. 2502.18779.
    """
    return total(top_and_sample_places(p, q, k))
