"""Closed forms of speculative decoding: acceptance, tokens a round, speedup. Neither a model nor the engine is needed.

Proofs: theory/02_acceptance.md and theory/03_speed.md. Functions take floats, arrays, tensors or fractions; fractions stay fractions,
tensors stay tensors, lists come back as arrays.
"""

from specwb.analysis.acceptance import acceptance_rate, acceptance_under_temperature, output_law, residual, simulate
from specwb.analysis.cost import best_gamma, expected_rounds, expected_tokens, reach, roofline, speedup, tree_reach

__all__ = [
    "acceptance_rate",
    "acceptance_under_temperature",
    "best_gamma",
    "expected_rounds",
    "expected_tokens",
    "output_law",
    "reach",
    "residual",
    "roofline",
    "simulate",
    "speedup",
    "tree_reach",
]
