"""Plotly figures of plain results: a round, its tests, a decoding, a comparison, two distributions,
a curve. They compute nothing about models.
"""

from specwb.extras import require

require("specwb.figures", "notebooks", "plotly")

from specwb.figures.acceptance import acceptance
from specwb.figures.categories import by_category
from specwb.figures.comparison import comparison
from specwb.figures.decisions import decisions
from specwb.figures.depths import acceptance_by_depth
from specwb.figures.designer import by_nodes, designer, tree_mask, value_tree
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
from specwb.figures.lengths import round_lengths
from specwb.figures.mcsd_ti import calibration, kept_roots, mask_slices, stop_rules
from specwb.figures.measuring import bars, estimates, price_and_tokens
from specwb.figures.rounds import tokens_per_round
from specwb.figures.rules import output, residuals, rule_rates
from specwb.figures.speedup import speedup
from specwb.figures.timing import time_split
from specwb.figures.tree import draft_tree

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
