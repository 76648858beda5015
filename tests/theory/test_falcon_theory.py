"""theory/10_falcon.md: laws in fractions, entropies of small tables by brute force, and what its
theorems say of the code."""

from __future__ import annotations

import math
import random
from fractions import Fraction as F
from itertools import product

import torch

from specwb.core.mask import block_ends
from specwb.theory import analysis, exact

# ----------------------------------------------------------------------------------- 10.1, blocks


def test_ends_of_blocks():
    for k, n in product(range(1, 5), range(1, 12)):
        last = torch.tensor(n - 1)
        right, left = (
            block_ends(torch.arange(n), last, k, align).tolist() for align in ("right", "left")
        )
        assert right == [n - 1 - (n - 1 - i) // k * k for i in range(n)]
        assert left == [min(i // k * k + k - 1, n - 1) for i in range(n)]


# ----------------------------------------------------------------------------- 10.6, shared lists


def two_tokens(rule, p1, q1, p2, q2, joint) -> dict:
    """The law of two tokens where all children of the root have the same list: ``joint`` is the law
    of (list of the root, list of its children)."""
    target, draft = (lambda text: p2[text[0]] if text else p1), (lambda text: q2 if text else q1)
    first, second = (len(tokens) for tokens in joint[0][:2])
    parents = (-1, *[0] * first, *(1 + i for i in range(first) for _ in range(second)))
    drafts = [(((), *((x,) for x in a), *product(a, b)), chance) for a, b, chance in joint]
    law: dict = {}
    outcomes = exact.walk(rule, target, draft, parents, drafts)
    for text, chance in exact.completed(outcomes, target, 3).items():
        law[text[:2]] = law.get(text[:2], F(0)) + chance
    return law


def wanted(p1, p2) -> dict:
    return {(x, y): a * b for x, a in enumerate(p1) for y, b in enumerate(p2[x]) if a * b}


def test_one_draw_for_parent_and_child():
    half = [F(1, 2), F(1, 2)]
    p1, p2 = [F(1), F(0)], [half, half]
    same = [(a, a, c) for a, c in exact.without_replacement(half, 1)]
    distribution = two_tokens(exact.rrsw, p1, half, p2, half, same)
    assert distribution == {(0, 0): F(3, 4), (0, 1): F(1, 4)}
    drawn_once = exact.without_replacement(half, 1)
    apart = [(a, b, c * d) for (a, c), (b, d) in product(drawn_once, repeat=2)]
    assert exact.tv(two_tokens(exact.rrsw, p1, half, p2, half, apart), wanted(p1, p2)) == 0


# ----------------------------------------------------------------------------------- 10.7, passes


def test_a_chain_of_blocks():
    rng = random.Random(3)
    for k, m in product((1, 2, 3), (1, 2, 4)):
        rates = [F(rng.randint(1, 9), 10) for _ in range(k)]
        reach = [math.prod(rates[:j], start=F(1)) for j in range(1, k + 1)]
        tau = 1 + sum(reach) * sum(reach[-1] ** b for b in range(m))
        assert tau == sum(analysis.path_values([[a] for a in rates * m], [-1, *range(k * m)]))
