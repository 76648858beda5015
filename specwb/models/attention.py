"""Which kernels of torch compute attention on CUDA.

Left to itself, torch 2.13 gives half-precision attention on H100 and H200 to cuDNN, which plans
anew for every shape and stride that it meets: in eager decoding, where the text grows, every step.
:func:`backends` names the ones to choose from instead, for our forwards and for the library's that
they are compared with.
"""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

BACKENDS = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]


class _Chosen:
    """torch's choice of kernels is the whole process': the first that enters sets it, the last that
    leaves restores it, so that decodings in several threads do not undo each other's."""

    def __init__(self) -> None:
        self._lock, self._users, self._set = threading.Lock(), 0, ExitStack()

    def __enter__(self) -> None:
        with self._lock:
            if not self._users:
                self._set.enter_context(sdpa_kernel(BACKENDS))
            self._users += 1

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self._users -= 1
            if not self._users:
                self._set.close()


_chosen = _Chosen()


def backends(device: torch.device) -> AbstractContextManager[Any]:
    """The kernels that attention is chosen from on this device, for as long as it lasts: on CUDA
    not cuDNN's."""
    return _chosen if device.type == "cuda" else nullcontext()
