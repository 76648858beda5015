"""Several roots: the closed forms agree with enumeration, and decoding with the rule ``longest``
has the exact distribution."""

from __future__ import annotations

import random
from collections.abc import Callable
from fractions import Fraction as F
from functools import cache
from itertools import product

import pytest
import test_decoding_distribution as decoding
import torch
from torch import Tensor

import specwb
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
        odd, a = roots.one_token([F(x % 2) for x in range(len(p))]), sum(p[1::2], F(0))
        off = [E.tv(roots.kept_root(p, odd, W), p) for W in range(1, support + 1)]
        assert all(tv >= 1 - (1 - a) ** W - a for W, tv in enumerate(off, 1))
        assert off[-1] == (1 - a if a else 0)
    p, lengths = [F(3, 7), F(3, 7), F(1, 7)], roots.one_token([HALF, HALF, F(1, 4)])
    assert [E.tv(roots.kept_root(p, lengths, W), p) for W in (2, 3)] == [F(3, 112), F(3, 224)]


def method(W: int, tree: tuple[int, ...]) -> specwb.Method:
    target, draft = decoding.models()
    return specwb.method(
        "mcsd_ti", target, draft=draft, tree=tree, roots=W, lossy=True, stop="none"
    )


@cache
def table(which: int, longest: int = 5) -> Callable[[E.Tokens], list[float]]:
    """The distribution after every text of up to ``longest`` tokens behind the prompt."""
    model, rows = decoding.models()[which].model, {}
    for n in range(longest + 1):
        texts = list(product(range(decoding.VOCABULARY), repeat=n))
        with torch.no_grad():
            prompts = torch.tensor([[*decoding.PROMPT, *text] for text in texts])
            probabilities = model(prompts).logits[:, -1].double().softmax(-1)
        rows.update(zip(texts, probabilities.tolist(), strict=True))
    return rows.__getitem__


@cache
def exactly(W: int, parents: tuple[int, ...]) -> Tensor:
    distribution = torch.zeros(decoding.VOCABULARY**decoding.LENGTH, dtype=torch.float64)
    for (a, b, c), chance in E.roots_distribution(
        table(0), table(1), parents, W, decoding.LENGTH
    ).items():
        distribution[(a * decoding.VOCABULARY + b) * decoding.VOCABULARY + c] = chance
    return distribution


@pytest.mark.parametrize(("W", "tree", "parents"), [(2, (1, 1), (-1, 0, 1)), (3, (2,), (-1, 0, 0))])
@pytest.mark.slow
def test_decoding_has_the_exact_distribution(W, tree, parents) -> None:
    counts, _ = decoding.sampled(method(W, tree), "plain")
    assert decoding.chi_square(counts, exactly(W, parents)) > 1e-4
    assert decoding.chi_square(counts, decoding.enumerated("plain")) < 1e-12
    assert float((exactly(W, parents) - decoding.enumerated("plain")).abs().sum() / 2) > 0.1


def dice() -> list[list[F]]:
    """Lengths 2, 4, 9 and 1, 6, 8 and 3, 5, 7 with probability 1/3 each: each is longer than the
    next with probability 5/9."""
    return [[F(n in faces, 3) for n in range(10)] for faces in ((2, 4, 9), (1, 6, 8), (3, 5, 7))]


def test_when_nothing_moves() -> None:
    """Nothing moves where all lengths are one constant, or where P is uniform and the lengths have
    equal distributions. Equal distributions alone are not enough, and not needed."""
    rng = random.Random(3)
    for _ in range(20):
        v = rng.choice([2, 3, 4])
        p, constant = random_distribution(rng, v), [[F(0), F(1), F(0)]] * v
        same = [random_distribution(rng, 3)] * v
        support = sum(a > 0 for a in p)
        uniform = len({a for a in p if a}) == 1
        ties = max(same[0]) == 1
        for W in range(2, support + 1):
            assert roots.kept_root(p, constant, W) == p
            assert (roots.kept_root(p, same, W) == p) == (uniform or ties)
            assert roots.kept_root([F(1, v)] * v, same, W) == [F(1, v)] * v
    # of lengths that beat each other in a circle each is as often longer as shorter
    assert roots.kept_root([THIRD] * 3, dice(), 2) == [THIRD] * 3
    assert len({tuple(row) for row in dice()}) == 3
    # for two tokens nothing flows iff g(0, 1) / p(0) = g(1, 0) / p(1)
    lengths = roots.one_token([F(2, 3), HALF])  # g(0, 1) = 1/3, g(1, 0) = 1/6
    assert roots.kept_root([2 * THIRD, THIRD], lengths, 2) == [2 * THIRD, THIRD]
    assert roots.kept_root([HALF, HALF], lengths, 2) != [HALF, HALF]
