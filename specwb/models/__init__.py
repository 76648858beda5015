"""Targets and draft models: the backbone, loading, trained heads and diffusion models, and their
published files."""

from specwb import modules_of

__getattr__ = modules_of(__name__)
