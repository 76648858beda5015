"""Candidates that cousins share, in fractions.

A block of k positions draws one list of candidates per position, and every node at that position
has it. Lossless means equal, on the joint distribution of a round; and what breaks it is told
apart."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from fractions import Fraction as F
from functools import cache

import pytest

from specwb.theory import exact as E
from specwb.theory.instances import weights

Parents = tuple[int, ...]


Block = tuple[E.Tokens, int]


Lists = dict[Block, E.Tokens]


BlockDraft = Callable[[E.Tokens, int], E.Dist]


ListDraw = Callable[[E.SamplingScheme, BlockDraft, Block, int, Lists], list[tuple[E.Tokens, F]]]


_0, _1 = F(0), F(1)


TREES: dict[str, tuple[Parents, int]] = {  # and the block size
    "2-2 in one block": ((-1, 0, 0, 1, 1, 2, 2), 2),
    "a cousin with fewer": ((-1, 0, 0, 1, 1, 2), 2),
    "three cousins": ((-1, 0, 0, 0, 1, 2, 2, 3), 2),
    "two blocks below": ((-1, 0, 0, 1, 2, 2, 3, 4, 4), 2),
    "k = 3, three deep": ((-1, 0, 0, 1, 1, 2, 3, 4, 4, 5), 3),
    "k = 3, a second pass": ((-1, 0, 0, 1, 2, 3, 4, 5), 3),
    "k = 1 shares nothing": ((-1, 0, 0, 1, 1, 2), 1),
}


RULES = {"point masses": (E.top, E.point), "without replacement": (E.without_replacement, E.rrsw)}


every_scheme = pytest.mark.parametrize("scheme", RULES)


def block_of(path: E.Tokens, k: int) -> Block:
    return path[: len(path) // k * k], len(path) % k


def adversary(seed: int, v: int, k: int) -> tuple[E.Model, BlockDraft]:
    """Every position of every block has its q, every path its p. q is small where p is large, large
    where p is 0, equal, or unrelated."""

    @cache
    def q_of(block: E.Tokens, position: int) -> E.Dist:
        return tuple(weights(random.Random(f"q/{seed}/{block}/{position}"), v))

    @cache
    def target(path: E.Tokens) -> E.Dist:
        rng, q = random.Random(f"p/{seed}/{path}"), q_of(*block_of(path, k))
        kind = rng.choice(["any", "any", "disjoint", "equal", "inverse", "mixed"])
        if kind == "equal":
            return q
        if kind == "disjoint" and 0 in q:
            return tuple(E.norm([int(b == 0) * rng.randint(1, 5) for b in q]))
        if kind == "inverse":
            return tuple(E.norm([max(q) - b + F(1, 50) for b in q]))
        other = weights(rng, v)
        return tuple(
            E.norm([a + b for a, b in zip(q, other, strict=True)]) if kind == "mixed" else other
        )

    return target, q_of


def drawn_once(
    sampling: E.SamplingScheme, q_of: BlockDraft, at: Block, size: int, before: Lists
) -> list[tuple[E.Tokens, F]]:
    """Right: the list is drawn from q of its position and nothing else."""
    return sampling(q_of(*at), size)


def shared_trees(
    sampling: E.SamplingScheme,
    q_of: BlockDraft,
    parents: Parents,
    k: int,
    draw_list: ListDraw,
) -> Iterator[tuple[list[E.Tokens | None], F]]:
    """Every drafted tree with its probability, nodes as paths, None where a list was too short.

    A list is drawn the first time that a node needs it, as long as the widest of those that share
    it needs it. A node with fewer children takes the first of it.
    """
    below, depth = E.children_of(parents), E.depths(parents)

    def home(node: int) -> tuple[int, int]:
        """The node that its block is below, and the position there that its children are drawn
        at."""
        position, at = depth[node] % k, node
        for _ in range(position):
            at = parents[at]
        return at, position

    widest: dict[tuple[int, int], int] = {}
    for node, kids in enumerate(below):
        widest[home(node)] = max(widest.get(home(node), 0), len(kids))

    def grow(
        node: int, paths: list[E.Tokens | None], lists: Lists, prob: F
    ) -> Iterator[tuple[list[E.Tokens | None], F]]:
        if node == len(parents):
            yield paths, prob
            return
        path = paths[node]
        if path is None or not below[node]:
            yield from grow(node + 1, paths, lists, prob)
            return
        at = block_of(path, k)
        for tokens, chance in (
            [(lists[at], _1)]
            if at in lists
            else draw_list(sampling, q_of, at, widest[home(node)], lists)
        ):
            filled = list(paths)
            for child, x in zip(below[node], tokens, strict=False):
                filled[child] = (*path, x)
            yield from grow(node + 1, filled, {**lists, at: tokens}, prob * chance)

    yield from grow(0, [(), *[None] * (len(parents) - 1)], {}, _1)


def right_q(q_of: BlockDraft, path: E.Tokens, k: int) -> E.Dist:
    return q_of(*block_of(path, k))


def round_distribution(
    scheme: str,
    parents: Parents,
    k: int,
    target: E.Model,
    q_of: BlockDraft,
    draw_list: ListDraw = drawn_once,
    q: Callable[[BlockDraft, E.Tokens, int], E.Dist] = right_q,
) -> dict[E.Tokens, F]:
    """The joint distribution of the D + 1 tokens that a round starts.

    ``draw_list`` is how lists are drawn, ``q`` the draft distribution that the rule is given at a
    path.
    """
    sampling, rule = RULES[scheme]
    drafts = shared_trees(sampling, q_of, parents, k, draw_list)
    outcomes = E.walk(rule, target, lambda path: q(q_of, path, k), parents, drafts)
    return E.completed(outcomes, target, max(E.depths(parents)) + 1)


def wrong_by(scheme: str, tree: str, seed: int, **changes) -> F:
    parents, k = TREES[tree]
    v = 2 if len(parents) > 8 and scheme != "point masses" else 3
    target, q_of = adversary(seed, v, k)
    output = round_distribution(scheme, parents, k, target, q_of, **changes)
    assert sum(output.values()) == 1
    return E.tv(output, E.target_distribution(target, max(E.depths(parents)) + 1))


@every_scheme
@pytest.mark.parametrize("tree", TREES)
def test_lists_that_cousins_share_are_lossless(tree, scheme):
    assert [wrong_by(scheme, tree, seed) for seed in range(12)] == [0] * 12
