"""What theory/06_trees.md proves and test_trees.py does not check already, in fractions
throughout."""

from __future__ import annotations

import random
from fractions import Fraction as F

import pytest

from specwb.theory import exact
from specwb.theory.wrong_rules import argmax_budget


def model(seed: int, v: int = 2):
    rng = random.Random(seed)
    table: dict = {}
    return lambda prefix: table.setdefault(
        prefix, exact.norm([rng.randint(1, 6) for _ in range(v)])
    )


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


SHAPES = [(-1, 0, 1), (-1, 0, 0, 1), (-1, 0, 0, 1, 1), (-1, 0, 0, 1, 2)]


def scored(seed: int):
    """Random scores of candidates by the path to their parent, and by rank, that fall along paths
    and siblings."""
    shares: dict = {}

    def score(parents, paths, node):
        if node == 0:
            return F(1)
        above = parents[node]
        if (seed, paths[above]) not in shares:
            rng = random.Random(f"{seed} {paths[above]}")
            shares[seed, paths[above]] = sorted(
                (F(rng.randint(1, 9), 10) for _ in range(3)), reverse=True
            )
        rank = sum(parents[i] == above for i in range(node))
        return score(parents, paths, above) * shares[seed, paths[above]][rank]

    return score


def verified(seed: int, parents, others, budget):
    """What a step verifies of a draft: the first of the order of its candidates and of ``others``,
    the scores of other rows'; ``budget(scores in order)`` is their number."""
    score = scored(seed)

    def change(paths):
        own = [
            (-score(parents, paths, i), 1, i)
            for i in range(1, len(parents))
            if paths[i] is not None
        ]
        order = sorted([*own, *((-other, 0, 0) for other in others)])
        kept = {i for _, mine, i in order[: budget([-s for s, *_ in order])] if mine}
        return [path if i in kept or i == 0 else None for i, path in enumerate(paths)]

    return change


def off_by(budget, seed: int, parents) -> F:
    rng = random.Random(seed)
    target, draft = model(seed, V), model(70 + seed, V)
    others = [F(rng.randint(1, 9), 10) for _ in range(rng.randint(0, 2))]
    change = verified(seed, parents, others, budget)
    outcomes = exact.walks(exact.rrsw, exact.without_replacement, target, draft, parents, change)
    output = exact.completed(outcomes, target, DEPTH + 1)
    return exact.tv(output, exact.target_distribution(target, DEPTH + 1))


def test_budgets_by_the_past_and_by_descent_are_lossless():
    """Of a row next to others, whatever these have drawn. The budget by the best number of the same
    scores and seconds is not, in some of the instances."""
    costs = [F(2, 10), F(3, 10), F(4, 10), F(5, 10), F(6, 10), F(7, 10)]
    seconds = [F(n) for n in (20, 35, 36, 37, 38, 39, 40)]

    def descent(scores):
        return next((k for k, s in enumerate(scores) if s <= costs[k]), len(scores))

    def fastest(scores):
        speed = [(1 + sum(scores[:k])) / seconds[k] for k in range(len(scores) + 1)]
        return speed.index(max(speed))

    wrong = 0
    for seed in range(8):
        for parents in SHAPES:
            assert all(off_by(lambda _, n=n: n, seed, parents) == 0 for n in range(4))
            assert off_by(descent, seed, parents) == 0
            wrong += off_by(fastest, seed, parents) > 0
    assert wrong > 0


def test_a_child_that_depends_on_another_branch_spoils_a_fixed_budget():
    """Theorem 6.9.4: the second child of the root, drawn iff the token below the first is 0, takes
    that token's place. All of it verified is lossless (theorem 6.7)."""
    half, q = [F(1, 2), F(1, 2)], [F(3, 4), F(1, 4)]

    def policy(drawn):
        if len(drawn) < 2:
            return (drawn[0][1],) if drawn else ()
        return () if len(drawn) == 2 and drawn[1][1] == 0 else None

    def first_two(drawn):
        return drawn if len(drawn) == 2 else (drawn[0], drawn[2])

    model_of_half, model_of_q = (lambda _: half), (lambda _: q)
    assert off(policy, model_of_half, model_of_q) == 0
    text = text_distribution(policy, model_of_half, model_of_q, first_two)
    second = {x: sum(text[0, x, y] for y in range(2)) for x in range(2)}
    # token 0 first: accepted with 1/2, and then 3/8 goes on with 0
    assert second == {0: F(1, 2) * F(3, 8), 1: F(1, 2) * F(5, 8)}


def test_a_budget_by_all_scores_of_the_step_is_not():
    """The smallest case, in which token 0 has 3/5 in place of 1/2."""
    sure = {(): F(7, 10), (0,): F(9, 10), (1,): F(1, 10)}
    half, q = [F(1, 2), F(1, 2)], [F(4, 5), F(1, 5)]
    outcomes = argmax_budget("IID", lambda _: half, lambda _: q, (-1, 0, 1), sure.__getitem__)
    texts = exact.completed(outcomes, lambda _: half, 3)
    assert sum(chance for text, chance in texts.items() if text[0] == 0) == F(3, 5)
