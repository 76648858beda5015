"""Number types and devices by name."""

from __future__ import annotations

import warnings
from pathlib import Path

import torch

from specwb.models.folder import LoadError

NUMBER_TYPES = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float64": torch.float64,
}


def resolve_dtype(dtype: str | torch.dtype, device: torch.device) -> torch.dtype:
    """A torch dtype by name; ``auto`` is float32.

    Raises:
        LoadError: an unknown name, or bfloat16 on a device that has no units for it.
    """
    if isinstance(dtype, torch.dtype):
        chosen = dtype
    elif dtype == "auto":
        chosen = torch.float32
    elif dtype in NUMBER_TYPES:
        chosen = NUMBER_TYPES[dtype]
    else:
        names = ", ".join(NUMBER_TYPES)
        raise LoadError(f"dtype must be auto, {names} or a torch.dtype, got {dtype!r}")
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
    """A torch device by name; ``auto`` is CUDA where there is one.

    Warns where ``auto`` is the CPU although the machine has an NVIDIA device.

    Raises:
        LoadError: an unknown device, or CUDA where there is none.
    """
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
