"""The types that flow through a decoding step, noise, probabilities, options and files: nothing
here knows a model."""

from specwb import modules_of

__getattr__ = modules_of(__name__)
