"""Verifiers that are wrong on purpose, several of which have been shipped; the tests must reject
each.

These are node rules of the kind in ``exact``, with the sampling scheme that they are used with. A
suite that cannot tell their output from the target's distribution cannot vouch for a verifier
either. Wrong rules for whole blocks and trees are in ``tree_mutants``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

from specwb.verify.exact import (
    Decision,
    Dist,
    NodeRule,
    SamplingScheme,
    Tokens,
    iid,
    kseq,
    kseq_rho,
    minus,
    norm,
    output_distribution,
    rejection,
    rrs,
    rrsw,
    top,
    top_and_sample,
    without,
    without_replacement,
)

_0, _1 = Fraction(0), Fraction(1)


@dataclass(frozen=True)
class Mutant:
    """A wrong verifier, with its sampling scheme and number of children."""

    name: str
    node: NodeRule
    scheme: SamplingScheme
    k: int
    wrong: str  # in one line
    original: str  # the name of the right rule that it is made from


MUTANTS: list[Mutant] = []


def _mutant(
    scheme: SamplingScheme, k: int, original: str, wrong: str, name: str = ""
) -> Callable[[NodeRule], NodeRule]:
    """Add a node rule to ``MUTANTS``."""

    def add(node: NodeRule) -> NodeRule:
        MUTANTS.append(Mutant(name or node.__name__, node, scheme, k, wrong, original))
        return node

    return add


@_mutant(iid, 1, "rejection", "bonus token from p instead of (p - q)+")
def residual_from_p(p: Dist, q: Dist, tokens: Tokens) -> Decision:
    """What was accepted is counted twice."""
    accept, residual = rejection(p, q, tokens)
    return accept, residual and list(p)


_mutant(
    top, 1, "rejection", "a deterministic argmax draft is tested with p/q", "argmax_with_ratio"
)(rejection)


@_mutant(
    iid, 1, "rejection", "the q of the test has another temperature than the q that was sampled"
)
def squared_q(p: Dist, q: Dist, tokens: Tokens) -> Decision:
    """The test uses ``norm(q^2)``."""
    return rejection(p, norm([b * b for b in q]), tokens)


@_mutant(without_replacement, 2, "rrsw", "RRSw children sorted by q instead of drawing order")
def sorted_by_q(p: Dist, q: Dist, tokens: Tokens) -> Decision:
    return _sorted(rrsw, p, q, tokens)


def sorted_draws(p: Dist, q: Dist, tokens: Tokens) -> Decision:
    """Wrong: independent drafts, here one token each, are sorted by their score and then tested as
    if they came in the order of drawing."""
    return _sorted(rrs, p, q, tokens)


def _sorted(rule: NodeRule, p: Dist, q: Dist, tokens: Tokens) -> Decision:
    order = sorted(range(len(tokens)), key=lambda i: (-q[tokens[i]], i))
    return _of_some(rule, order, p, q, tokens)


def _of_some(rule: NodeRule, order: list[int], p: Dist, q: Dist, tokens: Tokens) -> Decision:
    """The decision of a rule that is given the children ``order`` only, about all of them."""
    accepted, residual = rule(p, q, tuple(tokens[i] for i in order))
    accept = [_0] * len(tokens)
    for i, a in zip(order, accepted, strict=True):
        accept[i] = a
    return accept, residual


@_mutant(iid, 2, "rejection", "two draws, the one of larger q is kept and tested as one draw")
def keep_larger_q(p: Dist, q: Dist, tokens: Tokens) -> Decision:
    best = max(range(len(tokens)), key=lambda i: (q[tokens[i]], -i))
    return _of_some(rejection, [best], p, q, tokens)


_mutant(
    without_replacement,
    2,
    "rrs",
    "RRS on children drawn without replacement",
    "rrs_without_replacement",
)(rrs)


@_mutant(iid, 3, "rrs", "independent drafts de-duplicated, then RRS")
def deduplicated(p: Dist, q: Dist, tokens: Tokens) -> Decision:
    first = [i for i, x in enumerate(tokens) if x not in tokens[:i]]
    return _of_some(rrs, first, p, q, tokens)


@_mutant(
    top,
    3,
    "point",
    "top-k siblings tested as samples, without updating the residual",
    "no_update_top",
)
@_mutant(
    iid, 2, "rrs", "sampled siblings tested without updating the residual", "no_update_sampled"
)
def no_residual_update(p: Dist, q: Dist, tokens: Tokens) -> Decision:
    """Every sibling is tested against the first p, and ``(p - q)+`` is subtracted once, whatever
    was rejected before."""
    accept, not_accepted = [_0] * len(tokens), _1
    for i, x in enumerate(tokens):
        passes = min(_1, p[x] / q[x]) if q[x] else _0
        accept[i] = not_accepted * passes
        not_accepted *= 1 - passes
    return accept, norm(minus(p, q)) if not_accepted else None


_mutant(top, 3, "rrsw", "the RRSw rule on deterministic top-k children", "rrsw_on_top")(rrsw)


@_mutant(iid, 1, "rejection", "the uniform that drew the child draws the bonus token too")
def noise_reused(p: Dist, q: Dist, tokens: Tokens) -> Decision:
    """Both by inverse CDF."""
    accept, residual = rejection(p, q, tokens)
    if residual is None:
        return accept, None
    (x,) = tokens
    # given x the uniform lies in [low, high)
    low, high = sum(q[:x], _0), sum(q[: x + 1], _0)
    bonus, start = [], _0
    for a in residual:
        overlap = max(min(start + a, high) - max(start, low), _0)
        bonus.append(overlap / (high - low))
        start += a
    return accept, bonus


@_mutant(iid, 2, "kseq", "k-SEQ with rho - 1 too small by a tenth")
def low_rho(p: Dist, q: Dist, tokens: Tokens) -> Decision:
    """What would be negative in the residual is cut off."""
    least = kseq_rho(tuple(p), tuple(q), len(tokens))
    return kseq(p, q, tokens, 1 + (least - 1) * Fraction(9, 10))


@_mutant(
    iid,
    2,
    "race",
    "the selected child is tested against q and not the distribution of what is selected",
)
def race_against_q(p: Dist, q: Dist, tokens: Tokens) -> Decision:
    total = sum((p[x] / q[x] for x in tokens), _0)
    if total == 0:
        return [_0] * len(tokens), rejection(p, q, tokens[:1])[1]
    accept = [p[x] / q[x] / total * min(_1, p[x] / q[x]) for x in tokens]
    return accept, None if sum(accept, _0) == 1 else norm(minus(p, q))


@_mutant(
    top_and_sample,
    2,
    "top",
    "the drawn child is tested against q and not what the fixed ones leave of it",
)
def whole_q(p: Dist, q: Dist, tokens: Tokens) -> Decision:
    (passes,), residual = rejection(p, q, tokens[-1:])
    if residual is None:
        return [*[_0] * (len(tokens) - 1), passes], None
    accept = [*((1 - passes) * residual[x] for x in tokens[:-1]), passes]
    bonus = without(residual, tokens[:-1])
    return accept, norm(bonus) if any(bonus) else None


@_mutant(top, 2, "point", "a draw that is no child is thrown away and made again")
def keeps_children(p: Dist, q: Dist, tokens: Tokens) -> Decision:
    """The bonus token is the second draw from p."""
    accept = [_0 if x in tokens[:i] else p[x] for i, x in enumerate(tokens)]
    return accept, None if sum(accept, _0) == 1 else list(p)


@_mutant(iid, 2, "naive", "every child is compared with its own draw from p")
def draw_per_child(p: Dist, q: Dist, tokens: Tokens) -> Decision:
    """The last of these draws is the bonus token."""
    accept, not_accepted = [_0] * len(tokens), _1
    for i, x in enumerate(tokens):
        accept[i] = not_accepted * p[x]
        not_accepted *= 1 - p[x]
    return accept, None if not_accepted == 0 else norm(without(p, tokens[-1:]))


@dataclass(frozen=True)
class Counterexample:
    """A small instance on which a rule that is claimed to be lossless is not: :meth:`output` is not
    p."""

    name: str
    claim: str
    node: NodeRule
    scheme: SamplingScheme
    p: tuple[Fraction, ...]
    q: tuple[Fraction, ...]
    k: int

    def output(self) -> list[Fraction]:
        """The distribution of the next token, by enumeration."""
        return output_distribution(self.node, self.scheme, self.p, self.q, self.k)


_THIRD, _HALF = Fraction(1, 3), Fraction(1, 2)
COUNTEREXAMPLES: tuple[Counterexample, ...] = (
    Counterexample(
        "sorted children",
        "children drawn without replacement may be sorted before they are tested",
        sorted_by_q,
        without_replacement,
        (_THIRD, 2 * _THIRD),
        (_THIRD, 2 * _THIRD),
        2,
    ),
    Counterexample(
        "siblings without residual update",
        "each sibling may be tested against p itself",
        no_residual_update,
        iid,
        (_HALF, _HALF),
        (_0, _1),
        2,
    ),
    Counterexample(
        "RRS without replacement",
        "it does not matter to RRS whether siblings are drawn with or without replacement",
        rrs,
        without_replacement,
        (_0, _THIRD, 2 * _THIRD),
        (2 * _THIRD, _0, _THIRD),
        2,
    ),
    Counterexample(
        "top-k siblings as samples",
        "the draft's most probable tokens may be tested as if they had been drawn",
        rrsw,
        top,
        (_HALF, _HALF),
        (2 * _THIRD, _THIRD),
        1,
    ),
    Counterexample(
        "a searched path as a sample",
        "a path that was searched in a lattice may be tested with the lattice's distributions",
        rejection,
        top,
        (Fraction(3, 10), Fraction(7, 10)),
        (Fraction(3, 5), Fraction(2, 5)),
        1,
    ),
    Counterexample(
        "sorted sequences",
        "independent drafts may be sorted by a score before they are tested",
        sorted_draws,
        iid,
        (_THIRD, 2 * _THIRD),
        (_THIRD, 2 * _THIRD),
        2,
    ),
)
"""Claims about several candidates that enumeration refutes. Those about blocks and trees are in
``tests/verify/test_suite.py``."""
