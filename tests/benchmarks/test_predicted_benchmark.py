"""The benchmark that puts predicted step times beside measured ones, on tiny shapes and a CPU."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import pytest

from specwb.cost.shapes import Shape, tables

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "predicted.py"
SHAPE = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "vocab_size": 96,
}


@pytest.fixture
def predicted():
    spec = importlib.util.spec_from_file_location("predicted", BENCHMARK)
    program = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(program)
    return program


def test_every_pending_prediction_can_be_measured(predicted, monkeypatch, tmp_path):
    shape, out = tmp_path / "config.json", tmp_path / "out.json"
    shape.write_text(json.dumps(SHAPE))
    words = ["--device", "cpu", "--dtype", "fp32", "--context", "12", "--steps", "3"]
    models = ["--target", str(shape), "--draft", str(shape), "--out", str(out)]
    monkeypatch.setattr(sys, "argv", ["predicted.py", *words, *models])
    monkeypatch.setattr(predicted, "card_of", lambda device: "h100")
    predicted.main()
    found = json.loads(out.read_text())
    asked = tables("published")["pending"]["methods"]
    assert [row["method"] for row in found["rows"]] == asked
    for row in found["rows"]:
        low, high = row["interval_ms"]
        assert row["step_ms"] > 0
        assert low <= row["predicted_ms"] <= high


def test_drafts_are_not_cut_short_by_random_weights(predicted):
    models = predicted.Models(*[Shape("tiny", 32, 48, 6, 4, 2, 8, 96)] * 2, "fp32", "cpu", 256)
    for spec in ("sps:gamma=5", "kangaroo:eta=0,gamma=6"):
        prompt = list(range(1, 9))
        step = next(iter(predicted.specwb.rounds(models.target, prompt, models.method(spec))))
        assert int(step.draft.valid[0, 1:].sum()) == int(spec[-1])


def test_models_that_do_not_fit_are_said(predicted, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(predicted.torch.cuda, "mem_get_info", lambda device: (2**30, 2**31))
    out = tmp_path / "out.json"
    monkeypatch.setattr(sys, "argv", ["predicted.py", "--device", "cuda", "--out", str(out)])
    predicted.main()
    said = capsys.readouterr().out
    assert "8b and 1b need" in said
    assert "1 are free" in said
    assert json.loads(out.read_text()) == {"not_measured": said.strip()}


def test_a_card_is_a_word_of_the_devices_name(predicted):
    for device, name in {
        "NVIDIA H100 80GB HBM3": "h100",
        "NVIDIA H200": "h200",
        "NVIDIA A100-SXM4-80GB": "a100",
        "NVIDIA GeForce RTX 4090": "4090",
        "NVIDIA GH200 480GB": None,
        "NVIDIA RTX A1000": None,
        "NVIDIA H100 PCIe": None,
        "NVIDIA A100-SXM4-40GB": None,
        "NVIDIA GeForce RTX 4090 Laptop GPU": None,
    }.items():
        assert predicted.card_by_name(device) == name
