"""Devices and number types by name, and models on several devices.

A model whose parts lie on several devices, or partly in memory that is fetched from at every step
(offload), has a hook of the library's accelerate on every module, which brings weights and inputs
together. It runs the generic way (:mod:`specwb.models.generic`).
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from specwb.models.folder import LoadError

NUMBER_TYPES = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float64": torch.float64,
}


def resolve_dtype(dtype: str | torch.dtype, device: torch.device) -> torch.dtype:
    """A torch dtype by name; ``auto`` is float32."""
    known = {"auto": torch.float32, **NUMBER_TYPES}
    if not isinstance(dtype, torch.dtype) and dtype not in known:
        names = ", ".join(known)
        raise LoadError(f"dtype must be {names} or a torch.dtype, got {dtype!r}")
    chosen = dtype if isinstance(dtype, torch.dtype) else known[dtype]
    if chosen is torch.bfloat16 and device.type == "cuda":
        major, minor = torch.cuda.get_device_capability(device)
        if major < 8:
            raise LoadError(
                f"{torch.cuda.get_device_name(device)} (sm_{major}{minor}) has no bfloat16: "
                "write float16 or float32"
            )
    return chosen


NVIDIA = Path("/dev/nvidia0")


def resolve_device(device: str | torch.device) -> torch.device:
    """A torch device by name; ``auto`` is CUDA where there is one, and warns where it is the CPU
    although the machine has an NVIDIA device."""
    if device == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        if NVIDIA.exists():
            why = "its driver is too old for this build, or this is a build without CUDA"
            warnings.warn(
                f"torch {torch.__version__} cannot use this machine's NVIDIA device ({why}): "
                "running on the CPU; make gpu says what to do",
                stacklevel=2,
            )
        return torch.device("cpu")
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

OFFLOADED = ("cpu", "disk")


def is_spread(model: Any) -> bool:
    """Whether accelerate's hooks bring a model's parts together."""
    places = set(map(str, getattr(model, "hf_device_map", {}).values()))
    return len(places) > 1 or "disk" in places


def described(model: Any) -> str:
    """In words where a model's parts lie."""
    places = list(dict.fromkeys(map(str, model.hf_device_map.values())))
    names = [f"cuda:{place}" if place.isdigit() else place for place in places]
    return f"its layers are on {', '.join(names)}"


def device_of(module: Any) -> torch.device:
    """The device on which a module computes: that of its weights, or the one that they are brought
    to."""
    hook = getattr(module, "_hf_hook", None)
    place = getattr(hook, "execution_device", None)
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
