"""Code that is wrong on purpose: each mutant is killed by the tests that it names.

Each mutant is one mistake as a developer would make it, put into the code in memory: no file is
changed. Wrong *rules* are in specwb/theory/wrong_rules.py; these are mistakes of the engine, the
drafters, the models and their heads. With ``PYTHONPATH=tests``:

    python -m mutants                          all of them, after the same tests without any mistake
    python -m mutants keep_off_by_one          these only
"""

from __future__ import annotations

from mutants import engine, models  # noqa: F401  (they register)
from mutants.patch import MUTANTS, Mutant, Patch, Stale, killed_by

__all__ = ["MUTANTS", "Mutant", "Patch", "Stale", "killed_by"]
