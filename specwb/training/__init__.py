"""Training text, one training loop, and the lab family built with it."""
