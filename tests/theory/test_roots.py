"""Several roots: the closed forms agree with enumeration, and decoding with the rule ``longest``
has the exact distribution."""

from __future__ import annotations

import random
from fractions import Fraction as F
from itertools import product

import pytest

from specwb.theory import exact as E
from specwb.theory.exact import roots
from specwb.theory.instances import models

HALF, THIRD = F(1, 2), F(1, 3)
P = [THIRD, THIRD, F(1, 6), F(1, 6)]  # the four tokens of theorem 13.3
EASY = roots.one_token(
    [0, 0, 1, 1]
)  # the token drafted below the last two is always accepted, below the first two never


def random_distribution(rng: random.Random, v: int) -> list[F]:
    return E.norm([rng.randint(0, 5) for _ in range(v - 1)] + [1])


def instances(count: int, seed: int = 0):
    """Distributions of the next token, some with zeros, and of the lengths below every token."""
    rng = random.Random(seed)
    for _ in range(count):
        v, depth = rng.choice([2, 3, 4]), rng.choice([1, 2])
        yield random_distribution(rng, v), [random_distribution(rng, depth + 1) for _ in range(v)]


# ---------------------------------------------------------------------------------- 13.3, who stays


def by_hand(p: list[F], lengths: list[list[F]], W: int) -> list[F]:
    """The distribution of the root that is kept, by summing over every draw of roots and every
    tuple of lengths: the longest is kept, of equals the first."""
    result = [F(0)] * len(p)
    for tokens, chance in E.without_replacement(p, W):
        for ls in product(range(len(lengths[0])), repeat=len(tokens)):
            stays = max(range(len(tokens)), key=lambda j: (ls[j], -j))
            weight = chance
            for x, n in zip(tokens, ls, strict=True):
                weight *= lengths[x][n]
            result[tokens[stays]] += weight
    return result


def test_the_root_that_stays() -> None:
    moved = 0
    for p, lengths in instances(60):
        assert roots.kept_root(p, lengths, 1) == p
        for W in range(2, len(p) + 1):
            assert roots.kept_root(p, lengths, W) == by_hand(p, lengths, W)
        moved += E.tv(roots.kept_root(p, lengths, 2), p) > F(1, 50)
    assert moved > 20


def test_four_tokens() -> None:
    """In the example of theorem 13.3 two roots turn the distribution around, and three leave only
    the tokens below which a token is accepted."""
    assert roots.kept_root(P, EASY, 2) == P[::-1]
    assert roots.kept_root(P, EASY, 3) == roots.kept_root(P, EASY, 4) == [0, 0, HALF, HALF]
    moved = [E.tv(roots.kept_root(P, EASY, W), P) for W in (1, 2, 3, 4)]
    assert moved == [0, THIRD, 2 * THIRD, 2 * THIRD]
    # below all tokens the draft is equally good, and still
    alike = roots.one_token([HALF] * 4)
    moved = [E.tv(roots.kept_root(P, alike, W), P) for W in (1, 2, 3, 4)]
    assert moved == [0, F(1, 60), F(1, 24), F(1, 15)]
    assert [E.tv(roots.kept_root(P, alike, W, "with"), P) for W in (1, 2, 3)] == [0, 0, 0]


@pytest.mark.parametrize("parents", [(-1,), (-1, 0), (-1, 0, 1), (-1, 0, 0), (-1, 0, 0, 1, 2)])
def test_one_root_is_lossless(parents: tuple[int, ...]) -> None:
    for seed in range(3):
        target, draft = models(seed, 2, "dense")
        expected = E.target_distribution(target, 3)
        assert E.roots_distribution(target, draft, parents, 1, 3) == expected
        off = E.tv(E.roots_distribution(target, draft, parents, 2, 3), expected)
        # below a leaf nothing is accepted; of two siblings over two tokens one always is
        assert (off > 0) == (parents not in ((-1,), (-1, 0, 0)))


# ------------------------------------------------------------------------------------- 13.4, bounds


def test_bounds() -> None:
    for p, lengths in instances(60, 1):
        support = sum(a > 0 for a in p)
        results = [roots.kept_root(p, lengths, W) for W in range(1, support + 1)]
        another = [1 - roots.first_stays(p, lengths, W) for W in range(1, support + 1)]
        assert all(E.tv(q, p) <= b for q, b in zip(results, another, strict=True))
        assert another == sorted(another)
        assert another[0] == 0
