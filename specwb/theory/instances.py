"""Difficult instances for exact checks: distributions with zeros, ties and certainties, models
whose distributions change with every prefix, and all trees."""

from __future__ import annotations

import random
from collections.abc import Iterator
from fractions import Fraction
from functools import cache

from specwb.theory.exact import Dist, Model, Tokens, children_of, norm


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


def pairs(
    count: int, sizes: tuple[int, ...] = (1, 2, 3, 4), seed: int = 0
) -> Iterator[tuple[list[Fraction], list[Fraction]]]:
    """Pairs of distributions as :func:`pair` makes them.

    Args:
        sizes: Sizes of the vocabulary, taken in turn.
    """
    rng = random.Random(seed)
    for i in range(count):
        yield pair(rng, sizes[i % len(sizes)])


def dense_pairs(
    count: int, v: int = 4, seed: int = 6
) -> list[tuple[list[Fraction], list[Fraction]]]:
    """Pairs of distributions without zeros, from weights 1 to 30.

    The mutants' distances are measured on these.
    """
    rng = random.Random(seed)
    return [(_dense(rng, v), _dense(rng, v)) for _ in range(count)]


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


def all_trees(nodes: int) -> Iterator[tuple[int, ...]]:
    """Every ordered tree with ``nodes`` nodes besides the root, once (1, 2, 5, 14, 42, 132).

    Each next node is a child of a node on the path from the root to the last node.
    """

    def grow(parents: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        if len(parents) == nodes + 1:
            yield parents
            return
        node = len(parents) - 1
        while node >= 0:
            yield from grow((*parents, node))
            node = parents[node]

    yield from grow((-1,))


def level_order(parents: tuple[int, ...]) -> tuple[int, ...]:
    """The same ordered tree with its nodes level by level, as rules for paths require."""
    children = children_of(parents)
    order = [0]
    for node in order:  # the list grows while it is walked through
        order += children[node]
    index = {node: i for i, node in enumerate(order)}
    return (-1, *(index[parents[node]] for node in order[1:]))
