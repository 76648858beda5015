"""Files of trained heads with exactly the published keys and shapes, from raw tensors, and what
they compute, written out."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn import functional as F

import specwb
from specwb.models.checkpoint import HeadError
from specwb.models.eagle import load_eagle
from specwb.models.falcon import load_falcon
from specwb.models.kangaroo import load_kangaroo
from specwb.models.medusa import load_medusa

H, V, FFN, HEADS, KV, DIM = 32, tiny.VOCABULARY, 64, 4, 2, 8
D = 40  # an EAGLE-3 head's own vocabulary
Weights = dict[str, Tensor]


def tensors(shapes: dict[str, tuple[int, ...]]) -> Weights:
    torch.manual_seed(5)
    return {
        key: torch.randn(shape) * 0.2 + (1.0 if "norm" in key else 0.0)
        for key, shape in shapes.items()
    }


def layer0(name: str) -> str:
    return f"layers.0.self_attn.{name}_proj.weight"


def mlp_and_output(layer: str) -> dict[str, tuple[int, ...]]:
    return {
        f"{layer}.self_attn.o_proj.weight": (H, HEADS * DIM),
        f"{layer}.mlp.gate_proj.weight": (FFN, H),
        f"{layer}.mlp.up_proj.weight": (FFN, H),
        f"{layer}.mlp.down_proj.weight": (H, FFN),
        f"{layer}.post_attention_layernorm.weight": (H,),
    }


def attention(layer: str, width: int, kv: int = KV) -> dict[str, tuple[int, ...]]:
    return {
        f"{layer}.self_attn.{name}_proj.weight": (heads * DIM, width)
        for name, heads in (("q", HEADS), ("k", kv), ("v", kv))
    }


def medusa_file(heads: int = 5, blocks: int = 1, prefix: str = "") -> Weights:
    shapes: dict[str, tuple[int, ...]] = {}
    for i in range(heads):
        for j in range(blocks):
            block = f"{prefix}{i}.{j}.linear"
            shapes |= {f"{block}.weight": (H, H), f"{block}.bias": (H,)}
        shapes[f"{prefix}{i}.{blocks}.weight"] = (V, H)
    return tensors(shapes)


def eagle_file(bias: bool = True, embedding: Tensor | None = None) -> Weights:
    shapes = {"fc.weight": (H, 2 * H), **({"fc.bias": (H,)} if bias else {})}
    shapes |= attention("layers.0", H) | mlp_and_output("layers.0")
    return {**tensors(shapes), **({} if embedding is None else {"embed_tokens.weight": embedding})}


def eagle3_file(layer: str = "midlayer", rows: int = D, input_norm: bool = False) -> Weights:
    shapes = {
        "fc.weight": (H, 3 * H),
        "norm.weight": (H,),
        "lm_head.weight": (rows, H),
        f"{layer}.hidden_norm.weight": (H,),
        f"{layer}.input_layernorm.weight": (H,),
        **attention(layer, 2 * H),
        **mlp_and_output(layer),
        **({"input_norm.weight": (3 * H,)} if input_norm else {}),
    }
    return {**tensors(shapes), **({} if rows == V else maps(spoken()))}


def falcon_file(qkv_bias: bool = False, embedding: Tensor | None = None) -> Weights:
    shapes: dict[str, tuple[int, ...]] = {"layers.1.input_layernorm.weight": (H,)}
    for i in range(2):
        read = attention(f"layers.{i}", H)
        shapes |= read | mlp_and_output(f"layers.{i}")
        if qkv_bias:
            shapes |= {key.replace("weight", "bias"): shape[:1] for key, shape in read.items()}
        shapes |= {
            f"lstm.weight_ih_l{i}": (4 * H, H if i else 2 * H),
            f"lstm.weight_hh_l{i}": (4 * H, H),
            **{f"lstm.bias_{n}h_l{i}": (4 * H,) for n in "ih"},
        }
    return {**tensors(shapes), **({} if embedding is None else {"embed_tokens.weight": embedding})}


def kangaroo_file(kv: int = KV) -> Weights:
    norms = {"norm.weight": (H,), "layers.0.input_layernorm.weight": (H,)}
    return tensors({**norms, **attention("layers.0", H, kv), layer0("o"): (H, HEADS * DIM)})


def spoken() -> Tensor:
    """Ids of the draft vocabulary: not the first ones, ascending, with gaps."""
    return torch.cat([torch.arange(3, 20), torch.arange(30, 30 + D - 17)])


def maps(ids: Tensor) -> Weights:
    return {"d2t": ids - torch.arange(len(ids)), "t2d": torch.isin(torch.arange(V), ids)}


LLAMA: dict[str, Any] = json.loads("""{
    "architectures": ["LlamaForCausalLM"], "bos_token_id": 1, "eos_token_id": 2,
    "hidden_act": "silu", "initializer_range": 0.02, "max_position_embeddings": 512,
    "model_type": "llama", "num_hidden_layers": 1, "pad_token_id": 0, "rms_norm_eps": 1e-05,
    "rope_scaling": null, "rope_theta": 300.0, "tie_word_embeddings": false,
    "torch_dtype": "float16", "transformers_version": "4.28.1", "use_cache": true}""")
LLAMA |= {"hidden_size": H, "intermediate_size": FFN, "vocab_size": V}
LLAMA |= {"num_attention_heads": HEADS, "num_key_value_heads": KV}
EAGLE3 = {**LLAMA, "architectures": ["LlamaForCausalLMEagle3"], "draft_vocab_size": D}
FALCON = {**LLAMA, "num_hidden_layers": 2, "k_mask": 2}
# the published adapters do not say their exit layer
KANGAROO = {key: value for key, value in LLAMA.items() if key != "rope_theta"}
MEDUSA = {
    "base_model_name_or_path": "lmsys/vicuna-7b-v1.3",
    "medusa_num_heads": 2,
    "medusa_num_layers": 1,
    "transformers_version": "4.31.0",
}
SPECULATORS = {
    "architectures": ["Eagle3DraftModel"],
    "speculators_model_type": "eagle3",
    "speculators_version": "0.1.0",
    "draft_vocab_size": D,
    "norm_before_residual": True,
    "target_hidden_size": None,
    "transformer_layer_config": {k: v for k, v in LLAMA.items() if k != "architectures"},
    "speculators_config": {
        "algorithm": "eagle3",
        "verifier": {"architectures": ["LlamaForCausalLM"], "name_or_path": "some/model"},
    },
}
KINDS: dict[str, tuple[Callable[..., Any], dict, Callable[..., Weights], str]] = {
    "medusa": (load_medusa, MEDUSA, medusa_file, "medusa_lm_head.pt"),
    "eagle": (load_eagle, LLAMA, eagle_file, "pytorch_model.bin"),
    "eagle3": (load_eagle, EAGLE3, eagle3_file, "pytorch_model.bin"),
    "falcon": (load_falcon, FALCON, falcon_file, "pytorch_model.bin"),
    "kangaroo": (load_kangaroo, {**KANGAROO, "exit_layer": 1}, kangaroo_file, "pytorch_model.bin"),
}
"""How each head is loaded, its config, its weights and the name of their file."""


def put(
    folder: Path,
    config: dict | str | None,
    weights: Weights,
    name: str,
    dtype: torch.dtype = torch.float32,
) -> Path:
    folder.mkdir(exist_ok=True, parents=True)
    if config is not None:
        text = config if isinstance(config, str) else json.dumps(config)
        (folder / "config.json").write_text(text)
    cast = {k: w.to(dtype) if w.is_floating_point() else w for k, w in weights.items()}
    (save_file if name.endswith(".safetensors") else torch.save)(cast, folder / name)
    return folder


def damaged(weights: Weights, change: dict[str, Any]) -> Weights:
    """Weights without what ``change`` gives None for (stars stand for any characters), with zeros
    of a shape, with another tensor, or filled with a number."""
    weights = dict(weights)
    for key, new in change.items():
        if new is None:
            weights = {k: w for k, w in weights.items() if not fnmatch(k, key)}
        elif isinstance(new, float):
            weights[key] = torch.full_like(weights[key], new)
        else:
            weights[key] = new if isinstance(new, Tensor) else torch.zeros(new)
    return weights


def refused(load: Callable[..., Any], folder: Path, target: specwb.Target, *rest, **more) -> str:
    """The one line that refuses a folder, which it names."""
    with pytest.raises(HeadError) as caught:
        load(folder, target, *rest, **more)
    message = str(caught.value)
    assert str(folder) in message
    assert "\n" not in message
    return message


# --------------------------------------------------------------------------------------- by hand


def norm(x: Tensor, weight: Tensor) -> Tensor:
    return x * (x.square().mean(-1, keepdim=True) + 1e-5).rsqrt() * weight


def rotated(x: Tensor, theta: float = 300.0) -> Tensor:
    """``[heads, m, DIM]`` keys or queries at positions 0.., by hand."""
    angle = torch.arange(x.shape[1])[:, None] * theta ** (-torch.arange(0, DIM, 2) / DIM)
    cos, sin = angle.cos().repeat(1, 2), angle.sin().repeat(1, 2)
    return x * cos + torch.cat([-x[..., DIM // 2 :], x[..., : DIM // 2]], -1) * sin


def attended(
    w: Weights, layer: str, x: Tensor, sees: Tensor | None = None, theta: float = 300.0
) -> Tensor:
    """``[m,H]``: what an attention puts out. ``sees [m,m]``: which places, default those before."""
    sees = torch.ones(len(x), len(x)).tril().bool() if sees is None else sees
    name = f"{layer}.self_attn"
    q, k, v = (
        (x @ w[f"{name}.{n}_proj.weight"].T + w.get(f"{name}.{n}_proj.bias", torch.zeros(1)))
        .view(len(x), -1, DIM)
        .transpose(0, 1)
        for n in "qkv"
    )
    k, v = (part.repeat_interleave(HEADS // len(k), 0) for part in (rotated(k, theta), v))
    scores = (rotated(q, theta) @ k.mT / math.sqrt(DIM)).masked_fill(~sees, float("-inf"))
    return (scores.softmax(-1) @ v).transpose(0, 1).flatten(1) @ w[f"{name}.o_proj.weight"].T


def with_mlp(w: Weights, layer: str, x: Tensor) -> Tensor:
    """``[m,H]``: the residual stream behind a layer's MLP."""
    y = norm(x, w[f"{layer}.post_attention_layernorm.weight"])
    gate, up = (y @ w[f"{layer}.mlp.{n}_proj.weight"].T for n in ("gate", "up"))
    return x + (F.silu(gate) * up) @ w[f"{layer}.mlp.down_proj.weight"].T


def decoder_layer(
    w: Weights, layer: str, read: Tensor, x: Tensor, sees: Tensor | None = None
) -> Tensor:
    """``[m,H]``: attention and MLP; what attention reads is given."""
    return with_mlp(w, layer, x + attended(w, layer, read, sees))
