"""The plugin of pytest that applies a mutant and reports which tests saw it."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import tiny

from mutants.patch import MUTANTS, Mutant, Patch, Stale

TESTS = Path(__file__).parents[1]


def file_of(selection: str) -> Path:
    """The file of a selection. Raises Stale where there is none or more than one."""
    name = selection.partition(": ")[0]
    found = [path for path in TESTS.rglob(Path(name).name) if path.as_posix().endswith(f"/{name}")]
    if len(found) != 1:
        raise Stale(f"{len(found)} files in {TESTS} are called {name}")
    return found[0]


def matches(selection: str, nodeid: str) -> bool:
    file, _, words = selection.partition(": ")
    path, _, name = nodeid.partition("::")
    return path.endswith("/" + file) and all(word in name for word in words.split())


@dataclass(eq=False)  # plugins are kept in sets
class Plugin:
    """Applies ``mutant`` (None: none of them) while tests run; of these only what ``selections``
    say, if there are any."""

    mutant: Mutant | None
    selections: list[str]
    patch: Patch = field(default_factory=Patch)
    failed: list[tuple[str, str]] = field(default_factory=list)
    passed: int = 0

    def pytest_configure(self, config: pytest.Config) -> None:
        if self.mutant is None:
            return
        self.mutant.apply(self.patch)
        trained = tiny.trained

        def by_right_code(*args, **kwargs):
            # heads are trained on texts of the engine: a mutant is to be seen in what it decodes
            self.patch.undo()
            try:
                return trained(*args, **kwargs)
            finally:
                self.mutant.apply(self.patch)

        tiny.trained = by_right_code

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list) -> None:
        if not self.selections:
            return
        for selection in self.selections:
            if not any(matches(selection, item.nodeid) for item in items):
                raise pytest.UsageError(f"no test is {selection!r}")
        kept = [x for x in items if any(matches(s, x.nodeid) for s in self.selections)]
        config.hook.pytest_deselected(items=[x for x in items if x not in kept])
        items[:] = kept

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_makereport(self, item, call):
        report = (yield).get_result()
        if report.when == "call" and report.failed:
            self.failed.append((item.nodeid, call.excinfo.typename))
        self.passed += report.when == "call" and report.passed

    def pytest_terminal_summary(self, terminalreporter) -> None:
        seen = {"failed": self.failed, "passed": self.passed}
        terminalreporter.write_line(REPORT + json.dumps(seen))


REPORT = "mutants saw "


def pytest_addoption(pluginmanager: pytest.PytestPluginManager) -> None:
    """The first thing that pytest calls of ``-p mutants``."""
    name = os.environ.get("SPECWB_MUTANT", "none")
    if name != "none" and name not in MUTANTS:
        there = ", ".join(MUTANTS)
        raise pytest.UsageError(f"SPECWB_MUTANT: no mutant {name!r}; there are {there}")
    selections = os.environ.get("SPECWB_MUTANT_TESTS", "").split("\n")
    pluginmanager.register(Plugin(MUTANTS.get(name), [s for s in selections if s]), "mutant")
