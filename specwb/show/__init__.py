"""Figures, widgets, the microscope, the course and the ledger."""

from specwb import modules_of

__getattr__ = modules_of(__name__)
