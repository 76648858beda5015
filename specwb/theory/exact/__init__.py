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
    optimum,
    output_distribution,
    rrs_acceptance,
    rrs_levels,
    rrsw_acceptance,
)
from specwb.theory.exact.basics import (
    SCHEMES,
    Dist,
    ExactDecision,
    ExactNodeRule,
    Model,
    SamplingScheme,
    Tokens,
    finite_draw,
    iid,
    minus,
    norm,
    overlap,
    top,
    top_and_sample,
    tv,
    without,
    without_replacement,
)
from specwb.theory.exact.coupling import (
    coupled,
    first_arrivals,
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
)
from specwb.theory.exact.roots import (
    kept_root,
    root_chances,
    roots_distribution,
    roots_outcomes,
)
from specwb.theory.exact.rounds import (
    Outcome,
    Paths,
    PathTest,
    children_of,
    completed,
    continued,
    count_paths,
    depths,
    expected_accepted,
    is_chain,
    mean_accepted,
    paths_outcomes,
    round_distribution,
    target_distribution,
    trees,
    walk,
    walked,
    walks,
)
from specwb.theory.exact.whole_trees import (
    TREE_RULES,
    Tests,
    block_expected_accepted,
    block_tests,
    decided,
    gbv_tests,
    largest,
    skewed,
    tests_along,
    traversal_tests,
)
