"""Real models: Hugging Face decoders run layer by layer with explicit masks, positions and our own cache."""
