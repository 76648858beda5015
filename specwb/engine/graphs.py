"""Whole decoding steps as CUDA graphs: recorded once, then replayed without Python between kernels.

One graph holds everything that a step does on the device (draft, score, verify, trim, commit,
observe, advance) for one method, number of rows and horizon bucket. Where a drafter reads on the
host whether it goes on (``Drafter.staged``), every stage of its draft is a graph, and what follows
is one for each size of the draft, so that what is not drafted costs nothing.

What a graph reads and writes lies at fixed addresses. So decodings take turns in an :class:`Arena`,
whose tensors stay; the next decoding's are copied into them. Which tensors these are, state, noise
and drafter say themselves (``tensors()``).
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import ModuleType
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import torch
from torch import Tensor, nn

from specwb.core.errors import SpecwbError
from specwb.core.flow import State
from specwb.core.noise import Noise
from specwb.core.tree import Tree
from specwb.models.attention import backends
from specwb.models.backbone import Stack
from specwb.models.cache import KVCache
from specwb.models.fuzzy import Groups
from specwb.models.ranks import here
from specwb.models.target import Target

if TYPE_CHECKING:
    from specwb.core.flow import Step
    from specwb.drafters.base import Drafter
    from specwb.engine.loop import Decoding


class GraphError(SpecwbError, RuntimeError):
    """A drafter or a decoding that its recorded steps cannot be replayed with."""


class Recording(Protocol):
    """A recorded step; every ``replay`` writes the tensors of ``result`` anew."""

    result: Any

    def replay(self) -> None: ...


RUNS = 4
T = TypeVar("T")
ARENAS = 4  # free ones that a method keeps: their memory stays with it
_recording = threading.Lock()


_streams: dict[torch.device, tuple[torch.cuda.Stream, torch.cuda.Stream]] = {}
_warm = threading.local()


def _streams_of(device: torch.device) -> tuple[torch.cuda.Stream, torch.cuda.Stream]:
    """The stream that a capture begins and ends on, and the one that everything in it runs on.

    They are two, because a graph that is destroyed frees what cuBLAS has set aside for the stream
    its capture began on (torch 2.13), and all other graphs would go on using that. cuBLAS sets 32
    MiB aside for every thread and stream that it runs on; a product before a thread's first capture
    has it do so outside of a graph's memory.
    """
    if device not in _streams:
        _streams[device] = torch.cuda.Stream(device), torch.cuda.Stream(device)
    outer, inner = _streams[device]
    seen = vars(_warm).setdefault("devices", set())
    if device not in seen:
        with torch.cuda.stream(inner):
            for dtype in (torch.float32, torch.bfloat16):
                square = torch.zeros(8, 8, dtype=dtype, device=device)
                torch.mm(square, square)
        torch.cuda.synchronize(device)
        seen.add(device)
    return outer, inner


@contextmanager
def _uncollected() -> Iterator[None]:
    """No garbage collection: a graph that is destroyed during a capture makes it invalid."""
    on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if on:
            gc.enable()


class CudaGraph:
    """A function captured (not executed) as a CUDA graph. It may share the memory of an ``earlier``
    recording of the same arena, because the two are never replayed at once and nothing but results
    outlives a replay."""

    def __init__(
        self, body: Callable[[], Any], device: torch.device, earlier: Recording | None
    ) -> None:
        self._device, self._graph, self.ended = device, torch.cuda.CUDAGraph(), False
        pool = earlier._graph.pool() if isinstance(earlier, CudaGraph) else None
        with torch.cuda.device(device), _recording, _uncollected():
            torch.cuda.synchronize(device)
            before, (outer, inner) = torch.cuda.current_stream(device), _streams_of(device)
            mode = "thread_local"
            try:
                with torch.cuda.graph(self._graph, pool, outer, capture_error_mode=mode):
                    inner.wait_stream(outer)
                    try:
                        with torch.cuda.stream(inner):
                            self.result = body()
                    finally:  # an error in the body is to be what is raised
                        outer.wait_stream(inner)
                if (ranks := here()) is not None:
                    ranks.recorded.add(self)
            finally:
                # a capture that fails would leave its own stream behind
                torch.cuda.set_stream(before)

    def replay(self) -> None:
        # entering the device costs more than the launch, and a step has up to eight of them
        if torch.cuda.current_device() == self._device.index:
            self._graph.replay()
        else:
            with torch.cuda.device(self._device):
                self._graph.replay()

    def end(self) -> None:
        """Gives the graph up; it is replayed no more."""
        self.ended = True
        self._graph.reset()


Recorder = Callable[[Callable[[], Any], torch.device, Recording | None], Recording]
RECORDERS: dict[str, Recorder] = {"cuda": CudaGraph}
"""What records a step, by device type; on other devices steps run eagerly."""


@dataclass
class Arena:
    """The tensors of one decoding at a time, and the graphs over them, by horizon or by horizon and
    stage (None where this ran eagerly once); ``last`` is the stage that ran last."""

    state: State
    drafter: Drafter
    noise: Noise
    recordings: dict[Hashable, Recording | None] = field(default_factory=dict)
    last: Hashable = None

    def __post_init__(self) -> None:
        self._opened = self.drafter.tensors()

    def take(self, fresh: Arena) -> None:
        """Goes on with another decoding of the same shapes: copies its contents to where the graphs
        look."""
        mine, other = self.state, fresh.state
        _check_equal("sampling", mine.sampling, other.sampling)
        _check_equal("ceiling", mine.ceiling, other.ceiling)
        _check_equal("static", mine.static, other.static)
        _check_equal("widths of the noise", self.noise.widths, fresh.noise.widths)
        _copy("State", mine.tensors(), other.tensors())
        _copy("Noise", self.noise.tensors(), fresh.noise.tensors())
        _copy(type(self.drafter).__name__, self._opened, fresh._opened)
        self.drafter.adopt(fresh.drafter)
        mine.horizon, mine.finished = other.horizon, other.finished
        mine._masks.clear()
        self.noise.restart()

    def step(self, decoding: Decoding) -> Step:
        """The decoding's step, recorded or replayed. Of a drafter that is ``staged``, which looks
        at what it has drafted before it goes on, the stages and what follows are recorded apart."""
        if any(getattr(made, "ended", False) for made in self.recordings.values()):
            # the group of ranks that some were made in was left; a stage reads what those before
            # it wrote
            self.recordings = dict.fromkeys(self.recordings)
        if not decoding.drafter.staged:
            return self.run(decoding.advance).clone()
        state = decoding.state
        state.stages = self.run
        try:
            draft = decoding.draft()
            # the draft's tensors are those of the stage before, whose recording this one reads
            name = "settle", draft.tree.n, self.last
            return state.stage(name, lambda: decoding.settle(draft)).clone()
        finally:
            state.stages = None  # the arena holds the state: no circle, graphs end with the arena

    def run(self, body: Callable[[], Any], stage: Hashable = None) -> Any:
        """Runs one step, or one ``stage`` of it. The first of a horizon runs eagerly, which makes
        every table that is made lazily; the second is recorded.

        The results of all recordings stay referred to, so that no graph that is recorded later is
        given their memory: a stage's results are still there when the stages after it run.
        """
        self.last, horizon = stage, self.state.horizon
        bucket = horizon if stage is None else (horizon, stage)
        if (recording := self.recordings.get(bucket)) is not None:
            recording.replay()
            return recording.result
        device, is_met = self.state.tokens.device, bucket in self.recordings
        with backends(device):
            if not is_met:
                self.recordings[bucket] = None
                return body()
            self._check_drafter()
            earlier = next(filter(None, self.recordings.values()), None)
            recording = self.recordings[bucket] = RECORDERS[device.type](body, device, earlier)
        recording.replay()
        return recording.result

    def _check_drafter(self) -> None:
        """Checks that the drafter's tensors are those that it listed when it was opened."""
        name, listed = type(self.drafter).__name__, self.drafter.tensors()
        for key, tensor in listed.items():
            if self._opened.get(key) is not tensor:
                raise GraphError(
                    f"{name}: tensor {key} was made or replaced in a step; a captured drafter "
                    "makes its tensors in open and changes them in place, because a graph goes on "
                    "using the old memory"
                )
        for key, tensor in tensors_of(self.drafter):
            if not any(tensor is other for other in listed.values()):
                raise GraphError(
                    f"{name}.tensors() does not list {key}; a captured drafter makes its tensors "
                    "in open and lists all of them there, because the next decoding's contents are "
                    "copied into them"
                )


@contextmanager
def borrowed(decoding: Decoding) -> Iterator[Arena]:
    """The arena that a method's graphs look at, with an opened decoding's contents. It is given
    back afterwards, unless it was left inside a step."""
    state, free = decoding.state, decoding.method.arenas
    # decodings with equal keys can take turns in one arena
    key = decoding.target, state.rows, state.capacity, state.sampling, tuple(decoding.ends)
    arena, fresh = free.pop(key, None), Arena(state, decoding.drafter, decoding.noise)
    if arena is None:
        arena = fresh
    else:
        with torch.inference_mode():
            arena.take(fresh)
        decoding.state, decoding.drafter, decoding.noise = arena.state, arena.drafter, arena.noise
    try:
        yield arena
    except GeneratorExit:  # between two steps
        _give_back(arena, key, free)
        raise
    _give_back(arena, key, free)


def _give_back(arena: Arena, key: tuple, free: dict[tuple, Arena]) -> None:
    free[key] = arena
    while len(free) > ARENAS:
        free.pop(next(iter(free)))


def replayed(run: Callable[[], T], arenas: Mapping[tuple, Arena]) -> T:
    """The result of ``run()``, a decoding, once it has recorded nothing: for timing.

    A step or stage runs eagerly when it is first met, then it is recorded, then replayed. A
    decoding is run again while one of the first two was in it, :data:`RUNS` times at most.
    """
    for _ in range(RUNS):
        before = _met(arenas)
        result = run()
        if _met(arenas) <= before:
            break
    return result


def _met(arenas: Mapping[tuple, Arena]) -> set[tuple]:
    """Steps and stages that have run, and whether they have been recorded."""
    return {
        (*key, place, recording is not None)
        for key, arena in arenas.items()
        for place, recording in arena.recordings.items()
    }


# what all decodings share: trees, and models with what runs and holds their weights
SHARED = Tree | nn.Module | Stack | Groups | Target | type | ModuleType


def tensors_of(drafter: Drafter) -> Iterator[tuple[str, Tensor]]:
    """Every tensor that a drafter's attributes lead to, by name: through lists, dicts and plain
    objects, but not through what all decodings share. Of a cache it is ``data``, of which its other
    tensors are views, or constants."""
    seen: set[int] = set()

    def walk(name: str, value: Any) -> Iterator[tuple[str, Tensor]]:
        if isinstance(value, KVCache):
            value = value.data
        if isinstance(value, Tensor):
            yield name, value
        if isinstance(value, Tensor | SHARED) or id(value) in seen:
            return
        seen.add(id(value))
        if isinstance(value, Mapping):
            parts = [(f"{name}[{key!r}]", part) for key, part in value.items()]
        elif isinstance(value, list | tuple | set | frozenset):
            parts = [(f"{name}[{i}]", part) for i, part in enumerate(value)]
        else:
            parts = [
                (f"{name}.{key}", part) for key, part in getattr(value, "__dict__", {}).items()
            ]
        for part in parts:
            yield from walk(*part)

    for name, value in vars(drafter).items():
        yield from walk(name, value)


def _check_equal(name: str, old: object, new: object) -> None:
    if old != new:
        raise GraphError(f"{name} of two decodings in one arena differ: {old} and {new}")


def _copy(owner: str, old: Mapping[str, Tensor], new: Mapping[str, Tensor]) -> None:
    """Copies the contents of all tensors into those of the same names."""
    for name in {**old, **new}:
        a, b = old.get(name), new.get(name)
        if a is None or b is None or a.shape != b.shape or a.dtype != b.dtype:
            raise GraphError(
                f"{owner}: tensor {name} differs in shape between two decodings; a captured "
                "drafter makes its tensors in open, of shapes that do not depend on the prompts"
            )
        if a is not b:
            a.copy_(b)
