"""What the config.json of an EAGLE head says: its layers, which of the target's states it reads,
and nothing that is not understood."""

from __future__ import annotations

from typing import Any

import torch
from transformers import LlamaConfig, Qwen3Config
from transformers.models.llama.modeling_llama import LlamaDecoderLayer
from transformers.models.qwen3.modeling_qwen3 import Qwen3DecoderLayer

from specwb.core.files import foreign
from specwb.models.architectures import UnsupportedModel, check_head
from specwb.models.checkpoint import HeadError

KNOWN = frozenset(
    [
        "draft_vocab_size",
        "target_hidden_size",
        "norm_before_residual",
        "norm_before_fc",
        "fc_norm",
        "norm_output",
        "own_head",
        "eagle_config",
        "eagle_aux_hidden_state_layer_ids",
        "aux_hidden_states_layer_ids",
        "transformer_layer_config",
        "specwb_features",
        "bias",
        "k_mask",
        "architectures",
        "auto_map",
        "algorithm",
        "speculators_model_type",
        "speculators_version",
        "speculators_config",
        "embed_requires_grad",
        "enable_sp_ulysses",
        "target_model_type",
        "modal_type",
        "torch_dtype",
        "dtype",
        "transformers_version",
        "_name_or_path",
        "pretraining_tp",
        "initializer_range",
        "attention_dropout",
        "max_window_layers",
        "qkv_bias",
        "head_dim",
        "rope_scaling",
        "rope_theta",
        "tie_word_embeddings",
    ]
)
"""Fields of an EAGLE-3 head's config.json, next to its layers' own: those that decide what it
computes (the first three lines), and those that say how it was trained, or for whom."""
USUAL = {
    "use_aux_hidden_state": True,
    "use_input_layernorm_in_first_layer": True,
    "use_last_layernorm": True,
    "use_mtp_layernorm": False,
    "next_layer_regular": True,
    "parallel_draft_step": 1,
}
"""Fields of ``eagle_config`` that other files may set, and what they mean by the usual head."""


def check_fields(config: dict[str, Any]) -> None:
    """Refuses a field of an EAGLE-3 head's config.json that asks for what is not computed here. One
    that is unknown and switched off (false, null, 0, empty) asks for nothing.
    """
    nested = config.get("eagle_config") or {}
    if not isinstance(nested, dict):
        raise HeadError(f"eagle_config must be a table, got {nested!r}")
    known = KNOWN | set(LlamaConfig().to_dict()) | set(Qwen3Config().to_dict())
    strange = {name: value for name, value in config.items() if name not in known and value}
    for name, value in nested.items():
        usual = value in (None, USUAL[name]) if name in USUAL else name in KNOWN or not value
        if not usual:
            strange[f"eagle_config.{name}"] = value
    if strange:
        name, value = next(iter(strange.items()))
        raise HeadError(
            f"config.json says {name}={value!r}, which is not understood here; a head that is "
            "computed without it would draft worse than it can"
        )


def layer_class(config: Any) -> type:
    """The library's layer of a head: Qwen3's where the config is, else Llama's."""
    return Qwen3DecoderLayer if isinstance(config, Qwen3Config) else LlamaDecoderLayer


def layer_config(config: dict, kind: Any = LlamaConfig, windowed: bool = False) -> Any:
    """The layer's config: the file's own, or what a speculators one has within. Older files say
    ``rope_theta``, which the library understands. ``kind`` is the library's class of configs;
    ``windowed``: layers may have sliding windows."""
    nested = config.get("transformer_layer_config", config)
    if not isinstance(nested, dict) or "hidden_size" not in nested:
        raise HeadError("config.json has no hidden_size")
    others = ("architectures", "model_type", "torch_dtype", "dtype")
    with foreign("config.json describes no layer that can be built", HeadError):
        llama = kind.from_dict({k: v for k, v in nested.items() if k not in others})
        with torch.device("meta"):
            layer_class(llama)(llama, 0)
    try:
        check_head(llama, windowed)
    except UnsupportedModel as error:
        raise HeadError(str(error)) from error
    if llama.num_hidden_layers < 1:
        raise HeadError(f"config.json says num_hidden_layers={llama.num_hidden_layers}")
    return llama


def usual_layers(layers: int) -> tuple[int, int, int]:
    """EAGLE-3's three: what enters layers 2, L/2 and L - 3 counted from 0, which is what layers 2,
    L/2 and L - 3 counted from 1 put out."""
    if layers < 6:
        raise HeadError(
            "EAGLE-3's three feature layers need a target of at least 6 layers, this one has "
            f"{layers}"
        )
    return 2, layers // 2, layers - 3


def feature_layers(config: dict[str, Any], depth: int) -> tuple[int, ...]:
    """The feature layers that a config.json names, as our numbers, or the usual ones.

    AngelSlim's ``aux_hidden_states_layer_ids`` are layers counted from 0 whose output is meant
    (angelslim/compressor/speculative/train/models/target/target_model_wrapper.py); for the others
    see :func:`layer_numbers`.
    """
    nested = config.get("eagle_config") or {}
    listed = []
    for name in ("eagle_aux_hidden_state_layer_ids", "aux_hidden_states_layer_ids"):
        ids = nested.get(name) or config.get(name) or []
        if not (isinstance(ids, list) and all(isinstance(i, int) for i in ids)):
            raise HeadError(f"{name} must be a list of whole numbers, got {ids}")
        listed.append(ids)
    boundaries, counted = listed
    if own := config.get("specwb_features"):
        numbers = tuple(own)
    elif boundaries:
        numbers = layer_numbers(boundaries)
    else:
        numbers = tuple(i + 1 for i in counted) or usual_layers(depth)
    if not numbers or any(not 0 <= i <= depth for i in numbers):
        raise HeadError(
            f"feature layers {list(numbers)} do not exist: the target has layers 0..{depth} (0 is "
            "the embedding)"
        )
    return numbers


def layer_numbers(ids: list[int]) -> tuple[int, ...]:
    """Feature layers as our numbers (0 the embedding, i the output of layer i from 1 on) from a
    checkpoint's ``eagle_aux_hidden_state_layer_ids``.

    Our own files say it in ``specwb_features`` as well. Of others two conventions are about. Ids of
    *boundaries* are our numbers: id 2 is what enters the third layer. Ids of layers counted from 0
    whose *output* is meant are one less. Files do not say which; the ones that count layers begin
    with 1 (nothing uses boundary 1), as SGLang decides too (sgl-project/sglang pull request 25454).
    Where that is wrong, ``specwb_features`` in config.json overrides.
    """
    return tuple(i + 1 for i in ids) if ids[0] == 1 else tuple(ids)
