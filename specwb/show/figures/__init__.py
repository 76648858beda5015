"""Plotly figures of plain results: a comparison, two distributions, a tree, a curve. They compute
nothing about models.
"""

from specwb.core.extras import require

require("specwb.show.figures", "notebooks", "plotly")

from specwb.show.figures.diffuspec import adaptive, lattice
from specwb.show.figures.falcon import block_designer, block_tree, dependence
from specwb.show.figures.kangaroo import stopping
from specwb.show.figures.rules import acceptance, output, rule_rates, slices
from specwb.show.figures.series import bars, by_setting, comparison, estimates, tried
from specwb.show.figures.tree import designer, tree_mask, value_tree
