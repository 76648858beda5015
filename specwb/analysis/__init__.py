"""Closed forms of speculative decoding: acceptance, tokens a round, speedup. Neither a model nor the engine is needed.

One drafted token and speed (acceptance, cost) and trees: floats, arrays, tensors or fractions; fractions stay fractions, tensors stay tensors,
lists come back as arrays. Several candidates (rules, transport): float64. Proofs: theory/.
"""

from specwb.analysis.acceptance import acceptance_rate, acceptance_under_temperature, output_law, residual, simulate
from specwb.analysis.cost import best_gamma, expected_rounds, expected_tokens, reach, roofline, speedup, tree_reach
from specwb.analysis.rules import (
    DRAWN,
    RATES,
    coupling_bound,
    kseq_rate,
    kseq_rho,
    naive_rate,
    point_rate,
    race_rate,
    rejection_rate,
    rrs_rate,
    rrsw_estimate,
    rrsw_rate,
    top_and_sample_rate,
)
from specwb.analysis.transport import optimum, optimum_by_subsets, optimum_lp
from specwb.analysis.trees import best_tree, choose_tree, dynamic_tree, expected_point, frontier, grow_tree, path_values

__all__ = [
    "DRAWN",
    "RATES",
    "acceptance_rate",
    "acceptance_under_temperature",
    "best_gamma",
    "best_tree",
    "choose_tree",
    "coupling_bound",
    "dynamic_tree",
    "expected_point",
    "expected_rounds",
    "expected_tokens",
    "frontier",
    "grow_tree",
    "kseq_rate",
    "kseq_rho",
    "naive_rate",
    "optimum",
    "optimum_by_subsets",
    "optimum_lp",
    "output_law",
    "path_values",
    "point_rate",
    "race_rate",
    "reach",
    "rejection_rate",
    "residual",
    "roofline",
    "rrs_rate",
    "rrsw_estimate",
    "rrsw_rate",
    "simulate",
    "speedup",
    "top_and_sample_rate",
    "tree_reach",
]
