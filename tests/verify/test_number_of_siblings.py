"""A number of candidates that follows the draws: which rules are lossless for it, and that the
others refuse it."""

from __future__ import annotations

from fractions import Fraction as F

import pytest
import tiny
import torch

import specwb
from specwb.drafters.level import LevelDrafter
from specwb.flow import Draft, RuleMismatch
from specwb.verify import RULES
from specwb.verify import exact as E
from specwb.verify.exact.tree_rules import decided

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

        return first_token(decided(changed)("IID", *models, FORK), p)

    assert output(E.traversal_tests) == list(p)
    assert output(E.gbv_tests) == [F(2, 3), F(1, 3)]


@pytest.mark.parametrize("dropped", [False, True])
def test_coupled_paths(dropped) -> None:
    """At one place the output is argmin E / p whatever candidates there are, so their number may
    follow the draws. A path must not be left out because of a token that it drafts later."""
    p, q = (HALF, HALF), (F(3, 4), F(1, 4))
    alone, both = E.coupled(p, q, 1), E.coupled(p, q, 2)
    # two paths agree with the text. In the one case the second is left out where its next token is
    # unlikely: the closing token is then that of the first path's noise
    output = [F(0)] * 2
    for ((_, second), y), chance in both.items():
        if not dropped or q[second] >= HALF:
            output[y] += chance
    if dropped:
        gone = q[1]  # of the first path's noise nothing is known there
        for (_, y), chance in alone.items():
            output[y] += gone * chance
    assert (output == list(p)) is not dropped
    assert sum(output) == 1


# ----------------------------------------------------------------------------- what is refused


class Second(LevelDrafter):
    """A second sibling only where the first is not likely, or only in the first row."""

    by_row = False

    def propose(self, state, noise):
        draft = super().propose(state, noise)
        valid = draft.valid.clone()
        if self.by_row:
            valid[1:, 2] = False
        else:
            likely = draft.q[:, 0].gather(1, draft.tokens[:, 1:2])[:, 0] >= 0.05
            valid[:, 2] = valid[:, 2] & ~likely
        return Draft(
            draft.tree, draft.tokens, valid, draft.scheme, draft.q, draft.q_row, draft.race
        )


class Whole(LevelDrafter):
    """The second level is left out whole where the first drafted something unlikely."""

    def propose(self, state, noise):
        draft = super().propose(state, noise)
        valid = draft.valid.clone()
        valid[:, 3:] &= (draft.tokens[:, 1:3] % 2 == 0).all(1, keepdim=True)
        return Draft(
            draft.tree, draft.tokens, valid, draft.scheme, draft.q, draft.q_row, draft.race
        )


def decoded(drafter, rule: str, tree=(2, 1), draw: str = "with", **settings):
    own = drafter(tiny.draft(noise=0.05), specwb.Tree.branching(*tree), draw)
    method = specwb.Method("own", own, RULES[rule](), specwb.Exactness.LOSSLESS)
    return specwb.decode(
        tiny.target(), tiny.PROMPTS, method, max_new_tokens=12, seed=1, eos=(), **settings
    )


NEEDS = ["kseq", "race", "gbv", "coupled"]


def test_which_rules_need_a_fixed_number() -> None:
    assert {name for name, rule in RULES.items() if rule.fixed_number} == {*NEEDS}


@pytest.mark.parametrize("rule", NEEDS)
def test_some_but_not_all_siblings_are_refused(rule) -> None:
    draw = "coupled" if rule == "coupled" else "with"

    class InSomeRows(Second):
        by_row = True

    with pytest.raises(RuleMismatch, match=f"rule '{rule}' .* fixed before they are drawn"):
        decoded(InSomeRows, rule, draw=draw, temperature=1.0)
    # all or none, plain decoding's walk, and rules that need no number
    assert decoded(Whole, rule, draw=draw, temperature=1.0).tokens
    assert decoded(InSomeRows, rule, draw=draw).tokens
    if rule != "coupled":
        for right in ("rrs", "rrsw", "traversal", "naive"):
            assert decoded(InSomeRows, right, temperature=1.0).tokens


@pytest.mark.parametrize("rule", ["kseq", "race"])
def test_a_second_sibling_only_where_the_first_is_unlikely_is_refused(rule) -> None:
    with pytest.raises(RuleMismatch, match="keeps the distribution only where"):
        decoded(Second, rule, tree=(2, 2), temperature=1.0)


def test_rows_that_have_finished_are_not_asked() -> None:
    class WhereDone(LevelDrafter):
        def propose(self, state, noise):
            draft = super().propose(state, noise)
            valid = draft.valid.clone()
            valid[:, 2] &= ~state.done
            return Draft(draft.tree, draft.tokens, valid, draft.scheme, draft.q, draft.q_row)

    own = WhereDone(tiny.draft(noise=0.05), specwb.Tree.branching(2, 2), "with")
    method = specwb.Method("own", own, RULES["kseq"](), specwb.Exactness.LOSSLESS)
    settings = {"max_new_tokens": [2, 12, 7], "temperature": 1.0, "seed": 1, "eos": ()}
    out = specwb.decode(tiny.target(), tiny.PROMPTS, method, **settings)
    assert [len(row) for row in out.tokens] == [2, 12, 7]


def test_trees_of_every_rows_own_are_refused() -> None:
    tree = specwb.Tree.parents([[-1, 0, 0], [-1, 0, -1]])
    tokens, valid = torch.zeros(2, 3, dtype=torch.long), torch.ones(2, 3, dtype=torch.bool)
    assert Draft(tree, tokens, valid, specwb.Scheme.IID).uneven().tolist() == [True, True]
    shared = specwb.Tree.parents([-1, 0, 0, 1, 1, 1])
    valid = torch.ones(3, 6, dtype=torch.bool)
    valid[1, 3:], valid[2, 4] = False, False
    draft = Draft(shared, torch.zeros(3, 6, dtype=torch.long), valid, specwb.Scheme.IID)
    assert draft.uneven().tolist() == [False, False, True]
