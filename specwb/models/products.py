"""Products of weights with a few tokens: the compiled ones on the CPU, torch's elsewhere."""

from __future__ import annotations

import importlib
import logging
import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from specwb.core.files import home

logger = logging.getLogger("specwb")
MOST = 64  # tokens that layers outside of a compiled pass multiply by the compiled kernels


def cache_folder() -> Path:
    """``SPECWB_CACHE``, or ``specwb`` in the user's cache folder."""
    if named := os.environ.get("SPECWB_CACHE"):
        return home(named)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else home("~/.cache")) / "specwb"


@cache
def compiled_pass() -> ModuleType | None:
    """:mod:`specwb.models.compiled`, imported when a model on the CPU is first run; None where
    numba is missing or fails, the processor has no fma, or ``SPECWB_COMPILED`` is 0."""
    if os.environ.get("SPECWB_COMPILED") == "0" or os.name != "posix":
        return None
    try:
        return importlib.import_module("specwb.models.compiled")
    except Exception as error:
        logger.warning("no compiled forward pass (%s): torch's operators are slower", error)
        return None


class OneThread:
    """While it lasts, torch's own operators run in the calling thread; the compiled pass keeps all
    of torch's ``threads``.

    After each of its operators OpenMP's threads spin for a while, on the processors that the
    compiled pass needs next. torch's setting is both the thread's own and what later threads begin
    with: so the number is that of before the first of several decodings."""

    def __init__(self) -> None:
        self._lock, self._users, self._before = threading.Lock(), 0, 1

    @property
    def threads(self) -> int:
        return self._before if self._users else torch.get_num_threads()

    def __enter__(self) -> None:
        with self._lock:
            self._before = self.threads
            self._users += 1
        torch.set_num_threads(1)

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self._users -= 1
        torch.set_num_threads(self._before)


one_thread = OneThread()


def product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """``x W^T + b``, ``[..., K]`` and ``[N, K]`` -> ``[..., N]``, in the number type of x."""
    kernels = of_decoding(x, weight)
    if kernels is not None and 0 < x.numel() <= MOST * x.shape[-1] and kernels.multiplies(weight):
        out = kernels.product(x, weight).to(x.dtype)
        return out if bias is None else out.add_(bias)
    return F.linear(x.to(weight.dtype), weight, bias)


def quantized(weight: Tensor) -> tuple[Tensor, Tensor]:
    """``[N,K]`` -> int8 ``[N,K]`` and float32 ``[N,1]``: a row is its integers times its scale, the
    largest of them 127."""
    scale = (weight.float().abs().amax(1, keepdim=True) / 127).clamp_min(1e-12)
    return (weight.float() / scale).round().to(torch.int8).contiguous(), scale


@dataclass
class Int8:
    """The int8 form of a weight, kept in its attribute ``int8``, which the compiled kernels read in
    its place while its numbers are still those.

    Attributes:
        rows: ``[N,K+4]``, a row's integers, then the bytes of its scale, a float32.
        parts: the weights that lie in this one, where several are fused.
        version: of the weights whose numbers were compared last.
    """

    rows: Tensor
    parts: tuple[Tensor, ...] = ()
    version: tuple[tuple[int, int], ...] = ()

    @classmethod
    def of(cls, integers: Tensor, scale: Tensor) -> Int8:
        return cls(torch.cat([integers, scale.float().view(torch.int8)], 1))

    @property
    def numbers(self) -> Tensor:
        """``[N,K]`` float32."""
        return self.rows[:, :-4] * self.rows[:, -4:].contiguous().view(torch.float32)


def fused_int8(parts: Sequence[Tensor]) -> Int8 | None:
    """The form of weights one behind the other, None where one has none."""
    forms = [form for part in parts if (form := getattr(part, "int8", None)) is not None]
    if len(forms) < len(parts):
        return None
    return Int8(torch.cat([form.rows for form in forms]), tuple(parts))


def int8_rows(weight: Tensor) -> Tensor | None:
    """``[N,K+4]`` the rows of a weight's int8 form. None where it has none, or other numbers by
    now; edits by ``.data`` or of numbers made in inference mode are not seen."""
    form: Int8 | None = getattr(weight, "int8", None)
    if form is None:
        return None
    parts = form.parts or (weight,)
    if any(part.is_inference() for part in parts):
        return None
    version = tuple((part.data_ptr(), part._version) for part in parts)
    if version != form.version:
        if not torch.equal(form.numbers.to(weight.dtype), weight):
            weight.int8 = None  # type: ignore[attr-defined]
            return None
        form.version = version
    return form.rows


def of_decoding(*tensors: Any) -> ModuleType | None:
    """The compiled kernels, where they compute with these tensors: on the CPU, in a number type
    that they know, while nothing is differentiated."""
    kernels = None
    if torch.is_inference_mode_enabled() and all(x.is_cpu for x in tensors):
        kernels = compiled_pass()
    if kernels is not None and all(x.dtype in kernels.DTYPES for x in tensors):
        return kernels
    return None
