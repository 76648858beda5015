"""Plotly figures of plain results: a round, its tests, a decoding, a comparison. They compute nothing about models."""

from specwb.figures.comparison import comparison
from specwb.figures.decisions import decisions
from specwb.figures.rounds import tokens_per_round
from specwb.figures.tree import draft_tree

__all__ = ["comparison", "decisions", "draft_tree", "tokens_per_round"]
