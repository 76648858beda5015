"""What distinguishes the layers of each architecture that the fast backbone runs, an entry each.

Where nothing else is said a layer is Llama's: ``r = x + o(attend(norm(x)))``, then
``r + down(act(gate(norm(r))) * up(norm(r)))``. An entry says by which names the library calls a
layer's norms, in which order they act, and what else there is: multipliers, caps, sinks, ways to
rotate. Projections and experts are recognised by their modules
(:class:`specwb.models.layers.Layer`), sliding windows and rotations by the config.

To add one: an entry here, a tiny config in ``tests/families.py``, which the tests then compare with
the library's own model.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from specwb.core.errors import SpecwbError


class UnsupportedModel(SpecwbError, ValueError):
    """This model cannot be run right, or not by what asked for it; it is refused by name before
    any work."""


@dataclass(frozen=True)
class Architecture:
    """How a layer departs from Llama's, by the names of the library's modules and config fields.

    Attributes:
        before_attention, after_attention: the norms of what the attention reads (None: it reads
            ``x`` itself) and puts out.
        before_mlp, after_mlp: the same of the MLP.
        mlp: the layer's MLP, or its experts.
        q_norm, k_norm: the norms of queries and keys, of each head or of all.
        rotated_first: queries and keys are rotated before their norms, not behind them.
        adjacent: the rotation turns neighbours ``(2i, 2i + 1)``, not ``(i, i + half)``.
        rotates: whether an attention module rotates at all.
        attention_cap: the config's field of c where scores are ``c tanh(s / c)``.
        logit_cap: the config's field of c where logits are ``c tanh(l / c)``.
        embedding: the config's field that multiplies embeddings outside the embedding's module.
        residual: the config's field that multiplies what attention and MLP add.
        logits: the config's field that divides logits.
    """

    before_attention: str | None = "input_layernorm"
    after_attention: str | None = None
    before_mlp: str | None = "post_attention_layernorm"
    after_mlp: str | None = None
    mlp: str = "mlp"
    q_norm: str = "q_norm"
    k_norm: str = "k_norm"
    rotated_first: bool = False
    adjacent: bool = False
    rotates: Callable[[Any], bool] = lambda attention: bool(getattr(attention, "use_rope", True))
    attention_cap: str | None = None
    logit_cap: str | None = None
    embedding: str | None = None
    residual: str | None = None
    logits: str | None = None


LLAMA = Architecture()
_NORMS_BEHIND = Architecture(
    before_attention=None,
    after_attention="post_attention_layernorm",
    before_mlp=None,
    after_mlp="post_feedforward_layernorm",
)
_GEMMA = Architecture(
    after_attention="post_attention_layernorm",
    before_mlp="pre_feedforward_layernorm",
    after_mlp="post_feedforward_layernorm",
    logit_cap="final_logit_softcapping",
)
_GRANITE = Architecture(
    embedding="embedding_multiplier", residual="residual_multiplier", logits="logits_scaling"
)

ARCHITECTURES: dict[str, Architecture] = {
    **dict.fromkeys(("llama", "mistral", "ministral", "qwen2", "qwen3", "seed_oss"), LLAMA),
    **dict.fromkeys(("phi3", "smollm3", "arcee", "gemma"), LLAMA),
    **dict.fromkeys(("mixtral", "qwen2_moe", "qwen3_moe", "gpt_oss"), LLAMA),
    **dict.fromkeys(("ernie4_5", "helium", "glm"), Architecture(adjacent=True)),
    "granite": _GRANITE,
    "granitemoe": replace(_GRANITE, mlp="block_sparse_moe"),
    **dict.fromkeys(("olmo2", "olmo3"), _NORMS_BEHIND),
    "exaone4": replace(
        _NORMS_BEHIND,
        # where some layers have windows, the others see everything and know no positions
        rotates=lambda attention: attention.sliding_window is None or attention.is_sliding,
    ),
    "glm4": Architecture(
        after_attention="post_self_attn_layernorm", after_mlp="post_mlp_layernorm", adjacent=True
    ),
    "hunyuan_v1_dense": Architecture(
        q_norm="query_layernorm", k_norm="key_layernorm", rotated_first=True
    ),
    "gemma2": replace(_GEMMA, attention_cap="attn_logit_softcapping"),
    "gemma3_text": _GEMMA,
}
"""By the library's model type."""

SLIDING = ("mistral", "mixtral", "phi3", "qwen3_moe")
"""Model types whose config has one window for all layers."""
ATTENTION = ("full_attention", "sliding_attention")
"""Layer types whose state is keys and values by position, which a tree of drafts needs."""
UNLIMITED = 2**31
CHANGING = ("dynamic", "longrope")
"""Rotations that change with the length of the text, beyond the length the model began with."""


def text_config(config: Any) -> Any:
    """The config of a model's text part, which is the model's own where there is no other."""
    get = getattr(config, "get_text_config", None)
    return config if get is None else get(decoder=True)


def architecture_of(config: Any) -> Architecture:
    """The entry of a config's model type; without one it is refused."""
    kind = getattr(config, "model_type", "?")
    if kind not in ARCHITECTURES:
        raise UnsupportedModel(f"model type {kind!r} has no fast path here")
    if getattr(config, "use_bidirectional_attention", False):
        raise UnsupportedModel(f"{kind} with attention in both directions has no fast path here")
    return ARCHITECTURES[kind]


def check_causal(config: Any) -> None:
    """Checks that a draft's tree can be scored by a model at all: it is a decoder whose memory of a
    text is keys and values by position."""
    config, kind = text_config(config), getattr(config, "model_type", "?")
    if getattr(config, "is_encoder_decoder", False):
        raise UnsupportedModel(
            f"model type {kind!r} is an encoder-decoder and not supported: a target here is a "
            "decoder alone"
        )
    other = [t for t in getattr(config, "layer_types", None) or () if t not in ATTENTION]
    if other:
        raise UnsupportedModel(
            f"model type {kind!r} has layers of type {other[0]!r} and is not supported: a tree of "
            "drafts needs keys and values by position in every layer"
        )


def check_head(config: Any, windowed: bool) -> None:
    """Checks that a trained head's layers look at positions in a way that is computed;
    ``windowed``: a head of its kind may have sliding windows."""
    if "sliding_attention" in (getattr(config, "layer_types", None) or ()):
        if not windowed:
            raise UnsupportedModel("a sliding attention window is not supported in such a head")
        width = getattr(config, "sliding_window", None)
        if type(width) is not int or width < 1:
            raise UnsupportedModel(f"a sliding window must be an integer >= 1, got {width!r}")
    if unchanged_below(config) < UNLIMITED:
        kind = config.rope_parameters["rope_type"]
        raise UnsupportedModel(
            f"rope type {kind!r} changes with the length of the text and is not supported in a head"
        )


def windows(config: Any, layers: int) -> list[int | None]:
    """How many positions p - W + 1 .. p each of so many layers sees; None: all of them."""
    window = getattr(config, "sliding_window", None)
    if not getattr(config, "use_sliding_window", True):
        window = None
    default = "sliding_attention" if config.model_type in SLIDING else "full_attention"
    types = getattr(config, "layer_types", None) or [default] * layers
    return [window if t == "sliding_attention" else None for t in types[:layers]]


def context(config: Any) -> int:
    """How many tokens a text may have: as many as the model's positions are made for, and as its
    rotation stays the same for."""
    longest = int(getattr(text_config(config), "max_position_embeddings", None) or UNLIMITED)
    return min(longest, unchanged_below(config))


def unchanged_below(config: Any) -> int:
    """The length of a text up to which its length changes nothing in the model's rotation."""
    config = text_config(config)
    longest = int(getattr(config, "max_position_embeddings", None) or UNLIMITED)
    ropes = getattr(config, "rope_parameters", None) or {}
    every = [ropes, *(rope for rope in ropes.values() if isinstance(rope, dict))]
    changing = [rope for rope in every if rope.get("rope_type") in CHANGING]
    lengths = [rope.get("original_max_position_embeddings") or longest for rope in changing]
    return int(min(lengths, default=UNLIMITED))
