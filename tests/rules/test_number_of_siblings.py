"""A number of candidates that follows the draws: which rules are lossless for it, and that the
others refuse it."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction as F

import pytest
import tiny
import torch

import specwb
from specwb.core.flow import RuleMismatch
from specwb.drafters.level import LevelDrafter
from specwb.rules import RULES
from specwb.theory import exact as E

FORK = (-1, 0, 0)
HALF = F(1, 2)
# p, q
RACE = (HALF, HALF), (F(3, 4), F(1, 4))
KSEQ = (F(0), F(1, 3), F(2, 3)), (F(1, 3), F(0), F(2, 3))


def if_unlikely(q):
    """A second sibling only where q of the first is below 1/2."""
    return lambda paths: [*paths[:2], paths[2] if q[paths[1][-1]] < HALF else None]


def first_token(outcomes, p):
    """The distribution of the first token."""
    texts = E.completed(outcomes, lambda prefix: p, 2)
    return [sum(c for text, c in texts.items() if text[0] == x) for x in range(len(p))]


@pytest.mark.parametrize(("p", "q"), [RACE, KSEQ])
def test_node_rules_under_a_number_that_follows_the_draws(p, q) -> None:
    def output(name: str, scheme=E.iid) -> list[F]:
        arguments = lambda prefix: p, lambda prefix: q, FORK, if_unlikely(q)
        return first_token(E.walks(E.RULES[name], scheme, *arguments), p)

    for name in ("rrs", "rrsw", "point", "naive"):
        assert output(name) == list(p)
    assert output("rrsw", E.without_replacement) == list(p)
    if (p, q) == RACE:
        assert output("race") == [F(15, 28), F(13, 28)]
    else:
        assert output("race") == [0, F(1, 6), F(5, 6)]
        assert float(E.tv(output("kseq"), p)) == pytest.approx(0.141, abs=5e-4)
        assert [round(float(x), 4) for x in output("kseq")] == [0, 0.1924, 0.8076]


def test_rules_for_trees_under_a_number_that_follows_the_draws() -> None:
    p, q = RACE
    models = lambda prefix: p, lambda prefix: q

    def output(tests):
        def changed(target, draft, parents, paths):
            return tests(target, draft, parents, if_unlikely(q)(paths))

        return first_token(E.decided(changed)("IID", *models, FORK), p)

    assert output(E.traversal_tests) == list(p)
    assert output(E.gbv_tests) == [F(2, 3), F(1, 3)]


# ----------------------------------------------------------------------------- what is refused


class Cut(LevelDrafter):
    """Leaves out nodes; how is up to ``left``."""

    def propose(self, state, noise):
        draft = super().propose(state, noise)
        return replace(draft, valid=draft.valid & ~self.left(draft, state))

    def second(self, draft, rows):
        """The second sibling below the root, in some rows."""
        left = torch.zeros_like(draft.valid)
        left[:, 2] = rows
        return left


class Second(Cut):
    """A second sibling only where the first is not likely."""

    def left(self, draft, state):
        return self.second(draft, draft.q[:, 0].gather(1, draft.tokens[:, 1:2])[:, 0] >= 0.05)


class InSomeRows(Cut):
    def left(self, draft, state):
        return self.second(draft, torch.arange(len(draft.valid)) > 0)


class Whole(Cut):
    """The second level is left out whole where the first drafted something unlikely."""

    def left(self, draft, state):
        left = torch.zeros_like(draft.valid)
        left[:, 3:] = (draft.tokens[:, 1:3] % 2 > 0).any(1, keepdim=True)
        return left


def decoded(drafter, rule: str, tree=(2, 1), draw: str = "with", **settings):
    own = drafter(tiny.draft(noise=0.05), specwb.Tree.branching(*tree), draw)
    method = specwb.Method("own", own, RULES[rule](), specwb.Exactness.LOSSLESS)
    how = {"max_new_tokens": 12, "seed": 1, "eos": (), "temperature": 1.0, **settings}
    return specwb.decode(tiny.target(), tiny.PROMPTS, method, **how)


NEEDS = ["kseq", "race", "gbv"]


def test_which_rules_need_a_fixed_number() -> None:
    assert {name for name, rule in RULES.items() if rule.fixed_number} == {*NEEDS}


@pytest.mark.parametrize("rule", NEEDS)
def test_some_but_not_all_siblings_are_refused(rule) -> None:
    with pytest.raises(RuleMismatch, match=rule):
        decoded(InSomeRows, rule)
    if rule in ("kseq", "race"):
        with pytest.raises(RuleMismatch, match=rule):
            decoded(Second, rule, tree=(2, 2))
    # all or none, and plain decoding's walk
    assert decoded(Whole, rule).tokens
    assert decoded(InSomeRows, rule, temperature=0.0).tokens


def test_what_needs_no_number_is_not_asked() -> None:
    for right in ("rrs", "rrsw", "traversal", "naive"):
        assert decoded(InSomeRows, right).tokens
