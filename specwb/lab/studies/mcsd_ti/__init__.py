"""Improved MCSD: its cells and measurements, its claims, and what is printed of them."""
