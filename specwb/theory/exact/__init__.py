"""Verification in rational arithmetic: the output of a rule, computed and not sampled.

A *node rule* is a function ``node(p, q, tokens) -> (accept, residual)``. It returns the conditional
distribution of a verifier's decision given the drafts: ``accept[i]`` is the probability that child
i is the one accepted, ``residual`` the normalised distribution of the bonus token given that none
is (``None`` when that has probability 0). Because every rule is a distribution and not a draw,
summing over all drafts gives the distribution of the output exactly, and *lossless* is an equality
of fractions: ``tv(...) == 0``.

A *sampling scheme* is a function ``scheme(q, k)`` that lists every ordered tuple of children with
its probability.

Notation: p target, q draft, both after temperature and filters; ``(x)+ = max(x, 0)``;
``norm(v) = v / sum(v)``. A *model* maps a prefix to the distribution of the next token. Children
whose current draft probability is 0 are never tested and never counted: no scheme proposes them.

What is called the same is the same everywhere, and is explained where it is more than this: ``p``
and ``q`` are distributions of the next token, ``target`` and ``draft`` models; ``k`` is a number of
children or paths, ``scheme`` how every group of siblings is drawn, ``rule`` a node rule that is
used at every node. A tree is given by the ``parents`` of its nodes, -1 for the root (node 0), and a
draft by its ``paths``, the tokens from the root to every node, as :func:`trees` yields them.

This package needs no tensors, no model and no engine: it checks the theory by itself.
Sources: Leviathan et al. 2022, Chen et al. 2023 (rejection); SpecInfer 2305.09781 and MCSD
2401.06706 (several children).
"""

from __future__ import annotations

from specwb.theory.exact.acceptance import (
    acceptance,
    conditional_distribution,
    kseq_acceptance,
    naive_acceptance,
    optimum,
    output_distribution,
    rrs_acceptance,
    rrs_acceptance_scalar,
    rrs_levels,
    rrsw_acceptance,
)
from specwb.theory.exact.basics import (
    Decision,
    Dist,
    Model,
    NodeRule,
    SamplingScheme,
    Tokens,
    finite_draw,
    minus,
    norm,
    overlap,
    tv,
    without,
)
from specwb.theory.exact.block import block_expected_accepted, block_tests, is_chain, tests_along
from specwb.theory.exact.child_tables import (
    CHILD_TABLES,
    ChildTable,
    expected_from_table,
    table_total,
)
from specwb.theory.exact.coupling import coupled, coupled_outcomes, list_matching_bound
from specwb.theory.exact.gbv import (
    count_paths,
    gbv_expected_accepted,
    gbv_tests,
    is_paths,
    largest,
    ranking,
    skewed,
)
from specwb.theory.exact.nodes import (
    LOSSLESS,
    RULES,
    kseq,
    kseq_rho,
    naive,
    point,
    race,
    race_distribution,
    rejection,
    rrs,
    rrs_scalar,
    rrsw,
    rrsw_scalar,
    top_rule,
    typical,
)
from specwb.theory.exact.paths import paths_outcomes, walked
from specwb.theory.exact.roots import kept_root, root_chances, roots_distribution, roots_outcomes
from specwb.theory.exact.rounds import (
    Outcome,
    Paths,
    Test,
    chain_expected_accepted,
    children_of,
    completed,
    depths,
    expected_accepted,
    mean_accepted,
    round_distribution,
    target_distribution,
    trees,
    walk,
    walks,
)
from specwb.theory.exact.schemes import SCHEMES, iid, top, top_and_sample, without_replacement
from specwb.theory.exact.traversal import traversal_scalar_tests, traversal_tests, trie
from specwb.theory.exact.tree_rules import TREE_RULES, Tests, TreeRule, decided

__all__ = [
    "CHILD_TABLES",
    "LOSSLESS",
    "RULES",
    "SCHEMES",
    "TREE_RULES",
    "ChildTable",
    "Decision",
    "Dist",
    "Model",
    "NodeRule",
    "Outcome",
    "Paths",
    "SamplingScheme",
    "Test",
    "Tests",
    "Tokens",
    "TreeRule",
    "acceptance",
    "block_expected_accepted",
    "block_tests",
    "chain_expected_accepted",
    "children_of",
    "completed",
    "conditional_distribution",
    "count_paths",
    "coupled",
    "coupled_outcomes",
    "decided",
    "depths",
    "expected_accepted",
    "expected_from_table",
    "finite_draw",
    "gbv_expected_accepted",
    "gbv_tests",
    "iid",
    "is_chain",
    "is_paths",
    "kept_root",
    "kseq",
    "kseq_acceptance",
    "kseq_rho",
    "largest",
    "list_matching_bound",
    "mean_accepted",
    "minus",
    "naive",
    "naive_acceptance",
    "norm",
    "optimum",
    "output_distribution",
    "overlap",
    "paths_outcomes",
    "point",
    "race",
    "race_distribution",
    "ranking",
    "rejection",
    "root_chances",
    "roots_distribution",
    "roots_outcomes",
    "round_distribution",
    "rrs",
    "rrs_acceptance",
    "rrs_acceptance_scalar",
    "rrs_levels",
    "rrs_scalar",
    "rrsw",
    "rrsw_acceptance",
    "rrsw_scalar",
    "skewed",
    "table_total",
    "target_distribution",
    "tests_along",
    "top",
    "top_and_sample",
    "top_rule",
    "traversal_scalar_tests",
    "traversal_tests",
    "trees",
    "trie",
    "tv",
    "typical",
    "walk",
    "walked",
    "walks",
    "without",
    "without_replacement",
]
