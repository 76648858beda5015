"""Shapes of models: what a step's products and attentions are derived from."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cache
from pathlib import Path
from typing import Any

from specwb.errors import SpecwbError
from specwb.files import from_json, home
from specwb.models.load import data_dir

LARGEST = 10**9
"""That a size of a model may be."""


class PredictionError(SpecwbError, ValueError):
    """A model, card, method or acceptance that nothing can be predicted from."""


def tables(name: str) -> dict[str, dict[str, Any]]:
    """The tables of ``data/predict/NAME.toml``."""
    return tomllib.loads((data_dir() / "predict" / f"{name}.toml").read_text("utf-8"))


@dataclass(frozen=True)
class Head:
    """A trained head."""

    # products in front of its layers, (rows, columns) in hidden sizes
    enter: tuple[tuple[int, int], ...] = ()
    layers: int = 0  # its decoder layers; 0: it is one of several without a layer (Medusa's)
    inputs: int = 1  # how many hidden sizes wide what q, k and v read is
    cells: int = 0  # layers of an LSTM, whose recurrence goes through a block token by token
    gated: bool = True  # whether its layers have the gated half
    inline: bool = False  # whether the small kernels of its attention are counted with the method's
    words: int = 0  # tokens that it drafts among; 0: the target's
    own: bool = False  # whether it has an output layer of its own
    shared: bool = False  # whether several heads have one output layer

    def parameters(self, target: Shape, heads: int) -> int:
        """Its weights; ``heads``: how many there are of one without layers."""
        h, one = target.hidden, target.attention_parameters
        one += 3 * h * target.intermediate if self.gated else 0
        one += (self.inputs - 1) * h * (target.heads + 2 * target.kv_heads) * target.head_dim
        squares = sum(a * b for a, b in self.enter) + 4 * self.cells
        output = h * (self.words or target.vocabulary) if self.own else 0
        return (1 if self.layers else heads) * (squares * h * h + output) + self.layers * one


HEADS = {
    "medusa": Head(((1, 1),), own=True),
    "medusa shared": Head(((1, 1), (1, 1)), shared=True),
    "eagle": Head(((2, 1),), 1),
    "eagle3": Head(((3, 1),), 1, inputs=2, words=32000, own=True),
    "falcon": Head(((2, 4), (1, 4)), 2, cells=2),
    "falcon linear": Head(((2, 1),), 2),
    "kangaroo": Head(layers=1, gated=False, inline=True),
    "kangaroo layer": Head(layers=1, inline=True),
}
"""The published heads, and variants of them."""


@dataclass(frozen=True)
class Shape:
    """A decoder of Llama's kind."""

    name: str  # what it is called in tables
    # hidden, intermediate, layers, heads, kv_heads, head_dim, vocabulary: as in config.json
    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    tied: bool = False  # whether embedding and head are one matrix
    # a diffusion model whose text sees what is behind it too, so that nothing of a forward can be
    # kept for the next
    both_ways: bool = False
    # tokens that a diffusion model was made for, text and masks; 0: any number. Beyond these
    # nothing is drafted.
    context: int = 0
    # tokens that the target's own heads draft among, whose output layer is the target's rows; 0:
    # its heads have the published sizes
    words: int = 0
    exit: int = 0  # the exit layer of its own adapter; 0: a sixteenth of the layers
    # head -> which variant its own one is
    variants: Mapping[str, str] = field(default_factory=dict, hash=False)

    def head(self, kind: str) -> Head:
        """The trained head of a kind; without sizes where there is no such kind."""
        variant = self.variants.get(kind)
        part = HEADS.get(f"{kind} {variant}" if variant else kind, Head())
        return replace(part, words=self.words, own=False) if self.words else part

    @property
    def cached(self) -> int:
        """Numbers that a layer keeps of a token: its key and value."""
        return 2 * self.kv_heads * self.head_dim

    @property
    def attention_parameters(self) -> int:
        """Weights of a layer's q, k, v and o: ``2 H (heads + kv_heads) d``."""
        return 2 * self.hidden * (self.heads + self.kv_heads) * self.head_dim

    @property
    def layer_parameters(self) -> int:
        """Weights of a layer's products: attention's and ``3 H I``."""
        return self.attention_parameters + 3 * self.hidden * self.intermediate

    @property
    def parameters(self) -> int:
        """All weights but the norms'."""
        ends = (1 if self.tied else 2) * self.vocabulary * self.hidden
        return self.layers * self.layer_parameters + ends


@cache
def known() -> dict[str, Shape]:
    """The named shapes of ``data/predict/shapes.toml``."""
    own = {one.name for one in fields(Shape)}
    return {
        name: Shape(name, **{key: value for key, value in table.items() if key in own})
        for name, table in tables("shapes").items()
    }


def shape(source: str | Path) -> Shape:
    """Find a shape by its name, or read it from a config.json.

    Args:
        source: a name such as ``8b``, a config.json, or the folder that it lies in.
    Raises:
        PredictionError: there is no such name or file, it lacks a size, or its layers are not
            Llama's: a mixture of experts, or compressed keys and values.
    """
    name = str(source)
    if name.lower() in known():
        return known()[name.lower()]
    path = home(source)
    path = path / "config.json" if path.is_dir() else path
    if not path.is_file():
        raise PredictionError(
            f"no shape {name!r}: give one of {', '.join(known())}, or a config.json"
        )
    try:
        config = from_json(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise PredictionError(f"{path} is no config.json: {error}") from error
    if not isinstance(config, dict):
        raise PredictionError(f"{path} is no config.json: it holds no object")
    config = config.get("text_config") or config
    if not isinstance(config, dict):
        raise PredictionError(f"{path}: text_config must be an object, got {config!r}")
    _check_kind(path, config)
    sizes: dict[str, Any] = {}
    for own, theirs in (
        ("hidden", "hidden_size"),
        ("intermediate", "intermediate_size"),
        ("layers", "num_hidden_layers"),
        ("heads", "num_attention_heads"),
        ("vocabulary", "vocab_size"),
    ):
        sizes[own] = _size(path, theirs, config.get(theirs))
    heads = sizes["heads"]
    kv = config.get("num_key_value_heads")
    kv = heads if kv is None else _size(path, "num_key_value_heads", kv)
    if heads % kv:
        raise PredictionError(
            f"{path}: num_key_value_heads must divide num_attention_heads={heads}, got {kv}"
        )
    width = config.get("head_dim")
    if width is None and sizes["hidden"] % heads:
        raise PredictionError(
            f"{path}: num_attention_heads={heads} must divide hidden_size={sizes['hidden']} where "
            "there is no head_dim"
        )
    width = sizes["hidden"] // heads if width is None else width
    tied = config.get("tie_word_embeddings", False)
    if not isinstance(tied, bool):
        raise PredictionError(f"{path}: tie_word_embeddings must be true or false, got {tied!r}")
    from specwb.models.diffusion import DREAM_CONTEXT

    dream = str(config.get("model_type")).lower() == "dream"
    own_kind = config.get("specwb_diffusion")
    looks_back = not isinstance(own_kind, dict) or own_kind.get("causal", True)
    return Shape(
        path.parent.name,
        **sizes,
        kv_heads=kv,
        head_dim=_size(path, "head_dim", width),
        tied=tied,
        both_ways=dream or not looks_back,
        context=DREAM_CONTEXT if dream else 0,
    )


def _check_kind(path: Path, config: dict[str, Any]) -> None:
    """Raises PredictionError where a layer's weights or caches are not those of a Shape."""
    if config.get("is_encoder_decoder"):
        raise PredictionError(f"{path}: an encoder with a decoder is not predicted")
    if config.get("quantization_config"):
        raise PredictionError(
            f"{path}: quantised weights are not predicted; give the config of the model they are of"
        )
    for key, value in config.items():
        several = isinstance(value, int) and value > 1
        # num_local_experts, n_routed_experts, num_experts: every family has its own word
        if several and "experts" in key:
            what = f"a mixture of experts ({key}={value})"
        elif several and key == "kv_lora_rank":
            what = f"a model whose keys and values are compressed ({key}={value})"
        else:
            continue
        raise PredictionError(f"{path}: {what} is not predicted; dense models like Llama are")


def _size(path: Path, key: str, value: object) -> int:
    if value is None:
        raise PredictionError(f"{path}: {key} is missing: it is no config of a decoder like Llama")
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= LARGEST:
        raise PredictionError(f"{path}: {key} must be a whole number in 1..10^9, got {value!r:.40}")
    return value
