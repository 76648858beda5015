"""Uniforms as a pure function of (row seed, stream, position, index): Philox-4x32-10 in torch integers.

The same on every device, and for a row alone or in a batch. Streams keep drafting, acceptance and closing draws apart,
because a verifier that reuses the drafter's noise is not lossless.

A uniform is one 32-bit word. So each boundary of a CDF is off by up to 2^-33, a draw from V tokens
by up to (V - 1) 2^-33 in total variation (1.8e-5 at V = 151,936), a test by up to 2^-33: theorem
1.5. Two words would end that, and make every sampled text another one.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from specwb.inputs import as_int, is_many, plain

DRAFT, ACCEPT, CLOSE, SEED = 0, 1, 2, 3

_M0, _M1, _W0, _W1, _LOW = 0xD2511F53, 0xCD9E8D57, 0x9E3779B9, 0xBB67AE85, 0xFFFFFFFF


def _low32(a: Tensor, m: int) -> tuple[Tensor, Tensor]:
    """High and low 32 bits of the 64-bit product of 32-bit values (int64 wraps, the bits are right)."""
    product = a * m
    return (product >> 32) & _LOW, product & _LOW


def philox(key: Tensor, c0: Tensor, c1: Tensor, c2: Tensor) -> Tensor:
    """``[..., 4]`` 32-bit words (int64) of Philox-4x32-10 with counter (c0, c1, c2, 0) and a 64-bit ``key``.

    Source: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (2011).
    """
    k0, k1 = key & _LOW, (key >> 32) & _LOW
    c0, c1, c2, c3 = torch.broadcast_tensors(c0 & _LOW, c1 & _LOW, c2 & _LOW, torch.zeros_like(c0 & _LOW))
    for _ in range(10):
        hi0, lo0 = _low32(c0, _M0)
        hi1, lo1 = _low32(c2, _M1)
        c0, c1, c2, c3 = hi1 ^ c1 ^ k0, lo1, hi0 ^ c3 ^ k1, lo0
        k0, k1 = (k0 + _W0) & _LOW, (k1 + _W1) & _LOW
    return torch.stack((c0, c1, c2, c3), -1)


def row_seeds(seed: int | Sequence[int] | torch.Generator, rows: int, device: torch.device) -> Tensor:
    """``[rows]`` int64 seeds: one integer gives every row its own stream, a list is used as it is.

    Raises:
        ValueError: no integers of 64 bits, or a list whose length is not the number of rows.
    """
    if isinstance(seed, torch.Generator):
        seed = int(torch.randint(0, 2**62, (1,), generator=seed, device=seed.device).item())
    if not is_many(seed):
        key = torch.tensor(_seed(seed, "an integer"), dtype=torch.long)
        index = torch.arange(rows)
        words = philox(key, index, torch.zeros_like(index), torch.full_like(index, SEED))
        return ((words[..., 0] << 31) ^ words[..., 1]).to(device)
    seeds = [_seed(one, "integers") for one in plain(seed)]
    if len(seeds) != rows:
        raise ValueError(f"seed has {len(seeds)} entries for {rows} prompts; give one integer or one a prompt")
    return torch.tensor(seeds, dtype=torch.long, device=device)


def _seed(value: object, what: str) -> int:
    number = as_int(value)
    if number is None or not -(2**63) <= number < 2**63:
        raise ValueError(f"seed must be {what} of 64 bits, got {value!r}")
    return number


class Noise:
    """Uniforms in (0, 1), float64, 32 random bits each; made ahead for the next positions, so that a round only slices.

    ``widths[stream]`` is how many uniforms a stream needs at one position. All rows' blocks start at their own ``known``;
    a block holds ``ahead`` positions and is renewed by the host after as many positions could have passed (no device read).
    """

    def __init__(self, seeds: Tensor, widths: dict[int, int], max_step: int, ahead: int = 64) -> None:
        self.seeds, self.widths = seeds, {s: w for s, w in widths.items() if w}
        self.ahead = max(ahead, max_step)
        self._rounds = self.ahead // max_step  # rounds one block surely lasts
        self._used = self._rounds
        self._start: Tensor | None = None
        self._block: Tensor | None = None
        self._round: dict[int, Tensor] = {}
        # every stream's uniforms from one call: which stream and counter block each group of four is
        blocks = {stream: (width + 3) // 4 for stream, width in self.widths.items()}
        self._streams = torch.tensor([s for s, n in blocks.items() for _ in range(n)], device=seeds.device)
        self._blocks = torch.tensor([i for n in blocks.values() for i in range(n)], device=seeds.device)

    def renew(self, known: Tensor) -> None:
        """Make the next positions' uniforms when the block may be used up: once a round, on the host's count, outside any graph."""
        if not self.widths:
            return
        if self._used == self._rounds:
            positions = known[:, None] + torch.arange(self.ahead, device=known.device)
            block = _uniform(philox(self.seeds[:, None, None], self._blocks, positions[:, :, None], self._streams).flatten(-2))
            # in place: a graph has captured where the block lies
            self._start = known.clone() if self._start is None else self._start.copy_(known)
            self._block = block if self._block is None else self._block.copy_(block)
            self._used = 0
        self._used += 1

    def look(self, known: Tensor) -> None:
        """Fix the round's position ``known [B]`` after :meth:`renew`; later calls of :meth:`u` are for it."""
        if not self.widths:
            return
        assert self._start is not None
        assert self._block is not None
        row = torch.arange(len(known), device=known.device)
        values = self._block[row, known - self._start]
        offset = 0
        for stream, width in self.widths.items():
            self._round[stream] = values[:, offset : offset + width]
            offset += (width + 3) // 4 * 4

    def u(self, stream: int) -> Tensor:
        """``[B, widths[stream]]`` uniforms of this round."""
        return self._round[stream]

    def make(self, stream: int, positions: Tensor, width: int) -> Tensor:
        """``[B, P, width]`` uniforms for ``positions [B, P]``, computed afresh (what replay uses)."""
        blocks = torch.arange((width + 3) // 4, device=positions.device)
        words = philox(self.seeds[:, None, None], blocks, positions[:, :, None], torch.full((), stream, device=positions.device))
        return _uniform(words.flatten(-2)[..., :width])


def _uniform(words: Tensor) -> Tensor:
    """32-bit words -> float64 in (0, 1), never 0 or 1."""
    return (words.double() + 0.5) * 2.0**-32
