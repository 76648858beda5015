"""The forward pass of Llama-like layers on the CPU as one compiled function.

A decoding step on a CPU reads every weight once for a few tokens. Between the products torch spends
as long again in some thousand small operators, and its products of a few tokens are slower than
reading the weights need be. Here a pass through all layers is one function, compiled by numba, over
the weights where they lie; its threads take parts of each phase (q, k and v; attention; o; gate and
up; down) off a shared counter.

**Layout invariance.** A token's hidden states depend on the tokens of its path and on the weights,
and on nothing else: not on the number of tokens, rows or threads of the pass, nor on the slots that
the path's keys lie in. Each sum runs in one order: of a product over the columns, of attention by
rank in what the token sees. So a node of a draft tree has the same bits as the same text decoded
token by token, and greedy decoding writes the same text in every number type (theory/08).

Arithmetic is in float32; weights, keys and values are float32 or bfloat16. Heads that are stored in
int8 are read in int8 (:class:`specwb.models.products.Int8`). Everything else stays with torch:
CUDA, float64 and float16, gradients, windows, caps, experts, norms behind, other activations and
rotations, models on several devices (:func:`fits`).
"""

from __future__ import annotations

import hashlib
import logging
import os
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numba
import numpy as np
import torch
from llvmlite import binding
from torch import Tensor
from torch.nn import functional as F

from specwb.models.cache import KVCache
from specwb.models.kernels import (
    AHEAD,
    AT_ONCE,
    LANES,
    MOST,
    NARROW,
    gated,
    give_way,
    multiply,
    scores,
    shared,
    soften,
    squares,
    take,
    weigh,
)
from specwb.models.layers import is_rms
from specwb.models.place import Place
from specwb.models.products import cache_folder, int8_rows, one_thread

logger = logging.getLogger("specwb")
BLOCK = 2**13
"""Bytes of a weight for each pass of tokens over them; what is passed over and what follows it fit
into the second cache."""
NEAR = 2**15
"""Bytes of the tokens that stay in the first cache."""
APART = 8
"""Integers between two shared counters, a cache line."""
PARTS = 5
"""Parts of a phase for each thread: the last one to end is waited for."""
PATIENCE = 4000
"""Looks at a counter before another thread may have the processor."""
HEADS = (16, 32, 64, 80, 96, 128, 256)
"""Sizes of a head that attention is compiled for."""
LEAST = 2**19
"""Multiplications that are worth waking other threads for."""
QKV, ATTENTION, OUTPUT, GATE, DOWN = range(5)
"""The phases of a layer."""
DTYPES = {torch.float32: np.float32, torch.bfloat16: np.uint16}


def _kept_in() -> Path | None:
    """The folder that compiled code is kept in, one for each version of these files and for each
    processor; None where it cannot be made. numba itself looks at one file's date only."""
    files = [Path(__file__), Path(__file__).with_name("kernels.py")]
    version = [*(file.read_bytes() for file in files), binding.get_host_cpu_name().encode()]
    folder = cache_folder() / f"numba-{hashlib.sha256(b''.join(version)).hexdigest()[:12]}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / ".writable").touch()
    except OSError:
        return None
    return folder


FOLDER = _kept_in()


def compiled(function: Callable[..., Any]) -> Any:
    """A function as machine code, which runs without Python's lock."""
    before, numba.config.CACHE_DIR = numba.config.CACHE_DIR, str(FOLDER or "")
    try:
        return numba.njit(nogil=True, cache=FOLDER is not None, error_model="numpy")(function)
    finally:
        numba.config.CACHE_DIR = before


def _announce(dtype: torch.dtype) -> None:
    """One line before the first pass in a number type; in a notebook nbval would find an output
    that the stored one lacks."""
    if dtype in _announced:
        return
    _announced.add(dtype)
    mark = None if FOLDER is None else FOLDER / str(dtype).removeprefix("torch.")
    if mark is not None and mark.exists():
        return
    if "ipykernel" not in sys.modules:
        how_often = "once" if mark else f"at every start, since {cache_folder()} is not writable"
        logger.warning("compiling the forward pass for this processor, %s (some 15 s)", how_often)
    if mark is not None:
        mark.touch()


_announced: set[torch.dtype] = set()


@compiled
def _product(like, w, columns, first, last, x, n, out, stride):
    """``out[t, r - first]`` of rows first..last and n tokens.

    More tokens pass block by block of the weight, MOST of them at a time; each pass over a block
    prefetches its part of the next one, so that computing does not wait for the memory."""
    passes, most = (n + MOST - 1) // MOST, last - first
    step = like.itemsize * columns + (4 if like.itemsize == 1 else 0)  # bytes of a row
    if n <= AT_ONCE and 4 * n * columns <= NEAR:
        passes = 1
    if passes > 1:
        most = max(passes * BLOCK // step // 4 * 4, 4)
    row = first
    while row < last:
        rows, t = min(most, last - row), 0
        for i in range(passes):
            tokens = (n - t + passes - i - 1) // (passes - i)
            a, b = rows * i // passes // 4 * 4, rows * (i + 1) // passes // 4 * 4
            if i == passes - 1:
                b = rows
            following = AHEAD
            if passes > 1 and row + rows < last:
                following = step * rows
            for begin, end, further in ((0, a, AHEAD), (a, b, following), (b, rows, AHEAD)):
                if begin < end:
                    multiply(
                        like,
                        w + step * (row + begin),
                        columns,
                        end - begin,
                        x + 4 * t * columns,
                        tokens,
                        out + 4 * (t * stride + row - first + begin),
                        stride,
                        further,
                    )
            t += tokens
        row += rows


@compiled
def _norm(x, gain, eps, out):
    """Rows of x over the root of their mean square, times a gain."""
    n, width = x.shape
    for t in range(n):
        mean = squares(x[t].ctypes.data, width) / np.float32(width)
        scale = np.float32(1) / np.sqrt(mean + eps)
        for i in range(width):
            out[t, i] = x[t, i] * scale * gain[i]


@compiled
def _part(rows, threads):
    """Rows that are taken at a time."""
    return max(rows // (PARTS * threads) // NARROW, 1) * NARROW


@compiled
def _wait(address, total):
    looks = 0
    while shared(address) < total:
        looks += 1
        if looks % PATIENCE == 0:
            give_way()


@compiled
def _rotate(head, cos, sin):
    half = len(cos)
    for i in range(half):
        a, b = head[i], head[i + half]
        head[i] = a * cos[i] - b * sin[i]
        head[i + half] = b * cos[i] + a * sin[i]


@compiled
def _keep(head, entry):
    """Store a head in the cache; bfloat16 rounds to the nearest, ties to even."""
    if entry.itemsize == 4:
        for d in range(len(head)):
            entry[d] = head[d]
    else:
        bits = head.view(np.uint32)
        for d in range(len(head)):
            entry[d] = (
                bits[d] + np.uint32(0x7FFF) + ((bits[d] >> np.uint32(16)) & np.uint32(1))
            ) >> np.uint32(16)


@compiled
def _scores(like, dim, q, keys, stride, count, out):
    # the kernel's loop over a head is unrolled for each size
    if dim == 64:
        scores(like, 64, q, keys, stride, count, out)
    elif dim == 128:
        scores(like, 128, q, keys, stride, count, out)
    elif dim == 32:
        scores(like, 32, q, keys, stride, count, out)
    elif dim == 96:
        scores(like, 96, q, keys, stride, count, out)
    elif dim == 80:
        scores(like, 80, q, keys, stride, count, out)
    elif dim == 256:
        scores(like, 256, q, keys, stride, count, out)
    else:
        scores(like, 16, q, keys, stride, count, out)


@compiled
def _attend(like, q, keys, values, stride, prefix, tail, s, out):
    """Attention of one head of one token over the slots 0..prefix - 1, then those of ``tail``;
    zeros where these are none."""
    dim, count, size = len(q), prefix + len(tail), like.itemsize
    if count == 0:
        out[:] = 0
        return
    whole = -(-count // NARROW) * NARROW
    query, at, to = q.ctypes.data, s.ctypes.data, out.ctypes.data
    if prefix:
        _scores(like, dim, query, keys, stride, prefix, at)
    for i in range(len(tail)):
        _scores(like, dim, query, keys + size * stride * tail[i], stride, 1, at + 4 * (prefix + i))
    s[count:whole] = -np.inf
    total = soften(at, whole)
    out[:] = 0
    each = 64 if dim % 64 == 0 else 16
    for d in range(0, dim, each):
        for i in range(-1 if prefix else 0, len(tail)):
            slot, many, p = (0, prefix, at) if i < 0 else (tail[i], 1, at + 4 * (prefix + i))
            v = values + size * (stride * slot + d)
            if each == 64:
                weigh(like, 64, p, v, stride, many, to + 4 * d)
            else:
                weigh(like, 16, p, v, stride, many, to + 4 * d)
    for d in range(dim):
        out[d] /= total


@compiled
def _query_or_entry(head, h, t, i, heads, kv, at, bias, gains, numbers, cos, sin, q, cache):
    """What follows the product of head h of token t: bias, norm, rotation; a query is kept for
    this layer, a key or value in the cache at ``at``, its row and slot."""
    _, eps, scale = numbers
    dim = len(head)
    if bias.shape[0]:
        for d in range(dim):
            head[d] += bias[i, h * dim + d]
    if h < heads + kv:
        if gains.shape[0]:
            mean = squares(head.ctypes.data, dim) / np.float32(dim)
            f = np.float32(1) / np.sqrt(mean + eps)
            for d in range(dim):
                head[d] = head[d] * f * gains[i, h, d]
        _rotate(head, cos, sin)
    if h < heads:
        for d in range(dim):
            q[t, h, d] = head[d] * scale
    else:
        _keep(head, cache[i, at[0], at[1], h - heads])


@compiled
def _layers(
    threads, like, board, weights, norms, bias, gains, numbers, x, attended, cos, sin,
    positions, rows, slots, prefix, starts, tail, cache, layers, wanted, features, q, att, act,
):  # fmt: skip
    """Every thread's way through all layers; see :meth:`Layers.__call__` for the arguments."""
    n, width = x.shape
    heads, dim, kv = q.shape[1], q.shape[2], cache.shape[3] // 2
    inner, stride = act.shape[1], cache.shape[3] * dim
    extent = 0
    for t in range(n):
        extent = max(extent, prefix[t] + starts[t + 1] - starts[t])
    s, normed = np.empty(extent + NARROW, np.float32), np.empty((n, width), np.float32)
    part, pair = _part(width, threads), _part(inner, threads)
    out = np.empty((n, max(dim, part, 2 * pair)), np.float32)
    to, across = out.ctypes.data, out.shape[1]
    # a head; a head of a token; rows of o; of gate and up; of down
    units = heads + 2 * kv, heads * n, -(-width // part), -(-inner // pair), -(-width // part)
    at = board.ctypes.data
    for i in range(layers[0], layers[1]):
        for phase in range(5 if inner else 3):
            is_ready = False
            while True:
                u = take(at)
                if u >= units[phase]:
                    break
                if phase == QKV:
                    reads = attended if i == layers[0] and len(attended) else normed
                    if not is_ready and (i > layers[0] or len(attended) == 0):
                        _norm(x, norms[i, 0], numbers[0], normed)
                    w, columns, a, b = weights[i, 0], reads.shape[1], u * dim, (u + 1) * dim
                    _product(like, w, columns, a, b, reads.ctypes.data, n, to, across)
                    for t in range(n):
                        _query_or_entry(
                            out[t, :dim], u, t, i, heads, kv, (rows[t], slots[t]),
                            bias, gains, numbers, cos[positions[t]], sin[positions[t]], q, cache,
                        )  # fmt: skip
                elif phase == ATTENTION:
                    h, t = u // n, u % n
                    key = h // (heads // kv)
                    keys = cache[i, rows[t], 0, key].ctypes.data
                    values = cache[i, rows[t], 0, kv + key].ctypes.data
                    sees = tail[starts[t] : starts[t + 1]]
                    _attend(cache, q[t, h], keys, values, stride, prefix[t], sees, s, att[t, h])
                elif phase == GATE:
                    if not is_ready:
                        _norm(x, norms[i, 1], numbers[0], normed)
                    w, a, b = weights[i, 2], u * pair, min((u + 1) * pair, inner)
                    source = normed
                    for half in range(2):
                        first, where = half * inner, to + 4 * half * pair
                        _product(
                            like, w, width, first + a, first + b, source.ctypes.data, n,
                            where, across,
                        )  # fmt: skip
                    for t in range(n):
                        for r in range(0, b - a, NARROW):
                            gate = to + 4 * (t * across + r)
                            gated(gate, gate + 4 * pair, act[t].ctypes.data + 4 * (a + r))
                else:
                    w, columns, of = weights[i, 3], inner, act.ctypes.data
                    if phase == OUTPUT:
                        w, columns, of = weights[i, 1], heads * dim, att.ctypes.data
                    a, b = u * part, min((u + 1) * part, width)
                    _product(like, w, columns, a, b, of, n, to, across)
                    for t in range(n):
                        for r in range(b - a):
                            x[t, a + r] += out[t, r]
                is_ready = True
                take(at + 8 * APART)
            _wait(at + 8 * APART, units[phase])
            at += 16 * APART
        for f in range(len(wanted)):
            if wanted[f] == i + 1:  # by one thread, for which the others wait
                if take(at) == 0:
                    features[:, f * width : (f + 1) * width] = x
                    take(at + 8 * APART)
                _wait(at + 8 * APART, 1)
                at += 16 * APART


@compiled
def _matrix(threads, like, board, w, rows, x, gain, eps, out):
    """``out[t, r] = sum over c of w[r, c] * norm(x)[t, c]``; without a gain there is no norm."""
    n, width = x.shape
    source, is_ready = x, False
    if len(gain):
        source = np.empty((n, width), np.float32)
    part, at = _part(rows, 4 * threads), board.ctypes.data
    while True:
        u = take(at)
        if u >= -(-rows // part):
            break
        if len(gain) and not is_ready:
            _norm(x, gain, eps, source)
        is_ready = True
        a, b, to = u * part, min((u + 1) * part, rows), out.ctypes.data + 4 * u * part
        _product(like, w, width, a, b, source.ctypes.data, n, to, out.shape[1])
        take(at + 8 * APART)
    _wait(at + 8 * APART, -(-rows // part))


class Team:
    """Threads that join a pass. The caller computes with them and never waits for one that has not
    begun: that one finds all parts taken."""

    def __init__(self) -> None:
        self.queues: list[SimpleQueue] = []
        self.process = os.getpid()

    def __call__(self, threads: int, function: Callable[..., None], *args: Any) -> None:
        if self.process != os.getpid():  # threads do not survive a fork
            self.__init__()  # type: ignore[misc]
        while len(self.queues) < threads - 1:
            queue: SimpleQueue = SimpleQueue()
            threading.Thread(target=self._help, args=(queue,), daemon=True).start()
            self.queues.append(queue)
        for queue in self.queues[: threads - 1]:
            queue.put((function, threads, args))
        function(threads, *args)

    @staticmethod
    def _help(queue: SimpleQueue) -> None:
        while True:
            function, threads, args = queue.get()
            function(threads, *args)
            del function, args


team = Team()
_NONE = np.empty(0, np.float32)
_NO_ROWS = np.empty((0, 0), np.float32)
_ALL_SEEN = np.empty(0, np.int64)


def product(x: Tensor, weight: Tensor, norm: Any = None) -> Tensor:
    """``norm(x) W^T`` in float32, ``[..., K]`` and ``[N, K]`` -> ``[..., N]``, of float32, bfloat16
    or int8 (:func:`specwb.models.products.int8_rows`); K is a multiple of LANES and N of NARROW."""
    rows, columns = weight.shape
    flat = x.reshape(-1, columns).float().contiguous()
    out = torch.empty(len(flat), rows)
    if not len(flat):
        return out.view(*x.shape[:-1], rows)
    gain, eps = (
        (_NONE, 0.0) if norm is None else (norm.weight.float().numpy(), norm.variance_epsilon)
    )
    many = len(flat) * weight.numel()
    _announce(weight.dtype)
    whole = int8_rows(weight)
    like = np.empty(0, DTYPES[weight.dtype] if whole is None else np.int8)
    team(
        one_thread.threads if many > LEAST else 1,
        _matrix,
        like,
        np.zeros(2 * APART, np.int64),
        (weight if whole is None else whole).data_ptr(),
        rows,
        flat.numpy(),
        gain,
        np.float32(eps),
        out.numpy(),
    )
    return out.view(*x.shape[:-1], rows)


def multiplies(weight: Tensor) -> bool:
    """Whether :func:`product` takes a weight."""
    rows, columns = weight.shape
    return rows % NARROW == columns % LANES == 0 and weight.is_contiguous()


def projects(norm: Any, head: Any) -> bool:
    """Whether :func:`product` takes an output layer with the norm before it."""
    return is_rms(norm) and head.bias is None and _is_read(head.weight)


def fits(stack: Any) -> bool:
    """Whether the layers of a :class:`specwb.models.backbone.Stack` run here: none of them computes
    anything else, and all have the same sizes and numbers.

    The first one's attention may read something else than a norm of the residual stream, or the
    stream itself, and have more columns then."""
    if stack.device.type != "cpu" or stack.dtype not in DTYPES or stack.head_dim not in HEADS:
        return False
    if set(stack.kinds) != {(None, None)} or stack.partners is not None:
        return False
    first, *others = stack.layers
    is_first_plain = first.is_plain or (first.is_bare and first.norm1 is None)
    return (
        is_first_plain
        and all(layer.is_plain for layer in others)
        and all(_fits(layer, stack.dtype) for layer in stack.layers)
        and all(_traits(layer) == _traits(first) for layer in others)
        and len(_epsilons(stack.layers)) <= 1
    )


def _fits(layer: Any, dtype: torch.dtype) -> bool:
    """Whether a layer's products and activation are computed here."""
    biases = [layer.o.bias]
    if layer.feeds_forward:
        if layer.called is not None or layer.act is not F.silu:
            return False
        biases += [layer.gate_up_bias, layer.down.bias]
    has_no_bias = all(bias is None for bias in biases)
    return has_no_bias and all(_is_read(w) and w.dtype == dtype for w in _weights(layer))


def _traits(layer: Any) -> tuple[Any, ...]:
    """What is the same in all layers of a pass, next to the norms' epsilon: sizes, what there is,
    the scale of attention and the epsilon of queries' and keys' norms."""
    sizes = len(layer.qkv), *(weight.shape for weight in _weights(layer)[1:])
    return sizes, layer.qkv_bias is None, layer.qk_norm is None, layer.scale, layer.qk_eps


def _epsilons(layers: Sequence[Any]) -> set[float]:
    """The epsilons of the norms before attention and MLP."""
    norms = [norm for layer in layers for norm in (layer.norm1, layer.norm2)]
    return {norm.variance_epsilon for norm in norms if norm is not None}


def _weights(layer: Any) -> list[Tensor]:
    """The weights of q, k and v, of o, of gate and up, and of down."""
    weights = [layer.qkv, layer.o.weight]
    return [*weights, layer.gate_up, layer.down.weight] if layer.feeds_forward else weights


def _is_read(weight: Tensor) -> bool:
    """Whether a weight is a plain tensor of which :func:`product` reads the memory."""
    return type(weight.data) is Tensor and weight.is_cpu and multiplies(weight)


@compiled
def _split(seen):
    count, extent = seen.shape
    prefix, starts = np.empty(count, np.int64), np.zeros(count + 1, np.int64)
    tail = np.empty(seen.size, np.int64)
    for t in range(count):
        first, there = 0, starts[t]
        while first < extent and seen[t, first]:
            first += 1
        for slot in range(first, extent):
            if seen[t, slot]:
                tail[there] = slot
                there += 1
        prefix[t], starts[t + 1] = first, there
    return prefix, starts, tail


def seen_by(place: Place, rows: int, m: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """What each of ``rows * m`` tokens sees, if it is computed: the slots below ``prefix``, then
    those of ``tail`` from ``starts[t]`` to ``starts[t + 1]``, in ascending order."""
    count = rows * m
    none = np.zeros(count + 1, np.int64)
    if place.causal:
        return np.tile(np.arange(1, m + 1), rows), none, _ALL_SEEN
    if place.mask is None:
        return np.full(count, place.extent), none, _ALL_SEEN
    seen = (place.mask == 0).expand(rows, m, -1).reshape(count, -1)
    return _split(seen.numpy() if place.computed is None else seen[place.computed].numpy())


class Layers:
    """The compiled pass through the layers of a stack that :func:`fits`; its weights are the
    stack's own, read where they lie, or their int8 forms if all have one."""

    def __init__(self, stack: Any) -> None:
        self.stack = stack
        layers, width = stack.layers, len(stack.layers[0].o.weight)
        self.inner = layers[0].down.weight.shape[1] if layers[0].feeds_forward else 0
        weights = [_weights(layer) for layer in layers]
        forms: list[list[Any]] = [[int8_rows(weight) for weight in each] for each in weights]
        in_int8 = all(form is not None for each in forms for form in each)
        # kept, since a module may be given another weight while a pass reads this one's memory
        self.held = forms if in_int8 else [[weight.data for weight in each] for each in weights]
        table = [[weight.data_ptr() for weight in weights] for weights in self.held]
        self.weights = np.array([(row * 2)[:4] for row in table], np.int64)

        def gain(norm: Any) -> Tensor:
            return torch.ones(width) if norm is None else norm.weight.data.float()

        gains = [torch.stack([gain(layer.norm1), gain(layer.norm2)]) for layer in layers]
        self.norms = torch.stack(gains).numpy()
        first = layers[0]
        self.bias, self.gains = _NO_ROWS, np.empty((0, 0, 0), np.float32)
        if first.qkv_bias is not None:
            self.bias = torch.stack([x.qkv_bias.data.float() for x in layers]).numpy()
        if first.qk_norm is not None:
            self.gains = torch.stack([x.qk_norm.float() for x in layers]).numpy()
        eps = next(iter(_epsilons(layers)), 0.0)
        self.numbers = np.array([eps, first.qk_eps or 0.0, first.scale], np.float32)
        self.like = np.empty(0, np.int8 if in_int8 else DTYPES[stack.dtype])
        self._tables: tuple[Tensor, Tensor] | None = None

    def rotation(self, capacity: int) -> tuple[np.ndarray, np.ndarray]:
        """cos and sin of the positions below ``capacity`` or more, ``[T, head_dim / 2]``."""
        tables = self.stack._table(None, capacity)
        if self._tables is not tables:
            half = self.stack.head_dim // 2
            cos, sin = (table[:, 0, half:].float().numpy() for table in tables)
            self._tables, self._halves = tables, (cos, sin)
        return self._halves

    def __call__(
        self,
        x: Tensor,
        place: Place,
        cache: KVCache,
        first: int,
        last: int,
        wanted: Sequence[int] = (),
        attended: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Run layers ``first..last`` over hidden states ``x [B,m,H]``.

        Args:
            wanted: numbers of layers from ``first + 1`` on whose hidden states are returned.
            attended: what the first layer's attention reads in the place of its norm of ``x``, or
                of ``x`` where it has no norm.
        Returns:
            ``[B,m,H]`` and the wanted states ``[B,m,len(wanted),H]``, float32.
        """
        stack, (rows, m, width) = self.stack, x.shape
        computed = slice(None) if place.computed is None else place.computed

        def flat(each: Tensor) -> Tensor:
            return each.expand(rows, m, *each.shape[2:]).flatten(0, 1)[computed].contiguous()

        states = flat(x.float()).clone()
        n = len(states)
        features = torch.empty(n, len(wanted) * width)
        if attended is None and stack.layers[first].norm1 is None:
            attended = x
        reads = _NO_ROWS if attended is None else flat(attended.float()).numpy()
        data = cache.data if cache.data.dtype == torch.float32 else cache.data.view(torch.uint16)
        threads = one_thread.threads if n * stack.layers[0].o.weight.numel() > LEAST // 8 else 1
        team(
            threads,
            _layers,
            self.like,
            np.zeros(12 * APART * (last - first) + 2 * APART * len(wanted), np.int64),
            self.weights,
            self.norms,
            self.bias,
            self.gains,
            self.numbers,
            states.numpy(),
            reads,
            *self.rotation(cache.capacity),
            flat(place.positions).numpy(),
            flat(torch.arange(rows)[:, None]).numpy(),
            flat(place.slots).numpy(),
            *seen_by(place, rows, m),
            data.numpy(),
            np.array([first, last]),
            np.array(wanted, np.int64),
            features.numpy(),
            np.empty((n, stack.heads, stack.head_dim), np.float32),
            np.empty((n, stack.heads, stack.head_dim), np.float32),
            np.empty((n, self.inner), np.float32),
        )
        if place.computed is not None:
            every = torch.zeros(rows * m, (1 + len(wanted)) * width)
            every[place.computed] = torch.cat([states, features], 1)
            states, features = every.split([width, len(wanted) * width], 1)
        return states.reshape(rows, m, width), features.reshape(rows, m, len(wanted), width)
