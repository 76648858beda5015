"""Verifiers that are wrong on purpose, several of which have been shipped; the tests must reject
each.

These are node rules of the kind in ``exact``, with the sampling scheme that they are used with. A
suite that cannot tell their output from the target's distribution cannot vouch for a verifier
either. Wrong rules for whole blocks and trees are in ``tree_mutants``.
"""

from __future__ import annotations

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


def residual_from_p(p: Dist, q: Dist, tokens: Tokens) -> Decision:
    """Wrong: the bonus token is drawn from p and not from ``norm((p - q)+)``.

    What was accepted is thus counted twice.
    """
    accept, residual = rejection(p, q, tokens)
    return accept, residual and list(p)


def squared_q(p: Dist, q: Dist, tokens: Tokens) -> Decision:
    """Wrong: the test uses q at another temperature (``norm(q^2)``) than the one the child was
    drawn at."""
    return rejection(p, norm([b * b for b in q]), tokens)


def sorted_by_q(p: Dist, q: Dist, tokens: Tokens) -> Decision:
    """Wrong: children drawn without replacement are tested in the order of q and not in the order
    in which they were drawn."""
    return _sorted(rrsw, p, q, tokens)


def sorted_draws(p: Dist, q: Dist, tokens: Tokens) -> Decision:
    """Wrong: independent drafts, here one token each, are sorted by their score and then tested as
    if they came in the order of drawing."""
    return _sorted(rrs, p, q, tokens)


def _sorted(rule: NodeRule, p: Dist, q: Dist, tokens: Tokens) -> Decision:
    """The rule on the children in the order of q; its decision is about them in their own order."""
    order = sorted(range(len(tokens)), key=lambda i: (-q[tokens[i]], i))
    sorted_accept, residual = rule(p, q, tuple(tokens[i] for i in order))
    accept = [_0] * len(tokens)
    for i, a in zip(order, sorted_accept, strict=True):
        accept[i] = a
    return accept, residual


def deduplicated(p: Dist, q: Dist, tokens: Tokens) -> Decision:
    """Wrong: repeated independent drafts are dropped, but the rest is tested as if it had been
    drawn with replacement."""
    first = [i for i, x in enumerate(tokens) if x not in tokens[:i]]
    accept_first, residual = rrs(p, q, tuple(tokens[i] for i in first))
    accept = [_0] * len(tokens)
    for i, a in zip(first, accept_first, strict=True):
        accept[i] = a
    return accept, residual


def no_residual_update(p: Dist, q: Dist, tokens: Tokens) -> Decision:
    """Wrong: every sibling is tested against the first p, and ``(p - q)+`` is subtracted once,
    whatever was rejected before."""
    accept, not_accepted = [_0] * len(tokens), _1
    for i, x in enumerate(tokens):
        passes = min(_1, p[x] / q[x]) if q[x] else _0
        accept[i] = not_accepted * passes
        not_accepted *= 1 - passes
    if not_accepted == 0:
        return accept, None
    residual = [max(a - b, _0) for a, b in zip(p, q, strict=True)]
    return accept, norm(residual)


def keep_larger_q(p: Dist, q: Dist, tokens: Tokens) -> Decision:
    """Wrong: of the tokens drawn only the one of largest q is kept, and tested as if it were a
    plain draw from q."""
    best = max(range(len(tokens)), key=lambda i: (q[tokens[i]], -i))
    (passes,), residual = rejection(p, q, (tokens[best],))
    return [passes if i == best else _0 for i in range(len(tokens))], residual


def low_rho(p: Dist, q: Dist, tokens: Tokens) -> Decision:
    """Wrong: k-SEQ has a ``rho - 1`` that is too small by a tenth, and what would be negative in
    the residual is cut off."""
    least = kseq_rho(tuple(p), tuple(q), len(tokens))
    return kseq(p, q, tokens, 1 + (least - 1) * Fraction(9, 10))


def race_against_q(p: Dist, q: Dist, tokens: Tokens) -> Decision:
    """Wrong: the child selected by weights p/q is tested as if it were a draw from q."""
    total = sum((p[x] / q[x] for x in tokens), _0)
    if total == 0:
        return [_0] * len(tokens), rejection(p, q, tokens[:1])[1]
    accept = [p[x] / q[x] / total * min(_1, p[x] / q[x]) for x in tokens]
    residual = [max(a - b, _0) for a, b in zip(p, q, strict=True)]
    return accept, None if sum(accept, _0) == 1 else norm(residual)


def whole_q(p: Dist, q: Dist, tokens: Tokens) -> Decision:
    """Wrong: the last child, drawn from what the first ones leave of q, is tested against all of
    q."""
    (passes,), residual = rejection(p, q, tokens[-1:])
    if residual is None:
        return [*[_0] * (len(tokens) - 1), passes], None
    accept = [*((1 - passes) * residual[x] for x in tokens[:-1]), passes]
    bonus = without(residual, tokens[:-1])
    return accept, norm(bonus) if any(bonus) else None


def draw_per_child(p: Dist, q: Dist, tokens: Tokens) -> Decision:
    """Wrong: every child is compared with a draw of its own from p, and the last of these draws is
    the bonus token."""
    accept, not_accepted = [_0] * len(tokens), _1
    for i, x in enumerate(tokens):
        accept[i] = not_accepted * p[x]
        not_accepted *= 1 - p[x]
    return accept, None if not_accepted == 0 else norm(without(p, tokens[-1:]))


def keeps_children(p: Dist, q: Dist, tokens: Tokens) -> Decision:
    """Wrong: a draw from p that is not a child is discarded, and the bonus token is a second draw
    from p."""
    accept = [_0 if x in tokens[:i] else p[x] for i, x in enumerate(tokens)]
    return accept, None if sum(accept, _0) == 1 else list(p)


def noise_reused(p: Dist, q: Dist, tokens: Tokens) -> Decision:
    """Wrong: the uniform that drew the child by inverse CDF draws the bonus token as well."""
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


def _mutant(
    node: NodeRule, scheme: SamplingScheme, k: int, original: str, wrong: str, name: str = ""
) -> Mutant:
    return Mutant(name or node.__name__, node, scheme, k, wrong, original)


MUTANTS: tuple[Mutant, ...] = (
    _mutant(residual_from_p, iid, 1, "rejection", "bonus token from p instead of (p - q)+"),
    _mutant(
        rejection,
        top,
        1,
        "rejection",
        "a deterministic argmax draft is tested with p/q",
        "argmax_with_ratio",
    ),
    _mutant(
        squared_q,
        iid,
        1,
        "rejection",
        "the q of the test has another temperature than the q that was sampled",
    ),
    _mutant(
        sorted_by_q,
        without_replacement,
        2,
        "rrsw",
        "RRSw children sorted by q instead of drawing order",
    ),
    _mutant(
        keep_larger_q,
        iid,
        2,
        "rejection",
        "two draws, the one of larger q is kept and tested as one draw",
    ),
    _mutant(
        rrs,
        without_replacement,
        2,
        "rrs",
        "RRS on children drawn without replacement",
        "rrs_without_replacement",
    ),
    _mutant(deduplicated, iid, 3, "rrs", "independent drafts de-duplicated, then RRS"),
    _mutant(
        no_residual_update,
        iid,
        2,
        "rrs",
        "sampled siblings tested without updating the residual",
        "no_update_sampled",
    ),
    _mutant(
        no_residual_update,
        top,
        3,
        "point",
        "top-k siblings tested as samples, without updating the residual",
        "no_update_top",
    ),
    _mutant(rrsw, top, 3, "rrsw", "the RRSw rule on deterministic top-k children", "rrsw_on_top"),
    _mutant(
        noise_reused,
        iid,
        1,
        "rejection",
        "the uniform that drew the child draws the bonus token too",
    ),
    _mutant(low_rho, iid, 2, "kseq", "k-SEQ with rho - 1 too small by a tenth"),
    _mutant(
        race_against_q,
        iid,
        2,
        "race",
        "the selected child is tested against q and not the distribution of what is selected",
    ),
    _mutant(
        whole_q,
        top_and_sample,
        2,
        "top",
        "the drawn child is tested against q and not what the fixed ones leave of it",
    ),
    _mutant(
        keeps_children, top, 2, "point", "a draw that is no child is thrown away and made again"
    ),
    _mutant(draw_per_child, iid, 2, "naive", "every child is compared with its own draw from p"),
)


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
``specwb.verify.suite``."""
