"""How much memory a model's weights and a decoding's cache take, said before either is made.

Weights take ``sum over tensors of numel * bytes``, as the headers of their files say; the cache
``2 * layers * rows * slots * kv_heads * head_dim * bytes``, where a row has a slot for every token
of its prompt, every token that it may write and every node of a draft. Activations, packed copies
of weights and the draft model come on top.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import torch

from specwb.models.architectures import context, text_config
from specwb.models.folder import LoadError, weight_files

SMALL = 2**26  # bytes of a cache for which nothing is asked


class MemoryShortage(LoadError):
    """Weights or a cache would not fit into a device's memory."""


def gib(size: float) -> str:
    """A number of bytes in the largest fitting unit."""
    for unit, scale in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if size >= scale:
            return f"{size / scale:.1f} {unit}"
    return f"{size:.0f} bytes"


def free_bytes(device: torch.device) -> int:
    """How much of a device's memory can still be taken: on CUDA what the driver has and what torch
    keeps without using it."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(free + kept)
    return int(psutil.virtual_memory().available)


def check_room(shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> None:
    """Checks that a cache ``[layers, B, T, 2 * kv_heads, head_dim]`` fits."""
    needed = math.prod(shape) * dtype.itemsize
    if needed <= SMALL or device.type not in ("cpu", "cuda"):
        return
    free = free_bytes(device)
    if needed > free:
        raise MemoryShortage(
            f"a cache of {shape[1]} rows with {shape[2]} slots each (prompt, max_new_tokens and "
            f"draft) takes {gib(needed)}, {device} has {gib(free)} free: decode fewer rows at a "
            "time, or lower max_new_tokens"
        )


@dataclass(frozen=True)
class Estimate:
    """What a model takes before it is loaded: bytes of its ``weights`` and of a token in the cache
    (``slot``), for ``rows`` texts of ``tokens`` each, prompt and new ones; ``free``: bytes that the
    device has left, of a map of devices all of them together."""

    weights: int
    slot: int
    rows: int
    tokens: int
    free: int
    device: str

    @property
    def cache(self) -> int:
        """Bytes of the cache of all rows."""
        return self.slot * self.rows * self.tokens

    @property
    def total(self) -> int:
        return self.weights + self.cache

    @property
    def fits(self) -> bool:
        return self.total <= self.free

    def __str__(self) -> str:
        rows = f"{self.rows} row" + ("s" if self.rows > 1 else "")
        return (
            f"weights {gib(self.weights)}, cache {gib(self.cache)} ({rows} of {self.tokens} "
            f"tokens, {gib(self.slot)} a token), together {gib(self.total)}; {self.device} has "
            f"{gib(self.free)} free"
        )


def is_in_bfloat16(folder: Path) -> bool:
    """Whether all matrices in a folder's safetensors files are stored in bfloat16."""
    from safetensors import safe_open

    kinds = set()
    for file in weight_files(folder) or ():
        if file.suffix != ".safetensors":
            return False
        with safe_open(file, "pt") as tensors:
            parts = map(tensors.get_slice, tensors.keys())
            kinds |= {part.get_dtype() for part in parts if len(part.get_shape()) > 1}
    return kinds == {"BF16"}


def weight_bytes(folder: Path, dtype: torch.dtype | str) -> int:
    """Bytes that a folder's weights take in a number type (``"auto"``: the stored one); of files
    without a table of their tensors it is their size."""
    from safetensors import safe_open

    itemsize = dtype.itemsize if isinstance(dtype, torch.dtype) else None
    total = 0
    for file in weight_files(folder) or ():
        if file.suffix != ".safetensors":
            total += file.stat().st_size
            continue
        with safe_open(file, "pt") as tensors:
            for key in tensors.keys():  # noqa: SIM118
                part = tensors.get_slice(key)
                kind = part.get_dtype()
                size = itemsize if itemsize and kind in FLOATING else BYTES.get(kind, 1)
                total += math.prod(part.get_shape()) * size
    return total


BYTES = {"F64": 8, "I64": 8, "U64": 8, "F32": 4, "I32": 4, "U32": 4, "F16": 2, "BF16": 2, "I16": 2}
"""Of safetensors' number types those with more bytes than one."""
FLOATING = ("F64", "F32", "F16", "BF16")


def slot_bytes(config: Any, dtype: torch.dtype) -> int:
    """Bytes that a token takes in the cache: ``2 * layers * kv_heads * head_dim * bytes``."""
    c = text_config(config)

    def size(name: str, otherwise: int) -> int:
        value = getattr(c, name, None)
        return value if isinstance(value, int) and value > 0 else otherwise

    heads = size("num_attention_heads", 1)
    dim = size("head_dim", size("hidden_size", heads) // heads)
    # latent attention is cached as the library computes it: all heads, each as wide as its keys
    if getattr(c, "kv_lora_rank", None):
        dim = size("qk_nope_head_dim", dim) + size("qk_rope_head_dim", 0)
        return 2 * size("num_hidden_layers", 1) * heads * dim * dtype.itemsize
    kv_heads = size("num_key_value_heads", heads)
    return 2 * size("num_hidden_layers", 1) * kv_heads * dim * dtype.itemsize


def estimated(
    folder: Path | None,
    config: Any,
    dtype: torch.dtype | str,
    device: torch.device,
    rows: int = 1,
    tokens: int | None = None,
    spread: bool = False,
) -> Estimate:
    """What the model in a folder takes on a device; without a folder, what a model of this config
    does. ``dtype``: of weights and cache, ``"auto"`` is the stored one; ``spread``: it may lie on
    all devices, and in the machine's memory."""
    stored = getattr(text_config(config), "dtype", None)
    kind = dtype if isinstance(dtype, torch.dtype) else stored or torch.float32
    longest = context(config) if tokens is None else tokens
    free, where = free_bytes(device), str(device)
    if spread and device.type == "cuda":
        count = torch.cuda.device_count()
        free = sum(free_bytes(torch.device("cuda", i)) for i in range(count))
        free, where = free + free_bytes(torch.device("cpu")), f"{count} devices and the machine"
    if folder is None:
        weights = parameters(config) * kind.itemsize
    else:
        weights = weight_bytes(folder, dtype)
    return Estimate(weights, slot_bytes(config, kind), rows, longest, free, where)


def parameters(config: Any) -> int:
    """How many numbers a model of a config has; weights that are tied count once."""
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, trust_remote_code=False)
    return sum(weight.numel() for weight in model.parameters())


def check_weights_fit(estimate: Estimate, name: str) -> None:
    """Checks that the weights fit beside the cache of one token."""
    if estimate.weights + estimate.slot > estimate.free:
        raise MemoryShortage(
            f"{name} does not fit: {estimate}; take a smaller dtype=, quantization_config=4bit, or "
            "device_map=auto, which uses several devices and the machine's memory"
        )
