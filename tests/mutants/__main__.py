"""``python -m mutants``: which tests kill which mutants."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from mutants import MUTANTS, REPORT, TESTS, file_of


@dataclass(frozen=True)
class Outcome:
    """``test``: the first that failed, and with what ``error``; None where none did. ``trouble``:
    why nothing is known."""

    test: str | None
    error: str
    passed: int
    seconds: float
    trouble: str = ""


SECONDS = 600  # a mutant that decodes for ever is ended then


def start(name: str, tests: tuple[str, ...], said: Path) -> int:
    """A copy of this process that runs ``tests`` with a mutant and writes to ``said``; its id.

    A copy, because importing torch takes longer than most of the tests.
    """
    files = dict.fromkeys(file_of(selection) for selection in tests)
    child = os.fork()
    if child:
        return child
    signal.alarm(SECONDS)
    with said.open("w") as out:
        os.dup2(out.fileno(), 1)
        os.dup2(out.fileno(), 2)
    os.chdir(TESTS.parent)
    os.environ |= {"SPECWB_MUTANT": name, "SPECWB_MUTANT_TESTS": "\n".join(tests)}
    code = 3
    try:
        options = ["-p", "mutants", "-p", "no:cacheprovider", "-x", "-q", "-m", "", "--tb=short"]
        options += ["-p", "no:nbval", "-p", "no:hypothesispytest"]  # seconds of imports each time
        code = int(pytest.main([*options, *map(str, files)]))
    finally:
        sys.stdout.flush()
        os._exit(code)


def outcome(code: int, said: str, seconds: float) -> Outcome:
    """What a run of pytest with this exit code and output says of a mutant."""
    found = [line for line in said.splitlines() if line.startswith(REPORT)]
    seen = json.loads(found[-1].removeprefix(REPORT)) if found else {"failed": [], "passed": 0}
    test, error = seen["failed"][0] if seen["failed"] else (None, "")
    sound = code == 1 if test else code == 0 and seen["passed"]
    trouble = "" if sound else "\n".join([*said.splitlines()[-15:], f"exit code {code}"])
    return Outcome(test, error, seen["passed"], seconds, trouble)


def run(asked: dict[str, tuple[str, ...]], jobs: int = 1) -> Iterator[tuple[str, Outcome]]:
    """Mutants and the tests that are to kill them, ``jobs`` at once; in the order of their ends."""
    waiting, running = list(asked), {}
    with tempfile.TemporaryDirectory() as folder:
        while waiting or running:
            while waiting and len(running) < jobs:
                name = waiting.pop(0)
                child = start(name, asked[name], Path(folder, name))
                running[child] = name, time.perf_counter()
            child, status = os.wait()
            name, began = running.pop(child)
            said = Path(folder, name).read_text("utf-8", "replace")
            seconds = time.perf_counter() - began
            yield name, outcome(os.waitstatus_to_exitcode(status), said, seconds)


def main() -> int:
    """A line for each mutant; 1 if one survives, or if for one of them nothing is known."""
    parser = argparse.ArgumentParser(description="Which tests kill which mutants.")
    parser.add_argument("names", nargs="*", metavar="name", help="mutants, default all of them")
    parser.add_argument("--jobs", type=int, default=1, help="how many at once")
    without = "do not run the same tests without mutants first"
    parser.add_argument("--no-baseline", action="store_true", help=without)
    given = parser.parse_args()
    if unknown := [name for name in given.names if name not in MUTANTS]:
        parser.error(f"no mutant {', '.join(unknown)}; there are {', '.join(MUTANTS)}")
    asked = {name: MUTANTS[name].tests for name in given.names or MUTANTS}
    if not given.no_baseline:
        every = tuple(dict.fromkeys(selection for tests in asked.values() for selection in tests))
        ((_, right),) = run({"none": every})
        if right.test or right.trouble:
            print(f"{right.test or 'something'} fails without any mutant\n{right.trouble}")
            return 1
        print(f"without mutants {right.passed} tests pass, {right.seconds:.0f} s", flush=True)
    bad = 0
    for name, seen in run(asked, given.jobs):
        bad += bool(seen.trouble) or seen.test is None
        by = f"killed by {seen.test} ({seen.error})" if seen.test else "SURVIVED"
        by = f"not known:\n{seen.trouble}" if seen.trouble else by
        print(f"{name:34} {by}, {seen.seconds:.0f} s", flush=True)
    print(f"{len(asked) - bad} of {len(asked)} mutants killed")
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
