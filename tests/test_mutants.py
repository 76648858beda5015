"""The mutants of ``mutants`` are there, and the suite kills them."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from mutants import MUTANTS, TESTS, Patch, Stale, file_of

import specwb
from specwb.core.tree import Tree
from specwb.models.cache import KVCache


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_still_applies_and_can_be_taken_back(name):
    """Code that was written anew takes its mutants along."""
    mutant = MUTANTS[name]
    assert mutant.mistake.endswith(".")
    assert all(file_of(selection).is_file() for selection in mutant.tests)
    with mutant.applied():
        pass
    tree = Tree.branching(2, 2)
    assert tree.kids[0, 0].tolist() == [1, 2]
    assert tree.mask[0, 4].tolist() == [True, True, False, False, True, False, False]


def test_a_patch_that_finds_nothing_says_so():
    patch = Patch()
    with pytest.raises(Stale, match="'nowhere' 0 times"):
        patch.edit(KVCache.keep, "nowhere", "somewhere")
    with pytest.raises(Stale, match="has no forget"):
        patch.method(KVCache, "forget")
    with pytest.raises(Stale, match="already 1"):
        patch.value(specwb.Drafter, "window", 1)


ENGINE = [name for name, x in MUTANTS.items() if x.apply.__module__ == "mutants.engine"]
OTHERS = [name for name in MUTANTS if name not in ENGINE]


@pytest.mark.slow
@pytest.mark.parametrize(
    "some",
    [
        ENGINE[::2],
        pytest.param(ENGINE[1::2], marks=pytest.mark.rare),
        pytest.param(OTHERS[::6], marks=pytest.mark.rare),  # all of them take minutes
    ],
    ids=["engine", "more of it", "others"],
)
def test_the_suite_kills_mutants(some):
    """In a process of its own, which forks before torch has any threads; without the baseline,
    which the rest of the suite is. ``make mutants`` tries all."""
    command = [sys.executable, "-m", "mutants", "--no-baseline", *some]
    one = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(TESTS)}
    done = subprocess.run(command, capture_output=True, text=True, env=one)
    assert done.returncode == 0, done.stdout + done.stderr
