"""The one decoding loop, the registry of methods, recorded steps, and transformers'
``generate``."""
