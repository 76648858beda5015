"""The mutants of ``mutants`` are there, and the suite kills them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from mutants import MUTANTS


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_still_applies(name):
    """Code that was written anew takes its mutants along."""
    with MUTANTS[name].applied():
        pass


@pytest.mark.slow
def test_the_suite_kills_every_25th_mutant():
    """In a process of its own, which forks before torch has any threads; without the baseline,
    which the rest of the suite is. ``make mutants`` tries all."""
    command = [sys.executable, "-m", "mutants", "--no-baseline", *list(MUTANTS)[::25]]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parent)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
