"""Every rule in fractions: lossless means equal, and every wrong verifier is told apart."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction as F

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specwb.verify import exact as E
from specwb.verify.instances import TREES, dense_pairs, models, pairs
from specwb.verify.mutants import MUTANTS, Mutant

PAIRS = [(rule, scheme) for rule, schemes in E.LOSSLESS.items() for scheme in schemes]
SEVERAL = [(rule, scheme) for rule, scheme in PAIRS if rule != "rejection"]
tables, instances = models, pairs


# --------------------------------------------------------------------------------- sampling schemes


@pytest.mark.parametrize("scheme", E.SCHEMES.values(), ids=E.SCHEMES)
def test_schemes_are_distributions_over_the_support(scheme: E.SamplingScheme) -> None:
    for _, q in instances(60):
        for k in (1, 2, 3):
            tuples = scheme(q, k)
            assert sum(prob for _, prob in tuples) == 1
            assert all(prob > 0 for _, prob in tuples)
            assert len({xs for xs, _ in tuples}) == len(tuples)
            assert all(q[x] > 0 for xs, _ in tuples for x in xs)
            size = k if scheme is E.iid else min(k, sum(b > 0 for b in q))
            assert all(len(xs) == size for xs, _ in tuples)
            if scheme is not E.iid:
                assert all(len(set(xs)) == len(xs) for xs, _ in tuples)
            if scheme not in (E.top, E.top_and_sample):
                assert (
                    E.norm(
                        [
                            sum((prob for xs, prob in tuples if xs[0] == y), F(0))
                            for y in range(len(q))
                        ]
                    )
                    == q
                )


def test_top_takes_the_lowest_index_among_equals() -> None:
    assert E.top([F(1, 5), F(2, 5), F(0), F(2, 5)], 2) == [((1, 3), 1)]
    assert E.top([F(1, 5), F(2, 5), F(0), F(2, 5)], 4) == [((1, 3, 0), 1)]


# ----------------------------------------------------------------------------------------- one node


@pytest.mark.parametrize(("rule", "scheme"), PAIRS)
def test_lossless_at_a_node(rule: str, scheme: str) -> None:
    for p, q in instances(200):
        for k in (1,) if rule == "rejection" else (1, 2, 3):
            assert E.tv(E.output_distribution(E.RULES[rule], E.SCHEMES[scheme], p, q, k), p) == 0


@pytest.mark.parametrize(("rule", "scheme"), SEVERAL)
def test_more_children_than_tokens(rule: str, scheme: str) -> None:
    for p, q in instances(40, sizes=(1, 2, 3), seed=5):
        assert E.tv(E.output_distribution(E.RULES[rule], E.SCHEMES[scheme], p, q, 4), p) == 0


WEIGHTS = st.lists(st.integers(0, 30), min_size=3, max_size=3).filter(any).map(E.norm)


@settings(derandomize=True, max_examples=60, deadline=None)
@given(WEIGHTS, WEIGHTS, st.integers(1, 3), st.sampled_from(SEVERAL))
def test_lossless_property(p: list[F], q: list[F], k: int, names: tuple[str, str]) -> None:
    assert E.output_distribution(E.RULES[names[0]], E.SCHEMES[names[1]], p, q, k) == p


@pytest.mark.parametrize("rule", E.RULES)
def test_decisions_are_distributions(rule: str) -> None:
    """A decision consists of probabilities, with a residual exactly where something is left, and
    accepts no token of target probability 0."""
    for p, q in instances(150, seed=1):
        for tokens, _ in E.iid(q, 1 if rule == "rejection" else 2):
            accept, residual = E.RULES[rule](p, q, tokens)
            assert len(accept) == len(tokens)
            assert all(a >= 0 for a in accept)
            assert sum(accept) <= 1
            assert (residual is None) == (sum(accept) == 1)
            assert all(p[x] > 0 for x, a in zip(tokens, accept, strict=True) if a)
            if residual is not None:
                assert sum(residual) == 1
                assert min(residual) >= 0
                # the bonus token of kseq and race may be a child: one that was not selected, or at
                # a
                # rho that is too large
                if rule not in ("kseq", "race"):
                    assert all(residual[x] == 0 for x in tokens)  # what was rejected never returns


def test_without_children_the_bonus_token_is_drawn_from_p() -> None:
    p, q = [F(1, 3), F(2, 3)], [F(1), F(0)]
    for rule in E.RULES.values():
        assert rule(p, q, ()) == ([], p)


def test_padding_children_are_never_tested() -> None:
    p, q = E.norm([4, 1, 1]), E.norm([0, 7, 3])
    for rule in (E.rrs, E.rrsw, E.rrs_scalar, E.rrsw_scalar):
        accept, residual = rule(p, q, (0, 1))
        accept_of_one, same = rule(p, q, (1,))
        assert accept == [0, *accept_of_one]
        assert residual == same


def test_rejection_refuses_several_children() -> None:
    with pytest.raises(ValueError, match="one child"):
        E.rejection([F(1)], [F(1)], (0, 0))


@pytest.mark.parametrize(
    ("recursive", "scalar"), [(E.rrs, E.rrs_scalar), (E.rrsw, E.rrsw_scalar)], ids=["rrs", "rrsw"]
)
def test_scalar_form_equals_recursive_form(recursive: E.NodeRule, scalar: E.NodeRule) -> None:
    for p, q in instances(160, seed=2):
        for k in (1, 2, 3):
            for scheme in (
                E.iid,
                E.without_replacement,
                E.top,
            ):  # the identity holds whatever the tokens are
                for tokens, _ in scheme(q, k):
                    assert scalar(p, q, tokens) == recursive(p, q, tokens)


# --------------------------------------------------------------------------------------- acceptance


def test_acceptance_closed_forms() -> None:
    for p, q in instances(120, seed=3):
        assert (
            E.acceptance(E.rejection, E.iid, p, q, 1)
            == E.rejection_acceptance(p, q)
            == 1 - E.tv(p, q)
        )
        for k in (1, 2, 3):
            rrs = E.acceptance(E.rrs, E.iid, p, q, k)
            assert rrs == E.rrs_acceptance(p, q, k) == E.rrs_acceptance_scalar(p, q, k)
            rrsw = E.acceptance(E.rrsw, E.without_replacement, p, q, k)
            assert rrsw == E.rrsw_acceptance(p, q, k)
            naive = E.acceptance(E.naive, E.iid, p, q, k)
            assert naive == E.naive_acceptance(p, q, k)
            ((tokens, _),) = E.top(q, k)
            assert E.acceptance(E.point, E.top, p, q, k) == E.point_acceptance(p, tokens)
            assert rrsw >= rrs >= naive
            # counting repeated drafts beats dropping them
            assert rrs >= E.acceptance(E.rrsw, E.iid, p, q, k)


GOLDEN_PAIRS = {
    "A": ("1/2 3/10 1/5 0", "1/10 1/5 3/10 2/5"),
    "B": ("2/5 1/10 1/10 1/5 1/5", "0 7/10 3/10 0 0"),
    "C": ("0 1 0", "1/2 1/4 1/4"),
    "D": ("1/4 1/4 1/4 1/4", "7/10 1/10 1/10 1/10"),
}
GOLDEN = {  # rrsw, rrs, naive with replacement, naive without; k = 1, 2, ..
    "A": (
        "1/2 143/210 684/875 1",
        "1/2 13/20 137/200 1433/2000",
        "0.17 0.305 0.4133 0.50105",
        "17/100 3119/8400 1753/2800 1",
    ),
    "B": ("1/5 1/5 1/5 1/5", "1/5 1/5 1/5 1/5", ".1 .142 .163 .17518", "1/10 1/5 1/5 1/5"),
    "C": ("1/4 7/12 1", "1/4 7/16 37/64", "1/4 7/16 37/64", "1/4 7/12 1"),
    "D": ("11/20 1 1", "11/20 137/200 1559/2000", ".25 .37 .4465", "1/4 1/2 3/4"),
}


@pytest.mark.parametrize("case", GOLDEN)
def test_golden_acceptances(case: str) -> None:
    """The fractions were computed once with other code (papers on MCSD, reference
    implementation)."""
    p, q = ([F(x) for x in row.split()] for row in GOLDEN_PAIRS[case])
    columns = [
        (E.rrsw, E.without_replacement),
        (E.rrs, E.iid),
        (E.naive, E.iid),
        (E.naive, E.without_replacement),
    ]
    for (rule, scheme), text in zip(columns, GOLDEN[case], strict=True):
        for k, value in enumerate(map(F, text.split()), start=1):
            assert E.acceptance(rule, scheme, p, q, k) == value
            assert E.output_distribution(rule, scheme, p, q, k) == p


def test_golden_residuals() -> None:
    p, q = ([F(x) for x in row.split()] for row in GOLDEN_PAIRS["A"])
    assert E.rrs(p, q, (3,))[1] == [F(4, 5), F(1, 5), 0, 0]
    assert E.rrs(p, q, (3, 3))[1] == E.rrs(p, q, (3, 2, 3))[1] == [1, 0, 0, 0]


# ------------------------------------------------------------------------------------- whole rounds


def one_child_each(tree: str) -> bool:
    return len({*TREES[tree]}) == len(TREES[tree])


@pytest.mark.parametrize(
    ("rule", "scheme", "tree"),
    [
        (*names, tree)
        for names in PAIRS
        for tree in TREES
        if names[0] != "rejection" or one_child_each(tree)
    ],
)
def test_lossless_over_a_round(rule: str, scheme: str, tree: str) -> None:
    parents = TREES[tree]
    length = max(E.depths(parents)) + 1
    for seed in range(6 if len(parents) > 5 else 10):
        v = 2 if len(parents) > 5 else 2 + seed % 2
        target, draft = tables(seed, v)
        output = E.round_distribution(E.RULES[rule], E.SCHEMES[scheme], target, draft, parents)
        assert E.tv(output, E.target_distribution(target, length)) == 0
        assert sum(output.values()) == 1


def test_branching_with_three_tokens() -> None:
    parents = TREES["mixed6"]
    for seed in (10, 11):
        target, draft = tables(seed, 3)
        for rule, scheme in ((E.rrsw, E.without_replacement), (E.rrs, E.iid)):
            assert (
                E.tv(
                    E.round_distribution(rule, scheme, target, draft, parents),
                    E.target_distribution(target, 3),
                )
                == 0
            )


def test_draft_equal_to_target_accepts_everything() -> None:
    target, _ = tables(4, 3)
    for rule, scheme in ((E.rejection, E.iid), (E.rrs, E.iid), (E.rrsw, E.without_replacement)):
        assert E.expected_accepted(rule, scheme, target, target, TREES["chain3"]) == 3


def test_expected_accepted_closed_forms() -> None:
    for seed in range(12):
        target, draft = tables(seed, 3)
        assert E.expected_accepted(
            E.rejection, E.iid, target, draft, TREES["chain3"]
        ) == E.chain_expected_accepted(target, draft, 3)
        assert E.expected_accepted(
            E.rrsw, E.without_replacement, target, draft, TREES["siblings3"]
        ) == E.acceptance(E.rrsw, E.without_replacement, target(()), draft(()), 3)
        ((paths, prob),) = E.trees(E.top, draft, TREES["mixed6"])
        assert prob == 1
        assert E.expected_accepted(
            E.point, E.top, target, draft, TREES["mixed6"]
        ) == E.point_expected_accepted(target, paths)


def test_trees_follow_the_prefix() -> None:
    draft = {(): [F(1), F(0)], (0,): [F(1, 3), F(2, 3)]}
    drafts = dict(E.trees(E.iid, draft.__getitem__, (-1, 0, 1)))
    assert drafts == {((), (0,), (0, 0)): F(1, 3), ((), (0,), (0, 1)): F(2, 3)}
    ((paths, prob),) = E.trees(E.without_replacement, draft.__getitem__, (-1, 0, 0, 2))
    assert paths == ((), (0,), None, None)
    assert prob == 1


def test_bad_trees_are_refused() -> None:
    for parents in ((), (0,), (-1, 1), (-1, -1)):
        with pytest.raises(ValueError, match=r"node|parent"):
            E.depths(parents)


def test_a_missing_distribution_of_the_bonus_token_is_seen() -> None:
    def forgets(p: E.Dist, q: E.Dist, tokens: E.Tokens) -> E.Decision:
        return E.rejection(p, q, tokens)[0], None

    target, draft = (lambda _: [F(1, 4), F(3, 4)]), (lambda _: [F(1, 2), F(1, 2)])
    with pytest.raises(ValueError, match="bonus token"):
        E.round_distribution(forgets, E.iid, target, draft, (-1, 0))


# ------------------------------------------------------------------------------------------ mutants


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m.name)
def test_mutants_are_killed_at_a_node(mutant: Mutant) -> None:
    distances = [
        E.tv(E.output_distribution(mutant.node, mutant.scheme, p, q, mutant.k), p)
        for p, q in dense_pairs(40)
    ]
    assert max(distances) > F(1, 100)
    assert mutant.wrong
    assert mutant.node.__doc__
    assert mutant.original in E.RULES


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m.name)
def test_mutants_are_killed_over_a_round(mutant: Mutant) -> None:
    parents = (-1, *([0] * mutant.k), 1)
    worst = F(0)
    for seed in range(10):
        target, draft = tables(seed, 3)
        worst = max(
            worst,
            E.tv(
                E.round_distribution(mutant.node, mutant.scheme, target, draft, parents),
                E.target_distribution(target, 3),
            ),
        )
    assert worst > 0


def late(shift: Callable[[E.Tokens], E.Tokens]) -> F:
    """The largest TV at some prefixes where the q of the test is not the one of its own prefix."""
    worst = F(0)
    for seed in range(10):
        target, draft = tables(seed, 2)
        paths = E.target_distribution(lambda _: [F(1, 2)] * 2, 2)
        for prefix in [(), *[path[:1] for path in paths]]:
            p, sampled, used = target(prefix), draft(prefix), draft(shift(prefix))
            out = E.output_distribution(
                lambda p, q, xs, used=used: E.rejection(p, used, xs), E.iid, p, sampled, 1
            )  # type: ignore[misc]
            worst = max(worst, E.tv(out, p))
            assert E.tv(out, p) <= E.tv(
                sampled, used
            )  # the error is bounded by how wrong the stated q is
    return worst


def test_q_of_the_wrong_row_is_killed() -> None:
    assert late(lambda prefix: prefix) == 0
    assert late(lambda prefix: prefix[1:]) > 0


def test_tv_refuses_to_mix_kinds() -> None:
    with pytest.raises(TypeError):
        E.tv([F(1)], {(0,): F(1)})
