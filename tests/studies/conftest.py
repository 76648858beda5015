"""A tiny target, and a machine whose fixed step takes as long every time: no run is repeated."""

from __future__ import annotations

import pytest
import tiny
from once import words

import specwb
from specwb.lab.studies import grid


@pytest.fixture(autouse=True)
def quiet(monkeypatch):
    monkeypatch.setattr(grid, "one_step", lambda target: lambda: 1.0)


@pytest.fixture(scope="module")
def target() -> specwb.Target:
    return specwb.load(tiny.target().model, tokenizer=words())
