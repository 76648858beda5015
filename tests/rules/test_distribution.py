"""``specwb.theory.distribution.distribution_of`` is the distribution that enumeration over
fractions gives.

``check_rule`` sees what is wrong with a rule that decodes, one of your own too.
"""

from __future__ import annotations

import math
import re
from fractions import Fraction as F

import biased
import pytest
import torch
from terminal import call, refused

import specwb
from specwb.rules import RRS, RULES, Block, NodeRule, Rejection, RRSw
from specwb.theory import exact as E
from specwb.theory.distribution import distribution_of
from specwb.theory.instances import models
from specwb.theory.production import check_rule, distance
from specwb.theory.wrong_rules import WRONG_RULES


def test_of_a_wrong_rule_it_is_what_enumeration_gives() -> None:
    tree = (-1, 0, 0, 1)
    for seed in range(3):
        p, q = models(seed, 3, "dense")
        output = distribution_of(WRONG_RULES["rrs_without_replacement"].rule, p, q, tree)
        enumerated = E.round_distribution(E.rrs, E.without_replacement, p, q, tree)
        assert distance(output, enumerated) < 1e-11
        assert distance(output, E.target_distribution(p, 3)) > 1e-3


def test_what_it_takes() -> None:
    p, q = [F(3, 4), F(1, 4)], torch.tensor([0.25, 0.75], dtype=torch.float64)
    output = distribution_of(Rejection, p, q, specwb.Tree.chain(1))
    assert distance(output, E.target_distribution(lambda prefix: p, 2)) < 1e-12
    assert distribution_of(Rejection(), lambda prefix: p, q.numpy(), (-1, 0)) == output


P, Q = [F(3, 4), F(1, 4)], [F(1, 4), F(3, 4)]


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (("coupled", P, Q, (-1, 0)), "exponential"),
        (("longest", P, Q, (-1, 0)), "LOSSY"),
        (("nope", P, Q, (-1, 0)), "rule"),
        ((RRS, P, Q, (-1, 0), specwb.Scheme.COUPLED), "rrs"),
        *(
            (("rejection", P, bad, (-1, 0)), "q must")
            for bad in ([0.5, 0.4], [1.5, -0.5], [float("nan"), 1.0], ["a", "b"])
        ),
        (("rejection", P, [F(1, 3)] * 3, (-1, 0)), "over 3"),
        (("rejection", P, Q, specwb.Tree.parents([[-1, 0], [-1, -1]])), "one shape"),
    ],
)
def test_what_is_refused(arguments, word) -> None:
    with pytest.raises(ValueError, match=word):
        distribution_of(*arguments)


class Product(Block):
    name = "product"

    def verify(self, draft, scores, u):
        return super().verify(draft, scores, u.cumprod(1))


def changed(base: type[NodeRule], name: str, before=None, after=None) -> type[NodeRule]:
    """A rule whose uniforms are changed by ``before(level, branched, ok, u)`` and its decision by
    ``after(level, branched, ok, choice, residual)``, the root's level being 1."""

    class Changed(base):  # type: ignore[valid-type, misc]
        def verify(self, draft, scores, u):
            self.at = [0, draft.tree.K > 1]
            return super().verify(draft, scores, u)

        def node(self, p, q, tokens, ok, u):
            self.at[0] += 1
            u = before(*self.at, ok, u) if before else u
            decision = super().node(p, q, tokens, ok, u)
            return after(*self.at, ok, *decision) if after else decision

    Changed.name = name
    return Changed


class Sum(Rejection):
    """Right: the sum of two uniforms without its whole part is a uniform."""

    def uniforms(self, limits):
        return 2 * limits.depth

    def verify(self, draft, scores, u):
        return super().verify(draft, scores, (u[:, ::2] + u[:, 1::2]) % 1)


class WrongThenOwn(Rejection):
    """One token is taken untested; of two the second has a uniform of its own."""

    def verify(self, draft, scores, u):
        own = torch.cat([u[:, :1], torch.rand_like(u[:, 1:])], 1)
        return super().verify(draft, scores, own if draft.tree.D > 1 else 0 * u)


def own_from(level: int):
    """Right, with uniforms of its own from a level on."""
    return lambda at, branched, ok, u: torch.rand_like(u) if at >= level else u


@pytest.mark.parametrize(
    "rule",
    [
        Product,
        Sum,
        WrongThenOwn,
        changed(Rejection, "own", own_from(1)),
        changed(Rejection, "own below", own_from(2)),
        # right: a uniform that is moved round a circle is one, and what follows the point of 40 u
        changed(Rejection, "shifted", lambda at, branched, ok, u: (u + 0.37) % 1),
        changed(Rejection, "fraction", lambda at, branched, ok, u: (40 * u) % 1),
    ],
    ids=lambda rule: rule.name or rule.__name__,
)
def test_what_cannot_be_followed_is_not_checked(rule) -> None:
    """It is neither passed nor said to be wrong."""
    check = check_rule(rule)
    assert (check.passed, check.wrong, check.failure) == (False, False, "")
    assert check.unchecked
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
    assert "NOT lossless" in str(check)


def test_what_exceeds_the_stretches_that_were_missed_is_wrong() -> None:
    """A candidate is taken untested where u is in (.9, .95): not all of these are found."""

    class Strip(Rejection):
        name = "strip"

        def node(self, p, q, tokens, ok, u):
            return super().node(p, q, tokens, ok, torch.where((u > 0.9) & (u < 0.95), 0, u))

    check = check_rule(Strip)
    assert 0.03 < check.worst <= 0.05
    assert "NOT lossless" in str(check)


@pytest.mark.parametrize("width", [0.01, 0.003, 0.001, 0.0001])
def test_a_stretch_of_the_uniform_is_found_or_within_the_bound(width) -> None:
    """Whatever is tested with a uniform in the stretch is accepted. Random uniforms are asked about
    where the recovered decisions have the target's distribution, too."""

    def stretched(at, branched, ok, u):
        return torch.where((u > 0.618) & (u < 0.618 + width), 1e-12, u)

    check = check_rule(changed(Rejection, "stretched", stretched))
    assert not check.passed or width < check.bound
    assert not (check.passed and width >= 0.001)
    assert "within a box" in check.unchecked
    assert "TV at most" not in str(check)


class NoFilters(Rejection):
    """Wrong: p has the temperature and not the filters."""

    def p(self, scores, node):
        plain = specwb.Sampling(scores.sampling.temperature)
        return plain.probabilities(scores.logits[torch.arange(len(node)), node])


def untested(level: int, in_branched: bool = False):
    """Wrong: the first child at a level is taken untested."""

    def after(at, branched, ok, choice, residual):
        wrong = at == level and branched >= in_branched
        return torch.where(ok[:, 0], 0, choice) if wrong else choice, residual

    return after


def third_sibling_below(at, branched, ok, u):
    """Wrong: it is taken untested."""
    return u * (torch.arange(u.shape[1]) != 2) if at > 1 and ok.shape[1] > 2 else u


def four_tokens_below(at, branched, ok, choice, residual):
    """Wrong: below the first level only the first four tokens can come after a rejection."""
    low = residual * (torch.arange(residual.shape[1]) < (4 if at > 1 else 99))
    return choice, torch.where((low.sum(1) > 0)[:, None], low, residual)


class FifthSibling(RRS):
    """Wrong: a fifth sibling is never taken, and not subtracted either."""

    def node(self, p, q, tokens, ok, u):
        few = ok & (torch.arange(ok.shape[1]) != 4) if ok.shape[1] > 4 else ok
        choice, residual = super().node(p, q, tokens, few, u)
        if ok.shape[1] > 4:
            choice = torch.where((choice < 0) & ok[:, 4] & (tokens[:, 4] == 5), 4, choice)
        return choice, residual


@pytest.mark.parametrize(
    "rule",
    [
        biased.RawTarget,
        biased.AllAtDepthFive,
        biased.FourthUntested,
        biased.FirstIds,
        NoFilters,
        FifthSibling,
        changed(Rejection, "sixth level", after=untested(6)),
        changed(RRSw, "below a branch", after=untested(3, True)),
        changed(RRSw, "third sibling below", third_sibling_below),
        changed(Rejection, "four tokens below", after=four_tokens_below),
    ],
    ids=lambda rule: rule.name or rule.__name__,
)
def test_wrong_at_a_temperature_deep_down_or_among_many_is_wrong(rule) -> None:
    check = check_rule(rule)
    assert check.worst > 1e-3
    assert "NOT lossless" in str(check)


def test_it_says_what_it_looked_at() -> None:
    check = check_rule(Rejection)
    assert check.lossless
    for part in ("IID, WITHOUT_REPLACEMENT; T = 1, T = 0.7", "2 tokens: 0.1.2, 0.1.2.3.4.5;"):
        assert part in check.coverage
    assert check.coverage in str(check)
    # 32,768 random uniforms: of a share of 6.1e-4 none is among them with probability exp(-20)
    assert check.bound == pytest.approx(1 - math.exp(-20 / 32768), abs=1e-9)
    assert "rejection: lossless (37 steps, TV at most 0.00061)" in str(check)
    assert "narrower than 0.00061 may be missed (confidence 1 - 2e-09 a step)" in str(check)


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
    with pytest.raises(ValueError, match="names no schemes"):
        check_rule(specwb.rules.NodeRule())


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
        "import specwb, torch\nfrom specwb.rules import Rejection\n"
        "class Own(Rejection):\n    name = 'own'\n"
        "    def node(self, p, q, tokens, ok, u):\n"
        "        return super().node(p, q, tokens, ok, torch.rand_like(u))\n"
        "class Right(Rejection):\n    name = 'right'\n"
        "class Wrong(Rejection):\n    name = 'wrong'\n"
        "    def node(self, p, q, tokens, ok, u):\n"
        "        return super().node(p, q, tokens, ok, u / 2)\n"
    )
    monkeypatch.chdir(tmp_path)
    code, out, _ = call(monkeypatch, capsys, "certify", "mine:Right")
    assert code == 0
    assert "lossless in these 37 instances" in out
    assert "narrower than 0.00061 may have been missed (confidence 1 - 2e-09" in out
    code, out, _ = call(monkeypatch, capsys, "certify", "mine:Wrong")
    assert code == 1
    assert re.search(r"biased: TV 0\.\d+; the text \[.*\] comes out with probability", out)
    code, out, _ = call(monkeypatch, capsys, "certify", "mine:Own")
    assert code == 1
    assert "no certificate: " in out
    assert "random numbers of its own" in out
    for bad, word in (("mine:Nothing", "'Nothing'"), ("none:Rule", "'none'")):
        assert word in refused(monkeypatch, capsys, "certify", bad)
    assert "give no draw" in refused(monkeypatch, capsys, "certify", "mine:Right", "--draw", "top")


@pytest.mark.slow
def test_a_lossy_rule_passes_as_what_it_says() -> None:
    check = check_rule("typical")
    assert check.passed
    assert not check.lossless
