"""Every rule over fractions with every sampling scheme for which it is lossless, the same rules as
they decode, and their wrong relatives."""

from __future__ import annotations

import pytest
from instances import all_trees, dense_pairs, level_order, pairs

from specwb.certificate import rules
from specwb.core.flow import Exactness
from specwb.rules import RULES
from specwb.theory import decisions
from specwb.theory import exact as E
from specwb.theory.instances import models
from specwb.theory.wrong_rules import AT_ONE_NODE, WRONG_RULES

NAMES = (*E.RULES, *E.TREE_RULES)
QUICK = ("rejection", "top", "block")
EVERY = [pytest.param(x, marks=[] if x in QUICK else pytest.mark.slow) for x in NAMES]
PATHS = [(-1, 0, 0, 1, 2), (-1, 0, 0, 0), (-1, 0, 0, 1, 2, 3, 4), (-1, 0, 0, 0, 1, 2, 3)]
"""Trees of k paths that part at the root."""


def check_steps(name: str, scheme: str, parents: tuple[int, ...]) -> None:
    """A step's output is the target's, with difficult models and dense ones; over three tokens
    where the tree is small."""
    for seed, kind in enumerate(("any", "dense")):
        for v in (2, 3) if len(parents) <= 4 else (2,):
            both = target, draft = models(seed, v, kind)
            if name in E.TREE_RULES:
                outcomes = list(E.TREE_RULES[name].outcomes(scheme, *both, parents))
            elif scheme == "IID_PATHS":
                outcomes = list(E.paths_outcomes(E.RULES[name], *both, parents))
            else:
                outcomes = list(E.walks(E.RULES[name], E.SCHEMES[scheme], *both, parents))
            length = max(E.depths(parents)) + 1
            output = E.completed(outcomes, target, length)
            wanted = E.target_distribution(target, length)
            assert E.tv(output, wanted) == 0, (scheme, parents, v, kind)
            if name == "block":
                closed = E.block_expected_accepted(target, draft, parents)
                assert E.mean_accepted(outcomes) == closed


def check_trees(name: str, nodes: int) -> int:
    """Steps over all ordered trees of so many nodes below the root; returns their number."""
    tree_rule, checked = E.TREE_RULES.get(name), 0
    for parents in map(level_order, all_trees(nodes)):
        fits = tree_rule.fits(parents) if tree_rule else name != "rejection" or E.is_chain(parents)
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
            tree = (*mutant.parents, 1)
            assert any(mutant.off(*models(seed, 3), tree) for seed in range(10)), mutant.name
        else:
            both = (models(seed, 3, "dense") for seed in range(10))
            assert any(mutant.off(*pair) for pair in both), mutant.name


@pytest.mark.slow
@pytest.mark.rare
@pytest.mark.parametrize("name", NAMES)
def test_every_rule_over_all_trees_of_six_nodes(name) -> None:
    assert check_trees(name, 6)


@pytest.mark.parametrize("name", [x for x in EVERY if x.values[0] in E.RULES])
def test_the_output_at_one_node(name) -> None:
    """It is p, and acceptance is at most the optimum of all lossless rules."""
    rule, optimal = E.RULES[name], []
    for scheme in E.LOSSLESS[name]:
        draws = E.SCHEMES[scheme]
        for p, q in pairs(100):
            for k in (1,) if name == "rejection" else (1, 2, 3):
                assert E.output_distribution(rule, draws, p, q, k) == p
                if k > 2:
                    continue
                accepted, optimum = E.acceptance(rule, draws, p, q, k), E.optimum(draws, p, q, k)
                assert accepted <= optimum
                if scheme == E.LOSSLESS[name][0]:  # its own
                    optimal.append(accepted == optimum)
    assert all(optimal) is (name in ("rejection", "top", "point"))


@pytest.mark.parametrize("name", EVERY)
def test_every_rule_as_it_decodes(name, computed_once, monkeypatch) -> None:
    """On the small ones of the trees; test_kernels.py has larger ones, test_decisions.py decisions
    in thin stretches of the uniforms."""
    monkeypatch.setattr(decisions, "RANDOM_POINTS", 1 << 13)
    monkeypatch.setattr(rules, "TREES", [x for x in rules.TREES if len(x[0]) <= 4])
    check = rules.check_rule(name)
    assert check, check
    assert check.tv < 1e-9


def test_every_mutant_names_a_rule_and_every_node_rule_has_one() -> None:
    assert {m.original for m in AT_ONE_NODE} == set(E.RULES)
    assert {m.original for m in WRONG_RULES.values()} <= set(NAMES)
    lossless = {name for name, rule in RULES.items() if rule.exactness is Exactness.LOSSLESS}
    assert lossless == set(NAMES)
