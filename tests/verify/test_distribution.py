"""``specwb.verify.distribution_of`` is the distribution that enumeration over fractions gives.

``check_rule`` sees what is wrong with a rule that decodes, one of your own too.
"""

from __future__ import annotations

from fractions import Fraction as F

import pytest
import torch
from terminal import call

import specwb
from specwb.verify import RRS, RULES, Block, Rejection, RRSw, check_rule, distribution_of, suite
from specwb.verify import exact as E
from specwb.verify.controls import CONTROLS, AcceptAlways, ReplacementForgotten
from specwb.verify.instances import models
from specwb.verify.production import distance

CHAIN, FORK = (-1, 0, 1), (-1, 0, 0, 1, 2)
# a wrong rule, and its twin over fractions: both have the same distribution, which is not the
# target's
WRONG = [(ReplacementForgotten, E.rrs, E.without_replacement, specwb.Scheme.WITHOUT_REPLACEMENT)]


class AlwaysFirst(specwb.verify.NodeRule):
    """A rule of a user's own, which accepts what was drafted."""

    name = "always_first"
    schemes = frozenset({specwb.Scheme.IID})

    def node(self, p, q, tokens, ok, u):
        return torch.where(ok[:, 0], 0, -1), p


@pytest.mark.parametrize(
    ("name", "scheme", "parents", "v"),
    [
        ("rejection", "IID", CHAIN, 3),
        ("rrsw", "WITHOUT_REPLACEMENT", (-1, 0, 0, 1, 1), 3),
        ("top", "TOP_AND_SAMPLE", (-1, 0, 0, 1), 3),
        ("point", "POINT", (-1, 0, 0, 1), 3),
        ("kseq", "IID", (-1, 0, 0), 3),
        ("block", "IID", CHAIN, 3),
        ("traversal", "WITHOUT_REPLACEMENT", (-1, 0, 0, 1, 1), 2),
        ("gbv", "IID_PATHS", FORK, 2),
        ("rrs", "IID_PATHS", FORK, 2),
    ],
)
def test_it_is_the_targets_distribution(name, scheme, parents, v) -> None:
    for kind in ("any", "dense"):
        p, q = models(1, v, kind)
        output = distribution_of(name, p, q, parents, specwb.Scheme[scheme])
        length = max(E.depths(parents)) + 1
        assert all(len(text) == length for text in output)
        assert distance(output, E.target_distribution(p, length)) < 1e-11


@pytest.mark.parametrize(("rule", "exact", "drawing", "scheme"), WRONG)
def test_of_a_wrong_rule_it_is_what_enumeration_gives(rule, exact, drawing, scheme) -> None:
    for seed in range(3):
        p, q = models(seed, 3, "dense")
        output = distribution_of(rule, p, q, (-1, 0, 0, 1), scheme)
        assert distance(output, E.round_distribution(exact, drawing, p, q, (-1, 0, 0, 1))) < 1e-11
        assert distance(output, E.target_distribution(p, 3)) > 1e-3


def test_what_it_takes() -> None:
    p, q = [F(3, 4), F(1, 4)], torch.tensor([0.25, 0.75], dtype=torch.float64)
    output = distribution_of(Rejection, p, q, specwb.Tree.chain(1))
    assert distance(output, E.target_distribution(lambda prefix: p, 2)) < 1e-12
    assert distribution_of(Rejection(), lambda prefix: p, q.numpy(), (-1, 0)) == output
    for rule, scheme, message in [
        ("coupled", None, "coupled.*exponential"),
        ("longest", None, "longest.*LOSSY by design"),
        ("nope", None, "rule must be"),
        (RRS, specwb.Scheme.COUPLED, "made for|lossless for"),
    ]:
        with pytest.raises(ValueError, match=message):
            distribution_of(rule, p, q, (-1, 0), scheme)
    for bad in ([0.5, 0.4], [1.5, -0.5], [float("nan"), 1.0], ["a", "b"]):
        with pytest.raises(ValueError, match="q must be a distribution"):
            distribution_of("rejection", p, bad, (-1, 0))
    with pytest.raises(ValueError, match="2 tokens and q over 3"):
        distribution_of("rejection", p, [F(1, 3)] * 3, (-1, 0))


class Product(Block):
    name = "product"

    def verify(self, draft, scores, u):
        return super().verify(draft, scores, u.cumprod(1))


def test_a_rule_that_multiplies_uniforms_is_refused_and_not_computed_wrongly() -> None:
    with pytest.raises(ValueError, match="compare single uniforms with thresholds"):
        distribution_of(Product, *models(0, 3, "dense"), CHAIN)


class OwnUniforms(Rejection):
    """Right, with uniforms of its own."""

    name = "own_uniforms"

    def node(self, p, q, tokens, ok, u):
        return super().node(p, q, tokens, ok, torch.rand_like(u))


class OwnBelow(Rejection):
    """Right, with uniforms of its own from the second token on."""

    def verify(self, draft, scores, u):
        own = torch.cat([u[:, :1], torch.rand_like(u[:, 1:])], 1)
        return super().verify(draft, scores, own)


class Sum(Rejection):
    """Right: the sum of two uniforms without its whole part is a uniform."""

    def uniforms(self, limits):
        return 2 * limits.depth

    def verify(self, draft, scores, u):
        return super().verify(draft, scores, (u[:, ::2] + u[:, 1::2]) % 1)


class Shifted(Rejection):
    """Right: a uniform that is moved round a circle is one. An acceptance is a stretch between two
    rejections, or the other way round."""

    name = "shifted"

    def node(self, p, q, tokens, ok, u):
        return super().node(p, q, tokens, ok, (u + 0.37) % 1)


class Fraction40(Rejection):
    """Right: so is what follows the point of a multiple."""

    name = "fraction_40"

    def node(self, p, q, tokens, ok, u):
        return super().node(p, q, tokens, ok, (40 * u) % 1)


class WrongThenOwn(OwnBelow):
    """One token is taken untested; of two the second has a uniform of its own."""

    name = "wrong_then_own"

    def verify(self, draft, scores, u):
        return super().verify(draft, scores, u if draft.tree.D > 1 else 0 * u)


@pytest.mark.parametrize(
    "rule", [OwnUniforms, OwnBelow, Sum, Product, Shifted, Fraction40, WrongThenOwn]
)
def test_what_cannot_be_followed_is_not_checked(rule) -> None:
    """It is neither passed nor said to be wrong."""
    check = check_rule(rule)
    assert (check.passed, check.wrong, check.failure) == (False, False, "")
    assert ": not checked (" in str(check)
    assert "NOT lossless" not in str(check)


def test_a_threshold_next_to_1_is_found() -> None:
    """A rule must not be asked at u = 1, which no uniform is."""
    close = 1 - 2e-8

    class Close(Rejection):
        def node(self, p, q, tokens, ok, u):
            assert bool(((u > 0) & (u < 1)).all())
            return torch.where(ok[:, 0] & (u[:, 0] < close), 0, -1), p

    half = [F(1, 2), F(1, 2)]
    output = distribution_of(Close, half, [F(1), F(0)], (-1, 0))
    first = sum(c for text, c in output.items() if text[0] == 0)
    assert abs(first - (close + (1 - close) / 2)) < 1e-12


def test_what_is_wrong_and_can_be_followed_is_wrong() -> None:
    """A rule that goes too far to be followed, and is wrong before it does."""

    class Half(Product):
        def verify(self, draft, scores, u):
            return super().verify(draft, scores, u / 2)

    check = check_rule(Half)
    assert check.wrong
    assert check.unchecked
    assert "NOT lossless in what could be followed" in str(check)


def test_what_exceeds_the_stretches_that_were_missed_is_wrong() -> None:
    """A candidate is taken untested where u is in (.9, .95): not all of these are found."""

    class Strip(Rejection):
        name = "strip"

        def node(self, p, q, tokens, ok, u):
            return super().node(p, q, tokens, ok, torch.where((u > 0.9) & (u < 0.95), 0, u))

    check = check_rule(Strip)
    assert 0.03 < check.worst <= 0.05
    assert "NOT lossless" in str(check)


class NoTemperature(Rejection):
    """Wrong: p is the softmax of the logits, whatever temperature there is."""

    def p(self, scores, node):
        return scores.logits[torch.arange(len(node)), node].softmax(-1)


class NoFilters(NoTemperature):
    """Wrong: p has the temperature and not the filters."""

    def p(self, scores, node):
        plain = specwb.Sampling(scores.sampling.temperature)
        return plain.probabilities(scores.logits[torch.arange(len(node)), node])


class FifthLevel(Rejection):
    """Wrong: the fifth token is taken untested."""

    def verify(self, draft, scores, u):
        self.level = 0
        return super().verify(draft, scores, u)

    def node(self, p, q, tokens, ok, u):
        self.level += 1
        choice, residual = super().node(p, q, tokens, ok, u)
        return (
            (torch.where(ok[:, 0], 0, choice), residual) if self.level == 5 else (choice, residual)
        )


class SixthLevel(FifthLevel):
    """Wrong: the sixth token is taken untested."""

    def verify(self, draft, scores, u):
        self.level = -1
        return Rejection.verify(self, draft, scores, u)


class FourthSibling(RRSw):
    """Wrong: the fourth sibling is taken untested."""

    def node(self, p, q, tokens, ok, u):
        return super().node(p, q, tokens, ok, u * (torch.arange(u.shape[1]) != 3))


class FifthSibling(RRS):
    """Wrong: a fifth sibling is never taken, and not subtracted either."""

    def node(self, p, q, tokens, ok, u):
        few = ok & (torch.arange(ok.shape[1]) != 4) if ok.shape[1] > 4 else ok
        choice, residual = super().node(p, q, tokens, few, u)
        if ok.shape[1] > 4:
            choice = torch.where((choice < 0) & ok[:, 4] & (tokens[:, 4] == 5), 4, choice)
        return choice, residual


class FourTokens(Rejection):
    """Wrong: after a rejection only the first four tokens can come."""

    def node(self, p, q, tokens, ok, u):
        choice, residual = super().node(p, q, tokens, ok, u)
        low = residual * (torch.arange(residual.shape[1]) < 4)
        return choice, torch.where((low.sum(1) > 0)[:, None], low, residual)


class BelowABranch(RRSw):
    """Wrong: behind two tokens of a tree that branched the third is taken untested."""

    def verify(self, draft, scores, u):
        self.level, self.branched = 0, draft.tree.K > 1
        return super().verify(draft, scores, u)

    def node(self, p, q, tokens, ok, u):
        self.level += 1
        choice, residual = super().node(p, q, tokens, ok, u)
        if self.branched and self.level == 3:
            choice = torch.where(ok[:, 0], 0, choice)
        return choice, residual


class ThirdBelow(BelowABranch):
    """Wrong: of three siblings below the root the third is taken untested."""

    def node(self, p, q, tokens, ok, u):
        self.level += 1
        below = self.level > 1 and ok.shape[1] > 2
        return RRSw.node(
            self, p, q, tokens, ok, u * (torch.arange(u.shape[1]) != 2) if below else u
        )


class FourTokensBelow(FourTokens):
    """Wrong: after a rejection of a second token only the first four tokens can come."""

    def verify(self, draft, scores, u):
        self.level = 0
        return super().verify(draft, scores, u)

    def node(self, p, q, tokens, ok, u):
        self.level += 1
        at_root = self.level == 1
        return (super(FourTokens, self) if at_root else super()).node(p, q, tokens, ok, u)


@pytest.mark.parametrize(
    "rule",
    [
        NoTemperature,
        NoFilters,
        FifthLevel,
        SixthLevel,
        FourthSibling,
        FifthSibling,
        FourTokens,
        BelowABranch,
        ThirdBelow,
        FourTokensBelow,
    ],
)
def test_wrong_at_a_temperature_deep_down_or_among_many_is_wrong(rule) -> None:
    rule.name = rule.__name__
    check = check_rule(rule)
    assert check.worst > 1e-3
    assert "NOT lossless" in str(check)


def test_it_says_what_it_looked_at() -> None:
    check = check_rule(Rejection)
    assert check.coverage == (
        "IID, WITHOUT_REPLACEMENT; T = 1, T = 0.7, T = 0.7 with top_k and top_p; "
        "2 tokens: 0.1.2, 0.1.2.3.4.5; 3 tokens: 0.1; 4 tokens: 0; 6 tokens: 0, 0.1"
    )
    assert f"lossless ({check.rounds} rounds" in str(check)
    assert check.coverage in str(check)
    assert "4 tokens: 0, 0.1.1.1; 6 tokens: 0, 0.1, 0.0.0.0.0" in check_rule(RRS).coverage


@pytest.mark.parametrize("control", CONTROLS, ids=lambda control: control.name)
def test_wrong_rules_that_decode_are_told_apart(control) -> None:
    check = check_rule(control.rule)
    assert not check.passed
    assert check.worst > 0.01
    assert "NOT lossless" in str(check)


def test_a_rule_that_is_wrong_where_it_leaves_out_work_is_seen() -> None:
    class Careless(Rejection):
        def node(self, p, q, tokens, ok, u):
            choice, residual = super().node(p, q, tokens, ok, u)
            return choice, p if self.lazy else residual

    check = check_rule(Careless)
    assert check.worst < 1e-9
    assert check.host
    assert not check.passed


def test_rules_that_raise_or_give_no_distribution_fail() -> None:
    class Raises(Rejection):
        def node(self, p, q, tokens, ok, u):
            raise RuntimeError("no")

    class Negative(Rejection):
        def node(self, p, q, tokens, ok, u):
            return super().node(p, q, tokens, ok, u)[0], p - q

    assert "RuntimeError: no" in check_rule(Raises).failure
    assert "no distribution" in check_rule(Negative).failure
    with pytest.raises(ValueError, match="names no laws"):
        check_rule(specwb.verify.NodeRule())


def test_the_rules_that_decode_are_what_the_suite_runs(monkeypatch) -> None:
    """Where the rule that decodes is wrong and its twin over fractions is right, the suite
    fails."""
    monkeypatch.setattr(Rejection, "node", AcceptAlways.node)
    report = suite.run(rules=["rejection"])
    assert report.rules[0].worst == 0
    assert not report.right
    assert "SOMETHING IS WRONG" in suite.notes(report)[-1]


def test_coupled_is_sampled(monkeypatch) -> None:
    check = check_rule("coupled")
    assert check.passed
    assert check.pvalue is not None

    def squared(self, draft, scores, u=None):
        race = draft.race.square()  # no exponential variables any more
        return real(
            self,
            specwb.Draft(draft.tree, draft.tokens, draft.valid, draft.scheme, race=race),
            scores,
            u,
        )

    real = RULES["coupled"].verify
    monkeypatch.setattr(RULES["coupled"], "verify", squared)
    assert not check_rule("coupled").passed


def test_a_rule_of_ones_own_by_name(monkeypatch, capsys, tmp_path) -> None:
    (tmp_path / "mine.py").write_text(
        "import specwb, torch\nfrom specwb.verify import Rejection, RRSw\n"
        "class Own(Rejection):\n    name = 'own'\n"
        "    def node(self, p, q, tokens, ok, u):\n"
        "        return super().node(p, q, tokens, ok, torch.rand_like(u))\n"
        "class Right(RRSw):\n    name = 'right'\n"
        "class Wrong(RRSw):\n    name = 'wrong'\n"
        "    def node(self, p, q, tokens, ok, u):\n"
        "        return super().node(p, q, tokens, ok, u / 2)\n"
    )
    monkeypatch.chdir(tmp_path)
    assert call(monkeypatch, capsys, "verify", "--rule", "mine:Right")[0] == 0
    code, out, _ = call(monkeypatch, capsys, "verify", "--rule", "mine:Wrong")
    assert code == 1
    assert "wrong: NOT lossless" in out
    code, out, _ = call(monkeypatch, capsys, "verify", "--rule", "mine:Own")
    assert code == 1
    assert "own: not checked" in out
    assert "NOT EVERYTHING COULD BE CHECKED" in out
    assert "random numbers of its own" in out
    for bad, message in (("mine:Nothing", "must be a Rule"), ("none:Rule", "cannot import 'none'")):
        code, out, err = call(monkeypatch, capsys, "verify", "--rule", bad)
        assert (code, out) == (2, "")
        assert message in err
        assert err.count("\n") == 1


def test_a_subclass_of_a_right_rule_passes() -> None:
    class Mine(RRSw):
        name = "mine"

    assert check_rule(Mine()).lossless
    check = check_rule("typical")
    assert check.passed
    assert not check.lossless
