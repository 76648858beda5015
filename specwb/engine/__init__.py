"""The one decoding loop, the registry of methods, recorded steps, and transformers'
``generate``."""

from specwb import modules_of

__getattr__ = modules_of(__name__)
