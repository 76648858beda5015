"""Where a model's weights lie, and in which number type: devices and number types by name, maps of
several devices, quantised weights.

A model whose parts lie on several devices, or partly in memory that is fetched from at every step
(offload), has a hook of the library's accelerate on every module, which brings weights and inputs
together; quantised weights are computed with by the library's own modules. Both run the generic
way (:mod:`specwb.models.generic`). Here it is only seen to that what they need is there before
weights are read.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from specwb.files import first_line, from_json
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

STRATEGIES = ("auto", "balanced", "balanced_low_0", "sequential")
"""Ways in which accelerate makes a map itself."""
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


def checked_map(device_map: Any) -> Any:
    """A ``device_map`` that accelerate can be given: a strategy, a device for everything, or a
    table from modules to devices, which may be written in JSON."""
    if isinstance(device_map, str) and device_map.lstrip().startswith("{"):
        try:
            device_map = from_json(device_map)
        except ValueError as error:
            raise LoadError(f"device_map is no JSON table: {error}") from error
    if isinstance(device_map, str) and device_map in STRATEGIES:
        return device_map
    table = device_map if isinstance(device_map, Mapping) else {"": device_map}
    for module, place in table.items():
        if not isinstance(module, str) or not isinstance(place, str | int | torch.device):
            raise LoadError(
                f"device_map must be {', '.join(STRATEGIES)}, a device, or a table from names of "
                f"modules to devices; got {device_map!r}"
            )
        if place != "disk":
            try:
                resolve_device(f"cuda:{place}" if isinstance(place, int) else place)
            except LoadError as error:
                ways = ", ".join(STRATEGIES)
                raise LoadError(f"device_map (a strategy is one of {ways}): {error}") from error
    return dict(table)


def main_device(device_map: Any) -> torch.device:
    """The device that computes what a map puts elsewhere: its first that is no offload."""
    if isinstance(device_map, str):
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    places = [place for place in device_map.values() if str(place) not in OFFLOADED]
    place = next(iter(places), "cpu")
    return torch.device("cuda", place) if isinstance(place, int) else torch.device(place)


def on_disk(device_map: Any) -> bool:
    """Whether a map leaves some of a model on the disk."""
    return isinstance(device_map, dict) and "disk" in device_map.values()


# ------------------------------------------------------------------------------ quantised weights

SHORT = {"4bit": {"load_in_4bit": True}, "8bit": {"load_in_8bit": True}}
"""Configs by name: bitsandbytes'."""


def quantisation(config: Any) -> Any:
    """The library's config of a quantisation that was asked for: its config object, its fields as a
    table or in JSON, or ``"4bit"`` or ``"8bit"``, which are bitsandbytes'; None is none."""
    from transformers.quantizers.auto import AutoQuantizationConfig

    if config is None:
        return None
    ways = f"{', '.join(SHORT)}, a table with quant_method, or a config object of transformers"
    wrong = f"quantization_config must be {ways}; got {config!r:.200}"
    if isinstance(config, str) and config in SHORT:
        config = SHORT[config]
    elif isinstance(config, str):
        try:
            config = from_json(config)
        except ValueError as error:
            raise LoadError(wrong) from error
    if hasattr(config, "quant_method"):
        return config
    if not isinstance(config, dict):
        raise LoadError(wrong)
    try:
        return AutoQuantizationConfig.from_dict(config)
    except ImportError as error:
        raise LoadError(f"quantization_config: {first_line(error)}") from error
    except Exception as error:
        raise LoadError(f"{wrong} ({first_line(error)})") from error


def check_quantised(config: Any, asked: Any, name: str) -> bool:
    """Whether a model's weights are quantised, or are to be by what :func:`quantisation` gave;
    refused where that cannot be computed here."""
    from transformers.quantizers.auto import AutoHfQuantizer

    stored = getattr(config, "quantization_config", None)
    if stored is None and asked is None:
        return False
    try:
        if stored is None:
            quantizer = AutoHfQuantizer.from_config(asked, pre_quantized=False)
        else:
            merged = AutoHfQuantizer.merge_quantization_configs(stored, asked)
            quantizer = AutoHfQuantizer.from_config(merged, pre_quantized=True)
        quantizer.validate_environment(device_map=None, weights_only=True)
    except Exception as error:
        method = _method(asked if stored is None else stored)
        what = "was asked to be quantised" if stored is None else "has weights quantised"
        reason = first_line(error)
        raise LoadError(f"{name} {what} by {method}, which cannot run here: {reason}") from error
    return True


def _method(config: Any) -> str:
    """What a config calls its method."""
    get = config.get if isinstance(config, dict) else lambda key: getattr(config, key, None)
    if get("load_in_4bit") or get("load_in_8bit"):
        return "bitsandbytes"
    method = get("quant_method")
    return str(getattr(method, "value", method))
