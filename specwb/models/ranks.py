"""Several processes, one device each: a group's attentions on different ranks, the target under
tensor parallelism.

Every process runs the same decoding. What one of them computes alone is exchanged by collectives of
``torch.distributed`` (NCCL on CUDA, gloo on the CPU), and logits are rank 0's everywhere, so that
all of them draw the same tokens and know the same text. On CUDA collectives are part of recorded
steps, where nobody watches them: :meth:`Ranks.settled` does, before a step is read.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from specwb.core.errors import SpecwbError
from specwb.models.architectures import UnsupportedModel
from specwb.models.backbone import ForwardPass, LayerRunner, Stack
from specwb.models.cache import KVCache
from specwb.models.fuzzy import FusedGroups, GroupError, Groups, LayerIndices

NEEDED = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
_gather = (
    getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
)  # the name changed with torch 2.13
LONGEST = 86_400  # seconds that a rank may wait for another
STARTED = "torchrun --nproc-per-node 2 SCRIPT.py (docs/models.md, EasySpec)"


class RanksError(SpecwbError, RuntimeError):
    """A distributed run that cannot begin, or cannot go on because a rank is gone."""


@dataclass
class Ranks:
    """This process among the others.

    Attributes:
        timeout: seconds that a rank waits for the others.
        recorded: graphs that may have collectives in them; NCCL ends only after they have.
    """

    rank: int
    size: int
    device: torch.device
    timeout: float
    recorded: weakref.WeakSet[Any] = field(default_factory=weakref.WeakSet)

    def settled(self) -> None:
        """Waits for the device, for ``timeout`` seconds at most. A collective that another rank
        does not take part in is a kernel without end, and a host that reads its result waits as
        long; so does one that has launched more than fits into the device's queue, about a thousand
        kernels. It is called after every part of a prompt and every step; where a host waits in
        between, torch's watchdog ends the process after twice the timeout.

        Raises:
            RanksError: the device has not come to an end.
        """
        if self.device.type != "cuda":
            return  # gloo's collectives raise themselves
        done = torch.cuda.Event()
        done.record(torch.cuda.current_stream(self.device))
        until = time.monotonic() + self.timeout
        while not done.query():
            if time.monotonic() > until:
                raise RanksError(
                    f"rank {self.rank}: another rank has ended or did not answer within "
                    f"{self.timeout:g} s (a collective on {self.device} has not ended)"
                )

    @contextmanager
    def answered(self) -> Iterator[None]:
        """Raises RanksError where another rank has ended, or did not answer in time."""
        try:
            yield
        except RanksError:
            self._abort()
            raise
        except RuntimeError as error:
            if not self.gone(error):
                raise
            self._abort()
            raise RanksError(
                f"rank {self.rank}: another rank has ended or did not answer within "
                f"{self.timeout:g} s ({str(error).splitlines()[0][:200]})"
            ) from error

    def _abort(self) -> None:
        """Ends the kernels that wait for another rank: until then the device cannot be left. A
        parted target has groups of its own, so all of them are aborted.

        NCCL's abort returns only when every graph with its collectives is gone, and such a graph
        only when its kernels have ended, which the abort sees to: so both are done at once, and
        nobody waits for ever.
        """
        if self.device.type != "cuda":
            return

        def abort() -> None:
            with suppress(RuntimeError, ValueError, AssertionError):
                dist.distributed_c10d._abort_process_group()

        other = threading.Thread(target=abort, daemon=True)
        other.start()
        self.end_graphs()
        other.join(self.timeout)

    def end_graphs(self) -> None:
        """Gives up what was recorded; a decoding that goes on records anew."""
        for graph in list(self.recorded):
            graph.end()
        self.recorded.clear()

    def gone(self, error: BaseException) -> bool:
        """Whether this is what a collective says when another rank does not take part."""
        message = str(error).lower()
        words = ("gloo", "nccl", "connection", "timed out", "timeout")
        return isinstance(error, RuntimeError) and (
            isinstance(error, dist.DistError) or any(word in message for word in words)
        )

    def agreed(self, x: Tensor) -> Tensor:
        """Rank 0's ``x``."""
        x = x.contiguous()
        dist.broadcast(x, 0)
        return x


_here: Ranks | None = None


def here() -> Ranks | None:
    """This process' place among those that :func:`join` joined; None where it is alone."""
    return _here


def settled() -> None:
    """Waits for the device where there are other ranks, see :meth:`Ranks.settled`."""
    if _here is not None:
        _here.settled()


def join(device: str | torch.device = "auto", timeout: float = 60.0) -> Ranks:
    """Join the processes that ``torchrun`` started; a rank's device is its own.

    The others must come within ``timeout`` seconds, on CUDA twice that."""
    global _here
    if _here is not None:
        return _here
    from specwb.models.device import resolve_device
    from specwb.models.folder import LoadError

    if not 0 < timeout <= LONGEST:
        raise RanksError(f"timeout must be in 0..{LONGEST} seconds, got {timeout:g}")
    missing = [name for name in NEEDED if name not in os.environ]
    if missing:
        raise RanksError(
            f"several processes need the environment that torchrun makes ({', '.join(missing)} "
            f"not set): {STARTED}"
        )
    rank, size, local = (int(os.environ[name]) for name in NEEDED[:3])
    place = resolve_device(device)
    if place.index is not None:
        raise LoadError(f"device {str(device)!r}: each rank has a device of its own; write cuda")
    cuda = place.type == "cuda"
    if cuda and local >= torch.cuda.device_count():
        raise RanksError(
            f"rank {rank} is process {local} of this machine, which has "
            f"{torch.cuda.device_count()} CUDA device(s); start fewer, or use cpu"
        )
    place = torch.device("cuda", local) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(place)
    # torch's own watchdog ends the process without a message of ours: settled() is to be the first
    limit = 2 * timeout if cuda else timeout
    try:
        dist.init_process_group(
            "nccl" if cuda else "gloo",
            timeout=timedelta(seconds=limit),
            device_id=place if cuda else None,
        )
    except (RuntimeError, ValueError) as error:
        raise RanksError(
            f"rank {rank}: the {size} processes did not come together within {limit:g} s "
            f"({str(error).splitlines()[0][:200]})"
        ) from error
    _here = Ranks(rank, size, place, timeout)
    atexit.register(leave)  # a process that ends with graphs in which NCCL takes part may hang
    return _here


def leave() -> None:
    """Undo :func:`join`; a process that ends does so by itself."""
    global _here
    atexit.unregister(leave)
    if _here is not None:
        _here.end_graphs()  # NCCL waits for all graphs that it is part of
        _here = None
        with suppress(RuntimeError):
            if dist.is_initialized():  # an abort has undone it
                dist.destroy_process_group()


def parts(config: Any, size: int) -> int:
    """The largest divisor of ``size`` that divides a model's heads, key-value heads and MLP."""
    counts = config.num_attention_heads, config.num_key_value_heads, config.intermediate_size
    return max(
        t for t in range(1, size + 1) if size % t == 0 and all(count % t == 0 for count in counts)
    )


PARTED = ("llama", "mistral", "qwen2", "qwen3")
"""Model types whose parts are known to be whole heads, with nothing between heads."""


def load_parted(folder: str | Path, config: Any, ranks: Ranks, **settings: Any) -> tuple[Any, dict]:
    """The model, and the library's report on its keys, under its own tensor-parallel plan
    (``tp_plan="auto"``), over as many ranks as it can be parted into; where that is not all of them
    there are several copies, each of which computes the same.

    Where it is all of them each rank reads its own part; otherwise each reads the whole model
    before it keeps a part.
    """
    from transformers import AutoModelForCausalLM
    from transformers.distributed import DistributedConfig
    from transformers.distributed.tensor_parallel import (
        apply_tensor_parallelism,
        replace_layer_number_by_wildcard,
    )

    if config.model_type not in PARTED:
        raise UnsupportedModel(
            f"model type {config.model_type!r} is not parted among ranks; {', '.join(PARTED)} are"
        )
    size = ranks.size
    parted = parts(config, size)
    reads = ranks.device.type == (
        "cuda" if torch.cuda.is_available() else "cpu"
    )  # the device that the library parts models over
    if reads and parted == size > 1:
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            folder, distributed_config=DistributedConfig(tp_plan="auto", tp_size=size), **settings
        )
        return loaded
    loaded = AutoModelForCausalLM.from_pretrained(folder, **settings)
    model, report = loaded
    if parted > 1:
        mesh = dist.init_device_mesh(
            ranks.device.type, (size // parted, parted), mesh_dim_names=("copy", "tp")
        )["tp"]
        named, plan = dict(model.named_parameters()), dict[str, str]()
        for name, module in model.named_modules():
            if style := model.tp_plan.get(replace_layer_number_by_wildcard(name)):
                keys = [f"{name}.{key}" for key, _ in module.named_parameters(recurse=False)]
                plan |= dict.fromkeys([name, *filter(named.__contains__, keys)], style)
        apply_tensor_parallelism(model, mesh, plan)
        model.tie_weights()
    return model, report


class RankGroups(Groups):
    """*Ranks*: of a group's n attentions each of W ranks runs ceil(n / W) (W = n: one each), one
    all-gather brings all their outputs to all; MLPs, norms and residual streams are everywhere. A
    rank's cache has the layers whose attentions it runs; layers alone are run by one rank, which
    broadcasts its output, in fuzzy and exact forwards alike. Where steps are recorded, so are the
    collectives: every rank records and replays the same steps, because all know the same text.

    Source: Wu et al. 2025, 4.2. Differs from it in: which collectives there are is not written
    there; n may be larger than W.
    """

    name = "ranks"

    def __init__(
        self, layers: LayerIndices, parallel_mlp: bool = False, owner: dict[int, int] | None = None
    ) -> None:
        super().__init__(layers, parallel_mlp)
        self.ranks = here()
        size = 1 if self.ranks is None else self.ranks.size
        self.owner = owner or {
            i: g // -(-len(group) // size) for group in layers for g, i in enumerate(group)
        }
        own = [
            i for i in sorted(self.owner) if self.ranks is None or self.owner[i] == self.ranks.rank
        ]
        self.held = {i: at for at, i in enumerate(own)}  # layers of the cache
        self.fused = FusedGroups(layers)

    def check(self, stack: Stack, n: int) -> None:
        super().check(stack, n)
        self.fused.check(stack, n)
        if self.ranks is None:
            raise GroupError(
                "execution=ranks needs several processes, started with torchrun and joined with "
                f"specwb.models.ranks.join: {STARTED}"
            )
        if self.ranks.size > n:
            raise GroupError(
                f"{self.ranks.size} ranks are more than the n={n} attentions side by side; start "
                f"{n} or fewer"
            )

    def in_order(self) -> RankGroups:
        return RankGroups(tuple((i,) for group in self.layers for i in group), owner=self.owner)

    def exact(self, stack: Stack) -> LayerRunner:
        return self.in_order().on(stack)

    def cache(self, stack: Stack, rows: int, capacity: int) -> KVCache:
        return KVCache(
            max(1, len(self.held)),
            rows,
            capacity,
            stack.kv_heads,
            stack.head_dim,
            stack.dtype,
            stack.device,
        )

    def agreed(self, logits: Tensor) -> Tensor:
        assert self.ranks is not None
        return self.ranks.agreed(logits)

    def attend(
        self, stack: Stack, group: tuple[int, ...], x: Tensor, at: ForwardPass
    ) -> list[Tensor]:
        assert self.ranks is not None
        size = self.ranks.size
        mine = tuple(i for i in group if i in self.held)
        if len(mine) > 1 and not at.causal:
            outs = self.fused.together(stack, mine, x, at, self.held[mine[0]])
        else:
            outs = [stack.attention(i, stack.inputs(i, x), at, self.held[i]) for i in mine]
        if len(group) == 1:
            out = outs[0].contiguous() if mine else torch.empty_like(x)
            dist.broadcast(out, self.owner[group[0]])
            return [out]
        each = -(-len(group) // size)
        sent = x.new_zeros(each, *x.shape)
        for at_, out in enumerate(outs):
            sent[at_] = out
        every = x.new_empty(size * each, *x.shape)
        _gather(every, sent)
        return list(every[: len(group)].unbind())
