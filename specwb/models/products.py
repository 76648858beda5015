"""Products of a few tokens with a weight on the CPU, each computed in the way that is fastest here.

A decoding step multiplies every weight with one token, or with the some 5 to 30 nodes of a draft.
Reading the weight is then most of the work, and how often it is read depends on the library of
matrix products, the processor and the number of tokens. There are four ways to compute the same
product, and none of them is the fastest everywhere:

- ``linear``: what torch does by itself;
- ``turned``: ``(W x^T)^T``, a single token four times over;
- ``split``: the same by parts of the weight's rows, one for each thread, since the libraries give
  a product with so few columns to one thread, or read the weight several times;
- ``packed``: by oneDNN from a copy of the weight in the layout that oneDNN prefers, the operators
  that torch's own compiler uses for frozen weights.

Which one is taken is measured, for every shape and precision and several numbers of tokens, when
such a product is first asked for. That takes about a second, however large the weight is; results
are kept by processor, versions and number of threads in a file of the user's cache folder, and made
anew when that file is deleted. ``python benchmarks/ways.py`` prints what is chosen and how near to
the best it is.

Packed copies take memory beside the weights: at most ``SPECWB_PACK_MB`` (0: none are made), by
default a quarter of what is free when the first one is made. :func:`packed_bytes` says how much it
is.
"""

from __future__ import annotations

import json
import logging
import os
import platform
import sys
import time
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import torch
from torch import Tensor
from torch.nn import functional as F

from specwb.core.files import DataError, document, home, write

logger = logging.getLogger("specwb")
MOST = 64  # tokens from which on torch's own way is taken unmeasured
# up to how many tokens a choice holds, and how many it is measured with: none that is a multiple of
# 16 or so, for which kernels have ways of their own that the numbers beside it do not have
TOKENS = {1: 1, 2: 2, 4: 3, 8: 6, 16: 12, 32: 24, MOST: 48}
SMALL = 2**15  # weights of fewer elements are multiplied in torch's own way
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
# the ways, and how many times as fast as torch's own one must be to be taken; packs take memory
GAINS = {"linear": 1.0, "turned": 1.05, "split": 1.05, "packed": 1.07}

SPAN = 64 * 2**20  # bytes that a measurement reads in turn, so that caches hold few of them
ROUNDS = 9  # in which the ways take turns
LEAST = 5  # rounds that are measured however long they take
LONGEST = 0.15  # seconds after which no further round begins
HOPELESS = 1.7  # a way that was so many times as slow as the fastest in three rounds is out
PACKED_FOR = 32  # tokens that a packed copy is laid out for, see _pack


def _turned(x: Tensor, weight: Tensor) -> Tensor:
    tokens = x.shape[0]
    if tokens > 1:
        return torch.mm(weight, x.t()).t().contiguous()
    return torch.mm(weight, x.expand(4, -1).contiguous().t())[:, 0].contiguous()


def _split(x: Tensor, weight: Tensor) -> Tensor:
    parts = torch.get_num_threads()
    each, rest = divmod(weight.shape[0], parts)
    # x^T must stay a view: with a copy of it the library reads the weight at a quarter of the speed
    turned = x.t()
    whole = weight[: parts * each] if rest else weight
    out = torch.bmm(whole.unflatten(0, (parts, each)), turned.expand(parts, -1, -1)).flatten(0, 1)
    if rest:
        out = torch.cat([out, torch.mm(weight[parts * each :], turned)])
    # what is computed of this is multiplied next, and its layout is handed on: see above
    return out.t().contiguous()


def _packed(x: Tensor, packed: Tensor, bias: Tensor | None = None) -> Tensor:
    return torch.ops.mkldnn._linear_pointwise(x, packed, bias, "none", [], "")


def _pack(weight: Tensor) -> Tensor:
    # one layout serves all numbers of tokens: oneDNN's for a single token is slow with several; its
    # layout for many was the fastest with few as well on the one processor it was tried on, an AMD
    # EPYC, and whether packs are taken at all is measured anywhere
    return torch.ops.mkldnn._reorder_linear_weight(weight.detach(), PACKED_FOR)


def measure(
    rows: int, columns: int, dtype: torch.dtype, tokens: Sequence[int]
) -> dict[int, dict[str, float]]:
    """Seconds of ``[n, columns] x [rows, columns]^T`` by way, for every n of ``tokens``; a way that
    this build of torch lacks, or that is hopeless, is left out.

    The ways take turns, round by round. The first of them, torch's own where it is not hopeless,
    counts with its fastest round, another one with at least the upper quartile of its ratios to the
    first in the same round: what is kept for good must not be what other work beside a measurement
    made of it. Of a weight larger than ``SPAN`` only so many rows are measured: a cache holds them
    no more than it holds all of them.
    """
    row = columns * dtype.itemsize
    part = min(rows, max(1, SPAN // row))
    copies = max(1, min(48, SPAN // (part * row)))
    weights = [torch.full((part, columns), 0.5, dtype=dtype) for _ in range(copies)]
    packs: list[Tensor] = []
    if packing():
        try:
            packs = [_pack(weight) for weight in weights]
            _packed(weights[0][:1], packs[0])
        except (RuntimeError, AttributeError):
            packs = []
    found = {}
    for n in tokens:
        x = torch.full((n, columns), 0.5, dtype=dtype)
        ways: dict[str, Callable[[], Any]] = {
            "linear": partial(_all, F.linear, x, weights),
            "turned": partial(_all, _turned, x, weights),
            "split": partial(_all, _split, x, weights),
        }
        if packs:
            ways["packed"] = partial(_all, _packed, x, packs)
        seconds = cautious(in_turns(ways))
        found[n] = {way: s / copies * rows / part for way, s in seconds.items()}
    return found


def _all(way: Callable[[Tensor, Tensor], Tensor], x: Tensor, weights: list[Tensor]) -> None:
    for weight in weights:
        way(x, weight)


def in_turns(ways: dict[str, Callable[[], Any]]) -> dict[str, list[float]]:
    """Seconds of every round by way, without the hopeless ones."""
    taken: dict[str, list[float]] = {name: [] for name in ways}
    started = time.perf_counter()
    for i in range(ROUNDS):
        spent = time.perf_counter() - started
        if spent > LONGEST and (i >= LEAST or (spent > 3 * LONGEST and i > 1)):
            break
        for name in taken:
            began = time.perf_counter()
            ways[name]()
            taken[name].append(time.perf_counter() - began)
        if i in (0, 2):  # after one round only what is far behind
            bound = HOPELESS ** (1 if i else 3) * min(map(min, taken.values()))
            taken = {name: seconds for name, seconds in taken.items() if min(seconds) <= bound}
    return taken


def cautious(taken: dict[str, list[float]]) -> dict[str, float]:
    """Seconds by way out of those of every round, see :func:`measure`."""
    first = next(iter(taken))
    best = {way: min(seconds) for way, seconds in taken.items()}
    for way, seconds in taken.items():
        ratios = sorted(mine / its for mine, its in zip(seconds, taken[first], strict=True))
        best[way] = max(best[way], best[first] * ratios[3 * len(ratios) // 4])
    return best


def fastest(seconds: dict[str, float]) -> str:
    """The way to take: torch's own, unless another is clearly faster."""
    return min(seconds, key=lambda way: seconds[way] * GAINS[way])


KEPT = {
    "type": "object",
    "additionalProperties": {"type": "object", "additionalProperties": {"type": "string"}},
}
"""The schema of the file of choices: machine -> shape -> way."""


class Choices:
    """Which way each shape takes, as measured; in memory and, best effort, in a file."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = path if path is not None else cache_folder() / "products-3.json"
        self._machine: str | None = None
        self._known: dict[str, str] | None = None
        self._spent = 0.0

    def __call__(self, rows: int, columns: int, dtype: torch.dtype, tokens: int) -> str:
        """The way of a weight ``[rows, columns]`` with ``tokens`` of :data:`TOKENS`, for as many
        threads as there are now; all numbers of tokens are measured at once, since most will
        come."""
        if self._known is None:
            self._machine, self._known = machine() + ("" if packing() else " no packs"), {}
            self._known |= self._read().get(self._machine, {})
        shape, threads = f"{rows}x{columns} {str(dtype)[6:]}", torch.get_num_threads()
        keys = {n: f"{shape} {n} tokens {threads} threads" for n in TOKENS}
        if self._known.get(keys[tokens]) not in GAINS:
            began = time.perf_counter()
            seconds = measure(rows, columns, dtype, list(TOKENS.values()))
            self._notice(time.perf_counter() - began)
            self._known |= {keys[most]: fastest(seconds[n]) for most, n in TOKENS.items()}
            self._write()
        way = self._known[keys[tokens]]
        return way if way != "packed" or packing() else "linear"

    def _notice(self, seconds: float) -> None:
        """One line, when measuring has taken more than a second for the first time; in a notebook
        nbval would find an output that the stored one lacks."""
        before, self._spent = self._spent, self._spent + seconds
        if before <= 1.0 < self._spent and "ipykernel" not in sys.modules:
            kept = f"kept in {self.path}"
            if not self._write():
                kept = f"{self.path} cannot be written, so every start measures anew"
            logger.warning(
                "measuring which way of multiplying is the fastest on this machine, once for every"
                " shape of a weight and number type; %s",
                kept,
            )

    def _read(self) -> dict[str, dict[str, str]]:
        try:
            return document(self.path, KEPT)
        except DataError:  # none yet, or damaged: it is measured
            return {}

    def _write(self) -> bool:
        """With what other processes have written since; whether the folder can be written."""
        whole = self._read()
        whole[self._machine or ""] = whole.get(self._machine or "", {}) | (self._known or {})
        try:
            write(json.dumps(whole, indent=1, sort_keys=True), self.path)
        except OSError:
            return False
        return True


def cache_folder() -> Path:
    """``SPECWB_CACHE``, or ``specwb`` in the user's cache folder."""
    if named := os.environ.get("SPECWB_CACHE"):
        return home(named)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else home("~/.cache")) / "specwb"


def machine() -> str:
    """What a measurement holds for: processor, its instructions as torch sees them, torch, and the
    settings of its libraries."""
    name = platform.processor() or platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
        name = next(
            line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")
        )
    except (OSError, StopIteration):
        pass
    settings = sorted(
        f"{k}={v}" for k, v in os.environ.items() if k.startswith(("MKL_", "ONEDNN_", "DNNL_"))
    )
    capability = torch.backends.cpu.get_cpu_capability()
    return " ".join([name, str(os.cpu_count()), capability, "torch", torch.__version__, *settings])


class _Known:
    """One weight: which way each number of tokens takes, and its packed copy with a sample of what
    was packed."""

    __slots__ = ("packed", "ref", "sample", "seen", "ways")

    def __init__(self, weight: Tensor, ways: list[str | None]) -> None:
        key = id(weight)
        self.ref = weakref.ref(weight, lambda _: _known.pop(key, None))
        self.ways, self.seen = ways, False
        self.packed: Tensor | None = None
        self.sample: Tensor | None = None


_known: dict[int, _Known] = {}
_ways: dict[tuple[int, int, torch.dtype], list[str | None]] = {}
_choices: Choices | None = None
_limit: int | None = None
_threads = 0


def product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """``x W^T + b``, ``[..., K]`` and ``[N, K]`` -> ``[..., N]``.

    For few tokens on the CPU, while nothing is differentiated, in the way that was measured to be
    the fastest; torch's own way everywhere else. The ways differ in rounding only.
    """
    if x.is_cpu and torch.is_inference_mode_enabled():
        tokens = x.numel() // x.shape[-1]
        if 0 < tokens <= MOST:
            known = _known.get(id(weight))
            if known is None or known.ref() is not weight:
                known = _register(weight)
            way = known.ways[tokens]
            if way is None:
                way = _choose(known, weight, tokens)
            if way != "linear":
                if way == "packed":
                    packed = known.packed
                    if packed is None and (packed := _keep(known, weight)) is None:
                        return F.linear(x, weight, bias)
                    return _packed(x, packed, bias)
                flat = x.reshape(tokens, -1)
                out = _split(flat, weight) if way == "split" else _turned(flat, weight)
                out = out.view(*x.shape[:-1], -1)
                return out if bias is None else out.add_(bias)
    return F.linear(x, weight, bias)


def _register(weight: Tensor) -> _Known:
    rows, columns = weight.shape
    key = (rows, columns, weight.dtype)
    if key not in _ways:
        _ways[key] = _unmeasured(*key)
    known = _known[id(weight)] = _Known(weight, _ways[key])
    return known


def _unmeasured(rows: int, columns: int, dtype: torch.dtype) -> list[str | None]:
    plain = rows * columns < SMALL or dtype not in DTYPES
    return ["linear" if plain else None] * (MOST + 1)


def _choose(known: _Known, weight: Tensor, tokens: int) -> str:
    least = next(n for n in TOKENS if n >= tokens)
    rows, columns = weight.shape
    way = known.ways[tokens] = choices()(rows, columns, weight.dtype, least)
    return way


def choices() -> Choices:
    """This process' choices, read from the user's cache when they are first needed."""
    global _choices
    if _choices is None:
        _choices = Choices()
    return _choices


def _keep(known: _Known, weight: Tensor) -> Tensor | None:
    """The packed copy, made at the second use: a tensor that is seen once may be a view of this
    call."""
    if not known.seen:
        known.seen = True
        return None
    global _limit
    if _limit is None:
        named = os.environ.get("SPECWB_PACK_MB")
        _limit = int(float(named) * 2**20) if named else psutil.virtual_memory().available // 4
    if packed_bytes() + weight.nbytes > _limit:
        return None
    known.packed, known.sample = _pack(weight), _sample(weight).clone()
    return known.packed


def _sample(weight: Tensor) -> Tensor:
    """Elements along a slanted line through all rows (of a wide weight, all columns), as a view."""
    rows, columns = weight.shape
    stride = columns + 1 if rows >= columns else max(1, rows - 1)
    flat = weight.detach().view(-1)
    return flat[::stride]


def refresh() -> None:
    """Drops packed copies whose weights have changed since; every decoding begins with it.

    A weight that was trained, loaded or edited by rows or columns is noticed by a sample of its
    elements. Not noticed is the edit of single elements: call :func:`forget` after one.
    """
    global _threads
    for known in list(_known.values()):
        weight = known.ref()
        if known.packed is None or weight is None:
            continue
        assert known.sample is not None
        if not torch.equal(_sample(weight), known.sample):
            known.packed = known.sample = None
    if torch.get_num_threads() != _threads:  # what was measured holds for a number of threads
        _threads = torch.get_num_threads()
        for key, ways in _ways.items():
            ways[:] = _unmeasured(*key)


def forget() -> None:
    """Drops all packed copies and what is remembered of choices; measurements in the file stay."""
    global _choices, _limit
    _known.clear()
    _ways.clear()
    _choices = _limit = None


def packed_bytes() -> int:
    """Bytes that packed copies of weights take now."""
    return sum(
        (k.sample is not None and (w := k.ref()) is not None and w.nbytes) or 0
        for k in _known.values()
    )


def packing() -> bool:
    """Whether packed copies may be made: not where ``SPECWB_PACK_MB`` is 0, nor without oneDNN."""
    return os.environ.get("SPECWB_PACK_MB", "") != "0" and torch.backends.mkldnn.is_available()
