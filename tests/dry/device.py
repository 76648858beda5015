"""The dry device from Python: its counters, and a decoding that goes on although every value read
from it is meaningless."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from specwb.core import flow
from specwb.drafters.base import Drafter
from specwb.drafters.diffusion import DiffusionDrafter

_library = ctypes.CDLL(os.environ["DRY_LIBRARY"])
_library.dry_get.restype = ctypes.c_long
_library.dry_name.restype = _library.dry_complaint.restype = ctypes.c_char_p
NAMES = []
while name := _library.dry_name(len(NAMES)):
    NAMES.append(name.decode())
GIB = 1 << 30
shortest = False  # drafts end as soon as they may


def counts() -> dict[str, int]:
    """Everything that was counted since :func:`reset`, in whole numbers and bytes."""
    return {name: _library.dry_get(i) for i, name in enumerate(NAMES)}


def reset() -> None:
    _library.dry_reset()


def hang() -> None:
    """From here on no kernel ends, until NCCL's communicators are aborted."""
    _library.dry_hang(1)


def complaint() -> str:
    """What was last refused."""
    return _library.dry_complaint().decode()


@contextmanager
def recorded(path: Path) -> Iterator[None]:
    """Writes what is launched, captured and copied into a file, a line each."""
    _library.dry_record(str(path).encode())
    try:
        yield
    finally:
        _library.dry_record(None)


def endless() -> None:
    """Lets decodings go on whatever is read: kernels do nothing, so the summary of a step, of which
    the read itself stays, says nothing. Every row is taken to grow by two tokens a step, and every
    draft to be as long, or with ``shortest`` as short, as it may be."""

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
        step = id(drafter.searched)  # a list that every search makes anew; walks have no chunks
        chunks = seen.get(step, 0)
        seen.clear()
        seen[step] = chunks + 1
        left = drafter.length.most - chunks * drafter.chunk
        wish = 0 if shortest else left
        drafter.texts = [[0] * len(text) for text in drafter.texts]
        return [[wish] + [0] * (len(row) - 1) for row in numbers.tolist()]

    seen: dict[int, int] = {}  # how many chunks the step has read
    initialise, known = flow.State.__init__, DiffusionDrafter._sizes

    def init(state: flow.State, *args, **settings) -> None:
        initialise(state, *args, **settings)
        state.prompted = state.horizon  # type: ignore[attr-defined]

    flow.State.__init__ = init  # type: ignore[method-assign]
    flow.State.read = read  # type: ignore[method-assign]
    Drafter.largest = largest  # type: ignore[method-assign]
    DiffusionDrafter._sizes = sizes  # type: ignore[method-assign]
    DiffusionDrafter._read = lattice  # type: ignore[method-assign]


def empty_cache() -> None:
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
