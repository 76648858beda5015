"""The number type where none is named: measured once, said, never less than what is stored."""

from __future__ import annotations

import copy
import json

import pytest
import tiny
import torch

import specwb
from specwb.models import faster, gguf, products


@pytest.fixture(autouse=True)
def _apart(tmp_path, monkeypatch):
    """Choices of this test alone, for models of any size."""
    monkeypatch.setenv("SPECWB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(faster, "SMALL", 0)
    products.forget()
    yield
    products.forget()


def folder(tmp_path, dtype: torch.dtype):
    target = tiny.target()
    model = copy.deepcopy(target.model).to(dtype)
    model.config.dtype = dtype
    model.save_pretrained(tmp_path / "model")
    tiny.tokenizer([f"w{i}" for i in range(64)]).save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def always(ratio: float, monkeypatch) -> list[int]:
    asked: list[int] = []

    def gain(exact, half, generic):
        asked.append(1)
        assert next(exact.parameters()).dtype == torch.float32
        assert next(half.parameters()).dtype == torch.bfloat16
        return ratio

    monkeypatch.setattr(faster, "gain", gain)
    return asked


@pytest.mark.parametrize(("ratio", "taken"), [(1.5, torch.bfloat16), (1.05, torch.float32)])
def test_the_faster_type_is_taken_asked_for_once_and_said(
    ratio, taken, tmp_path, monkeypatch, caplog
):
    asked = always(ratio, monkeypatch)
    place = folder(tmp_path, torch.bfloat16)
    for _ in range(3):
        caplog.clear()
        assert specwb.load(place, device="cpu").dtype == taken
        assert ("in dtype=float32 only" in caplog.text) == (taken == torch.bfloat16)
    assert len(asked) == 1
    products.forget()  # another process
    assert specwb.load(place, device="cpu").dtype == taken
    assert len(asked) == 1


def test_what_is_stored_counts_and_not_what_the_config_says(tmp_path, monkeypatch):
    asked = always(9.0, monkeypatch)
    place = folder(tmp_path, torch.float32)
    config = json.loads((place / "config.json").read_text())
    for said in ("float32", "bfloat16"):
        (place / "config.json").write_text(json.dumps({**config, "dtype": said}))
        assert specwb.load(place, device="cpu").dtype == torch.float32
    assert specwb.load("lab", device="cpu").dtype == torch.float32
    assert not asked
    place = folder(tmp_path, torch.bfloat16)
    del config["dtype"]
    (place / "config.json").write_text(json.dumps(config))
    assert specwb.load(place, device="cpu").dtype == torch.bfloat16
    assert len(asked) == 1


def test_a_gguf_file_of_float32_is_never_rounded_unasked(tmp_path, monkeypatch):
    pytest.importorskip("gguf")
    from test_gguf import write

    asked = always(9.0, monkeypatch)
    file = write(tmp_path / "m.gguf", tiny.build("qwen2", seed=3))
    assert specwb.load(file, device="cpu").dtype == torch.float32
    assert not asked
    monkeypatch.setattr(gguf, "PRECISE", set())  # as if these were types of few bits
    assert specwb.load(file, device="cpu").dtype == torch.bfloat16
    assert len(asked) == 1


def test_the_type_does_not_depend_on_threads_but_on_the_model_and_its_way(tmp_path, monkeypatch):
    asked = always(1.5, monkeypatch)
    place = folder(tmp_path, torch.bfloat16)
    specwb.load(place, device="cpu")
    monkeypatch.setattr(torch, "get_num_threads", lambda: 7)
    specwb.load(place, device="cpu")
    assert len(asked) == 1
    assert specwb.load(place, device="cpu", generic=True).backbone.whole
    assert len(asked) == 2


def test_a_type_that_is_named_is_taken(tmp_path, monkeypatch):
    asked = always(9.0, monkeypatch)
    place = folder(tmp_path, torch.bfloat16)
    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        assert specwb.load(place, dtype=dtype, device="cpu").dtype == dtype
    assert not asked


def test_small_models_and_full_memories_are_not_asked_about(tmp_path, monkeypatch):
    asked = always(9.0, monkeypatch)
    place = folder(tmp_path, torch.bfloat16)
    monkeypatch.setattr(faster, "SMALL", 2**26)
    assert specwb.load(place, device="cpu").dtype == torch.float32
    monkeypatch.setattr(faster, "SMALL", 0)

    class Full:
        available = 0

    monkeypatch.setattr(faster.psutil, "virtual_memory", Full)
    assert faster.chosen(tiny.target().model, "m", None, False).dtype == torch.float32
    assert not asked


def test_both_types_are_timed_on_what_a_step_does(monkeypatch):
    model = tiny.target().model
    clock = iter(range(10**6))
    monkeypatch.setattr(faster.time, "perf_counter", lambda: float(next(clock)))
    assert faster.gain(model, copy.deepcopy(model).to(torch.bfloat16)) == 1.0


def test_how_many_times_as_fast_it_is(monkeypatch):
    """The median of five turns behind two that are not counted: of 3, 2, 1.5, 6 and 10."""
    seconds = {
        "exact": iter([50.0, 40.0, 6.0, 6.0, 6.0, 6.0, 30.0]),
        "half": iter([1.0, 1.0, 2.0, 3.0, 4.0, 1.0, 3.0]),
    }
    clock = [0.0]

    def forwards(model, generic):
        def run():
            clock[0] += next(seconds[model])

        return run

    monkeypatch.setattr(faster, "forwards", forwards)
    monkeypatch.setattr(faster.time, "perf_counter", lambda: clock[0])
    assert faster.gain("exact", "half") == 3.0
