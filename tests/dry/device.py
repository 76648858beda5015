"""The dry device from Python: its counters, and a decoding that goes on although every value read
from it is meaningless."""

from __future__ import annotations

import ctypes
import os

import numpy as np
import torch

from specwb.core import flow
from specwb.drafters.admission import Admission
from specwb.drafters.base import Drafter
from specwb.drafters.diffusion import DiffusionDrafter

_library = ctypes.CDLL(os.environ["DRY_LIBRARY"])
_library.dry_get.restype = ctypes.c_long
_library.dry_name.restype = _library.dry_complaint.restype = ctypes.c_char_p
NAMES = []
while name := _library.dry_name(len(NAMES)):
    NAMES.append(name.decode())
shortest = False  # drafts end as soon as they may


def counts() -> dict[str, int]:
    """All counters since :func:`reset`."""
    return {name: _library.dry_get(i) for i, name in enumerate(NAMES)}


def reset() -> None:
    _library.dry_reset()


def complaint() -> str:
    """The last refusal."""
    return _library.dry_complaint().decode()


def endless() -> None:
    """Let decodings go on whatever is read: kernels do nothing, so the summary of a step, of which
    the read itself stays, has no meaning. Every row is taken to grow by two tokens per step, and
    every draft to be as long, or with ``shortest`` as short, as it may be."""

    def read(state: flow.State, rule: str = "") -> None:
        assert state._summary is not None
        state._summary.tolist()
        state.finished = False
        longest = min(getattr(state, "longest", state.prompted) + 2, state.ceiling - 2)
        state.longest = longest  # type: ignore[attr-defined]
        state.horizon = state.rounded(longest) if state.static else longest

    def largest(drafter: Drafter, state: flow.State, count: torch.Tensor, most: int) -> int:
        if not state.static or state.stages is not None:
            int(count.max())
        return 0 if shortest else most

    def sizes(drafter: DiffusionDrafter, state: flow.State) -> tuple[torch.Tensor | None, int, int]:
        most = drafter.length.most
        return known(drafter, state)[0], 0 if shortest else most, most + 1

    def lattice(drafter: DiffusionDrafter, numbers: torch.Tensor) -> list[list[float]]:
        drafter.texts = [[0] * len(text) for text in drafter.texts]
        length = 0 if shortest else drafter.length.most
        return [[length] + [0] * (len(row) - 1) for row in numbers.tolist()]

    def table(drafter: Admission, numbers: torch.Tensor) -> np.ndarray:
        numbers.tolist()
        if numbers.dim() == 2:  # nothing was accepted
            return np.zeros(numbers.shape, int)
        read = np.ones(numbers.shape)  # confidences, validity, parents and depths: all below a root
        read[2], read[3, :, 0] = 0, 0
        return read

    initialise, known = flow.State.__init__, DiffusionDrafter._sizes

    def init(state: flow.State, *args, **settings) -> None:
        initialise(state, *args, **settings)
        state.prompted = state.horizon  # type: ignore[attr-defined]

    flow.State.__init__ = init  # type: ignore[method-assign]
    flow.State.read = read  # type: ignore[method-assign]
    Drafter.largest = largest  # type: ignore[method-assign]
    DiffusionDrafter._sizes = sizes  # type: ignore[method-assign]
    Admission._read = table  # type: ignore[method-assign]
    DiffusionDrafter._read = lattice  # type: ignore[method-assign]
