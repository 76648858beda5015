"""Three verifiers, one of them biased: which, and after how many tokens it is noticed."""

from __future__ import annotations

from fractions import Fraction

import pytest

from specwb.theory import exact
from specwb.theory import suspects as S

P, Q = exact.norm([4, 3, 2, 1]), exact.norm([1, 2, 3, 4])


@pytest.mark.parametrize("seed", range(6))
def test_exactly_one_is_biased_and_it_is_the_one_that_is_named(seed):
    found = S.suspects(seed)
    assert list(found) == ["A", "B", "C"]
    biased = [name for name, rule in found.items() if S.output(rule, P, Q) != P]
    name, wrong = S.culprit(seed)
    assert biased == [name]
    assert wrong
    assert str(found[name]) == f"Suspect(name='{name}')"  # and does not say what it is


def test_every_bias_is_somebodys_and_none_is_told_by_what_is_accepted():
    named = {S.culprit(seed) for seed in range(60)}
    assert {wrong for _, wrong in named} == {m.wrong for m in S.BIASED.values()}
    assert {name for name, _ in named} == {"A", "B", "C"}
    right = [exact.acceptance(exact.RULES[n], exact.iid, P, Q, 2) for n in ("rrs", "kseq")]
    for mutant in S.BIASED.values():
        accepted = exact.acceptance(mutant.node, exact.iid, P, Q, 2)
        assert min(right) - Fraction(1, 100) < accepted < max(right) + Fraction(1, 100)


def test_what_is_drawn_has_the_enumerated_distribution():
    for rule in S.suspects(5).values():
        counts = S.drawn(rule, P, Q, 40_000, seed=3)
        assert sum(counts) == 40_000
        assert S.pvalue(counts, S.output(rule, P, Q)) > 1e-4
    assert S.drawn(exact.rrs, P, Q, 500, 7) == S.drawn(exact.rrs, P, Q, 500, 7)


def test_the_power_is_how_often_it_is_found():
    rule = S.BIASED["race_against_q"].node
    out = S.output(rule, P, Q)
    found = [S.pvalue(S.drawn(rule, P, Q, 600, seed), P) < S.ALARM for seed in range(400)]
    assert sum(found) / 400 == pytest.approx(S.power(P, out, 600), abs=0.08)
    assert S.power(P, P, 600) == pytest.approx(S.ALARM)
    enough = S.needed(P, out)
    assert S.power(P, out, enough) >= 0.8 > S.power(P, out, enough - 5)


def test_what_cannot_be_asked():
    p = [Fraction(1), Fraction(0)]
    for ask in (lambda: S.pvalue([1, 0], p), lambda: S.power(p, p, 10), lambda: S.needed(p, p)):
        with pytest.raises(ValueError, match="no zeros"):
            ask()
    with pytest.raises(ValueError, match="nothing to find"):
        S.needed(P, P)
    with pytest.raises(ValueError, match="nothing was counted"):
        S.pvalue([0] * 4, P)
