"""Whole rounds as CUDA graphs: recorded once, then replayed without Python between the kernels.

One graph holds all verbs of a round (draft, score, verify, trim, commit, observe, advance) for one method, number of rows and
horizon bucket. What a graph reads and writes lies at fixed addresses, so decodings take turns in an :class:`Arena` whose tensors
stay; the next decoding's are copied into them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from specwb.flow import State
from specwb.models.cache import KVCache
from specwb.noise import Noise
from specwb.tree import Tree


class Recording(Protocol):
    """A recorded round: ``result`` is what the body returned, its tensors are written anew by every ``replay``."""

    result: Any

    def replay(self) -> None: ...


ARENAS = 4  # free ones a method keeps: their memory stays with it
_recording = threading.Lock()


class CudaGraph:
    """``body`` captured (not executed) as a CUDA graph. ``earlier``: one of the same arena, whose memory it may share, because the two
    are never replayed at once and nothing but results outlives a replay."""

    def __init__(self, body: Callable[[], Any], device: torch.device, earlier: Recording | None) -> None:
        self._device, self._graph = device, torch.cuda.CUDAGraph()
        pool = earlier._graph.pool() if isinstance(earlier, CudaGraph) else None
        with torch.cuda.device(device), _recording:
            torch.cuda.synchronize(device)
            stream = torch.cuda.current_stream(device)
            try:
                with torch.cuda.graph(self._graph, pool=pool, stream=torch.cuda.Stream(device), capture_error_mode="thread_local"):
                    self.result = body()
            finally:
                torch.cuda.set_stream(stream)  # a capture that fails would leave its own behind

    def replay(self) -> None:
        with torch.cuda.device(self._device):
            self._graph.replay()


# by device type; where there is none, rounds run eagerly
RECORDERS: dict[str, Callable[[Callable[[], Any], torch.device, Recording | None], Recording]] = {"cuda": CudaGraph}


@dataclass
class Arena:
    """The tensors of one decoding at a time, and the graphs over them."""

    state: State
    drafter: Any
    noise: Noise
    recordings: dict[int, Recording | None] = field(default_factory=dict)

    def take(self, fresh: Arena) -> None:
        """Go on with another decoding of the same shapes: its contents are copied to where the graphs look.

        Raises:
            RuntimeError: a tensor of the drafter's was not made in ``open``, or its shape depends on the prompts.
        """
        fresh.noise.renew(fresh.state.known)
        self.state._masks.clear()
        for mine, theirs in ((self.state, fresh.state), (self.drafter, fresh.drafter), (self.noise, fresh.noise)):
            _adopt(mine, theirs, type(mine).__name__)

    def run(self, body: Callable[[], Any]) -> Any:
        """One round. The first of a bucket runs eagerly, which makes every table that is made lazily; the second is recorded."""
        bucket = self.state.horizon
        if bucket not in self.recordings:
            self.recordings[bucket] = None
            return body()
        recording = self.recordings[bucket]
        if recording is None:
            device = self.state.tokens.device
            recording = RECORDERS[device.type](body, device, next(filter(None, self.recordings.values()), None))
            self.recordings[bucket] = recording
        recording.replay()
        return recording.result


_SHARED = (Tree, nn.Module, torch.device, torch.dtype, type)
_TRANSIENT = {"_summary", "_round", "_masks"}  # of State and Noise: made anew by every round before they are read


def _adopt(old: Any, new: Any, name: str) -> Any:
    """``new``'s contents in ``old``'s tensors, through lists, dicts and plain objects; returns what is to stand in ``old``'s place."""
    if old is new or isinstance(old, _SHARED):
        return old
    if isinstance(old, Tensor) or isinstance(new, Tensor):
        if not (isinstance(old, Tensor) and isinstance(new, Tensor) and old.shape == new.shape and old.dtype == new.dtype):
            raise RuntimeError(f"{name} differs in shape between two decodings: a captured drafter makes its tensors in open, of fixed shapes")
        return old.copy_(new)
    if isinstance(old, KVCache) and isinstance(new, KVCache):
        old.data.copy_(new.data)  # its other tensors are views of this one, or constants
        return old
    if isinstance(old, list | tuple) and type(old) is type(new) and len(old) == len(new):
        items = [_adopt(a, b, f"{name}[{i}]") for i, (a, b) in enumerate(zip(old, new, strict=True))]
        return type(old)(*items) if hasattr(old, "_fields") else type(old)(items)
    if isinstance(old, dict) and isinstance(new, dict):
        for key in {**old, **new}:
            tensor_gone = key not in new and isinstance(old[key], Tensor)
            if key not in _TRANSIENT and (key in new or tensor_gone):  # what is no tensor and not there yet was made lazily from settings
                old[key] = _adopt(old.get(key), new.get(key), f"{name}.{key}")
        return old
    if type(old) is type(new) and hasattr(old, "__dict__") and not callable(old):
        _adopt(vars(old), vars(new), name)
        return old
    return new
