"""Philox is Philox, and a uniform depends on (row seed, stream, position, index) alone."""

from __future__ import annotations

import math

import pytest
import torch

from specwb import Noise
from specwb.core.noise import ACCEPT, BONUS, DRAFT, TEXT, philox, row_seeds

WIDTHS = {DRAFT: 5, ACCEPT: 7, BONUS: 1}


def reference(counter: list[int], key: list[int]) -> list[int]:
    """Computes Philox-4x32-10 with Python integers, written from the paper."""
    (a, b, c, d), (k, l) = counter, key
    for _ in range(10):
        first, second = a * 0xD2511F53, c * 0xCD9E8D57
        a, b = (second >> 32) ^ b ^ k, second & 0xFFFFFFFF
        c, d = (first >> 32) ^ d ^ l, first & 0xFFFFFFFF
        k, l = (k + 0x9E3779B9) % 2**32, (l + 0xBB67AE85) % 2**32
    return [a, b, c, d]


def test_the_uniforms_are_the_words():
    noise = Noise(torch.tensor([11, -5]), WIDTHS, 4)
    uniforms = noise.make(ACCEPT, torch.tensor([[3], [900]]), 7)
    for row, (seed, position) in enumerate([(11, 3), (-5, 900)]):
        key = [seed & 0xFFFFFFFF, (seed >> 32) & 0xFFFFFFFF]
        counters = [[block, position, ACCEPT, 0] for block in range(2)]
        wanted = [word for counter in counters for word in reference(counter, key)][:7]
        assert uniforms[row, 0].tolist() == [(word + 0.5) / 2**32 for word in wanted]


def test_gumbel_noise_belongs_to_seed_place_and_token():
    noise = Noise(torch.tensor([11, -5]), {}, 1)
    places = torch.tensor([[3, 4], [900, 2]])
    gumbel = noise.gumbel(places, 9)
    for row, (seed, some) in enumerate(zip([11, -5], places.tolist())):
        key = [seed & 0xFFFFFFFF, (seed >> 32) & 0xFFFFFFFF]
        for i, place in enumerate(some):
            words = [w for group in range(5) for w in reference([group, place, TEXT, 0], key)]
            pairs = zip(words[::2], words[1::2])
            u = [(high * 2**21 + low // 2**11) // 2 * 2 + 1 for high, low in pairs][:9]
            wanted = [-math.log(-math.log1p(-x / 2**53)) for x in u]
            assert gumbel[row, i].tolist() == pytest.approx(wanted, rel=1e-14)
    assert torch.equal(noise.gumbel(places, 4), gumbel[..., :4])
    alone = Noise(torch.tensor([-5]), {}, 1).gumbel(places[1:, 1:], 9)
    assert torch.equal(alone[0, 0], gumbel[1, 1])


# the known-answer vectors of Random123 (kat_vectors, philox4x32 10)
@pytest.mark.parametrize(
    ("counter", "key", "answer"),
    [
        ("0", "0", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        ("ffffffff", "ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ],
)
def test_known_answers(counter, key, answer):
    wanted = [int(word, 16) for word in answer.split()]
    assert reference([int(counter, 16)] * 4, [int(key, 16)] * 2) == wanted


def test_philox_is_the_reference():
    generator = torch.Generator().manual_seed(0)
    cases = torch.randint(0, 2**32, (200, 5), generator=generator).tolist()
    for a, b, c, k, l in [*cases, *([edge] * 5 for edge in (0, 2**31 - 1, 2**31, 2**32 - 1))]:
        key = k | l << 32
        key -= (key >> 63) << 64  # as a signed 64-bit integer
        found = philox(torch.tensor(key), *map(torch.tensor, (a, b, c)))
        assert found.tolist() == reference([a, b, c, 0], [k, l])


@pytest.mark.parametrize(("ahead", "max_step"), [(32, 5), (4, 9), (1, 1)])
def test_blocks_computed_ahead_are_what_is_computed_afresh(ahead, max_step):
    """Rows advance by anything from 0 (the row is done) to the most that a step can bring."""
    seeds = torch.tensor([1, 2**62, -9])
    noise = Noise(seeds, WIDTHS, max_step, ahead)
    length = torch.tensor([1, 40, 7])
    generator = torch.Generator().manual_seed(ahead)
    for turn in range(60):
        noise.renew(length)
        for stream, width in WIDTHS.items():
            afresh = noise.make(stream, length[:, None], width)[:, 0]
            assert torch.equal(noise.u(stream), afresh)
        step = torch.randint(0, max_step + 1, (3,), generator=generator)
        length += torch.full((3,), max_step) if turn % 3 == 0 else step  # in place


def test_uniforms_depend_on_seed_stream_position_and_index_only():
    noise = Noise(torch.tensor([1, 2]), {}, 1)
    positions = torch.arange(50).expand(2, 50)
    values = torch.stack([noise.make(stream, positions, 6) for stream in (DRAFT, ACCEPT, BONUS)])
    assert values.flatten().unique().numel() == values.numel(), "a uniform occurs twice"
    narrow = noise.make(DRAFT, positions, 3)
    assert torch.equal(values[0][..., :3], narrow), "the width changes the values"
    assert torch.equal(noise.make(DRAFT, positions[:, 7:9], 6), values[0][:, 7:9])
    second_row = Noise(torch.tensor([2]), {}, 1)
    assert torch.equal(second_row.make(BONUS, positions[:1], 6), values[2][1:])


def test_seeds_of_rows():
    """Of one integer a seed for every row, whatever their number; of a list those; a generator
    supplies one integer."""
    cpu = torch.device("cpu")
    seeds, others = row_seeds(7, 1000, cpu), row_seeds(8, 1000, cpu)
    assert torch.cat([seeds, others]).unique().numel() == 2000
    assert torch.equal(row_seeds(7, 3, cpu), seeds[:3])
    assert row_seeds([3, -1, 2**63 - 1], 3, cpu).tolist() == [3, -1, 2**63 - 1]
    drawn = [row_seeds(torch.Generator().manual_seed(seed), 2, cpu).tolist() for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]
