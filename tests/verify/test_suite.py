"""``specwb verify`` passes what is right, and sees whatever is wrong with a rule, a closed form, a
mutant or a claim."""

from __future__ import annotations

from fractions import Fraction as F

import pytest
from terminal import call, refused

from specwb.flow import Exactness
from specwb.verify import RULES, suite
from specwb.verify import exact as E
from specwb.verify.mutants import MUTANTS, Counterexample, Mutant, residual_from_p
from specwb.verify.production import RuleCheck

QUICK = ("rejection", "top", "block")


NAMES = (*E.RULES, *E.TREE_RULES)


@pytest.mark.parametrize(
    "name", [pytest.param(x, marks=[] if x in QUICK else pytest.mark.slow) for x in NAMES]
)
def test_every_rule_is_lossless_and_its_mutants_are_refuted(name) -> None:
    """Over fractions and as it decodes: at one node and over whole rounds the output is the
    target's, lengths are their closed forms, acceptance is below the optimum."""
    seen: list[float] = []
    report = suite.run(progress=lambda done, _: seen.append(done), rules=[name])
    (line,) = report.rules
    assert report.right, suite.notes(report)
    assert (line.worst, line.above, line.unequal) == (0, 0, 0)
    assert line.production is not None
    assert line.production.worst < 1e-9
    assert line.killed == line.mutants == len(report.mutants)
    assert (line.of_optimum == 1) is (name in ("rejection", "top", "point"))
    # two models over each of the 64 trees, or of the few that fit
    assert line.cases > (400 if name in E.RULES and name != "rejection" else 10)
    assert not any(word in str(suite.cells(report)) for word in ("WRONG", "unfinished"))
    assert seen == sorted(seen)
    assert seen[0] == 0 < seen[-1] < 1


def test_more_trees_when_asked() -> None:
    texts: list[str] = []
    assert suite.run(True, lambda done, text: texts.append(text), ["block"]).right
    assert any("6 nodes" in text for text in texts)


def test_every_mutant_names_a_rule_and_every_node_rule_has_one() -> None:
    assert {m.original for m in MUTANTS} == set(E.RULES)
    assert {m.original for m in suite.TREE_MUTANTS} <= {*E.RULES, *E.TREE_RULES}
    lossless = {name for name, rule in RULES.items() if rule.exactness is Exactness.LOSSLESS}
    assert lossless == {*E.RULES, *E.TREE_RULES}


def test_claims_are_refuted() -> None:
    claims = suite.claims()
    assert len(claims) == 8
    assert not any(claim.holds for claim in claims)
    assert {"accepted 10/9 and 11/9", "TV 1/9, accepted 4/3 where 11/9 is the most"} <= {
        claim.outcome for claim in claims
    }


CERTAIN = ([F(1)], None)
UNDER_TEST = {
    "wrong": residual_from_p,
    "no bonus token": lambda p, q, tokens: (E.rejection(p, q, tokens)[0], None),
    "above the optimum": lambda p, q, tokens: CERTAIN if tokens else ([], list(p)),
}


@pytest.mark.parametrize("kind", UNDER_TEST)
def test_a_wrong_rule_is_an_error(kind, monkeypatch, capsys) -> None:
    monkeypatch.setitem(E.RULES, "rejection", UNDER_TEST[kind])
    monkeypatch.setattr(suite, "check_rule", lambda rule: RuleCheck("", (), rounds=1))
    code, out, _ = call(monkeypatch, capsys, "verify", "--rule", "rejection")
    assert code == 1
    assert "WRONG" in out
    assert ("rejection failed at" in out) is (kind == "no bonus token")
    (line,) = suite.run(rules=["rejection"]).rules
    assert (line.above > 0) is (kind != "no bonus token")


@pytest.mark.parametrize("check", [RuleCheck("", (), rounds=1, worst=0.1), RuleCheck("", ())])
def test_a_wrong_or_unchecked_rule_that_decodes_is_seen(check, monkeypatch) -> None:
    monkeypatch.setattr(suite, "check_rule", lambda rule: check)
    assert not suite.run(rules=["rejection"]).right


def test_a_wrong_closed_form_is_seen(monkeypatch) -> None:
    monkeypatch.setattr(suite, "check_rule", lambda rule: RuleCheck("", (), rounds=1))
    monkeypatch.setitem(E.CHILD_TABLES, ("top", "TOP_AND_SAMPLE"), E.CHILD_TABLES["point", "POINT"])
    (line,) = suite.run(rules=["top"]).rules
    assert (line.unequal > 0, line.worst, line.right) == (True, 0, False)


def test_a_mutant_that_survives_is_seen(monkeypatch) -> None:
    monkeypatch.setattr(suite, "check_rule", lambda rule: RuleCheck("", (), rounds=1))
    none = Mutant("none", E.top_rule, E.top_and_sample, 2, "nothing", "top")
    monkeypatch.setattr(suite, "MUTANTS", (*MUTANTS, none))
    report = suite.run(rules=["top"])
    assert (report.rules[0].killed, report.rules[0].mutants) == (1, 2)
    assert not report.right


def test_a_claim_that_holds_is_seen(monkeypatch) -> None:
    half = (F(1, 2), F(1, 2))
    monkeypatch.setattr(
        suite,
        "COUNTEREXAMPLES",
        (Counterexample("true", "rejection is lossless", E.rejection, E.iid, half, half, 1),),
    )
    assert suite.claims()[0].holds
    assert not suite.Report(claims=suite.claims()).right


def test_interrupted(monkeypatch, capsys) -> None:
    real = suite._round

    def stop(*arguments) -> None:
        real(*arguments)
        raise KeyboardInterrupt

    monkeypatch.setattr(suite, "_round", stop)
    monkeypatch.setattr(suite, "check_rule", lambda rule: RuleCheck("", (), rounds=1))
    code, out, _ = call(monkeypatch, capsys, "verify", "--full", "--rule", "block", "--rule", "gbv")
    assert code == 130
    assert "unfinished" in out
    assert "interrupted" in out
    assert "gbv" not in out.split("wrong rule")[0]


@pytest.mark.parametrize("rule", ["nope", "no:Rule"])
def test_bad_input_is_one_line(monkeypatch, capsys, rule) -> None:
    err = refused(monkeypatch, capsys, "verify", "--rule", rule)
    assert f"'{rule.partition(':')[0]}'" in err
