"""Closed forms of speculative decoding: acceptance, tokens a round, speedup. Neither a model nor the engine is needed.

One drafted token and speed (acceptance, cost) and trees: floats, arrays, tensors or fractions; fractions stay fractions, tensors stay tensors,
lists come back as arrays. Several candidates (rules, transport): float64. Blocks said in one pass (diffusion): tables of fractions. Proofs: theory/.
"""

from specwb.analysis.acceptance import acceptance_rate, acceptance_under_temperature, output_law, residual, simulate
from specwb.analysis.cost import best_gamma, expected_rounds, expected_tokens, reach, roofline, speedup, tree_reach
from specwb.analysis.diffusion import adl_trace, argmax_row, best_path, drawn_accepted, expected_accepted, greedy_path, marginals, most_probable
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
    "adl_trace",
    "argmax_row",
    "best_gamma",
    "best_path",
    "best_tree",
    "choose_tree",
    "coupling_bound",
    "drawn_accepted",
    "dynamic_tree",
    "expected_accepted",
    "expected_point",
    "expected_rounds",
    "expected_tokens",
    "frontier",
    "greedy_path",
    "grow_tree",
    "kseq_rate",
    "kseq_rho",
    "marginals",
    "most_probable",
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
