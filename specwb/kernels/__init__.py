"""Fused kernels in Triton for CUDA devices, behind a switch.

torch's path is the reference and the fallback. The switch is off by default: no kernel has run on a
device yet, only in Triton's interpreter and through its compiler (docs/gpu.md). It is turned on by
``SPECWB_KERNELS=1``, or in Python::

    with specwb.kernels.use():
        specwb.decode(target, prompt, "mcsd", temperature=1.0)

Before its first use on a device with a number type a kernel is run beside torch's path on small
inputs of all kinds. If they differ, or it does not compile, torch's path is used there from then on
and one warning says so. A fault of the device itself, such as an illegal address, cannot be caught.
"""

from __future__ import annotations

import importlib.util
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache

import torch
from torch import Tensor

from specwb.extras import require

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)

logger = logging.getLogger("specwb")
_asked: ContextVar[bool | None] = ContextVar("kernels", default=None)
_passed: dict[tuple[str, str, torch.device, torch.dtype], bool] = {}
_warned: set[str] = set()


def on() -> bool:
    """Whether kernels are to be used where they can run."""
    asked = _asked.get()
    if asked is None:
        said = os.environ.get("SPECWB_KERNELS", "").strip()
        asked = said == "1"
        if said not in ("", "0", "1"):
            _warn(f"SPECWB_KERNELS={said!r} turns nothing on: it must be 1 or 0")
        if asked and not found():
            _warn("SPECWB_KERNELS is set, but Triton is not installed: torch's path is used")
    return asked and found()


@cache
def found() -> bool:
    """Whether Triton is installed."""
    return importlib.util.find_spec("triton") is not None


@contextmanager
def use(wanted: bool = True) -> Iterator[None]:
    """Turns the kernels on, or off with ``use(False)``, in this thread for as long as it lasts.

    Raises:
        MissingExtra: Triton is not installed.
    """
    if wanted:
        require("specwb.kernels", "kernels", "triton")
    before = _asked.set(wanted)
    try:
        yield
    finally:
        _asked.reset(before)


@cache
def interpreted() -> bool:
    """Whether Triton interprets kernels, on CPU tensors, as the tests do."""
    return os.environ.get("TRITON_INTERPRET", "0") == "1"


def ready(name: str, like: Tensor, check: Callable[[torch.device, torch.dtype], None]) -> bool:
    """Whether a kernel is to run on the device of ``like`` and with its number type.

    The first question checks the kernel there, which takes a second or more (it is compiled). That
    cannot happen while a step is recorded; a step of the same shapes runs eagerly before it.

    Args:
        name: of the kernel, for the message.
        like: what it is to work on.
        check: runs the kernel beside torch's path and raises where they differ.
    """
    if not (like.is_cuda or interpreted()) or not on() or like.dtype not in DTYPES:
        return False
    key = name, check.__name__, like.device, like.dtype
    if key not in _passed:
        if like.device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            return False
        _passed[key] = _passes(name, check, like.device, like.dtype)
    return _passed[key]


def _passes(
    name: str,
    check: Callable[[torch.device, torch.dtype], None],
    device: torch.device,
    dtype: torch.dtype,
) -> bool:
    try:
        check(device, dtype)
    except Exception as error:
        what = f"{type(error).__name__}: {error}".strip().partition("\n")[0]
        kind = str(dtype).removeprefix("torch.")
        _warn(f"kernel {name} failed its check on {device} in {kind}, torch's path is used: {what}")
        return False
    return True


def _warn(message: str) -> None:
    if message not in _warned:
        _warned.add(message)
        logger.warning("%s", message)


__all__ = ["found", "interpreted", "on", "ready", "use"]
