"""Figures that are wrong on purpose."""

from __future__ import annotations
