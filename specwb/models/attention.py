"""Which kernels of torch compute attention on CUDA, and attention in two parts.

**Backends.** Left to itself, torch 2.13 gives half-precision attention on H100 and H200 to cuDNN,
which plans anew for every shape and stride that it meets: in eager decoding, where the text grows,
every step. :func:`backends` names the ones to choose from instead, for our forwards and for the
library's that they are compared with.

**Two parts.** A query of a step sees the committed slots, which all of them see, and some of the
few that the step itself has written. With scores ``s_j = q k_j scale`` and a set S of slots let
``lse(S) = log sum_{j in S} exp(s_j)`` and ``o(S) = sum_{j in S} exp(s_j - lse(S)) v_j``. Then for
disjoint S and T

    lse(S + T) = log(exp lse(S) + exp lse(T)),
    o(S + T)   = exp(lse(S) - lse(S + T)) o(S) + exp(lse(T) - lse(S + T)) o(T),

so that both can be computed apart, S without a mask and by lengths that lie on the device. It is
the same number up to rounding. A window takes from a query's S what lies before its first slot; a
soft cap acts on each score; a sink is a third set of one slot without a value. On CUDA, with fused
kernels on, S is computed by many programs side by side (:mod:`specwb.kernels.attention`), where
torch's kernel for masked attention has one program a head of keys. Everywhere else this is the same
in torch's operators, which is slower than the whole and there to be compared with.

Source of the merge: Milakov and Gimelshein 2018, arXiv 1805.02867; Dao et al. 2023, flash-decoding.
"""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from importlib import import_module
from math import prod
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from specwb import kernels
from specwb.mask import last_seen
from specwb.models.layers import Layer, capped

ATTENTIONS = ("whole", "parts")
MOST = 128  # slots of a draft, and numbers of a head, that the kernels take
# and of both together, by the bytes of a number: what fits into registers and into the 99 KiB of
# memory that a block of the smaller devices has (tests/kernels/ahead.py prints what is taken)
TOGETHER = {2: MOST * MOST, 4: MOST * MOST // 16, 8: MOST * MOST // 64}
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


@dataclass(frozen=True)
class Tail:
    """Where a forward's slots part in two.

    Attributes:
        base: ``[B]``, the first slot that the forward itself may have written: every query sees all
            slots below it.
        width: how many slots from there on any query may see.
    """

    base: Tensor
    width: int


@dataclass(frozen=True)
class Parts:
    """What all layers of one kind share when their attention is computed in two parts.

    Attributes:
        base: ``[B]``, slots below it are the first part.
        low: ``[B,m]``, the first of them that each query sees; None: all are seen.
        slots: flat indices of the second part's slots in the cache, ``[B * width]``.
        mask: additive, of the queries to these, ``[B,m,width]``.
    """

    base: Tensor
    low: Tensor | None
    slots: Tensor
    mask: Tensor


def parts(tail: Tail, mask: Tensor, window: int | None, offset: Tensor) -> Parts:
    """Parts a forward's mask.

    Args:
        tail: where.
        mask: of the queries, additive, ``[B,m,extent]``, without the window.
        window: how many of its slots a query sees; None: all.
        offset: ``[B,1]``, where each row begins in the flat cache.
    """
    slots = tail.base[:, None] + torch.arange(tail.width, device=mask.device)
    near = mask.gather(2, slots[:, None].expand(-1, mask.shape[1], -1))
    low = None
    if window is not None:
        seen = (near == 0).sum(-1)
        low = tail.base[:, None] - (window - seen).clamp_min(0)
        near = last_seen(near, window)
    return Parts(tail.base, low, (slots + offset).flatten(), near)


def attend_in_parts(
    layer: Layer, q: Tensor, key: Tensor, value: Tensor, flat: Tensor, at: Parts
) -> Tensor:
    """As :func:`specwb.models.layers.attend`, in two parts.

    Args:
        layer: whose attention it is.
        q: ``[B,kv,per_key * m,dim]``.
        key: ``[B,kv,extent,dim]``.
        value: of the same shape.
        flat: the layer's keys and values, ``[slots,2 * kv,dim]``.
        at: the parts.
    """
    rows, kv, queries, dim = q.shape
    m, width = at.mask.shape[1:]
    if fits(width, dim, q.element_size()) and kernels.ready("parts", q, check_parts):
        fused: Any = import_module("specwb.kernels.attention")
        sinks = None if layer.sinks is None else layer.sinks.detach()
        where = at.base, at.low, at.slots, at.mask
        return fused.attend(q, key, value, flat, *where, layer.scale, layer.cap, sinks)
    slots = torch.arange(key.shape[2], device=q.device)
    hidden = (slots >= at.base[:, None])[:, None]
    if at.low is not None:
        hidden = hidden | (slots < at.low[:, :, None])
        hidden = hidden.repeat(1, queries // m, 1)
    near = flat.index_select(0, at.slots).view(rows, width, 2 * kv, dim).transpose(1, 2)
    unseen = (at.mask != 0).repeat(1, queries // m, 1)
    every = [
        part(layer, q, key, value, hidden[:, None]),
        part(layer, q, near[:, :kv], near[:, kv:], unseen[:, None]),
    ]
    out, lse = (torch.stack(x) for x in zip(*every, strict=True))
    if layer.sinks is not None:
        sinks = layer.sinks.detach().view(kv, -1).repeat_interleave(m, 1).to(lse.dtype)
        lse = torch.cat([lse, sinks.expand_as(lse[:1])])
    weight = lse.softmax(0)[:2, ..., None]
    return (weight * out).sum(0).to(q.dtype)


def part(
    layer: Layer, q: Tensor, key: Tensor, value: Tensor, hidden: Tensor
) -> tuple[Tensor, Tensor]:
    """``o(S) [B,kv,q,dim]`` and ``lse(S) [B,kv,q]`` of the slots that are not ``hidden``, in
    float32 or more; 0 and -inf where there is none."""
    real = torch.float64 if q.dtype == torch.float64 else torch.float32
    scores = capped(q.to(real) @ key.to(real).transpose(2, 3) * layer.scale, layer.cap)
    scores = scores.masked_fill(hidden, float("-inf"))
    top = scores.amax(-1, keepdim=True)
    weight = (scores - top.clamp_min(torch.finfo(real).min)).exp()
    mass = weight.sum(-1, keepdim=True)
    out = weight @ value.to(real) / mass.clamp_min(torch.finfo(real).tiny)
    return out, (top + mass.log()).squeeze(-1)


def fits(width: int, dim: int, size: int) -> bool:
    """Whether the kernels take a draft of so many slots and heads of so many numbers of ``size``
    bytes; both are rounded up to powers of two there."""
    rounded = (1 << (n - 1).bit_length() for n in (max(width, 16), max(dim, 16)))
    return max(width, dim) <= MOST and prod(rounded) <= TOGETHER.get(size, 0)


def check_parts(device: torch.device, dtype: torch.dtype) -> None:
    """Runs the kernels beside torch's operators: three rows, one of them without a committed slot
    and one with more than a stretch; windows, a cap and sinks, and without.

    Raises:
        AssertionError: they differ.
    """
    rows, m, kv, per_key, dim, width, capacity = 3, 5, 2, 2, 24, 6, 300
    random = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=random).to(device, dtype)

    q, stored = normal(rows, kv, per_key * m, dim), normal(rows * capacity, 2 * kv, dim)
    visible = stored.view(rows, capacity, 2 * kv, dim).transpose(1, 2)
    base = torch.tensor([0, 7, 290], device=device)
    sees = torch.ones(m, width, dtype=torch.bool).tril()
    mask = torch.zeros(rows, m, 300, dtype=dtype)
    for i, begin in enumerate(base.tolist()):
        mask[i, :, begin + width :] = torch.finfo(dtype).min
        mask[i, :, begin : begin + width].masked_fill_(~sees, torch.finfo(dtype).min)
    offset = torch.arange(rows, device=device)[:, None] * capacity
    fused: Any = import_module("specwb.kernels.attention")
    for window, cap, with_sinks in ((None, None, False), (4, 2.0, True)):
        sinks = torch.nn.Parameter(normal(kv * per_key)) if with_sinks else None
        layer: Any = SimpleNamespace(scale=0.2, cap=cap, sinks=sinks)
        at = parts(Tail(base, width), mask.to(device), window, offset)
        key, value = visible[:, :kv], visible[:, kv:]
        where = at.base, at.low, at.slots, at.mask
        given = None if sinks is None else sinks.detach()
        got = fused.attend(q, key, value, stored, *where, 0.2, cap, given)
        with kernels.use(False):
            wanted = attend_in_parts(layer, q, key, value, stored, at)
        loose = {torch.float16: 4e-3, torch.bfloat16: 3e-2}.get(dtype, 1e-5)
        torch.testing.assert_close(got, wanted, atol=loose, rtol=loose)
