"""A tiny random model of every architecture that is run, made by transformers itself: what docs
call supported is what is in here.

Windows are shorter than the prompts, and every feature that a config can switch on is on.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import tiny
import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM

VOCABULARY = 64
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
}
WIDE = {"head_dim": 16}  # heads wider than the hidden size has room for
WINDOW = 5
MIXED = ["sliding_attention", "full_attention", "sliding_attention"]
EXPERTS = {"num_experts_per_tok": 2}
FAST: dict[str, dict[str, Any]] = {
    "llama": {},
    "mistral": {},  # without a window
    "mistral-window": {"sliding_window": WINDOW},
    "ministral": {**WIDE, "sliding_window": WINDOW, "layer_types": MIXED},
    "qwen2": {},
    "qwen2-window": {"use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 1},
    "qwen3": {**WIDE},
    "seed_oss": {**WIDE, "attention_bias": True, "attention_out_bias": False},
    "phi3": {"sliding_window": WINDOW},
    "phi3-partial rotation": {"head_dim": 8, "partial_rotary_factor": 0.5, "sliding_window": None},
    "phi3-longrope": {
        "original_max_position_embeddings": 64,
        "rope_parameters": {
            "rope_type": "longrope",
            "rope_theta": 10000.0,
            "short_factor": [1.0, 1.1, 1.3, 1.5],
            "long_factor": [1.0, 2.0, 4.0, 8.0],
            "original_max_position_embeddings": 64,
        },
    },
    "llama-dynamic": {
        "rope_parameters": {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 10000.0}
    },
    "smollm3": {"no_rope_layers": [1, 0, 1], "use_sliding_window": False},
    "arcee": {},
    "gemma": {**WIDE},
    "gemma2": {**WIDE, "sliding_window": WINDOW, "layer_types": MIXED},
    "gemma3_text": {**WIDE, "sliding_window": WINDOW, "layer_types": MIXED},
    "granite": {
        "embedding_multiplier": 3.0,
        "residual_multiplier": 0.5,
        "attention_multiplier": 0.2,
        "logits_scaling": 2.0,
    },
    "olmo2": {},
    "olmo3": {"sliding_window": WINDOW, "layer_types": MIXED},
    "exaone4": {"sliding_window": WINDOW, "layer_types": MIXED},
    "glm": {"head_dim": 8, "partial_rotary_factor": 0.5},
    "glm4": {"head_dim": 8, "partial_rotary_factor": 0.5, "attention_bias": True},
    "ernie4_5": {**WIDE},
    "helium": {"head_dim": 8},
    "hunyuan_v1_dense": {**WIDE},
    "mixtral": {"num_local_experts": 4, **EXPERTS, "sliding_window": WINDOW},
    "qwen2_moe": {
        "num_experts": 4,
        **EXPERTS,
        "moe_intermediate_size": 24,
        "shared_expert_intermediate_size": 24,
    },
    "qwen3_moe": {
        **WIDE,
        "num_experts": 4,
        **EXPERTS,
        "moe_intermediate_size": 24,
        "norm_topk_prob": True,
        "mlp_only_layers": [1],
    },
    "granitemoe": {
        "num_local_experts": 4,
        **EXPERTS,
        "embedding_multiplier": 3.0,
        "residual_multiplier": 0.5,
        "attention_multiplier": 0.2,
        "logits_scaling": 2.0,
    },
    "gpt_oss": {
        **WIDE,
        "num_local_experts": 4,
        **EXPERTS,
        "sliding_window": WINDOW,
        "layer_types": MIXED,
        "rope_parameters": {
            "rope_type": "yarn",
            "factor": 4.0,
            "original_max_position_embeddings": 32,
            "rope_theta": 10000.0,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "truncate": False,
        },
    },
}
GPT2 = {"n_embd": 32, "n_head": 4, "n_layer": 3, "n_positions": 128}
GENERIC: dict[str, dict[str, Any]] = {
    "gpt2": GPT2,
    "gpt_neox": {},
    "starcoder2": {"sliding_window": WINDOW},
    "cohere2": {"sliding_window": WINDOW, "layer_types": MIXED},
    "cohere": {},
    "phi": {},
    "stablelm": {},
    "opt": {"ffn_dim": 48, "word_embed_proj_dim": 32},
    "olmo": {},
    "olmoe": {"num_experts": 4, **EXPERTS},
    "nemotron": {},
    "gptj": {"n_embd": 32, "n_head": 4, "n_layer": 3, "n_positions": 128, "rotary_dim": 4},
    "gpt_bigcode": GPT2,
    "deepseek_v3": {
        "q_lora_rank": 16,
        "kv_lora_rank": 16,
        "qk_nope_head_dim": 8,
        "qk_rope_head_dim": 8,
        "v_head_dim": 12,
        "num_key_value_heads": 4,
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 24,
        "n_group": 1,
        "topk_group": 1,
        "first_k_dense_replace": 1,
    },
}


def build(name: str, *, seed: int = 0, dtype: torch.dtype = torch.float64, **changes) -> nn.Module:
    """A new random model of the library's; ``changes`` go to its config."""
    kind = name.split("-")[0]
    settings = {**SIZES, **{**FAST, **GENERIC}[name], "initializer_range": 0.2, **changes}
    ids = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"))
    torch.manual_seed(seed)
    config = AutoConfig.for_model(kind, **settings, **ids, tie_word_embeddings=False)
    if config.eos_token_id is not None:  # a default that None does not change
        config.eos_token_id = [VOCABULARY - 1]
    # the library's other ways to run experts do not compute in float64
    made = AutoModelForCausalLM.from_config(config, experts_implementation="eager").eval()
    made.generation_config.eos_token_id = None  # where None is not kept
    with torch.no_grad():
        for key, weight in made.named_parameters():
            if "norm" in key or "ln_" in key or key.endswith("bias") or "sinks" in key:
                weight.add_(torch.randn_like(weight) * 0.1)
            elif "expert" in key or "router" in key or "gate.weight" in key:
                weight.normal_(0, 0.3)  # some of these are zeros or empty as they are made
    return tiny.cast(made, dtype)


@cache
def stored(name: str, folder: Path) -> Path:
    """A folder with the model as the library saves it."""
    place = folder / name
    build(name, dtype=torch.float32).save_pretrained(place)
    return place
