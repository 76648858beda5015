"""Every rule over fractions with every sampling scheme for which it is lossless, the same rules as
they decode, and published claims that are false."""

from __future__ import annotations

from fractions import Fraction as F
from functools import partial

import pytest

from specwb.core.flow import Exactness
from specwb.rules import RULES
from specwb.theory import exact as E
from specwb.theory.decisions import check_rule
from specwb.theory.instances import all_trees, dense_pairs, level_order, models, pairs
from specwb.theory.wrong_rules import AT_ONE_NODE, WRONG_RULES

NAMES = (*E.RULES, *E.TREE_RULES)
QUICK = ("rejection", "top", "block")
EVERY = [pytest.param(x, marks=[] if x in QUICK else pytest.mark.slow) for x in NAMES]
PATHS = [
    (-1, *[0] * k, *range(1, k * (length - 1) + 1))
    for k, length in ((2, 2), (3, 1), (2, 3), (3, 2))
]
"""Trees of k paths that part at the root."""


def trees(nodes: int) -> list[tuple[int, ...]]:
    return [level_order(tree) for tree in all_trees(nodes)]


def outcomes_of(name: str, scheme: str, target: E.Model, draft: E.Model, parents):
    if name in E.TREE_RULES:
        return list(E.TREE_RULES[name].outcomes(scheme, target, draft, parents))
    if scheme == "IID_PATHS":
        return list(E.paths_outcomes(E.RULES[name], target, draft, parents))
    return list(E.walks(E.RULES[name], E.SCHEMES[scheme], target, draft, parents))


def check_steps(name: str, scheme: str, parents: tuple[int, ...]) -> None:
    """A step's output is the target's and its length the closed form, with difficult models and
    dense ones; over three tokens where the tree is small."""
    tree_rule, table = E.TREE_RULES.get(name), E.CHILD_TABLES.get((name, scheme))
    expected = tree_rule.expected if tree_rule else table and partial(E.expected_from_table, table)
    for seed, kind in enumerate(("any", "dense")):
        for v in (2, 3) if len(parents) <= 4 else (2,):
            target, draft = models(seed, v, kind)
            outcomes = outcomes_of(name, scheme, target, draft, parents)
            length = max(E.depths(parents)) + 1
            output = E.completed(outcomes, target, length)
            wanted = E.target_distribution(target, length)
            assert E.tv(output, wanted) == 0, (scheme, parents, v, kind)
            if expected is not None:
                assert E.mean_accepted(outcomes) == expected(target, draft, parents)


def check_trees(name: str, nodes: int) -> int:
    """Steps over all ordered trees of so many nodes besides the root; returns how many."""
    tree_rule = E.TREE_RULES.get(name)
    checked = 0
    for parents in trees(nodes):
        chain = len(set(parents)) == len(parents)
        fits = tree_rule.fits(parents) if tree_rule else name != "rejection" or chain
        for scheme in (tree_rule.schemes if tree_rule else E.LOSSLESS[name]) if fits else ():
            check_steps(name, scheme, parents)
            checked += 1
    return checked


@pytest.mark.parametrize("name", EVERY)
def test_every_rule_is_lossless_and_its_mutants_are_refuted(name) -> None:
    """Over all trees of up to five nodes besides the root; its mutants are off by something."""
    assert sum(check_trees(name, nodes) for nodes in range(1, 6)) >= 5
    if "IID" in E.LOSSLESS.get(name, ()) and name != "rejection":
        for parents in PATHS:
            check_steps(name, "IID_PATHS", parents)
    for mutant in WRONG_RULES.values():
        if mutant.original != name:
            continue
        if mutant.node is not None:
            assert any(mutant.output(p, q) != p for p, q in dense_pairs(100)), mutant.name
        else:
            both = (models(seed, 3, mutant.models) for seed in range(10))
            assert any(mutant.off(*pair) for pair in both), mutant.name


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [x if x == "block" else pytest.param(x, marks=pytest.mark.rare) for x in NAMES]
)
def test_every_rule_over_all_trees_of_six_nodes(name) -> None:
    assert check_trees(name, 6)


@pytest.mark.parametrize("name", [x for x in EVERY if x.values[0] in E.RULES])
def test_the_output_at_one_node(name) -> None:
    """It is p; acceptance is at most the optimum of all lossless rules, and its closed form."""
    rule, optimal = E.RULES[name], []
    for scheme in E.LOSSLESS[name]:
        table, draws = E.CHILD_TABLES.get((name, scheme)), E.SCHEMES[scheme]
        for p, q in pairs(100):
            for k in (1,) if name == "rejection" else (1, 2, 3):
                assert E.output_distribution(rule, draws, p, q, k) == p
                if k > 2:
                    continue
                accepted, optimum = E.acceptance(rule, draws, p, q, k), E.optimum(draws, p, q, k)
                assert accepted <= optimum
                if scheme == E.LOSSLESS[name][0]:  # its own
                    optimal.append(accepted == optimum)
                if name == "kseq":  # its bonus token may be a child, which tables do not count
                    assert table is None or accepted == E.kseq_acceptance(p, q, k)
                elif table is not None:
                    assert accepted == E.table_total(table(p, q, k))
    assert all(optimal) is (name in ("rejection", "top", "point"))


@pytest.mark.parametrize("name", EVERY)
def test_every_rule_as_it_decodes(name) -> None:
    check = check_rule(name)
    assert check.lossless, check
    assert check.worst < 1e-9


def test_every_mutant_names_a_rule_and_every_node_rule_has_one() -> None:
    assert {m.original for m in AT_ONE_NODE} == set(E.RULES)
    assert {m.original for m in WRONG_RULES.values()} <= set(NAMES)
    lossless = {name for name, rule in RULES.items() if rule.exactness is Exactness.LOSSLESS}
    assert lossless == set(NAMES)


# -------------------------------------------------------------------------------- false claims


def test_claims_about_blocks_are_refuted() -> None:
    """That token and block verification coincide for two tokens, and that hierarchical speculative
    decoding is lossless and longer than block verification."""
    p, q = [F(1, 3), F(2, 3)], [F(2, 3), F(1, 3)]
    both = (lambda prefix: p), (lambda prefix: q)
    block = E.block_expected_accepted(*both, (-1, 0, 1))
    assert (E.chain_expected_accepted(*both, 2), block) == (F(10, 9), F(11, 9))
    hsd = WRONG_RULES["hsd"]
    assert hsd.off(*both) == F(1, 9)
    assert E.mean_accepted(hsd.outcomes(*both)) == F(4, 3) > block


def test_lossy_rules_are_off() -> None:
    """Typical acceptance of the two most probable tokens, and the longest of two roots."""
    assert any(
        E.output_distribution(E.typical, E.top, p, q, 2) != list(p) for p, q in dense_pairs(10)
    )
    target, draft = models(0, 3, "dense")
    output = E.roots_distribution(target, draft, (-1, 0, 1), 2, 3)
    assert E.tv(output, E.target_distribution(target, 3)) > 0
