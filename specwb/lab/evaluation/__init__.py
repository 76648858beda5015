"""Prompts, and methods compared side by side on them."""
