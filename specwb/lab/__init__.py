"""Measuring and comparing: benchmarks, sweeps, checks, the papers' claims and our measurements of
them."""
