"""Code that is wrong on purpose: each mutant is killed by the tests that it names.

Each mutant is one mistake as a developer would make it, put into the code in memory: no file is
changed. In tests/verify and tests/test_decoding_distribution.py wrong *rules* are tried inside
single tests; here the suite itself is asked whether it would notice. With ``PYTHONPATH=tests``:

    python -m mutants                          all of them, after the same tests without any mistake
    python -m mutants keep_off_by_one          these only
    SPECWB_MUTANT=keep_off_by_one python -m pytest -p mutants tests/...
                                               any tests, with the mistake

As a plugin of pytest (``-p mutants``) this package applies the mutant that ``SPECWB_MUTANT`` names.
"""

from __future__ import annotations

from mutants import (  # noqa: F401  (they register)
    engine,
    figures,
    measuring,
    models,
    training,
    verdicts,
)
from mutants.patch import MUTANTS, Mutant, Patch, Stale, killed_by
from mutants.plugin import REPORT, TESTS, file_of, pytest_addoption

__all__ = [
    "MUTANTS",
    "REPORT",
    "TESTS",
    "Mutant",
    "Patch",
    "Stale",
    "file_of",
    "killed_by",
    "pytest_addoption",
]
