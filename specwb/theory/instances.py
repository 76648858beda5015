"""Difficult instances for exact checks: distributions with zeros, ties and certainties, and models
whose distributions change with every prefix."""

from __future__ import annotations

import random
from fractions import Fraction
from functools import cache

from specwb.theory.exact import Dist, Model, Tokens, norm


def weights(rng: random.Random, v: int) -> list[Fraction]:
    """A distribution over v tokens of one of several difficult kinds."""
    kind = rng.choice(["any", "any", "zeros", "ties", "one-hot", "peaked"])
    if kind == "one-hot":
        hot = rng.randrange(v)
        return [Fraction(i == hot) for i in range(v)]
    pick = {
        "any": lambda: rng.randint(0, 30),
        "zeros": lambda: rng.choice([0, 0, rng.randint(1, 30)]),
        "ties": lambda: rng.randint(0, 2),
        "peaked": lambda: rng.choice([1, 1, 1000]),
    }[kind]
    raw = [pick() for _ in range(v)]
    return norm(raw) if any(raw) else norm([1] * v)


def pair(rng: random.Random, v: int) -> tuple[list[Fraction], list[Fraction]]:
    """p and q: unrelated, equal, reversed, disjoint, or tied in p/q."""
    p = weights(rng, v)
    kind = rng.choice(
        ["unrelated", "unrelated", "unrelated", "equal", "reversed", "disjoint", "half"]
    )
    if kind == "equal":
        return p, list(p)
    if kind == "reversed":
        return p, p[::-1]
    if kind == "disjoint" and 0 in p:
        return p, norm([int(a == 0) * rng.randint(1, 5) or int(a == 0) for a in p])
    if kind == "half":
        return p, norm([a * rng.choice([1, 2]) for a in p])
    return p, weights(rng, v)


def models(seed: int, v: int, kind: str = "any") -> tuple[Model, Model]:
    """A target and a draft model whose distributions change with the whole prefix, so that a wrong
    position in the tree is detected.

    Args:
        kind: ``any`` is :func:`pair`; ``dense`` has no zeros, so that every branch of every rule is
            possible; ``tied`` is dense and p/q has few values.
    """

    @cache
    def both(prefix: Tokens) -> tuple[Dist, Dist]:
        rng = random.Random(f"{seed}/{prefix}")
        if kind == "any":
            return pair(rng, v)
        p = _dense(rng, v)
        if kind == "tied":
            return p, norm([a * rng.choice([1, 2]) for a in p])
        return p, _dense(rng, v)

    return (lambda prefix: both(prefix)[0]), (lambda prefix: both(prefix)[1])


def _dense(rng: random.Random, v: int) -> list[Fraction]:
    return norm([rng.randint(1, 30) for _ in range(v)])
