"""``specwb verify`` passes what is right, and sees whatever is wrong with a rule, a closed form, a
mutant or a claim."""

from __future__ import annotations

from fractions import Fraction as F

import pytest
from terminal import call

from specwb.flow import Exactness
from specwb.verify import RULES, suite
from specwb.verify import exact as E
from specwb.verify.mutants import MUTANTS, Counterexample, Mutant, residual_from_p


def test_rules_of_nodes_and_of_trees() -> None:
    seen: list[float] = []
    report = suite.run(progress=lambda done, text: seen.append(done), rules=["top", "gbv"])
    top, gbv = report.rules
    assert report.right
    assert (top.rule, top.schemes, gbv.rule, gbv.schemes) == (
        "top",
        ("TOP_AND_SAMPLE",),
        "gbv",
        ("IID",),
    )
    assert top.cases >= 3 * 100 + 2 * 64  # two models over each of the 64 trees
    assert top.of_optimum == 1
    assert gbv.of_optimum is None
    assert min(top.lengths, gbv.lengths, gbv.cases) > 20
    assert [(m.name, m.original) for m in report.mutants] == [
        ("whole_q", "top"),
        ("gbv_other_ties", "gbv"),
    ]
    assert seen == sorted(seen)
    assert seen[0] == 0 < seen[-1] < 1
    assert not report.claims


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


def test_a_wrong_rule_is_an_error(monkeypatch, capsys) -> None:
    monkeypatch.setitem(E.RULES, "rejection", residual_from_p)
    code, out, _ = call(monkeypatch, capsys, "verify", "--rule", "rejection")
    assert code == 1
    assert "WRONG" in out
    assert "SOMETHING IS WRONG" in out


def test_a_rule_that_fails_is_wrong(monkeypatch, capsys) -> None:
    monkeypatch.setitem(
        E.RULES, "rejection", lambda p, q, tokens: (E.rejection(p, q, tokens)[0], None)
    )
    code, out, _ = call(monkeypatch, capsys, "verify", "--rule", "rejection")
    assert code == 1
    assert "rejection failed at rejection: 1 nodes, IID: the rule leaves probability" in out


def test_a_rule_that_accepts_too_much_is_seen(monkeypatch) -> None:
    """A rule that takes the child for certain is not lossless, and above the optimum."""
    monkeypatch.setitem(
        E.RULES,
        "rejection",
        lambda p, q, tokens: ([F(1)] * len(tokens), None if tokens else list(p)),
    )
    (line,) = suite.run(rules=["rejection"]).rules
    assert line.above > 0
    assert line.worst > 0


def test_a_wrong_closed_form_is_seen(monkeypatch) -> None:
    monkeypatch.setitem(E.CHILD_TABLES, ("top", "TOP_AND_SAMPLE"), E.CHILD_TABLES["point", "POINT"])
    (line,) = suite.run(rules=["top"]).rules
    assert line.unequal > 0
    assert line.worst == 0
    assert not line.right


def test_a_mutant_that_survives_is_seen(monkeypatch) -> None:
    monkeypatch.setattr(
        suite,
        "MUTANTS",
        (*MUTANTS, Mutant("none", E.top_rule, E.top_and_sample, 2, "nothing", "top")),
    )
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
    code, out, _ = call(monkeypatch, capsys, "verify", "--full", "--rule", "block", "--rule", "gbv")
    assert code == 130
    assert "unfinished" in out
    assert "interrupted" in out
    assert "gbv" not in out.split("wrong rule")[0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--rule", "nope"], "unknown rule 'nope'; the suite has rejection"),
        (["--rule", "no:Rule"], "cannot import 'no'"),
    ],
)
def test_bad_input_is_one_line(monkeypatch, capsys, options, message) -> None:
    code, out, err = call(monkeypatch, capsys, "verify", *options)
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1
