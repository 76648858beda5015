"""The output's distribution at one node, and how often a child is accepted, in closed form."""

from __future__ import annotations

from fractions import Fraction
from itertools import chain, combinations

from specwb.theory.exact.basics import (
    Dist,
    ExactDecision,
    ExactNodeRule,
    SamplingScheme,
    Tokens,
    minus,
    norm,
    overlap,
    without,
)

_0, _1 = Fraction(0), Fraction(1)


def conditional_distribution(
    decision: ExactDecision, tokens: Tokens, vocabulary: int
) -> list[Fraction]:
    """Given the children the next token y has probability
    ``sum_i accept_i [x_i = y] + (1 - sum_i accept_i) residual(y)``.
    """
    accept, residual = decision
    output = [_0] * vocabulary
    for x, a in zip(tokens, accept, strict=True):
        output[x] += a
    if residual is not None:
        none = 1 - sum(accept, _0)
        output = [a + none * r for a, r in zip(output, residual, strict=True)]
    return output


def output_distribution(
    rule: ExactNodeRule, scheme: SamplingScheme, p: Dist, q: Dist, k: int
) -> list[Fraction]:
    """The distribution of the next token at one node is ``P(Y = y) = sum_x P(x) P(y | x)``.

    The sum is over the tuples x of children. The rule is lossless iff the result equals p.
    """
    output = [_0] * len(p)
    for tokens, probability in scheme(q, k):
        conditional = conditional_distribution(rule(p, q, tokens), tokens, len(p))
        output = [a + probability * b for a, b in zip(output, conditional, strict=True)]
    return output


def acceptance(rule: ExactNodeRule, scheme: SamplingScheme, p: Dist, q: Dist, k: int) -> Fraction:
    """The probability that the next token is one of the children, ``P(Y in {x_1..x_k})``.

    A bonus token that happens to equal a child counts (it never does under rejection, rrs, rrsw,
    top and point).
    """
    total = _0
    for tokens, probability in scheme(q, k):
        conditional = conditional_distribution(rule(p, q, tokens), tokens, len(p))
        total += probability * sum((conditional[x] for x in set(tokens)), _0)
    return total


def optimum(scheme: SamplingScheme, p: Dist, q: Dist, k: int) -> Fraction:
    """No lossless rule accepts more often than
    ``1 + min over sets S of tokens of (p(S) - P(all children in S))``, and one attains it.

    It is a minimum cut of the transport from tuples of children to tokens. The minimum is over all
    2^V sets.

    Source: the transport is SpecTr's (2310.15141), the subset form that of Hu et al. 2502.18779.
    """
    tuples = [(set(tokens), probability) for tokens, probability in scheme(q, k)]
    v = len(p)

    def cut(s: set[int]) -> Fraction:
        inside = sum((probability for tokens, probability in tuples if tokens <= s), _0)
        return sum((p[x] for x in s), _0) - inside

    subsets = chain.from_iterable(combinations(range(v), n) for n in range(v + 1))
    return 1 + min(cut(set(s)) for s in subsets)


def rrs_levels(p: Dist, q: Dist, k: int) -> list[Fraction]:
    """After j rejections recursive rejection with replacement draws from ``norm((p - M_j q)+)``.

    Returns ``M_1 .. M_k``, fewer where nothing is left to reject: ``M_1 = 1`` and
    ``M_{j+1} = M_j + m(M_j)``, with ``m(level) = sum (p - level q)+``.

    Source: derived in theory/ (theorem 4.3).
    """
    levels: list[Fraction] = []
    level, left = _0, _1
    while left and len(levels) < k:
        levels.append(level := level + left)
        left = sum(minus(p, q, level), _0)
    return levels


def rrs_acceptance(p: Dist, q: Dist, k: int) -> Fraction:
    """Recursive rejection with replacement accepts with ``1 - prod_i (1 - beta_i) = 1 - m(M_k)``.

    Here ``beta_i = sum min(p_i, q)``; ``p_1 = p``, ``p_{i+1} = norm((p_i - q)+)`` do not depend on
    the draws, and :func:`rrs_levels` has M_k. It is never less than ``naive``'s (theorem 4.7).

    Source: SpecInfer 2305.09781; MCSD 2401.06706.
    """
    return 1 - sum(minus(p, q, [_0, *rrs_levels(p, q, k)][-1]), _0)


def rrsw_acceptance(p: Dist, q: Dist, k: int) -> Fraction:
    """Recursive rejection without replacement accepts with
    ``1 - sum over ordered distinct tuples of prod_i (q_i - p_i)+(x_i)``.

    The sum runs over tuples as long as k or, if that is less, the support of q; it has no closed
    form, p_i and q_i depending on the tokens before. It is computed by recursion over the first
    child: accepted with ``sum min(p, q)``, or x and rejected with ``(q - p)+(x)``. It is never less
    than :func:`rrs_acceptance` (theorem 4.6), nor than ``naive`` on the same children (theorem
    4.7).

    Source: MCSD 2401.06706.
    """
    if not k or not any(q):
        return _0
    accepted = overlap(p, q)
    for x, rejected in enumerate(minus(q, p)):
        if rejected:
            rest = without(q, (x,))
            later = norm(rest) if any(rest) else rest
            accepted += rejected * rrsw_acceptance(norm(minus(p, q)), later, k - 1)
    return accepted
