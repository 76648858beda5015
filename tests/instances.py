"""Pairs of distributions in fractions, and all trees."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from fractions import Fraction

from specwb.theory.exact import children_of, norm
from specwb.theory.instances import pair


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


def drawn(rng: random.Random, v: int, least: int = 1) -> list[Fraction]:
    """A distribution from weights ``least`` to 6, the last of them 1."""
    return norm([rng.randint(least, 6) for _ in range(v - 1)] + [1])


def divergence(p: Sequence, q: Sequence) -> float:
    """KL(p || q) in nats."""
    return sum(float(a) * math.log(a / b) for a, b in zip(p, q, strict=True) if a)


def dense_pairs(
    count: int, v: int = 4, seed: int = 6
) -> list[tuple[list[Fraction], list[Fraction]]]:
    """Pairs of distributions without zeros, from weights 1 to 30.

    The mutants' distances are measured on these.
    """
    rng = random.Random(seed)

    def dense() -> list[Fraction]:
        return norm([rng.randint(1, 30) for _ in range(v)])

    return [(dense(), dense()) for _ in range(count)]


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
