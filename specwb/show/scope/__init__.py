"""Recorded decodings: what a decoding did, step by step, as one JSON trace, and the module that
plays it in notebooks, in reports and on pages of its own (docs/trace.md)."""

from specwb.show.scope.pages import module, page, section
from specwb.show.scope.recorder import record
from specwb.show.scope.trace import TraceError, checked, in_words, schema
