"""Figures, widgets, the microscope, the course and the ledger."""
