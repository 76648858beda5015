"""DiffuSpec: its cells, its claims, and what is printed of them."""
