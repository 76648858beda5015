"""Checks that a model's weights and a decoding's cache fit into the memory, before either is made.

Weights take ``sum over tensors of numel * bytes``, by the headers of their files; the cache
``2 * layers * rows * slots * kv_heads * head_dim * bytes``, where a row has a slot for every token
of its prompt, every token that it may write and every node of a draft. Activations, packed copies
of weights and the draft model come on top. ``accelerate estimate-memory`` tells beforehand what a
model of the hub takes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil
import torch

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


def check_weights_fit(
    folder: Path | None,
    config: Any,
    dtype: torch.dtype | str,
    device: torch.device,
    name: str,
) -> None:
    """Checks that the weights in a folder fit on a device; without a folder, those of a model of
    this config. ``dtype``: of the loaded weights, ``"auto"`` is the stored one."""
    if folder is None:
        kind = dtype if isinstance(dtype, torch.dtype) else torch.float32
        needed = parameters(config) * kind.itemsize
    else:
        needed = weight_bytes(folder, dtype)
    free = free_bytes(device)
    if needed > free:
        raise MemoryShortage(
            f"{name} does not fit: its weights take {gib(needed)}, {device} has {gib(free)} free; "
            "take a smaller dtype=, a quantization_config=, or device_map=auto, which uses "
            "several devices and the machine's memory"
        )


def parameters(config: Any) -> int:
    """The number of weights of a model with this config; tied ones count once."""
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, trust_remote_code=False)
    return sum(weight.numel() for weight in model.parameters())
