"""``specwb.theory.decisions`` recovers what a rule does, and sees what is wrong with it."""

from __future__ import annotations

import re
from fractions import Fraction as F

import biased
import pytest
import torch
from driven import output_of

import specwb
from specwb.certificate import rules
from specwb.certificate.measure import NOTHING
from specwb.certificate.rules import check_rule
from specwb.rules import Block, NodeRule, Rejection
from specwb.theory import decisions
from specwb.theory import exact as E
from specwb.theory.decisions import UNSEEN
from specwb.theory.instances import models

MODELS = models(0, 2)
ONE, TWO, THREE = (tuple(range(-1, n)) for n in (1, 2, 3))  # chains


@pytest.fixture
def on_trees(monkeypatch):
    """:func:`check_rule` on those of its trees with the given parents, which gives up sooner. What
    is wrong on some trees is wrong on all."""

    def check(rule, parents):
        few = [row for row in rules.TREES if row[0] == parents]
        assert few
        monkeypatch.setattr(rules, "TREES", few)
        monkeypatch.setattr(decisions, "MAX_BOXES", 32)
        return check_rule(rule)

    return check


def test_of_a_wrong_rule_it_is_what_enumeration_gives() -> None:
    tree = (-1, 0, 0, 1)
    for seed in range(3):
        p, q = models(seed, 3, "dense")
        drawn = specwb.Scheme.WITHOUT_REPLACEMENT
        output = output_of(biased.ReplacementForgotten(), p, q, tree, drawn)
        enumerated = E.round_distribution(E.rrs, E.without_replacement, p, q, tree)
        assert E.tv(output, enumerated) < 1e-11
        assert E.tv(output, E.target_distribution(p, 3)) > 1e-3


def test_refusals() -> None:
    with pytest.raises(ValueError, match="LOSSY"):
        decisions.all_drafts(specwb.Scheme.ROOTS, specwb.Tree.chain(1), [MODELS])
    with pytest.raises(ValueError, match="one shape"):
        decisions.all_drafts(specwb.Scheme.IID, specwb.Tree.parents([[-1, 0], [-1, -1]]), [MODELS])
    with pytest.raises(ValueError, match="rule must be"):
        check_rule("nope")


def with_uniforms(change) -> type[NodeRule]:
    """Token rejection with changed uniforms."""

    class Changed(Rejection):
        def node(self, p, q, tokens, ok, u):
            return super().node(p, q, tokens, ok, change(u))

    return Changed


class Product(Block):
    def verify(self, draft, scores, u):
        return super().verify(draft, scores, u.cumprod(1))


class Sum(Rejection):
    """Right: the sum of two uniforms without its whole part is a uniform."""

    def uniforms(self, limits):
        return 2 * limits.depth

    def verify(self, draft, scores, u):
        return super().verify(draft, scores, (u[:, ::2] + u[:, 1::2]) % 1)


@pytest.mark.parametrize(
    ("rule", "parents"),
    [
        (Product, THREE),
        (Sum, TWO),
        (biased.OwnUniforms, ONE),
        # right: a uniform that is moved round a circle is one
        (with_uniforms(lambda u: (u + 0.37) % 1), THREE),
    ],
)
def test_a_rule_that_cannot_be_followed_neither_passes_nor_is_wrong(
    on_trees, rule, parents
) -> None:
    check = on_trees(rule, parents)
    assert check.verdict == NOTHING
    assert "raised" not in check.reason


def test_a_threshold_next_to_1_is_found() -> None:
    """A rule must not be asked at u = 1, which no uniform is."""
    close = 1 - 2e-8

    class Close(Rejection):
        def node(self, p, q, tokens, ok, u):
            assert bool(((u > 0) & (u < 1)).all())
            return torch.where(ok[:, 0] & (u[:, 0] < close), 0, -1), p

    half, one = [F(1, 2), F(1, 2)], [F(1), F(0)]
    output = output_of(Close(), lambda _: half, lambda _: one, ONE)
    first = sum(c for text, c in output.items() if text[0] == 0)
    assert abs(first - (close + (1 - close) / 2)) < 1e-12


@pytest.mark.parametrize("width", [0.01, 0.0001])
def test_a_stretch_of_the_uniform_is_found_or_within_the_bound(on_trees, width) -> None:
    """Whatever is tested with a uniform in the stretch is accepted. Random uniforms are asked about
    where the recovered decisions have the target's distribution, too."""
    rule = with_uniforms(lambda u: torch.where((u > 0.618) & (u < 0.618 + width), 1e-12, u))
    check = on_trees(rule, ONE)
    assert not check or width < UNSEEN
    assert "within a box" in check.reason or check.tv > 0.01


def test_rules_that_raise_or_give_no_distribution_fail() -> None:
    class Raises(Rejection):
        def node(self, p, q, tokens, ok, u):
            raise RuntimeError("no")

    class Negative(Rejection):
        def node(self, p, q, tokens, ok, u):
            return super().node(p, q, tokens, ok, u)[0], p - q

    assert "it raised RuntimeError: no" in check_rule(Raises).reason
    assert "no distribution" in check_rule(Negative).reason
    with pytest.raises(ValueError, match="names no schemes"):
        check_rule(NodeRule())
    assert "LOSSY" in check_rule("longest").reason


def test_a_rule_of_ones_own_by_name(call, refused, monkeypatch, tmp_path) -> None:
    (tmp_path / "mine.py").write_text(
        "from specwb.rules import Rejection\n"
        "class Right(Rejection):\n    name = 'right'\n"
        "class Wrong(Rejection):\n    name = 'wrong'\n"
        "    def node(self, p, q, tokens, ok, u):\n"
        "        return super().node(p, q, tokens, ok, u / 2)\n"
    )
    monkeypatch.chdir(tmp_path)
    code, out, _ = call("certify", "mine:Right")
    assert code == 0
    assert re.search(r"lossless in these \d\d instances", out)
    assert "narrower than 0.00061 may have been missed (confidence 1 - 2e-09" in out
    code, out, _ = call("certify", "mine:Wrong")
    assert code == 1
    assert re.search(r"biased: TV 0\.\d+; the text \[.*\] comes out with probability", out)
    assert "'Nothing'" in refused("certify", "mine:Nothing")
    assert "give no draw" in refused("certify", "mine:Right", "--draw", "top")
