"""A benchmark run as the field runs it: whole conversations, answers on disk, named metrics."""
