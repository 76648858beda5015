"""Devices and number types by name, models on several devices, and what fits into a memory.

A model whose parts lie on several devices, or partly in memory that is fetched from at every step
(offload), has a hook of the library's accelerate on every module, which brings weights and inputs
together. It runs the generic way (:mod:`specwb.models.generic`).

Weights take ``sum over tensors of numel * bytes``, by the headers of their files; a cache
``2 * layers * rows * slots * kv_heads * head_dim * bytes``, where a row has a slot for every token
of its prompt, every token that it may write and every node of a draft. Both are checked before they
are made. Activations and the draft model come on top. ``accelerate
estimate-memory`` tells beforehand what a model of the hub takes.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import psutil
import torch

from specwb.models.folder import BUILDING, LoadError, weight_files

NUMBER_TYPES = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float64": torch.float64,
}
OFFLOADED = ("cpu", "disk")
MARGIN = 0.8  # bfloat16 has to be faster by this, so that a run that is resumed decides the same
SMALL = 2**26  # bytes of a cache for which nothing is checked
# bytes of safetensors' number types that have more than one, and which of them are cast
BYTES = {"F64": 8, "I64": 8, "U64": 8, "F32": 4, "I32": 4, "U32": 4, "F16": 2, "BF16": 2, "I16": 2}
FLOATING = ("F64", "F32", "F16", "BF16")


class MemoryShortage(LoadError):
    """Weights or a cache would not fit into a device's memory."""


def resolve_dtype(dtype: str | torch.dtype, device: torch.device) -> torch.dtype:
    """Returns a torch dtype by name; ``auto`` is float32.

    Raises:
        LoadError: the name is unknown, or the device has no bfloat16.
    """
    known = {"auto": torch.float32, **NUMBER_TYPES}
    if not isinstance(dtype, torch.dtype) and dtype not in known:
        raise LoadError(f"dtype must be {', '.join(known)} or a torch.dtype, got {dtype!r}")
    chosen = dtype if isinstance(dtype, torch.dtype) else known[dtype]
    if chosen is torch.bfloat16 and device.type == "cuda":
        major, minor = torch.cuda.get_device_capability(device)
        if major < 8:
            raise LoadError(
                f"{torch.cuda.get_device_name(device)} (sm_{major}{minor}) has no bfloat16: "
                "write float16 or float32"
            )
    return chosen


def fast_bfloat16(device: torch.device) -> bool:
    """Whether the device has instructions for bfloat16, in which a model's weights are read faster.
    Products can still be slower than in float32: :func:`fast_bfloat16_products`."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    if device.type != "cpu" or not hasattr(torch.cpu, "get_capabilities"):
        return False
    capabilities = torch.cpu.get_capabilities()
    return bool(capabilities.get("avx512_bf16") or capabilities.get("amx_bf16"))


@cache
def fast_bfloat16_products(device: torch.device) -> bool:
    """Whether large matrix products, as in training, are faster in bfloat16 than in float32.

    Where a processor has instructions for bfloat16 this is measured, with one thread: on some,
    products take longer by them, and only memory is saved."""
    if device.type != "cpu" or not fast_bfloat16(device):
        return fast_bfloat16(device)

    threads = torch.get_num_threads()

    def seconds(dtype: torch.dtype) -> float:
        x = torch.ones(1024, 768, dtype=dtype)
        times = []
        for _ in range(4):
            began = time.thread_time()  # other processes do not count
            torch.nn.functional.linear(x, x)
            times.append(time.thread_time() - began)
        return min(times)

    try:
        torch.set_num_threads(1)
        with torch.inference_mode(), torch.autocast("cpu", enabled=False):
            return seconds(torch.bfloat16) < MARGIN * seconds(torch.float32)
    finally:
        torch.set_num_threads(threads)


def resolve_device(device: str | torch.device) -> torch.device:
    """Returns a torch device by name; ``auto`` is CUDA where there is one.

    Raises:
        LoadError: an unknown name, or a device that this machine has not.
    """
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    unknown = f"device must be auto, cpu, cuda or cuda:N, got {device!r}"
    try:
        resolved = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise LoadError(unknown) from error
    if resolved.type not in ("cpu", "cuda"):
        raise LoadError(unknown)
    if resolved.type == "cpu" and resolved.index:
        raise LoadError(f"device {device!r}: there is one cpu device; write cpu")
    if resolved.type == "cuda" and (resolved.index or 0) >= torch.cuda.device_count():
        count = torch.cuda.device_count() or "no"
        raise LoadError(
            f"device {str(device)!r} was asked for, but this torch sees {count} CUDA device(s);"
            " write cpu, or run make gpu, which says what is missing"
        )
    return resolved


# ------------------------------------------------------------------------------- several devices


def is_spread(model: Any) -> bool:
    """Whether accelerate's hooks bring a model's parts together."""
    places = set(map(str, getattr(model, "hf_device_map", {}).values()))
    return len(places) > 1 or "disk" in places


def described(model: Any) -> str:
    """Where a model's parts lie, in words."""
    places = dict.fromkeys(map(str, model.hf_device_map.values()))
    names = [f"cuda:{place}" if place.isdigit() else place for place in places]
    return f"its layers are on {', '.join(names)}"


def device_of(module: Any) -> torch.device:
    """The device on which a module computes: that of its weights, or the one that they are brought
    to."""
    place = getattr(getattr(module, "_hf_hook", None), "execution_device", None)
    if place is None:
        return next(module.parameters()).device
    return torch.device("cuda", place) if isinstance(place, int) else torch.device(place)


def main_device(device_map: Any) -> Any:
    """The device that computes what a map of the library's puts elsewhere: its first that is no
    offload. Of a strategy's name it is ``auto``."""
    if isinstance(device_map, str) and not device_map.startswith(("cpu", "cuda")):
        return "auto"
    places = device_map.values() if isinstance(device_map, Mapping) else [device_map]
    place = next((place for place in places if str(place) not in OFFLOADED), "cpu")
    return f"cuda:{place}" if isinstance(place, int) else place


# ---------------------------------------------------------------------------------------- memory


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
    if needed > (free := free_bytes(device)):
        raise MemoryShortage(
            f"a cache of {shape[1]} rows with {shape[2]} slots each (prompt, max_new_tokens and "
            f"draft) takes {gib(needed)}, {device} has {gib(free)} free: decode fewer rows at a "
            "time, or lower max_new_tokens"
        )


def stored_tensors(folder: Path) -> list[tuple[str, list[int]]]:
    """Safetensors' number type and the shape of every tensor in a folder's weight files; a file of
    another format counts as one vector of bytes."""
    from safetensors import safe_open

    tensors: list[tuple[str, list[int]]] = []
    for file in weight_files(folder) or ():
        if file.suffix != ".safetensors":
            tensors.append(("U8", [file.stat().st_size]))
            continue
        with safe_open(file, "pt") as opened:
            parts = [opened.get_slice(key) for key in opened.keys()]  # noqa: SIM118
            tensors += [(part.get_dtype(), part.get_shape()) for part in parts]
    return tensors


def weight_bytes(tensors: Sequence[tuple[str, list[int]]], dtype: torch.dtype | str) -> int:
    """Bytes that :func:`stored_tensors` take in a number type; ``"auto"`` is the stored one."""
    itemsize = dtype.itemsize if isinstance(dtype, torch.dtype) else None
    return sum(
        math.prod(shape) * (itemsize if itemsize and kind in FLOATING else BYTES.get(kind, 1))
        for kind, shape in tensors
    )


def check_fits(needed: int, device: torch.device, name: str) -> None:
    """Checks that a model's weights of so many bytes fit on a device."""
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

    with BUILDING, torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, trust_remote_code=False)
    return sum(weight.numel() for weight in model.parameters())
