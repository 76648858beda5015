"""Uniform random numbers as a pure function of (row seed, stream, position, index).

They are the words of Philox-4x32-10, computed in torch integers, so that they are the same on
every device, and the same for a row alone and for that row in a batch. Drafting, acceptance and the
bonus token each draw from a stream of their own, because a verifier that reuses the drafter's noise
is not lossless.

A uniform is one 32-bit word. So each boundary of a CDF is off by up to 2^-33, a draw from V tokens
by up to (V - 1) 2^-33 in total variation (1.8e-5 at V = 151,936), a test by up to 2^-33: theorem
1.5. Two words would end that, and make every sampled text another one.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from specwb.core.errors import ArgumentError
from specwb.core.inputs import as_int, is_many, to_python

DRAFT, ACCEPT, BONUS, SEED, TEXT = range(5)  # the streams

_M0, _M1 = 0xD2511F53, 0xCD9E8D57  # Philox' multipliers
_W0, _W1 = 0x9E3779B9, 0xBB67AE85  # what its key grows by in every turn
_LOW = 0xFFFFFFFF


def _multiply(a: Tensor, factor: int) -> tuple[Tensor, Tensor]:
    """High and low 32 bits of the 64-bit product of 32-bit values.

    The product is int64, which wraps around; its bits are right all the same.
    """
    product = a * factor
    return (product >> 32) & _LOW, product & _LOW


def philox(key: Tensor, c0: Tensor, c1: Tensor, c2: Tensor) -> Tensor:
    """Philox-4x32-10 of the counter (c0, c1, c2, 0), low 32 bits each and broadcast together, under
    a 64-bit key: ``[..., 4]`` 32-bit words, as int64.

    Source: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (2011).
    """
    k0, k1 = key & _LOW, (key >> 32) & _LOW
    c0, c1, c2 = c0 & _LOW, c1 & _LOW, c2 & _LOW
    c0, c1, c2, c3 = torch.broadcast_tensors(c0, c1, c2, torch.zeros_like(c0))
    for _ in range(10):
        high0, low0 = _multiply(c0, _M0)
        high1, low1 = _multiply(c2, _M1)
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = (k0 + _W0) & _LOW, (k1 + _W1) & _LOW
    return torch.stack((c0, c1, c2, c3), -1)


def row_seeds(
    seed: int | Sequence[int] | torch.Generator, rows: int, device: torch.device
) -> Tensor:
    """``[rows]`` int64 seeds: of one integer, from which every row gets a seed of its own; of one
    integer per row, used as they are; or of a generator, from which one integer is drawn."""
    if isinstance(seed, torch.Generator):
        seed = int(torch.randint(0, 2**62, (1,), generator=seed, device=seed.device).item())
    if not is_many(seed):
        key = torch.tensor(_checked_seed(seed, "an integer"), dtype=torch.long)
        index = torch.arange(rows)
        words = philox(key, index, torch.zeros_like(index), torch.full_like(index, SEED))
        return ((words[..., 0] << 31) ^ words[..., 1]).to(device)
    seeds = [_checked_seed(value, "integers") for value in to_python(seed)]
    if len(seeds) != rows:
        raise ArgumentError(
            f"seed has {len(seeds)} entries for {rows} prompts; give one integer or one per prompt"
        )
    return torch.tensor(seeds, dtype=torch.long, device=device)


def _checked_seed(value: object, expected: str) -> int:
    number = as_int(value)
    if number is None or not -(2**63) <= number < 2**63:
        raise ArgumentError(f"seed must be {expected} of 64 bits, got {value!r}")
    return number


class Noise:
    """The uniforms of one decoding: in (0, 1), float64, with 32 random bits each.

    A decoding step calls :meth:`renew` once, before anything else, and then :meth:`u` for every
    stream it needs. The uniforms are computed for a block of positions at a time, so that most
    steps only read from it. Every row's block begins at that row's own sequence length; a block is
    computed anew after as many steps as could have used it up, which the host counts without
    reading the device.

    Args:
        seeds: ``[B]``, one per row.
        widths: how many uniforms each stream needs at one position.
        max_step: by how many tokens a sequence can grow in one step.
        ahead: how many positions a block holds, at least ``max_step``; default 64, on CUDA 256: a
            block is some 170 launches there, however long it is, beside the step's graph.
    """

    def __init__(
        self,
        seeds: Tensor,
        widths: dict[int, int],
        max_step: int,
        ahead: int | None = None,
    ) -> None:
        self.seeds = seeds
        self.widths = {stream: width for stream, width in widths.items() if width}
        usual = 256 if seeds.device.type == "cuda" else 64
        self.ahead = max(usual if ahead is None else ahead, max_step)
        self._rounds = self.ahead // max_step  # steps that one block lasts in any case
        self._used = self._rounds
        self._start: Tensor | None = None
        self._block: Tensor | None = None
        self._position: Tensor | None = None
        self._round: dict[int, Tensor] = {}
        # One call computes all streams. Philox gives groups of four words: these say of which
        # stream each group is, and the how manieth of that stream.
        groups = {stream: _groups(width) for stream, width in self.widths.items()}
        streams = [stream for stream, count in groups.items() for _ in range(count)]
        indices = [index for count in groups.values() for index in range(count)]
        self._streams = torch.tensor(streams, device=seeds.device)
        self._blocks = torch.tensor(indices, device=seeds.device)

    def renew(self, length: Tensor) -> None:
        """Begins a step in which the rows have the sequence lengths ``length [B]``.

        It computes the next positions' uniforms where the block may be used up. It is called
        outside any CUDA graph, because the host decides that by counting steps.

        ``length`` must not change before the step's last call of :meth:`u`.
        """
        if not self.widths:
            return
        if self._used == self._rounds:
            self._compute_block(length)
            self._used = 0
        self._used += 1
        self._position = length
        self._round = {}

    def tensors(self) -> dict[str, Tensor]:
        """Returns what another decoding is copied into, by name; the block follows from it."""
        return {"seeds": self.seeds}

    def restart(self) -> None:
        """Lets the next :meth:`renew` compute a block, because the seeds or the texts are others
        now."""
        self._used = self._rounds

    def u(self, stream: int) -> Tensor:
        """Returns ``[B, widths[stream]]``, the uniforms of a stream in this step."""
        if not self._round:  # not in renew: a graph must contain the reading
            self._read_block()
        return self._round[stream]

    def make(self, stream: int, positions: Tensor, width: int) -> Tensor:
        """The uniforms ``[B, P, width]`` of any ``positions [B, P]`` of a stream, as explaining and
        testing a step need them; a smaller width gives the first ones of a larger one."""
        groups = torch.arange(_groups(width), device=positions.device)
        number = torch.full((), stream, device=positions.device)
        words = philox(self.seeds[:, None, None], groups, positions[:, :, None], number)
        return _uniform(words.flatten(-2)[..., :width])

    def gumbel(self, places: Tensor, vocabulary: int) -> Tensor:
        """Gumbel noise ``G = -log E`` of all tokens at ``places [B, P]`` of the text, ``[B, P, V]``
        in float64: the exponential variable E is a function of (row seed, place, token) alone.

        Two words make a uniform of 53 bits, since a token of probability p wins with an E of about
        p. The lowest bit is 1, so that it is never 0 or 1.
        """
        groups = torch.arange((vocabulary + 1) // 2, device=places.device)
        number = torch.full((), TEXT, device=places.device)
        words = philox(self.seeds[:, None, None], groups, places[:, :, None], number)
        high, low = words.unflatten(-1, (2, 2)).unbind(-1)  # of two tokens
        u = ((high << 21 | low >> 11) | 1).flatten(-2)[..., :vocabulary].double() * 2.0**-53
        return -(-torch.log1p(-u)).log()

    def _compute_block(self, length: Tensor) -> None:
        positions = length[:, None] + torch.arange(self.ahead, device=length.device)
        words = philox(
            self.seeds[:, None, None], self._blocks, positions[:, :, None], self._streams
        )
        block = _uniform(words.flatten(-2))
        # in place after the first time: a graph has recorded where the block lies
        self._start = length.clone() if self._start is None else self._start.copy_(length)
        self._block = block if self._block is None else self._block.copy_(block)

    def _read_block(self) -> None:
        assert self._start is not None
        assert self._block is not None
        assert self._position is not None
        row = torch.arange(len(self._position), device=self._position.device)
        values = self._block[row, self._position - self._start]
        offset = 0
        for stream, width in self.widths.items():
            self._round[stream] = values[:, offset : offset + width]
            offset += 4 * _groups(width)


def _groups(width: int) -> int:
    """How many groups of four words hold ``width`` uniforms."""
    return (width + 3) // 4


def _uniform(words: Tensor) -> Tensor:
    """Turns 32-bit words into float64 in (0, 1), never 0 or 1."""
    return (words.double() + 0.5) * 2.0**-32
