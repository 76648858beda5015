"""The number type where none is named: measured once, said, never less than what is stored."""

from __future__ import annotations

import copy

import pytest
import tiny
import torch

import specwb
from specwb.models import faster, products


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

    def gain(exact, half):
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
        assert ("dtype=float32 is exact" in caplog.text) == (taken == torch.bfloat16)
    assert len(asked) == 1
    products.forget()  # another process
    assert specwb.load(place, device="cpu").dtype == taken
    assert len(asked) == 1


def test_what_is_stored_in_float32_is_never_rounded_unasked(tmp_path, monkeypatch):
    asked = always(9.0, monkeypatch)
    place = folder(tmp_path, torch.float32)
    assert specwb.load(place, device="cpu").dtype == torch.float32
    assert specwb.load("lab", device="cpu").dtype == torch.float32
    assert not asked


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
    assert faster.chosen(tiny.target().model, "m", None).dtype == torch.float32
    assert not asked


def test_both_types_are_timed_on_what_a_step_does(monkeypatch):
    model = tiny.target().model
    clock = iter(range(10**6))
    monkeypatch.setattr(faster.time, "perf_counter", lambda: float(next(clock)))
    assert faster.gain(model, copy.deepcopy(model).to(torch.bfloat16)) == 1.0


def test_a_target_in_the_faster_type_decodes_as_one_that_was_asked_for(tmp_path, monkeypatch):
    always(1.5, monkeypatch)
    place = folder(tmp_path, torch.bfloat16)
    auto = specwb.load(place, device="cpu")
    asked = specwb.load(place, dtype="bfloat16", device="cpu")
    prompt = [1, 2, 3, 4]
    one, two = (specwb.decode(t, prompt, "ar", max_new_tokens=8).tokens for t in (auto, asked))
    assert one == two
