"""How kernels are launched: sizes, and the device that they run on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

try:
    import triton
    import triton.language as tl
except ImportError:  # the modules of the kernels can still be read
    triton = tl = None  # type: ignore[assignment]

WIDEST = 4096  # tokens that a program looks at at once


def jit(function: Any) -> Any:
    """``triton.jit``, or the function as it is where Triton is missing: it is never launched."""
    return function if triton is None else triton.jit(function)


@jit
def real(x):
    """A tensor of a kernel as float32, or float64 where it is."""
    if x.dtype != tl.float64:
        x = x.to(tl.float32)
    return x


def power(n: int) -> int:
    """The smallest power of two that is at least ``n``."""
    return 1 << max(n - 1, 0).bit_length()


def block_of(width: int) -> int:
    """How many elements of a row of ``width`` a program looks at at once."""
    return min(WIDEST, max(16, power(width)))


def warps_of(block: int) -> int:
    """Warps of a program: eight elements of a block to a thread, at most 16 warps."""
    return max(1, min(16, block // 256))


def launch(kernel: Any, grid: tuple[int, ...], arguments: Sequence[Any], **meta: Any) -> None:
    """Launches a kernel on the device of its first argument, which need not be the current one."""
    first: Tensor = arguments[0]
    if first.device.type != "cuda":  # Triton's interpreter
        kernel[grid](*arguments, **meta)
        return
    with torch.cuda.device(first.device):
        kernel[grid](*arguments, **meta)
