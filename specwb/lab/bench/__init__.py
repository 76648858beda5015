"""The measuring core: decodings timed and counted, and the formulas of speedups."""
