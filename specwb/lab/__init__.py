"""Measuring and comparing: benchmarks, sweeps, checks, the papers' claims and our measurements of
them."""

from specwb import modules_of

__getattr__ = modules_of(__name__)
