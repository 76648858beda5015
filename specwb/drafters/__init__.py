"""The drafters: one file per method, on top of parts that several methods share."""

from specwb import modules_of

__getattr__ = modules_of(__name__)
