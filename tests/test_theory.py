"""Every theorem names what checks it, and what it names exists."""

from __future__ import annotations

import importlib
import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = sorted((ROOT / "theory").glob("[0-9]*.md"))


def exists(reference: str) -> bool:
    if "::" in reference:
        path, name = reference.split("::")
        return (ROOT / path).is_file() and re.search(rf"^def {name}\(", (ROOT / path).read_text(), re.MULTILINE) is not None
    if "#" in reference:
        path, cell = reference.split("#")
        return (ROOT / path).is_file() and any(c.get("id") == cell for c in json.loads((ROOT / path).read_text())["cells"])
    module, _, name = reference.rpartition(".")
    return hasattr(importlib.import_module(module), name)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.stem)
def test_theorems_name_existing_checks(page):
    theorems = re.split(r"^## (?=Theorem)", page.read_text(), flags=re.MULTILINE)[1:]
    assert theorems
    for theorem in theorems:
        title = theorem.splitlines()[0]
        assert "*Proof" in theorem, title
        line = re.search(r"^Function: .*?(?=\n\n|\Z)", theorem, re.MULTILINE | re.DOTALL)
        assert line, f"{title}: no Function line"
        assert "Test:" in line.group(), title
        for reference in re.findall(r"`([^`]+)`", line.group()):
            assert exists(reference), f"{title}: {reference} does not exist"


def test_a_missing_reference_is_seen():
    assert not exists("specwb.verify.rrs.Nothing")
    assert not exists("tests/test_theory.py::test_nothing")
    assert not exists("notebooks/00_welcome.ipynb#nothing")
