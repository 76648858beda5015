"""Three verifiers, one of them biased: which, and after how many tokens it is noticed."""

from __future__ import annotations

from fractions import Fraction

import pytest

from specwb.theory import exact
from specwb.theory import suspects as S

P, Q = exact.norm([4, 3, 2, 1]), exact.norm([1, 2, 3, 4])


def output(rule: exact.ExactNodeRule) -> list[Fraction]:
    return exact.output_distribution(rule, exact.iid, P, Q, 2)


def test_exactly_one_is_biased_and_it_is_the_one_that_is_named():
    for seed in range(6):
        verifiers = S.suspects(seed)
        name, wrong = S.culprit(seed)
        assert [x for x, rule in verifiers.items() if output(rule) != P] == [name]
        assert wrong in {x.wrong for x in S.BIASED.values()}
    assert {S.culprit(seed)[0] for seed in range(60)} == {"A", "B", "C"}


def test_power_is_how_often_the_bias_is_found():
    rule = S.BIASED["race_against_q"].node
    out = output(rule)
    assert S.pvalue(S.drawn(rule, P, Q, 40_000, seed=3), out) > 1e-4
    found = [S.pvalue(S.drawn(rule, P, Q, 600, seed), P) < S.ALARM for seed in range(400)]
    assert sum(found) / 400 == pytest.approx(S.power(P, out, 600), abs=0.08)
    assert S.power(P, P, 600) == pytest.approx(S.ALARM)
    enough = S.needed(P, out)
    assert S.power(P, out, enough) >= 0.8 > S.power(P, out, enough - 5)


def test_refusals():
    p = [Fraction(1), Fraction(0)]
    for call, word in (
        (lambda: S.power(p, p, 10), "no zeros"),
        (lambda: S.needed(P, P), "nothing to find"),
        (lambda: S.pvalue([0] * 4, P), "nothing was counted"),
    ):
        with pytest.raises(ValueError, match=word):
            call()
