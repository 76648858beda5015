"""Measurements, studies, sweeps and evaluations that are wrong on purpose."""

from __future__ import annotations
