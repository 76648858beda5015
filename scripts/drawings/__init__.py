"""Draws the pictures of the notebooks, ``notebooks/pictures``: ``python -m scripts.drawings``."""
