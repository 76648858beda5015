"""What a GPU run says before it begins, of machines that it cannot run on."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import specwb
from specwb.models.device import resolve_device, resolve_dtype

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

import gpu
import preflight

GOOD = preflight.Facts(
    "2.13.0+cu130", "13.0", 1, True, "580.65.06", "H100", (9, 0), ("sm_80", "sm_90"), 78.0, 79.0
)
BLIND = {"devices": 0, "name": "", "capability": (0, 0), "architectures": ()}


def test_nothing_is_in_the_way_of_a_good_machine():
    assert preflight.problem(GOOD) is None


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({**BLIND, "hardware": False}, "no NVIDIA device; make dry"),
        ({**BLIND, "cuda": None, "torch": "2.13.0+cpu"}, "a build without CUDA: install"),
        (
            {**BLIND, "driver": "535.104.05"},
            "needs driver 580 or newer, this is 535.104.05: update it, or install torch's build "
            "for CUDA 12",
        ),
        ({**BLIND, "driver": "430.10"}, "needs driver 580 or newer, this is 430.10: update it"),
        (BLIND, "can use no device (driver 580.65.06): look at CUDA_VISIBLE_DEVICES"),
        ({**BLIND, "driver": ""}, "can use no device (driver unknown)"),
        ({"capability": (7, 5), "name": "T4"}, "T4 (sm_75) is older than sm_80"),
        ({"capability": (12, 0)}, "has no kernels for H100 (sm_120), only sm_80, sm_90"),
        ({"free": 2.5}, "2.5 of 79.0 GiB of H100 (sm_90) are free, 12 are needed"),
    ],
)
def test_what_is_in_the_way_is_said_in_one_line(change, said):
    text = preflight.problem(replace(GOOD, **change))
    assert text is not None
    assert said in text
    assert "\n" not in text


def test_an_unusable_device_is_an_error_and_not_nothing_to_run(monkeypatch, capsys):
    old = replace(GOOD, **BLIND, driver="535.104.05")
    monkeypatch.setattr(gpu, "facts", lambda: old)
    monkeypatch.setattr(sys, "argv", ["gpu.py"])
    assert gpu.main() == 2
    assert "needs driver 580" in capsys.readouterr().out


def test_results_stay_when_a_later_part_fails(monkeypatch, tmp_path):
    ran = []

    def part(name, out):
        ran.append(name)
        if name == "masks":
            out.write_text('{"half":')  # broken off
            return 1
        if name not in ("values", "tests"):
            out.write_text(json.dumps({"seconds": 1}))
        return 0

    monkeypatch.setattr(gpu, "HERE", tmp_path)
    monkeypatch.setattr(gpu, "facts", lambda: GOOD)
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
    assert (kept["device"], kept["driver"]) == ("H100", "580.65.06")


@pytest.mark.parametrize("old", ["[1]", "\udcff", '{"graphs": [1]}', "{"])
def test_an_old_file_that_holds_no_results_is_no_obstacle(monkeypatch, tmp_path, old):
    monkeypatch.setattr(gpu, "HERE", tmp_path)
    monkeypatch.setattr(gpu, "facts", lambda: GOOD)
    monkeypatch.setattr(gpu, "run", lambda name, out: 0)
    file = tmp_path / "results" / "h100.json"
    file.parent.mkdir()
    file.write_text(old, errors="surrogateescape")
    monkeypatch.setattr(sys, "argv", ["gpu.py", "--only", "graphs"])
    assert gpu.main() == 0
    assert json.loads(file.read_text())["graphs"] == {"exit_code": 0}


def test_other_values_than_the_cpus_end_the_run(monkeypatch, tmp_path):
    monkeypatch.setattr(gpu, "HERE", tmp_path)
    monkeypatch.setattr(gpu, "facts", lambda: GOOD)
    ran = []
    monkeypatch.setattr(gpu, "run", lambda name, out: ran.append(name) or 1)
    monkeypatch.setattr(sys, "argv", ["gpu.py"])
    assert gpu.main() == 1
    assert ran == ["values"]


def test_every_benchmark_is_a_part_or_measures_the_cpu():
    folder = Path(gpu.__file__).parent
    files = {file.stem for file in folder.glob("*.py")} - {"gpu", "preflight"}
    parts = {word.removesuffix(".py") for words in gpu.PARTS.values() for word in words}
    assert files - parts == {"models", "paths", "search", "sizes", "trees", "ways"}


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a device")
def test_a_device_that_torch_cannot_use_is_said():
    assert resolve_device("auto").type == "cpu"
    with pytest.raises(specwb.LoadError, match=r"sees no CUDA device.*make gpu"):
        resolve_device("cuda")


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


def test_a_case_that_fails_is_named_and_one_that_is_not_reached_is_not_wrong(monkeypatch):
    real, calls = specwb.decode, iter(range(10**6))

    def decode(*arguments, **settings):
        if next(calls) == 2:  # the first case's first text on the other side
            raise RuntimeError("no kernel image\nmore lines")
        return real(*arguments, **settings)

    monkeypatch.setattr(specwb, "decode", decode)
    clock = SimpleNamespace(monotonic=count().__next__)  # a second for every look at it
    monkeypatch.setattr(preflight, "time", clock)
    values = preflight.smoke("cpu", seconds=3)
    (first,) = values.wrong
    assert first.endswith(": RuntimeError: no kernel image")
    assert values.compared == 3 < values.cases


def test_a_full_device_and_a_silent_nvidia_smi_are_said(monkeypatch, tmp_path):
    smi = tmp_path / "nvidia-smi"
    smi.write_text("#!/bin/sh\nexec sleep 30\n")
    smi.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with pytest.raises(preflight.Unanswered, match="nvidia-smi did not answer within 0 s"):
        preflight.driver_version(0.2)
    slow = preflight.driver_version
    monkeypatch.setattr(preflight, "driver_version", lambda: slow(0.2))
    assert "did not answer within 0 s: restart" in preflight.problem(preflight.facts())
    monkeypatch.setattr(preflight, "driver_version", lambda: "580.65.06")
    about = {"is_available": True, "device_count": 1, "get_device_name": "H100"}
    about |= {"get_device_capability": (9, 0), "get_arch_list": ["sm_90"]}
    for name, value in about.items():
        monkeypatch.setattr(torch.cuda, name, lambda *a, value=value: value)
    monkeypatch.setattr(torch.version, "cuda", "13.0")

    def full(device):
        raise torch.OutOfMemoryError("CUDA out of memory.\nTried")

    monkeypatch.setattr(torch.cuda, "mem_get_info", full)
    text = preflight.problem(preflight.facts())
    assert text == (
        "H100 (sm_90) cannot be used (CUDA out of memory.): end what nvidia-smi lists there"
    )


def test_bfloat16_where_there_is_none_is_refused_when_a_model_is_loaded(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "T4")
    place = torch.device("cuda", 0)
    for capability, good in (((7, 5), False), ((8, 0), True)):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device, c=capability: c)
        for dtype in ("bfloat16", torch.bfloat16):
            if good:
                assert resolve_dtype(dtype, place) is torch.bfloat16
            else:
                with pytest.raises(specwb.LoadError, match=r"T4 \(sm_75\) has no bfloat16: write"):
                    resolve_dtype(dtype, place)
        assert resolve_dtype("float16", place) is torch.float16
    assert resolve_dtype("bfloat16", torch.device("cpu")) is torch.bfloat16
