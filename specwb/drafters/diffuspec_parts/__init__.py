"""What only DiffuSpec needs below its drafter: lattices of candidates, the search for a path
through one, and the causal proxies that guide it."""
