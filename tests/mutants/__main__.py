"""``python -m mutants``: which tests kill which mutants."""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
import time
from pathlib import Path

import pytest
import tiny

from mutants import MUTANTS, Mutant

TESTS = Path(__file__).parents[1]
SECONDS = 600  # the time limit of a mutant that decodes for ever
OPTIONS = ["-x", "-q", "-m", "", "--tb=short", "-p", "no:cacheprovider", "-p", "no:nbval"]


def selected(selection: str) -> list[str]:
    """The arguments of pytest for "file.py: words"."""
    name, _, words = selection.partition(": ")
    (path,) = (path for path in TESTS.rglob(Path(name).name) if f"{path}".endswith(f"/{name}"))
    return [str(path), *(["-k", " and ".join(words.split())] if words else [])]


def trained_by_right_code(mutant: Mutant) -> None:
    """Heads are trained on texts of the engine: a mutant is to be seen in what it decodes."""
    trained = tiny.trained
    tiny.trained = lambda *args, **kwargs: right(trained, *args, **kwargs)
    applied = contextlib.ExitStack()
    applied.enter_context(mutant.applied())

    def right(function, *args, **kwargs):
        applied.close()
        try:
            return function(*args, **kwargs)
        finally:
            applied.enter_context(mutant.applied())


def start(selection: str, mutant: Mutant | None) -> int:
    """A copy of this process that runs tests with a mutant; its id.

    A copy, because importing torch takes longer than most of the tests.
    """
    child = os.fork()
    if child:
        return child
    code = int(pytest.ExitCode.INTERNAL_ERROR)
    try:
        signal.alarm(SECONDS)
        os.chdir(TESTS.parent)
        with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
            if mutant:
                trained_by_right_code(mutant)
            code = int(pytest.main([*OPTIONS, *selected(selection)]))
    finally:
        os._exit(code)


def failing(mutant: Mutant | None, tests: tuple[str, ...]) -> str:
    """The first selection with a failing test, or "".

    Raises:
        RuntimeError: a selection has no tests, or its run does not end in time.
    """
    for selection in tests:
        _, status = os.waitpid(start(selection, mutant), 0)
        code = os.waitstatus_to_exitcode(status)
        if code == pytest.ExitCode.TESTS_FAILED:
            return selection
        if code != pytest.ExitCode.OK:
            raise RuntimeError(f"{selection}: exit code {code}")
    return ""


def main() -> int:
    """Print a line for each mutant; 1 if one survives."""
    parser = argparse.ArgumentParser(description="Which tests kill which mutants.")
    parser.add_argument("names", nargs="*", metavar="name", help="mutants, default all of them")
    without = "do not run the same tests without mutants first"
    parser.add_argument("--no-baseline", action="store_true", help=without)
    arguments = parser.parse_args()
    if unknown := [name for name in arguments.names if name not in MUTANTS]:
        parser.error(f"no mutant {', '.join(unknown)}; there are {', '.join(MUTANTS)}")
    mutants = [MUTANTS[name] for name in arguments.names or MUTANTS]
    if not arguments.no_baseline:
        tests = dict.fromkeys(selection for mutant in mutants for selection in mutant.tests)
        if selection := failing(None, tuple(tests)):
            print(f"{selection} fails without any mutant")
            return 1
        print(f"without mutants {len(tests)} selections of tests pass", flush=True)
    survivors = 0
    for mutant in mutants:
        began = time.perf_counter()
        selection = failing(mutant, mutant.tests)
        survivors += not selection
        fate = f"killed by {selection}" if selection else "SURVIVED"
        print(f"{mutant.name:34} {fate}, {time.perf_counter() - began:.0f} s", flush=True)
    print(f"{len(mutants) - survivors} of {len(mutants)} mutants killed")
    return int(survivors > 0)


if __name__ == "__main__":
    sys.exit(main())
