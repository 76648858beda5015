"""EAGLE-3 heads as SpecForge and AngelSlim write them: their configs' fields and their files' keys,
made tiny.

Sources, read in November 2026. SpecForge (sgl-project/SpecForge): configs/qwen3-4b-eagle3.json,
configs/qwen3-30B-A3B-eagle3.1.json, configs/gpt-oss-20B-eagle3.json and
specforge/modeling/draft/llama3_eagle.py; its trainer leaves the embedding out. AngelSlim
(Tencent/AngelSlim), in angelslim/compressor/speculative/train: configs/qwen3-8b-eagle3.json,
models/draft/llama_eagle3.py, models/target/target_model_wrapper.py, trainer/eagle3_trainer.py.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from safetensors.torch import save_file
from torch import Tensor

import specwb
from specwb.models.checkpoint import HeadError
from specwb.models.eagle import Eagle3Head, load_eagle

H, V, D, FFN, HEADS, KV, DIM, LAYERS = 32, tiny.VOCABULARY, 40, 64, 4, 2, 8, 8
SPECFORGE: dict[str, Any] = {
    "architectures": ["LlamaForCausalLMEagle3"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "head_dim": DIM,
    "hidden_act": "silu",
    "hidden_size": H,
    "initializer_range": 0.02,
    "intermediate_size": FFN,
    "max_position_embeddings": 2048,
    "max_window_layers": 48,
    "model_type": "llama",
    "num_attention_heads": HEADS,
    "num_hidden_layers": 1,
    "num_key_value_heads": KV,
    "rms_norm_eps": 1e-06,
    "rope_scaling": None,
    "rope_theta": 1000000.0,
    "sliding_window": None,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.53.2",
    "use_cache": True,
    "use_sliding_window": False,
    "vocab_size": V,
    "draft_vocab_size": D,
}
ANGELSLIM = {
    **SPECFORGE,
    "architectures": ["Eagle3LlamaForCausalLM"],
    "rope_theta": 1000000,
    "tie_word_embeddings": False,
    "transformers_version": "4.51.0",
    "target_model_type": "qwen3",
    "modal_type": "LLM",
}


@pytest.fixture(scope="module")
def target() -> specwb.Target:
    return specwb.load(tiny.build("llama", seed=2, num_hidden_layers=LAYERS))


def weights(embedding: Tensor | None = None, norms: bool = False) -> dict[str, Tensor]:
    """The keys that both write, in bfloat16."""
    shapes = {
        "fc.weight": (H, 3 * H),
        "lm_head.weight": (D, H),
        "norm.weight": (H,),
        "midlayer.hidden_norm.weight": (H,),
        "midlayer.input_layernorm.weight": (H,),
        "midlayer.post_attention_layernorm.weight": (H,),
        "midlayer.self_attn.q_proj.weight": (HEADS * DIM, 2 * H),
        "midlayer.self_attn.k_proj.weight": (KV * DIM, 2 * H),
        "midlayer.self_attn.v_proj.weight": (KV * DIM, 2 * H),
        "midlayer.self_attn.o_proj.weight": (H, HEADS * DIM),
        "midlayer.mlp.gate_proj.weight": (FFN, H),
        "midlayer.mlp.up_proj.weight": (FFN, H),
        "midlayer.mlp.down_proj.weight": (H, FFN),
        **({f"fc_norm.{i}.weight": (H,) for i in range(3)} if norms else {}),
    }
    torch.manual_seed(5)
    made = {key: torch.randn(s) * 0.2 + float("norm" in key) for key, s in shapes.items()}
    ids = torch.cat([torch.arange(3, 20), torch.arange(30, 30 + D - 17)])
    made |= {"d2t": ids - torch.arange(D), "t2d": torch.isin(torch.arange(V), ids)}
    if embedding is not None:
        made["embed_tokens.weight"] = embedding.clone()
    return {k: w.bfloat16() if w.is_floating_point() else w for k, w in made.items()}


def put(
    folder: Path, config: dict[str, Any], tensors: dict[str, Tensor], bin: bool = False
) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    if bin:
        torch.save(tensors, folder / "pytorch_model.bin")
    else:
        save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return folder


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
    tensors = weights()
    head = drafts(target, put(tmp_path / "h", SPECFORGE, tensors))
    assert head.embed_tokens is None
    assert head.features == (2, LAYERS // 2, LAYERS - 3)
    assert torch.equal(head.fc.weight, tensors["fc.weight"].float())
    assert head.rotary_emb.config.rope_parameters["rope_theta"] == 1e6


def test_specforge_3_1(tmp_path, target):
    config = {**SPECFORGE, "fc_norm": True, "norm_output": True}
    head = drafts(target, put(tmp_path / "h", config, weights(norms=True)))
    assert head.normed_output
    assert len(head.fc_norm) == 3


def test_specforge_says_layers_counted_from_0(tmp_path, target):
    config = {**SPECFORGE, "eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 3, 5]}}
    assert load_eagle(put(tmp_path / "h", config, weights()), target).features == (2, 4, 6)


def test_specforge_with_experts_is_refused_by_name(tmp_path, target):
    config = {**SPECFORGE, "model_type": "gpt_oss", "num_local_experts": 4, "experts_per_token": 2}
    folder = put(tmp_path / "h", config, weights())
    with pytest.raises(HeadError, match=r"num_local_experts=4, which is not understood"):
        load_eagle(folder, target)


@pytest.mark.parametrize("bin", [True, False])
@pytest.mark.parametrize("own", [True, False])
def test_angelslim(tmp_path, target, own, bin):
    """From its usual trainer with the target's embedding, from the one in parts without it."""
    embedding = target.backbone.embed.weight.detach() if own else None
    head = drafts(target, put(tmp_path / "h", ANGELSLIM, weights(embedding), bin))
    assert head.features == (2, LAYERS // 2, LAYERS - 3)


def test_angelslim_says_which_outputs_it_reads(tmp_path, target):
    """Its field counts layers from 0, whatever it begins with."""
    for ids, features in (([1, 3, 4], (2, 4, 5)), ([2, 4, 6], (3, 5, 7))):
        folder = put(
            tmp_path / str(ids[0]), {**ANGELSLIM, "aux_hidden_states_layer_ids": ids}, weights()
        )
        assert load_eagle(folder, target).features == features
    wrong = put(tmp_path / "x", {**ANGELSLIM, "aux_hidden_states_layer_ids": [1, 3, 8]}, weights())
    with pytest.raises(HeadError, match="feature layers"):
        load_eagle(wrong, target)


def test_a_head_with_windows(tmp_path, target):
    """What a config says of them is computed, and kept when the head is saved."""
    config = {**SPECFORGE, "layer_types": ["sliding_attention"], "sliding_window": 3}
    head = drafts(target, put(tmp_path / "h", config, weights()))
    head.save(tmp_path / "again")
    again = load_eagle(tmp_path / "again", target)
    assert (again.config.layer_types, again.config.sliding_window) == (["sliding_attention"], 3)
    folder = put(tmp_path / "x", {**config, "sliding_window": 0}, weights())
    with pytest.raises(HeadError, match=r"sliding window must be an integer >= 1, got 0"):
        load_eagle(folder, target)
