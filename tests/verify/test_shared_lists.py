"""Candidates that cousins share, in fractions: a block of k places draws one list a place, and every node at that place has it. Lossless means
equal, on the joint law of a round; and what breaks it is told apart."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from fractions import Fraction as F
from functools import cache

import pytest

from specwb.verify import exact as E
from specwb.verify.instances import weights

Parents = tuple[int, ...]
Block = tuple[E.Tokens, int]
"""The path that a block stands below, and a place in it."""
Lists = dict[Block, E.Tokens]
Said = Callable[[E.Tokens, int], E.Dist]
"""``said(block, place)``: q of a place of a block, whatever stands before it there."""
Listed = Callable[[E.DraftLaw, Said, Block, int, Lists], list[tuple[E.Tokens, F]]]
"""How the list of a place is drawn, given its size and the lists drawn before it."""

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
SCHEMES = {"point masses": (E.top, E.point), "without replacement": (E.without_replacement, E.rrsw)}
every_scheme = pytest.mark.parametrize("scheme", SCHEMES)


def block_of(path: E.Tokens, k: int) -> Block:
    return path[: len(path) // k * k], len(path) % k


def adversary(seed: int, v: int, k: int) -> tuple[E.Model, Said]:
    """Every place of every block has its q, every path its p: q is nothing where p is large, everything where p is nothing, equal, or unrelated."""

    @cache
    def said(block: E.Tokens, place: int) -> E.Dist:
        return tuple(weights(random.Random(f"q/{seed}/{block}/{place}"), v))

    @cache
    def target(path: E.Tokens) -> E.Dist:
        rng, q = random.Random(f"p/{seed}/{path}"), said(*block_of(path, k))
        kind = rng.choice(["any", "any", "disjoint", "equal", "inverse", "mixed"])
        if kind == "equal":
            return q
        if kind == "disjoint" and 0 in q:
            return tuple(E.norm([int(b == 0) * rng.randint(1, 5) for b in q]))
        if kind == "inverse":
            return tuple(E.norm([max(q) - b + F(1, 50) for b in q]))
        other = weights(rng, v)
        return tuple(E.norm([a + b for a, b in zip(q, other, strict=True)]) if kind == "mixed" else other)

    return target, said


def drawn_once(law: E.DraftLaw, said: Said, at: Block, size: int, before: Lists) -> list[tuple[E.Tokens, F]]:
    """What is right: from q of the place and nothing else."""
    return law(said(*at), size)


def shared_trees(law: E.DraftLaw, said: Said, parents: Parents, k: int, listed: Listed) -> Iterator[tuple[list[E.Tokens | None], F]]:
    """Every drafted tree with its probability, nodes as paths, None where a list was too short: a list is drawn the first time that a node needs it,
    as long as the widest of those that share it; a node with fewer children takes the first of it."""
    below = [[i for i, parent in enumerate(parents) if parent == node] for node in range(len(parents))]
    depth = E.depths(parents)

    def home(node: int) -> tuple[int, int]:
        """Node that its block hangs from, and the place there that says its children."""
        place, at = depth[node] % k, node
        for _ in range(place):
            at = parents[at]
        return at, place

    widest: dict[tuple[int, int], int] = {}
    for node, kids in enumerate(below):
        widest[home(node)] = max(widest.get(home(node), 0), len(kids))

    def grow(node: int, paths: list[E.Tokens | None], lists: Lists, prob: F) -> Iterator[tuple[list[E.Tokens | None], F]]:
        if node == len(parents):
            yield paths, prob
            return
        path = paths[node]
        if path is None or not below[node]:
            yield from grow(node + 1, paths, lists, prob)
            return
        at = block_of(path, k)
        for tokens, chance in [(lists[at], _1)] if at in lists else listed(law, said, at, widest[home(node)], lists):
            filled = list(paths)
            for child, x in zip(below[node], tokens, strict=False):
                filled[child] = (*path, x)
            yield from grow(node + 1, filled, {**lists, at: tokens}, prob * chance)

    yield from grow(0, [(), *[None] * (len(parents) - 1)], {}, _1)


def own_q(said: Said, path: E.Tokens, k: int) -> E.Dist:
    return said(*block_of(path, k))


def round_law(
    scheme: str, parents: Parents, k: int, target: E.Model, said: Said,
    listed: Listed = drawn_once, q: Callable[[Said, E.Tokens, int], E.Dist] = own_q,
) -> dict[E.Tokens, F]:  # fmt: skip
    """The joint law of the D + 1 tokens a round starts. ``listed``: how lists are drawn; ``q``: the law that the rule is told of at a path."""
    law, rule = SCHEMES[scheme]
    below = [[i for i, parent in enumerate(parents) if parent == node] for node in range(len(parents))]
    decided = cache(lambda path, tokens: rule(target(path), q(said, path, k), tokens))
    outcomes: list[E.Outcome] = []
    for paths, chance in shared_trees(law, said, parents, k, listed):
        todo = [(0, chance)]
        while todo:
            node, prob = todo.pop()
            path, there = paths[node], [i for i in below[node] if paths[i] is not None]
            assert path is not None
            if not there:
                outcomes.append((path, target(path), prob))
                continue
            accept, residual = decided(path, tuple(paths[i][-1] for i in there))  # type: ignore[index]
            todo += [(i, prob * a) for i, a in zip(there, accept, strict=True) if a]
            if sum(accept) < 1:
                outcomes.append((path, residual, prob * (1 - sum(accept))))
    return E.completed(outcomes, target, max(E.depths(parents)) + 1)


def wrong_by(scheme: str, tree: str, seed: int, **changes) -> F:
    parents, k = TREES[tree]
    v = 2 if len(parents) > 8 and scheme != "point masses" else 3
    target, said = adversary(seed, v, k)
    found = round_law(scheme, parents, k, target, said, **changes)
    assert sum(found.values()) == 1
    return E.tv(found, E.target_law(target, max(E.depths(parents)) + 1))


# --------------------------------------------------------------------------------------------------------------- lossless


@every_scheme
@pytest.mark.parametrize("tree", TREES)
def test_lists_that_cousins_share_are_lossless(tree, scheme):
    assert [wrong_by(scheme, tree, seed) for seed in range(12)] == [0] * 12


def test_of_four_tokens():
    target, said = adversary(3, 4, 2)
    for parents in ((-1, 0, 0, 1, 2, 2), (-1, 0, 0, 0, 1, 2, 3)):
        found = round_law("without replacement", parents, 2, target, said)
        assert E.tv(found, E.target_law(target, 3)) == 0


def test_the_tables_are_adversarial():
    """Somewhere q misses all that p has, somewhere p is certain, somewhere a list is shorter than asked for."""
    seen = set()
    for seed in range(12):
        target, said = adversary(seed, 3, 2)
        for path in [(), *[(x,) for x in range(3)]]:
            p, q = target(path), own_q(said, path, 2)
            seen |= {"disjoint"} if E.overlap(p, q) == 0 else set()
            seen |= {"certain"} if max(p) == 1 else set()
            seen |= {"short"} if sum(b > 0 for b in q) < 2 else set()
            seen |= {"equal"} if p == q else set()
    assert seen == {"disjoint", "certain", "short", "equal"}


def test_cousins_really_share():
    """Both nodes of depth 1 have the same children in every draft; drawn apart they mostly have not."""
    parents, k = TREES["2-2 in one block"]
    said = adversary(5, 3, k)[1]
    lists = [[tuple(paths[i][-1] for i in kids if paths[i]) for kids in ((3, 4), (5, 6)) if paths[kids[0]]]
             for paths, _ in shared_trees(E.without_replacement, lambda block, place: E.norm([3, 2, 1]), parents, k, drawn_once)]  # fmt: skip
    assert len({a for a, _ in lists}) == 6
    assert all(a == b for a, b in lists)
    assert said((), 0) != said((), 1)


def test_blocks_of_one_are_the_usual_trees():
    """k = 1: each path has a list of its own, and the round is the one that ``round_law`` of independent siblings enumerates."""
    parents = TREES["k = 1 shares nothing"][0]
    target, said = adversary(2, 3, 1)
    for scheme, (law, rule) in SCHEMES.items():
        assert round_law(scheme, parents, 1, target, said) == E.round_law(rule, law, target, lambda path: said(path, 0), parents)


# ----------------------------------------------------------------------------------------------------- what must be refuted


def neighbours_q(said: Said, path: E.Tokens, k: int) -> E.Dist:
    """Wrong: tested against q of the block's first place, from which the parent was drawn."""
    return said(block_of(path, k)[0], 0)


def other_parents_q(said: Said, path: E.Tokens, k: int) -> E.Dist:
    """Wrong: tested against q of another block of the pass."""
    block, place = block_of(path, k)
    return said((*block[:-1], (block[-1] + 1) % 3) if block else block, place)


def same_noise(law: E.DraftLaw, said: Said, at: Block, size: int, before: Lists) -> list[tuple[E.Tokens, F]]:
    """Wrong: with the noise of the list before it in the block, which is the same list where both laws are the same."""
    block, place = at
    return [(before[block, place - 1], _1)] if place else law(said(block, 0), size)


def last_first(law: E.DraftLaw, said: Said, at: Block, size: int, before: Lists) -> list[tuple[E.Tokens, F]]:
    """Wrong: put in another order than drawn, so that a node with fewer children takes the last of the list."""
    return [(tokens[::-1], chance) for tokens, chance in law(said(*at), size)]


def second_try(law: E.DraftLaw, said: Said, at: Block, size: int, before: Lists) -> list[tuple[E.Tokens, F]]:
    """Wrong: drawn twice, and the list with the more probable first token is kept."""
    q = said(*at)
    return [(max(one, other, key=lambda xs: q[xs[0]]), a * b) for one, a in law(q, size) for other, b in law(q, size)]


def blind(seed: int, v: int) -> tuple[E.Model, Said]:
    """q is the same at every place, p depends on the path: what is drawn with one noise is then one list."""
    rng = random.Random(seed)
    q, target = tuple(E.norm([rng.randint(1, 9) for _ in range(v)])), adversary(seed, v, 2)[0]
    return target, lambda block, place: q


@pytest.mark.parametrize(
    ("tree", "change"),
    [
        ("2-2 in one block", {"q": neighbours_q}), ("a cousin with fewer", {"q": neighbours_q}), ("two blocks below", {"q": other_parents_q}),
        ("2-2 in one block", {"listed": last_first}), ("a cousin with fewer", {"listed": last_first}), ("2-2 in one block", {"listed": second_try}),
    ],
    ids=lambda x: next(iter(x.values())).__name__ if isinstance(x, dict) else x,
)  # fmt: skip
def test_wrong_lists_and_wrong_laws_are_refuted(tree, change):
    assert max(wrong_by("without replacement", tree, seed, **change) for seed in range(12)) > F(1, 100)


@pytest.mark.parametrize("change", [{"q": neighbours_q}, {"listed": last_first}], ids=["another q", "another order"])
def test_point_masses_need_neither_q_nor_an_order(change):
    """What refutes drawn lists leaves these alone: their rule reads p only."""
    for tree in ("2-2 in one block", "a cousin with fewer"):
        assert [wrong_by("point masses", tree, seed, **change) for seed in range(6)] == [0] * 6


def test_a_list_that_depends_on_the_one_above_is_refuted():
    """One noise for two places: that a parent was accepted then says what its children are."""
    parents = TREES["2-2 in one block"][0]

    def distance(seed: int, listed: Listed) -> F:
        target, said = blind(seed, 3)
        return E.tv(round_law("without replacement", parents, 2, target, said, listed), E.target_law(target, 3))

    assert max(distance(seed, same_noise) for seed in range(8)) > F(1, 100)
    assert [distance(seed, drawn_once) for seed in range(8)] == [0] * 8


def test_a_point_mass_that_knows_what_p_will_say_is_refuted():
    """Of a look at the token that p will be asked for, a list may make no use: here it is shorter where that token is 0."""
    p = E.norm([1, 2, 3])

    def law_of(seen: Callable[[int], E.Tokens]) -> list[F]:
        out = [_0] * 3
        for y, a in enumerate(p):  # the draw that the rule compares its candidates with
            tokens = seen(y)
            if y in tokens:
                out[y] += a
            else:
                for z, b in enumerate(E.norm(E.without(p, tokens))):
                    out[z] += a * b
        return out

    assert law_of(lambda y: (0, 1)) == p
    assert E.tv(law_of(lambda y: (1,) if y == 0 else (0, 1)), p) > F(1, 100)
