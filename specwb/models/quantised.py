"""Quantised weights: those that a checkpoint has, and those that are made while it is read.

The library computes with them by its own modules, so that such a model runs the generic way
(:mod:`specwb.models.generic`). Here it is only seen to that what they need is there before weights
are read.
"""

from __future__ import annotations

from typing import Any

from specwb.files import first_line, from_json
from specwb.models.folder import LoadError

SHORT = {"4bit": {"load_in_4bit": True}, "8bit": {"load_in_8bit": True}}
"""Configs by name: bitsandbytes'."""


def quantisation(config: Any) -> Any:
    """The library's config of a quantisation that was asked for.

    Args:
        config: the library's config object, its fields as a table or in JSON, or ``"4bit"`` or
            ``"8bit"``, which are bitsandbytes'; None is none.

    Raises:
        LoadError: it describes no quantisation that the library knows.
    """
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
    """Whether a model's weights are quantised, or are to be, and that this can be computed here.

    Args:
        config: the model's config, whose ``quantization_config`` says what its weights are.
        asked: what :func:`quantisation` gave.
        name: what messages call the model.

    Raises:
        LoadError: an unknown method, one whose library is not installed or that needs another
            device, or another one than the weights have.
    """
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
