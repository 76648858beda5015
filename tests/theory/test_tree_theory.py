"""What theory/06_trees.md proves and test_trees.py does not check already, in fractions
throughout."""

from __future__ import annotations

import random
from fractions import Fraction as F

import pytest

from specwb.theory import exact


def model(seed: int, v: int = 2):
    rng = random.Random(seed)
    table: dict = {}
    return lambda prefix: table.setdefault(
        prefix, exact.norm([rng.randint(1, 6) for _ in range(v)])
    )


# ----------------------------------------------------------------------------- 6.2, expected length


@pytest.mark.parametrize(
    "parents", [[-1, 0, 1], [-1, 0, 0], [-1, 0, 0, 1, 1], [-1, 0, 0, 2, 3]], ids=str
)
def test_expected_length_is_a_sum_over_nodes(parents):
    """The probabilities that each node is reached, from the acceptances at the nodes above it, add
    up to what walks give."""
    for seed in range(4):
        target, draft = model(seed, 3), model(50 + seed, 3)
        total = F(0)
        for paths, chance in exact.trees(exact.without_replacement, draft, parents):
            reached = {0: F(1)}
            for node in range(1, len(parents)):
                above = paths[parents[node]]
                siblings = [i for i, parent in enumerate(parents) if parent == parents[node]]
                accept, _ = exact.rrsw(
                    target(above), draft(above), tuple(paths[i][-1] for i in siblings)
                )
                reached[node] = reached[parents[node]] * accept[siblings.index(node)]
                total += chance * reached[node]
        assert total == exact.expected_accepted(
            exact.rrsw, exact.without_replacement, target, draft, parents
        )


# ------------------------------------------------------------------------------ 6.5, how many nodes


# ------------------------------------------------------------------------------- 6.6, dynamic trees


# ---------------------------------------------------------- 6.7, shapes that depend on drawn tokens

DEPTH, V = 2, 3


def drawings(policy, draft, drawn=(), chance=F(1)):
    """Every sequence of draws, (parent's path, token) in drawing order, with its probability."""
    node = policy(drawn)
    if node is None:
        yield drawn, chance
        return
    elder = [x for at, x in drawn if at == node]
    rest = exact.norm([F(0) if x in elder else b for x, b in enumerate(draft(node))])
    for x, b in enumerate(rest):
        if b:
            yield from drawings(policy, draft, (*drawn, (node, x)), chance * b)


def text_distribution(policy, target, draft, change=lambda drawn: drawn, rule=exact.rrsw):
    """The distribution of the first DEPTH + 1 tokens where the tokens drawn are verified in drawing
    order, after ``change``."""
    outcomes: list = []
    for drawn, chance in drawings(policy, draft):
        paths: list = [()]
        for node, x in change(drawn):
            if node in paths:  # below what was left out nothing is reached
                paths.append((*node, x))
        parents = [-1, *(paths.index(path[:-1]) for path in paths[1:])]
        outcomes += exact.walk(rule, target, draft, parents, [(paths, chance)])
    return exact.completed(outcomes, target, DEPTH + 1)


def off(policy, target, draft, *arguments):
    """How far it is from the target's distribution."""
    output = text_distribution(policy, target, draft, *arguments)
    return exact.tv(output, exact.target_distribution(target, DEPTH + 1))


def arbitrary(seed: int, max_draws: int = 4):
    """A policy that draws anywhere below the root, or stops, as a function of everything drawn so
    far."""
    decisions: dict = {}

    def policy(drawn):
        if drawn not in decisions:
            rng = random.Random(f"{seed} {drawn}")
            nodes = [(), *((*at, x) for at, x in drawn if len(at) + 1 < DEPTH)]
            free = [node for node in nodes if sum(at == node for at, _ in drawn) < V]
            ends = len(drawn) == max_draws or (drawn and rng.random() < 0.15)
            decisions[drawn] = None if ends else rng.choice(free)
        return decisions[drawn]

    return policy


def test_shapes_that_look_back_are_lossless():
    shapes = set()
    for seed in range(12):
        target, draft, policy = model(seed, V), model(70 + seed, V), arbitrary(seed)
        assert off(policy, target, draft) == 0
        shapes |= {tuple(at for at, _ in drawn) for drawn, _ in drawings(policy, draft)}
    assert len(shapes) > 30
