"""Verifiers that are wrong on purpose: several of them have been shipped, and each must be rejected by the tests.

They are node rules of the kind in ``exact``, together with the draft law they are used with. A suite that cannot tell one of
these from the target's law cannot vouch for a verifier either.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from specwb.verify.exact import Decision, Dist, DraftLaw, NodeRule, Tokens, iid, norm, rejection, rrs, rrsw, top, without_replacement

_0, _1 = Fraction(0), Fraction(1)


@dataclass(frozen=True)
class Mutant:
    """A wrong verifier: its node rule, the draft law and number of children it is used with, and what is wrong in one line."""

    name: str
    node: NodeRule
    law: DraftLaw
    k: int
    wrong: str


def residual_from_p(p: Dist, q: Dist, tokens: Tokens) -> Decision:
    """Wrong: the closing token is drawn from p and not from ``norm((p - q)+)``, so what was accepted is counted twice."""
    accept, residual = rejection(p, q, tokens)
    return accept, residual and list(p)


def squared_q(p: Dist, q: Dist, tokens: Tokens) -> Decision:
    """Wrong: the test uses q at another temperature (``norm(q^2)``) than the one the child was drawn at."""
    return rejection(p, norm([b * b for b in q]), tokens)


def sorted_by_q(p: Dist, q: Dist, tokens: Tokens) -> Decision:
    """Wrong: children drawn without replacement are tested in the order of q and not in the order they were drawn."""
    order = sorted(range(len(tokens)), key=lambda i: (-q[tokens[i]], i))
    sorted_accept, residual = rrsw(p, q, tuple(tokens[i] for i in order))
    accept = [_0] * len(tokens)
    for i, a in zip(order, sorted_accept, strict=True):
        accept[i] = a
    return accept, residual


def deduplicated(p: Dist, q: Dist, tokens: Tokens) -> Decision:
    """Wrong: repeated independent drafts are dropped, but the rest is tested as if it had been drawn with replacement."""
    first = [i for i, x in enumerate(tokens) if x not in tokens[:i]]
    kept, residual = rrs(p, q, tuple(tokens[i] for i in first))
    accept = [_0] * len(tokens)
    for i, a in zip(first, kept, strict=True):
        accept[i] = a
    return accept, residual


def no_residual_update(p: Dist, q: Dist, tokens: Tokens) -> Decision:
    """Wrong: every sibling is tested against the first p, and ``(p - q)+`` is subtracted once, whatever was rejected before."""
    accept, left = [_0] * len(tokens), _1
    for i, x in enumerate(tokens):
        passes = min(_1, p[x] / q[x]) if q[x] else _0
        accept[i], left = left * passes, left * (1 - passes)
    if left == 0:
        return accept, None
    residual = [max(a - b, _0) for a, b in zip(p, q, strict=True)]
    return accept, norm(residual)


def keep_larger_q(p: Dist, q: Dist, tokens: Tokens) -> Decision:
    """Wrong: of the tokens drawn only the one of largest q is kept, and tested as if it were a plain draw from q."""
    best = max(range(len(tokens)), key=lambda i: (q[tokens[i]], -i))
    (kept,), residual = rejection(p, q, (tokens[best],))
    return [kept if i == best else _0 for i in range(len(tokens))], residual


MUTANTS: tuple[Mutant, ...] = (
    Mutant("residual_from_p", residual_from_p, iid, 1, "closing token from p instead of (p - q)+"),
    Mutant("argmax_with_ratio", rejection, top, 1, "a deterministic argmax draft is tested with p/q"),
    Mutant("squared_q", squared_q, iid, 1, "the q of the test has another temperature than the q that was sampled"),
    Mutant("sorted_by_q", sorted_by_q, without_replacement, 2, "RRSw children sorted by q instead of drawing order"),
    Mutant("keep_larger_q", keep_larger_q, iid, 2, "two draws, the one of larger q is kept and tested as one draw"),
    Mutant("rrs_without_replacement", rrs, without_replacement, 2, "RRS on children drawn without replacement"),
    Mutant("deduplicated", deduplicated, iid, 3, "independent drafts de-duplicated, then RRS"),
    Mutant("no_update_sampled", no_residual_update, iid, 2, "sampled siblings tested without updating the residual"),
    Mutant("no_update_top", no_residual_update, top, 3, "top-k siblings tested as samples, without updating the residual"),
    Mutant("rrsw_on_top", rrsw, top, 3, "the RRSw rule on deterministic top-k children"),
)
