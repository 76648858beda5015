"""theory/12_kangaroo.md and theory/13_improved_mcsd.md: laws in fractions, and what their theorems
say of the code. Closed forms, best rules and several roots are in tests/theory/test_stopping.py
and test_roots.py."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from fractions import Fraction as F

import pytest
import tiny
import torch

from specwb.core.tree import Tree
from specwb.theory import exact as E
from specwb.theory.instances import models
from specwb.theory.wrong_rules import left_out
from specwb.training.heads import RECIPES, target_outputs

# --------------------------------------------------------------------------------- 12.2, stopping


Decide = Callable[[E.Paths], bool]


def cut_below(
    parents: tuple[int, ...], onward: Callable[[E.Paths], bool]
) -> Callable[[E.Paths], E.Paths]:
    """A tree that ends at the first level after which ``onward`` says no; it sees that level and
    those above."""
    depth = E.depths(parents)

    def change(paths: E.Paths) -> E.Paths:
        for d in range(1, max(depth)):
            so_far = [path for path, at in zip(paths, depth, strict=True) if at <= d]
            if not onward(so_far):
                return [path if at <= d else None for path, at in zip(paths, depth, strict=True)]
        return paths

    return change


def arbitrary(seed: int) -> Decide:
    """Any function of all that was drafted."""
    return lambda paths: random.Random(f"{seed} {paths}").random() < 0.5


@pytest.mark.parametrize(
    "parents", [(-1, 0, 1, 2), (-1, 0, 0, 1, 2), (-1, 0, 0, 1, 2, 3, 4), (-1, 0, 0, 1, 1, 2)]
)
def test_deciding_about_what_is_not_drawn_yet_keeps_the_distribution(parents):
    """Whatever decides: a coin that knows all tokens, how sure the draft was of them, the target's
    laws at them and behind them."""
    length, shapes = max(E.depths(parents)) + 1, set()
    for seed in range(2):
        target, draft = models(seed, 2, "dense")
        deciders = {
            "any": arbitrary(seed),
            "confidence": lambda paths, d=draft: (
                max(d(path[:-1])[path[-1]] for path in paths if path) > F(1, 2)
            ),
            "peeking": lambda paths, t=target, d=draft: any(
                t(path[:-1])[path[-1]] >= d(path[:-1])[path[-1]] for path in paths if path
            ),
            "peeking ahead": lambda paths, t=target, d=draft: (
                E.overlap(t(paths[-1] or ()), d(paths[-1] or ())) > F(3, 4)
            ),
        }
        for onward in deciders.values():
            for scheme, rule in ((E.iid, E.rrs), (E.without_replacement, E.rrsw)):
                found = list(
                    E.walks(rule, scheme, target, draft, parents, cut_below(parents, onward))
                )
                assert E.completed(found, target, length) == E.target_distribution(target, length)
                shapes |= {len(path) for path, _, _ in found}
    assert len(shapes) == length


def test_deciding_about_a_token_by_itself_does_not():
    """The same two confidences, of the token itself and not of the next one; and every arbitrary
    function of it."""
    p, q = [F(1, 2)] * 2, [F(3, 4), F(1, 4)]
    for out, x, tv in (
        (lambda p, q: q < F(1, 2), F(5, 8), F(1, 8)),
        (lambda p, q: p < q, F(3, 8), F(1, 8)),
    ):
        distribution = E.completed(
            left_out(out)("IID", lambda t: p, lambda t: q, (-1, 0)), lambda t: p, 2
        )
        assert sum(c for t, c in distribution.items() if t[0] == 0) == x
        assert E.tv(distribution, E.target_distribution(lambda t: p, 2)) == tv
    off = 0
    for seed in range(12):
        target, draft = models(seed, 3, "dense")
        rng = random.Random(seed)
        gone = {t for t in ((x, y) for x in range(3) for y in range(3)) if rng.random() < 0.5}

        def change(paths: E.Paths, gone=gone) -> E.Paths:
            return [None if path in gone else path for path in paths]

        found = E.walks(E.rejection, E.iid, target, draft, (-1, 0, 1), change)
        off += E.tv(E.completed(found, target, 3), E.target_distribution(target, 3)) > 0
    assert off > 9


# ---------------------------------------------------------- 12.2, decisions that read uniforms


def reading(
    rule: str, target: E.Model, draft: E.Model, at: F, length: Callable[[int, bool], int]
) -> Iterator[E.Outcome]:
    """The outcomes of a chain of up to two tokens, whose length ``length(x_1, u_1 < at)`` reads the
    uniform that tests its first token. On either side of ``at`` u_1 is uniform."""
    for paths, chance in E.trees(E.iid, draft, (-1, 0, 1)):
        for start, end in ((F(0), at), (at, F(1))):

            def passing(threshold: F, start=start, end=end) -> F:
                return min(max(threshold - start, F(0)), end - start) / (end - start)

            x, mass = paths[1], chance * (end - start)
            n = length(x[0], start < at)
            if rule == "block":
                for path, passes, bonus in E.block_tests(
                    target, draft, range(-1, n), paths[: n + 1]
                ):
                    passes = passing(passes) if len(path) == 1 else passes
                    yield path, bonus, mass * passes
                    mass *= 1 - passes
                continue
            if n == 0:
                yield (), target(()), mass
                continue
            (accepted,), residual = E.rejection(target(()), draft(()), x)
            if (kept := passing(accepted)) < 1:
                yield (), residual, mass * (1 - kept)
            (again,), after = E.rejection(target(x), draft(x), paths[2][1:])
            again = again if n == 2 else F(0)
            yield paths[2], target(paths[2]), mass * kept * again
            if again < 1:
                yield x, after if n == 2 else target(x), mass * kept * (1 - again)


def test_a_length_may_read_the_uniforms_of_tests_above_it():
    """Token by token the second token may be drafted or not by what tested the first; a block's
    first test is not over when its second token is drafted."""
    for seed in range(6):
        target, draft = models(seed, 3, "dense")
        expected, rng = E.target_distribution(target, 3), random.Random(seed)
        table = {(x, low): rng.randint(1, 2) for x in range(3) for low in (True, False)}
        for at in (F(1, 2), F(1, 3), F(9, 10)):
            for length in (lambda x, low: 1 + low, lambda x, low, t=table: t[x, low]):
                outcomes = reading("rejection", target, draft, at, length)
                assert E.completed(outcomes, target, 3) == expected
    p, q = [F(3, 4), F(1, 4)], [F(1, 4), F(3, 4)]
    models_of = lambda prefix: p, lambda prefix: q
    block = E.completed(
        reading("block", *models_of, F(1, 2), lambda x, low: 1 + low), models_of[0], 3
    )
    assert E.tv(block, E.target_distribution(models_of[0], 3)) == F(1, 8)
    # read or not, a length that does not depend on it is a length
    for rule in ("rejection", "block"):
        for n in (1, 2):
            outcomes = reading(rule, *models_of, F(1, 2), lambda x, low, n=n: n)
            assert E.completed(outcomes, models_of[0], 3) == E.target_distribution(models_of[0], 3)


def test_a_token_must_not_be_left_out_by_the_uniform_that_tests_it():
    p, q = [F(1, 2), F(1, 2)], [F(3, 4), F(1, 4)]
    outcomes = reading(
        "rejection", lambda x: p, lambda x: q, F(9, 10), lambda x, low: 1 if low else 0
    )
    texts = E.completed(outcomes, lambda x: p, 3)
    assert sum(c for text, c in texts.items() if text[0] == 0) == F(11, 20)


# ----------------------------------------------------------------------------------- 13.1, slices


def test_out_of_level_order_it_is_not():
    """A node and its child before the node's sibling: what is cut at depth 1 is no leading
    block."""
    tree = Tree.parents((-1, 0, 1, 0))
    assert [i for i, d in enumerate(tree.depths[0]) if d <= 1] == [0, 1, 3]


@pytest.mark.parametrize(("width", "depth"), [(1, 3), (3, 2), (4, 4)])
def test_the_fork(width, depth):
    """W chains without their root: b is a or above it iff they are in the same chain and b's level
    is not deeper."""
    tree = Tree.branching(width, *[1] * (depth - 1))
    for a in range(width * depth):
        for b in range(width * depth):
            assert bool(tree.mask[0, 1 + a, 1 + b]) == (
                a % width == b % width and b // width <= a // width
            )


# -------------------------------------------------------------------------- 13.2, decision models


def test_what_the_labels_estimate():
    """The recipe's soft label averages to sum min(p, q) at every place, its hard one is whether the
    best tokens agree."""
    target = tiny.with_draft(tiny.target(), tiny.draft(noise=0.05))
    recipe = RECIPES["decision"](target, {})
    n = 400  # uniforms, a row each
    found = target_outputs(target, torch.tensor([[3, 1, 4, 1, 5, 9, 2, 6]]).expand(n, -1), ())
    logits, _, labels = recipe.inputs(
        found, ((torch.arange(n) + 0.5) / n).double()[:, None].expand(-1, 8)
    )
    p, q = found.logits.softmax(-1), logits.softmax(-1)
    rate = torch.minimum(p, q).sum(-1)[0]
    torch.testing.assert_close(labels["soft"].mean(0), rate, atol=0.02, rtol=0)
    assert torch.equal(labels["hard"], (p.argmax(-1) == q.argmax(-1)).float())
    assert float(rate.max() - rate.min()) > 0.05
    assert float(labels["soft"].std(0).min()) > 0.1
