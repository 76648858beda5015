"""The API reference can be made, without a warning, where pdoc is installed."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

import specwb

pytest.importorskip("pdoc")


@pytest.mark.slow
def test_every_public_name_has_its_place(tmp_path):
    script = Path(__file__).parents[1] / "docs" / "reference.py"
    spec = importlib.util.spec_from_file_location("reference", script)
    reference = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(reference)
    reference.build(tmp_path)
    page = (tmp_path / "specwb.html").read_text()
    assert all(f'id="{name}"' in page for name in specwb.__all__)
    assert (tmp_path / "specwb" / "verify" / "rule.html").is_file()
