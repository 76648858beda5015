"""Verification in rational arithmetic: what a rule outputs, computed and not sampled.

A *node rule* is a function ``node(p, q, tokens) -> (accept, residual)`` that returns the conditional law of a verifier's
decision given the drafts: ``accept[i]`` is the probability that child i is the one accepted, ``residual`` the normalised law
of the closing token given that none is (``None`` when that has probability 0). Because every rule is a law and not a draw,
summing over all drafts gives the law of the output exactly, and *lossless* is an equality of fractions: ``tv(...) == 0``.

A *draft law* is a function ``law(q, k)`` that lists every ordered tuple of children with its probability.

Notation: p target, q draft, both after temperature and filters; ``(x)+ = max(x, 0)``; ``norm(v) = v / sum(v)``.
Children whose current draft probability is 0 are never tested and never counted: no draft law proposes them.

This package needs no tensors, no model and no engine, so that the theory can be checked by itself.
Sources: Leviathan et al. 2022, Chen et al. 2023 (rejection); SpecInfer 2305.09781 and MCSD 2401.06706 (several children).
"""

from __future__ import annotations

from specwb.verify.exact.acceptance import (
    acceptance,
    conditional_law,
    naive_acceptance,
    output_law,
    point_acceptance,
    rejection_acceptance,
    rrs_acceptance,
    rrs_acceptance_scalar,
    rrsw_acceptance,
)
from specwb.verify.exact.basics import Decision, Dist, DraftLaw, Model, NodeRule, Tokens, minus, norm, overlap, tv
from specwb.verify.exact.laws import LAWS, iid, top, without_replacement
from specwb.verify.exact.nodes import LOSSLESS, RULES, naive, point, rejection, rrs, rrs_scalar, rrsw, rrsw_scalar
from specwb.verify.exact.rounds import chain_expected_accepted, depths, expected_accepted, point_expected_accepted, round_law, target_law, trees

__all__ = [
    "LAWS",
    "LOSSLESS",
    "RULES",
    "Decision",
    "Dist",
    "DraftLaw",
    "Model",
    "NodeRule",
    "Tokens",
    "acceptance",
    "chain_expected_accepted",
    "conditional_law",
    "depths",
    "expected_accepted",
    "iid",
    "minus",
    "naive",
    "naive_acceptance",
    "norm",
    "output_law",
    "overlap",
    "point",
    "point_acceptance",
    "point_expected_accepted",
    "rejection",
    "rejection_acceptance",
    "round_law",
    "rrs",
    "rrs_acceptance",
    "rrs_acceptance_scalar",
    "rrs_scalar",
    "rrsw",
    "rrsw_acceptance",
    "rrsw_scalar",
    "target_law",
    "top",
    "trees",
    "tv",
    "without_replacement",
]
