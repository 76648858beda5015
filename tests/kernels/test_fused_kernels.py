"""The switch of the fused kernels; what they compute (values.py, in Triton's interpreter) and what
the compiler makes of them (ahead.py), each in a process of its own."""

from __future__ import annotations

import importlib.util
import json
import logging
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import tiny
import torch
from torch.nn import functional as F

import specwb
from specwb import kernels
from specwb.models import fused as fused_layers
from specwb.verify import RULES, Greedy, RRSw, fused

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
needs_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None,
    reason="the fused kernels need Triton: pip install 'specwb[kernels]'",
)


def run(*arguments: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, **environment},
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    return done.stdout


def values(*chosen: str, **environment: str) -> int:
    """How many tests of values.py passed."""
    command = ("-m", "pytest", str(HERE / "values.py"), "-p", "no:cacheprovider", "--tb=short")
    out = run(*command, *chosen, **environment)
    return int(re.search(r"(\d+) passed", out)[1])


@needs_triton
@pytest.mark.slow
def test_values_in_the_interpreter():
    assert values(TRITON_INTERPRET="1") > 40


@needs_triton
def test_a_few_values_in_the_interpreter():
    """What takes a second each: draws, the exact rules, an over-confident draft."""
    chosen = "never_drawn or lies_above or nan or over_confident or exact_rules"
    assert values("-k", chosen, TRITON_INTERPRET="1") > 8


@needs_triton
@pytest.mark.cuda
def test_values_on_the_device():
    assert values() > 40


@needs_triton
@pytest.mark.slow
def test_compiled_ahead_of_time():
    """For sm_80 and sm_90: nothing is spilled, and rows are read 16 bytes at a time."""
    made = [json.loads(line) for line in run(str(HERE / "ahead.py")).splitlines()]
    assert {one["sm"] for one in made} == {80, 90}
    kinds = {one["kernel"] for one in made}
    written = "".join(path.read_text() for path in (ROOT / "specwb/kernels").glob("*.py"))
    assert kinds == set(re.findall(r"^def (\w+_kernel)\(", written, re.MULTILINE))
    for one in made:
        assert (one["stack"], one["local"]) == (0, 0), one
        assert one["registers"] * one["threads"] <= 65536, one
        assert one["shared"] <= 99 << 10, one  # a block's on the devices that have the least
        if one["reads_rows"]:
            assert one["wide_loads"] >= 1, one


# --------------------------------------------------------------------------------------- the switch


def test_they_are_off_unless_asked_for(monkeypatch):
    monkeypatch.delenv("SPECWB_KERNELS", raising=False)
    assert not kernels.on()
    monkeypatch.setenv("SPECWB_KERNELS", "0")
    assert not kernels.on()
    monkeypatch.setattr(kernels, "found", lambda: True)
    monkeypatch.setenv("SPECWB_KERNELS", "1")
    assert kernels.on()
    with kernels.use(False):
        assert not kernels.on()


def test_what_turns_nothing_on_is_said(monkeypatch, caplog):
    monkeypatch.setattr(kernels, "_warned", set())
    monkeypatch.setenv("SPECWB_KERNELS", "yes")
    with caplog.at_level(logging.WARNING, "specwb"):
        assert not kernels.on()
    assert "SPECWB_KERNELS='yes' turns nothing on: it must be 1 or 0" in caplog.text


def test_without_triton_torchs_path_is_used(monkeypatch, caplog):
    monkeypatch.setattr(kernels, "found", lambda: False)
    monkeypatch.setattr(kernels, "_warned", set())
    monkeypatch.setenv("SPECWB_KERNELS", "1")
    with caplog.at_level(logging.WARNING, "specwb"):
        assert not kernels.on()
        assert not kernels.on()
    assert [record.getMessage() for record in caplog.records] == [
        "SPECWB_KERNELS is set, but Triton is not installed: torch's path is used"
    ]
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(specwb.MissingExtra, match="extra 'kernels'"), kernels.use():
        pass


def test_on_the_cpu_nothing_changes(monkeypatch):
    """With the switch on, tensors on the CPU take torch's path, and no kernel is imported."""
    monkeypatch.setattr(kernels, "found", lambda: True)
    monkeypatch.setattr(kernels, "interpreted", lambda: False)
    monkeypatch.setenv("SPECWB_KERNELS", "1")
    run = {"max_new_tokens": 8, "temperature": 1.0, "draft": tiny.draft("llama")}
    assert specwb.decode(tiny.target("llama"), [[1, 2]], "mcsd", **run).tokens
    assert not kernels._passed


def test_a_type_without_kernels(monkeypatch):
    monkeypatch.setattr(kernels, "found", lambda: True)
    monkeypatch.setattr(kernels, "interpreted", lambda: True)
    monkeypatch.setenv("SPECWB_KERNELS", "1")
    whole = torch.zeros(3, dtype=torch.long)
    assert not kernels.ready("draw", whole, lambda device, dtype: None)


def test_what_a_kernel_does_not_compute_stays_torchs(monkeypatch):
    """Its gate is SiLU, and its norm's gain is the weight; Gemma's is 1 + w."""
    both, x = torch.zeros(1, 8), torch.zeros(1, 4)
    made = SimpleNamespace(gated=lambda *_: both, add_norm=lambda *_: (x, x))
    monkeypatch.setattr(kernels, "ready", lambda *_: True)
    monkeypatch.setattr(fused_layers, "_kernels", lambda: made)
    assert fused_layers.gated(SimpleNamespace(act=F.silu), both) is both
    assert fused_layers.gated(SimpleNamespace(act=F.gelu), both) is None
    weight = torch.ones(4)
    llama = SimpleNamespace(variance_epsilon=1e-6, weight=weight)
    assert fused_layers.add_norm(x, x, llama) == (x, x)
    assert fused_layers.add_norm(x, x, SimpleNamespace(eps=1e-6, weight=weight)) is None
    assert fused_layers.add_norm(x, x, None) is None


def test_which_rules_are_fused():
    """A rule is fused where its own class says so: one that inherits from it decides otherwise."""
    kinds = {name: fused.kind_of(rule()) for name, rule in RULES.items()}
    assert {name: kind for name, kind in kinds.items() if kind} == {
        "rejection": "rrs",
        "rrs": "rrs",
        "rrsw": "rrsw",
        "point": "point",
        "naive": "point",
    }
    assert fused.kind_of(Greedy()) == "greedy"
    assert set(kinds.values()) - {""} | {"greedy"} == set(fused.NAMES)
    assert fused.kind_of(type("Mine", (RRSw,), {})()) == ""
