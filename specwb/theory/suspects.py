"""Three verifiers, one of which is biased, and the size of a test that detects it.

A biased verifier writes fluent text and may even be fast. :func:`suspects` hands out three black
boxes for two independent candidates; :func:`drawn` runs one of them, :func:`pvalue` tests whether
its tokens can be draws from p, and :func:`power` gives the probability that a test of some size
detects the bias. :func:`culprit` reveals the answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import numpy as np
from scipy import optimize, stats

from specwb.core.errors import ArgumentError
from specwb.theory.exact import Dist, ExactDecision, ExactNodeRule, Tokens, iid, kseq, rrs
from specwb.theory.wrong_rules import WRONG_RULES

ALARM = 0.01
"""The p-value below which a verifier is called biased."""
BIASED = {name: WRONG_RULES[name] for name in ("deduplicated", "race_against_q", "low_rho")}
"""Whose bias cannot be told from how much they accept."""


def suspects(seed: int = 0) -> dict[str, ExactNodeRule]:
    """Hand out verifiers A, B and C for two candidates that are drawn from q independently.

    Two of them are lossless. The third is one of :data:`BIASED`; ``seed`` determines which one is
    biased, and how: one seed per student.
    """

    def black_box(rule: ExactNodeRule) -> ExactNodeRule:
        def verifier(p: Dist, q: Dist, tokens: Tokens) -> ExactDecision:
            return rule(p, q, tokens)

        return verifier

    return {name: black_box(rule) for name, rule in zip("ABC", _rules(seed)[0], strict=True)}


def culprit(seed: int = 0) -> tuple[str, str]:
    """The name of the biased one of :func:`suspects`, and what is wrong with it."""
    rules, key = _rules(seed)
    return "ABC"[rules.index(_node(key))], BIASED[key].wrong


def _node(key: str) -> ExactNodeRule:
    node = BIASED[key].node
    assert node is not None
    return node


def _rules(seed: int) -> tuple[list[ExactNodeRule], str]:
    """The three rules in the order of their names, and the key of the biased one."""
    random = Random(seed)
    key = random.choice(list(BIASED))
    rules: list[ExactNodeRule] = [rrs, kseq, _node(key)]
    random.shuffle(rules)
    return rules, key


def drawn(rule: ExactNodeRule, p: Dist, q: Dist, count: int, seed: int = 0) -> list[int]:
    """``[V]``: how often each token was the output of a verifier on ``count`` pairs of
    candidates."""
    rng = np.random.default_rng(seed)
    pairs = iid(q, 2)
    counts = np.zeros(len(p), int)
    for (tokens, _), times in zip(
        pairs, rng.multinomial(count, [float(chance) for _, chance in pairs]), strict=True
    ):
        accept, residual = rule(p, q, tokens)
        ends = [float(a) for a in accept]
        *kept, rejected = rng.multinomial(times, [*ends, max(0.0, 1 - sum(ends))])
        for x, n in zip(tokens, kept, strict=True):
            counts[x] += n
        if rejected:
            assert residual is not None
            counts += rng.multinomial(rejected, [float(a) for a in residual])
    return counts.tolist()


def pvalue(counts: Sequence[int], p: Dist) -> float:
    """The probability that draws from p, which has no zeros, fit p as badly as these counts ``[V]``
    do, by chi-square."""
    _check(p)
    if sum(counts) < 1:
        raise ArgumentError("nothing was counted")
    return float(stats.chisquare(counts, [sum(counts) * float(a) for a in p]).pvalue)


def power(p: Dist, out: Dist, count: int, alarm: float = ALARM) -> float:
    """The probability that a chi-square test of ``count`` tokens detects that they come from
    ``out`` and not from p, which has no zeros: that its p-value is below ``alarm``.

    ``n`` tokens from r have a chi-square that is noncentral with ``n sum (r - p)^2 / p``. If
    ``out`` is p, the result is ``alarm``.
    """
    freedom, critical = len(p) - 1, stats.chi2.isf(alarm, len(p) - 1)
    return float(stats.ncx2.sf(critical, freedom, count * _noncentrality(p, out)))


def needed(p: Dist, out: Dist, often: float = 0.8, alarm: float = ALARM) -> int:
    """The number of tokens with which a test detects ``out`` with a given power (:func:`power`); an
    ArgumentError if ``out`` is p, which no number detects."""
    of_a_token = _noncentrality(p, out)
    if not of_a_token:
        raise ArgumentError("what comes out is p: there is nothing to find")
    freedom, critical = len(p) - 1, stats.chi2.isf(alarm, len(p) - 1)
    enough = optimize.brentq(
        lambda nc: stats.ncx2.sf(critical, freedom, nc) - often, 1e-9, 100 * critical
    )
    return int(np.ceil(enough / of_a_token))


def _noncentrality(p: Dist, out: Dist) -> float:
    """``sum (r - p)^2 / p`` of the output r."""
    _check(p)
    return float(sum((b - a) ** 2 / a for a, b in zip(p, out, strict=True)))


def _check(p: Dist) -> None:
    if not all(a > 0 for a in p):
        raise ArgumentError("p must have no zeros: a single token where p is 0 says it all")
