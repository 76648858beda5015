"""Whole rounds as CUDA graphs: recorded once, then replayed without Python between the kernels.

One graph holds all verbs of a round (draft, score, verify, trim, commit, observe, advance) for one method, number of rows and
horizon bucket. What a graph reads and writes lies at fixed addresses, so decodings take turns in an :class:`Arena` whose tensors
stay; the next decoding's are copied into them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from specwb.flow import State
from specwb.noise import Noise
from specwb.tree import Tree


class Recording(Protocol):
    """A recorded round: ``result`` is what the body returned, its tensors are written anew by every ``replay``."""

    result: Any

    def replay(self) -> None: ...


class CudaGraph:
    """``body`` captured (not executed) as a CUDA graph."""

    def __init__(self, body: Callable[[], Any]) -> None:
        torch.cuda.synchronize()
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            self.result = body()

    def replay(self) -> None:
        self._graph.replay()


# by device type; where there is none, rounds run eagerly
RECORDERS: dict[str, Callable[[Callable[[], Any]], Recording]] = {"cuda": CudaGraph}


@dataclass
class Arena:
    """The tensors of one decoding at a time, and the graphs over them."""

    state: State
    drafter: Any
    noise: Noise
    recordings: dict[int, Recording | None] = field(default_factory=dict)

    def take(self, fresh: Arena) -> None:
        """Go on with another decoding of the same shapes: its contents are copied to where the graphs look."""
        fresh.noise.renew(fresh.state.known)
        _adopt(self.state, fresh.state)
        _adopt(self.drafter, fresh.drafter)
        _adopt(self.noise, fresh.noise)

    def run(self, body: Callable[[], Any]) -> Any:
        """One round. The first of a bucket runs eagerly, which makes every table that is made lazily; the second is recorded."""
        bucket = self.state.horizon
        if bucket not in self.recordings:
            self.recordings[bucket] = None
            return body()
        recording = self.recordings[bucket]
        if recording is None:
            recording = self.recordings[bucket] = RECORDERS[self.state.tokens.device.type](body)
        recording.replay()
        return recording.result


_SHARED = (Tree, nn.Module, torch.device, torch.dtype, type)


def _adopt(old: Any, new: Any) -> Any:
    """``new``'s contents in ``old``'s tensors, through lists, dicts and plain objects; returns what is to stand in ``old``'s place."""
    if old is new or isinstance(old, _SHARED):
        return old
    if isinstance(old, Tensor) and new is None:  # made by the first round, which has been long ago here
        return old
    if isinstance(old, Tensor) and isinstance(new, Tensor) and old.shape == new.shape and old.dtype == new.dtype:
        if old.data_ptr() != new.data_ptr():
            old.copy_(new)
        return old
    if isinstance(old, list | tuple) and type(old) is type(new) and len(old) == len(new):
        return type(old)(map(_adopt, old, new))
    if isinstance(old, dict) and isinstance(new, dict):
        for key in new:
            old[key] = _adopt(old[key], new[key]) if key in old else new[key]
        return old
    if type(old) is type(new) and type(old).__module__.startswith("specwb") and hasattr(old, "__dict__"):
        _adopt(vars(old), vars(new))
        return old
    return new
