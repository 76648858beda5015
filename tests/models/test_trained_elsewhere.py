"""EAGLE-3 heads as SpecForge and AngelSlim write them: their configs' fields and their files' keys,
made tiny.

Sources, read in November 2026. SpecForge (sgl-project/SpecForge): configs/qwen3-4b-eagle3.json,
configs/qwen3-30B-A3B-eagle3.1.json, configs/gpt-oss-20B-eagle3.json and
specforge/modeling/draft/llama3_eagle.py; its trainer leaves the embedding out. AngelSlim
(Tencent/AngelSlim), in angelslim/compressor/speculative/train: configs/qwen3-8b-eagle3.json,
models/draft/llama_eagle3.py, models/target/target_model_wrapper.py, trainer/eagle3_trainer.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from layouts import DIM, EAGLE3, Weights, eagle3_file, put, refused

import specwb
from specwb.models.eagle import Eagle3Head, load_eagle

LAYERS = 8
SPECFORGE: dict[str, Any] = {
    **EAGLE3,
    "attention_bias": False,
    "attention_dropout": 0.0,
    "head_dim": DIM,
    "max_position_embeddings": 2048,
    "max_window_layers": 48,
    "rms_norm_eps": 1e-06,
    "rope_theta": 1000000.0,
    "sliding_window": None,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.53.2",
    "use_sliding_window": False,
}
ANGELSLIM = {
    **SPECFORGE,
    "architectures": ["Eagle3LlamaForCausalLM"],
    "tie_word_embeddings": False,
    "transformers_version": "4.51.0",
    "target_model_type": "qwen3",
    "modal_type": "LLM",
}


@pytest.fixture(scope="module")
def target() -> specwb.Target:
    return specwb.load(tiny.build("llama", seed=2, num_hidden_layers=LAYERS))


def stored(folder: Path, config: dict[str, Any], weights: Weights | None = None) -> Path:
    """Both write the keys of EAGLE-3's own code, in bfloat16."""
    weights = eagle3_file() if weights is None else weights
    return put(folder, config, weights, "model.safetensors", torch.bfloat16)


def drafts(target: specwb.Target, folder: Path) -> Eagle3Head:
    """Decodes with a head; the text is plain decoding's."""
    prompt, how = [5, 9, 2, 33, 7], {"max_new_tokens": 6, "eos": ()}
    plain = specwb.decode(target, prompt, "ar", **how).tokens
    for key, options in (
        ("eagle", {"tree": (2, 1)}),
        ("eagle3", {"nodes": 5, "depth": 2, "top": 2}),
    ):
        method = specwb.method(key, target, head=str(folder), **options)
        assert specwb.decode(target, prompt, method, **how).tokens == plain
    head = load_eagle(folder, target)
    assert isinstance(head, Eagle3Head)
    return head


def test_specforge(tmp_path, target):
    """Without an embedding; the features are those that the published code reads."""
    head = drafts(target, stored(tmp_path / "h", SPECFORGE))
    assert head.embed_tokens is None
    assert head.features == (2, LAYERS // 2, LAYERS - 3)
    assert torch.equal(head.fc.weight, eagle3_file()["fc.weight"].bfloat16().float())
    assert head.rotary_emb.config.rope_parameters["rope_theta"] == 1e6


@pytest.mark.parametrize("own", [True, False])
def test_angelslim(tmp_path, target, own):
    """From its usual trainer with the target's embedding, from the one in parts without it."""
    embedding = {"embed_tokens.weight": target.backbone.embed.weight.detach()} if own else {}
    folder = put(tmp_path / "h", ANGELSLIM, {**eagle3_file(), **embedding}, "pytorch_model.bin")
    assert drafts(target, folder).features == (2, LAYERS // 2, LAYERS - 3)


def test_a_head_with_windows(tmp_path, target):
    """What a config says of them is computed, and kept when the head is saved."""
    config = {**SPECFORGE, "layer_types": ["sliding_attention"], "sliding_window": 3}
    head = drafts(target, stored(tmp_path / "h", config))
    head.save(tmp_path / "again")
    again = load_eagle(tmp_path / "again", target)
    assert (again.config.layer_types, again.config.sliding_window) == (["sliding_attention"], 3)
    folder = stored(tmp_path / "x", {**config, "sliding_window": 0})
    assert "sliding window" in refused(load_eagle, folder, target)
