"""Plotly figures of plain results: a round, its tests, a decoding, a comparison, two distributions,
a curve. They compute nothing about models.
"""

from specwb.extras import require

require("specwb.figures", "notebooks", "plotly")

from specwb.figures.diffuspec import adaptive, by_setting, lattice
from specwb.figures.falcon import (
    block_designer,
    block_sight,
    block_tree,
    by_dependence,
    glancing,
    ratios,
)
from specwb.figures.heads import head_accuracy, heads
from specwb.figures.kangaroo import beams, cache_slots, densities, stopping, sureness
from specwb.figures.mcsd_ti import calibration, kept_roots, mask_slices, stop_rules
from specwb.figures.measuring import bars, estimates, price_and_tokens
from specwb.figures.methods import (
    acceptance_by_depth,
    by_category,
    comparison,
    round_lengths,
    speedup,
    time_split,
    tokens_per_round,
)
from specwb.figures.rules import acceptance, decisions, output, residuals, rule_rates
from specwb.figures.tree import by_nodes, designer, draft_tree, tree_mask, value_tree

__all__ = [
    "acceptance",
    "acceptance_by_depth",
    "adaptive",
    "bars",
    "beams",
    "block_designer",
    "block_sight",
    "block_tree",
    "by_category",
    "by_dependence",
    "by_nodes",
    "by_setting",
    "cache_slots",
    "calibration",
    "comparison",
    "decisions",
    "densities",
    "designer",
    "draft_tree",
    "estimates",
    "glancing",
    "head_accuracy",
    "heads",
    "kept_roots",
    "lattice",
    "mask_slices",
    "output",
    "price_and_tokens",
    "ratios",
    "residuals",
    "round_lengths",
    "rule_rates",
    "speedup",
    "stop_rules",
    "stopping",
    "sureness",
    "time_split",
    "tokens_per_round",
    "tree_mask",
    "value_tree",
]
