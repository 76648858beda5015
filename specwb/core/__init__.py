"""The types that flow through a decoding step, noise, probabilities, options and files: nothing
here knows a model."""
