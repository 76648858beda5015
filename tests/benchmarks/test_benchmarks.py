"""Every program of benchmarks/ can be imported: what it takes from the package is there."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"
PROGRAMS = sorted(path.stem for path in FOLDER.glob("*.py"))


@pytest.mark.parametrize("name", PROGRAMS)
def test_it_can_be_imported(name, monkeypatch):
    monkeypatch.syspath_prepend(FOLDER)
    assert "main" in runpy.run_path(str(FOLDER / f"{name}.py"), run_name="imported")
