"""Targets and draft models: the backbone, loading, trained heads and diffusion models, and their
published files."""
