"""Draws pictures of ``notebooks/pictures`` from numbers: ``python -m scripts.drawings``."""
