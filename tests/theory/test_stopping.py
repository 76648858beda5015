"""When to stop: outputs and best rules in closed form agree with enumeration; what the published
numbers imply."""

from __future__ import annotations

import math
import random
from fractions import Fraction as F
from itertools import product
from statistics import mean

from instances import drawn

from specwb.theory import exact as E
from specwb.theory.analysis import stopping as s
from specwb.theory.instances import models
from specwb.theory.wrong_rules import WRONG_RULES, left_out

# -------------------------------------------------------------------------------- 12.2, leaving out


def closed_form(p: list[F], q: list[F], out: set[int]) -> list[F]:
    """The distribution of the output by the theorem."""
    untested = sum((q[x] for x in out), F(0))
    rejected = sum((max(q[x] - p[x], F(0)) for x in range(len(p)) if x not in out), F(0))
    excess = E.minus(p, q)
    residual = E.norm(excess) if any(excess) else excess
    accepted = [F(0) if y in out else min(a, b) for y, (a, b) in enumerate(zip(p, q))]
    return [a + untested * b + rejected * c for a, b, c in zip(accepted, p, residual)]


def test_what_comes_out_where_tokens_are_left_out() -> None:
    rng, off = random.Random(0), 0
    for _ in range(80):
        v = rng.choice([2, 3, 4])
        p, q = drawn(rng, v, 0), drawn(rng, v)
        for out in ({x for x in range(v) if subset >> x & 1} for subset in range(1 << v)):
            output = s.left_out_distribution(p, q, out)
            assert output == closed_form(p, q, out)
            if not out or len(out) == v:
                assert output == p
            assert E.tv(output, p) <= sum(q[x] for x in out)
            off += output != p
        behind = {
            x for x in range(v) if p[x] < q[x]
        }  # these tokens are left out after a look at the target
        peeked = s.left_out_distribution(p, q, behind)
        mass = sum(q[x] for x in behind)
        assert [peeked[x] for x in behind] == [mass * p[x] for x in behind]
        assert E.tv(peeked, p) >= sum(p[x] for x in behind) * (1 - mass)
        assert v > 2 or E.tv(peeked, p) == sum(p[x] for x in behind) * (1 - mass)
    assert off > 200


def test_a_block_must_not_depend_on_the_uniforms_of_its_tests() -> None:
    """Theorem 12.2.5: two tokens where the first one's uniform is below 1/2, otherwise one."""
    p, q = [F(3, 4), F(1, 4)], [F(1, 4), F(3, 4)]
    target, draft = (lambda _: p), (lambda _: q)
    outcomes = []
    for parents, is_low in (((-1, 0, 1), True), ((-1, 0), False)):

        def given_the_half(*drafted, is_low=is_low):
            for path, passes, bonus in E.block_tests(*drafted):
                if len(path) == 1:
                    passes = min(F(1), 2 * passes) if is_low else max(F(0), 2 * passes - 1)
                yield path, passes, bonus

        some = E.decided(given_the_half)("IID", target, draft, parents)
        outcomes += [(path, bonus, chance / 2) for path, bonus, chance in some]
    text = E.completed(outcomes, target, 3)
    assert E.tv(text, E.target_distribution(target, 3)) == F(1, 8)
    assert sum(chance for (first, *_), chance in text.items() if first == 1) == F(1, 8)


# -------------------------------------------------------------------------------- 12.3, CR and CTAR


def test_cr_is_one_and_the_sum_of_ctar() -> None:
    rng = random.Random(1)
    for _ in range(20):
        kept = [rng.randint(0, 6) for _ in range(rng.randint(1, 40))]
        cr, ctar = s.compression(kept)
        assert cr == mean(F(k + 1) for k in kept) == 1 + sum(ctar)
        assert ctar == sorted(ctar, reverse=True)
    assert s.compression([0, 0]) == (1, [])


# --------------------------------------------------------------------------------------- 12.4, time


def every_rule(sure: s.Sure, gamma: int, price: s.Price) -> F:
    """The best speed of all sets of histories after which the rule goes on; for the smallest sizes
    only."""
    histories = [h for n in range(gamma) for h in product(*([[c for c, _ in sure(())]] * n))]
    speeds = []
    for subset in range(1 << len(histories)):
        on = {h for i, h in enumerate(histories) if subset >> i & 1}
        speeds.append(s.stopped(sure, gamma, on.__contains__, price).speedup)
    return max(speeds)


def test_the_best_rule_is_the_best_of_all() -> None:
    rng = random.Random(3)
    for _ in range(12):
        values = sorted(F(c, 10) for c in rng.sample(range(11), 3))
        first, sure, unsure = (list(zip(values, drawn(rng, 3, 0), strict=True)) for _ in range(3))

        def dependent(history, first=first, sure=sure, unsure=unsure):
            if not history:
                return first
            return unsure if history[-1] < F(1, 2) else sure

        price = F(rng.randint(1, 40), 100)
        assert s.best_stopping(dependent, 2, price).result.speedup == every_rule(
            dependent, 2, price
        )


def test_going_on_to_see() -> None:
    """Where the first token shows how sure the drafter is of all others, it is worth drafting
    though it is not worth its price."""
    quarter = [(F(0), F(3, 4)), (F(1), F(1, 4))]

    def sure(history):
        return [(history[-1], F(1))] if history else quarter

    best = s.best_stopping(sure, 6, F(3, 10))
    assert best.result.speedup == F(5, 2) / F(67, 40)
    assert s.next_kept(sure, ()) == F(1, 4) < F(3, 10) * best.result.speedup
    assert best.onward == {(F(1),) * n for n in range(6)}


def test_the_mutants_do_what_the_closed_form_says() -> None:
    for name, out in (
        ("unsure_left_out", lambda p, q: q < F(1, 3)),
        ("peeking", lambda p, q: p < q),
    ):
        for seed in range(5):
            target, draft = models(seed, 3, "dense")
            p, q = target(()), draft(())
            text = E.completed(WRONG_RULES[name].outcomes(target, draft, (-1, 0)), target, 2)
            expected = s.left_out_distribution(p, q, {x for x in range(3) if out(p[x], q[x])})
            assert [sum(c for t, c in text.items() if t[0] == x) for x in range(3)] == expected
    never = left_out(lambda p, q: False)
    target, draft = models(0, 3, "dense")
    assert E.completed(never("IID", target, draft, (-1, 0, 1)), target, 3) == E.target_distribution(
        target, 3
    )


def confidences(rng: random.Random, levels: int = 3) -> list[tuple[F, F]]:
    values = sorted(rng.sample(range(11), levels))
    return [
        (F(c, 10), b)
        for c, b in zip(values, E.norm([rng.randint(1, 5) for _ in values]), strict=True)
    ]


def test_where_to_stop() -> None:
    """With independent confidences the rule goes on iff what the next token brings is above its
    price times the best speed. That is a threshold on the product."""
    rng, counts, behind = random.Random(4), [0, 0], 0
    for _ in range(25):
        values = confidences(rng)
        sure, price, gamma = s.independent(values), F(rng.randint(2, 40), 100), 4
        best = s.best_stopping(sure, gamma, price)
        average = sum(c * b for c, b in values)
        for n in range(gamma):
            for history in product([c for c, _ in values], repeat=n):
                if all(history[:i] in best.onward for i in range(n)):
                    goes = s.next_kept(sure, history) > price * best.result.speedup
                    assert (history in best.onward) == goes
                    assert s.next_kept(sure, history) == average * math.prod(history, start=F(1))
                    counts[goes] += 1
        thresholds = (F(0), *(c for c, _ in values), F(2))
        eta = max(
            s.stopped(sure, gamma, lambda h, eta=eta: not h or h[-1] >= eta, price).speedup
            for eta in thresholds
        )
        fixed = max(s.stopped(sure, g, lambda h: True, price).speedup for g in range(gamma + 1))
        assert best.result.speedup >= max(eta, fixed)
        behind += best.result.speedup > eta
        assert eta > F(97, 100) * best.result.speedup or not best.onward
    assert min(counts) > 20
    assert behind > 5
