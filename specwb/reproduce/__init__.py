"""What the papers claim, measured here: one file a system, results kept while they come in, verdicts by a stated rule."""
