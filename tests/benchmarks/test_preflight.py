"""The checks that need a GPU, without one: the preflight's line, and the file of results."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import gpu
import preflight

import specwb
from specwb.models.device import resolve_dtype


@pytest.fixture
def device(monkeypatch, tmp_path):
    """An H100, of whose memory so many GiB are free; results go below ``tmp_path``."""

    def make(free: float = 70.0, capability: tuple[int, int] = (9, 0)) -> None:
        answers = {
            "is_available": True,
            "get_device_name": "H100",
            "get_device_capability": capability,
            "mem_get_info": (int(free * 2**30), 80 * 2**30),
        }
        for name, value in answers.items():
            monkeypatch.setattr(torch.cuda, name, lambda *_, value=value: value)

    monkeypatch.setattr(gpu, "HERE", tmp_path)
    make()
    return make


def test_what_is_in_the_way_is_one_line(device, monkeypatch, capsys):
    assert preflight.problem() is None
    device(free=3)
    assert preflight.problem().startswith("3.0 of 80.0 GiB of H100 are free, 12 are needed")
    device(capability=(7, 5))
    assert "capability (7, 5), bfloat16 needs (8, 0)" in preflight.problem()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert "can use no device" in preflight.problem()
    monkeypatch.setattr(sys, "argv", ["gpu.py"])
    assert gpu.main() == 2


def test_results_stay_when_a_later_part_fails(device, monkeypatch, tmp_path):
    ran = []

    def part(name, out):
        ran.append(name)
        if name == "masks":
            out.write_text('{"half":')  # broken off
            return 1
        if name not in ("values", "tests"):
            out.write_text(json.dumps({"seconds": 1}))
        return 0

    monkeypatch.setattr(gpu, "run", part)
    file = tmp_path / "results" / "h100.json"
    file.parent.mkdir()
    file.write_text(json.dumps({"masks": {"seconds": 5, "exit_code": 0}}))
    monkeypatch.setattr(sys, "argv", ["gpu.py", "--only", "values", "verify", "masks", "graphs"])
    assert gpu.main() == 1
    kept = json.loads(file.read_text())
    assert ran == ["values", "verify", "masks", "graphs"]
    assert kept["verify"] == kept["graphs"] == {"seconds": 1, "exit_code": 0}
    assert kept["masks"] == {"seconds": 5, "exit_code": 1}
    assert kept["device"] == "H100"
    ran.clear()
    monkeypatch.setattr(gpu, "run", lambda name, out: ran.append(name) or 1)
    monkeypatch.setattr(sys, "argv", ["gpu.py"])
    assert gpu.main() == 1
    assert ran == ["values"]  # other values than the CPU's end the run


def test_every_benchmark_is_a_part_or_measures_the_cpu():
    folder = Path(gpu.__file__).parent
    files = {file.stem for file in folder.glob("*.py")} - {"gpu", "preflight"}
    parts = {word.removesuffix(".py") for words in gpu.PARTS.values() for word in words}
    assert files - parts == {"floor", "models", "paths", "search", "trees"}


def test_bfloat16_where_there_is_none_is_refused_when_a_model_is_loaded(device):
    place = torch.device("cuda", 0)
    device(capability=(7, 5))
    with pytest.raises(specwb.LoadError, match=r"H100 \(sm_75\) has no bfloat16: write"):
        resolve_dtype("bfloat16", place)
    assert resolve_dtype("float16", place) is torch.float16
    device()
    assert resolve_dtype("bfloat16", place) is torch.bfloat16


@pytest.mark.slow
@pytest.mark.rare
def test_the_smoke_test_sees_other_values(monkeypatch):
    """Against itself the CPU's values are equal; with another seed on one side they are not."""
    good = preflight.smoke("cpu", seconds=600)
    assert good.wrong == []
    assert good.compared == good.cases > 20
    real, turn = specwb.decode, iter(range(10**6))
    monkeypatch.setattr(
        specwb, "decode", lambda *a, seed, **more: real(*a, seed=next(turn), **more)
    )
    assert any("other text" in text for text in preflight.smoke("cpu", seconds=2).wrong)
