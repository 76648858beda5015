"""theory/12_kangaroo.md and theory/13_improved_mcsd.md: laws in fractions, and what their theorems
say of the code. Closed forms, best rules and several roots are in tests/theory/test_stopping.py
and test_roots.py."""

from __future__ import annotations

import random
from collections.abc import Callable
from fractions import Fraction as F

import pytest

from specwb.theory import exact as E
from specwb.theory.instances import models

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
