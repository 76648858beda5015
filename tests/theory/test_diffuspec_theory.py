"""theory/11_diffuspec.md: laws in fractions, searches against all paths, and what its theorems say
of the code."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from fractions import Fraction as F
from itertools import combinations, product

import pytest
import torch
from instances import divergence, drawn

from specwb.core.probability import Sampling
from specwb.drafters.diffuspec_parts.lattice import Lattice, beam, exhaustive, viterbi
from specwb.models.path import sampled_walk
from specwb.theory import exact as E
from specwb.theory.analysis import diffusion as d
from specwb.theory.instances import models
from specwb.theory.wrong_rules import WRONG_RULES

Joint = dict[E.Tokens, F]


def block(rng: random.Random, k: int, v: int, sure: int = 0) -> Joint:
    """A joint law with zeros; ``sure`` more weight for one path."""
    weights = {x: rng.choice([0, 0, 1, 2, 5]) for x in product(range(v), repeat=k)}
    weights[rng.choice(list(weights))] += 1 + sure
    return {x: F(w, sum(weights.values())) for x, w in weights.items() if w}


# ---------------------------------------------------------------------------------- 11.2, the row


def test_bounds_of_the_row():
    rng, sure, apart = random.Random(1), 0, 0
    for case in range(200):
        k, v = rng.choice([(2, 3), (3, 2), (3, 3), (2, 4)])
        joint = block(rng, k, v, sure=20 * (case % 2) * v**k)
        row, distributions = d.argmax_row(joint), d.marginals(joint)
        kept, most = d.expected_accepted(joint, row), d.expected_accepted(joint, d.best_path(joint))
        assert row[0] == d.greedy_path(joint)[0]
        assert kept >= max(distributions[0]) >= most / k
        s = F(0)
        for j, distribution in enumerate(distributions, start=1):
            s += 1 - distribution[row[j - 1]]
            assert sum((c for x, c in joint.items() if x[:j] == row[:j]), F(0)) >= 1 - s
        if s < F(1, 2):
            assert row == d.greedy_path(joint)
        sure += s < F(1, 2)
        apart += row != d.greedy_path(joint)
    assert min(sure, apart) > 20


# ------------------------------------------------------------------------------- 11.3, the search


class Table:
    """A proxy of probabilities: ``row(tokens before)`` is a law or a part of one."""

    def __init__(self, order: int, row) -> None:
        self.order, self.row = order, row

    def scores(self, context, candidates, /) -> list[float]:
        distribution = self.row(tuple(context[max(0, len(context) - self.order + 1) :]))
        return [math.log(distribution[x]) for x in candidates]


def lattice(rows: Sequence[Sequence[F]], ends: Sequence[int] = ()) -> Lattice:
    """All tokens of positive probability at every place, the likeliest first."""
    ids = [
        sorted((x for x, q in enumerate(row) if q), key=lambda x, row=row: (-row[x], x))
        for row in rows
    ]
    logq = [[math.log(row[x]) for x in places] for row, places in zip(rows, ids, strict=True)]
    return Lattice(ids, logq, frozenset(ends))


def test_a_beam_as_wide_as_the_states_can_miss_the_best_path():
    rows = [[F(1, 2), F(1, 2)], [F(3, 4), F(1, 4)], [F(1, 2), F(1, 2)]]
    quarter = [F(1, 4), F(1, 4)]
    proxy = Table(2, lambda before: [F(1, 4), F(1, 2)] if before == (1,) else quarter)
    where = lattice(rows)
    assert viterbi(where, proxy).tokens == exhaustive(where, proxy)[0].tokens == (1, 1, 1)
    for b in (1, 2, 3, 4):
        assert (beam(where, proxy, width=b)[0].tokens == (1, 1, 1)) is (b > 2)


# -------------------------------------------------------------------------- 11.6, adaptive length


def test_growth_ends_with_the_first_failure():
    """By the newest round alone, with rho = 1."""
    rounds = d.adl_trace([3, 5, 4], [1, 5, 3], 1, 9, 2, F(1))
    assert [r.grows for r in rounds] == [False, True, False]


Distributions = Sequence[E.Dist]


def padded(distributions: Distributions, v: int) -> list[list[F]]:
    return [[*distribution, *[F(0)] * (v - len(distribution))] for distribution in distributions]


def given(joint: Joint, known: dict[int, int], place: int, v: int) -> list[F]:
    """The law of one place given others."""
    there = {x: c for x, c in joint.items() if all(x[i] == a for i, a in known.items())}
    return E.norm([sum((c for x, c in there.items() if x[place] == y), F(0)) for y in range(v)])


def test_one_pass_gives_marginals():
    """Every law of a place loses its divergence from the marginal, all together the total
    correlation; and so for every set of hidden places."""
    rng = random.Random(0)
    for _ in range(6):
        k, v = 3, 2
        joint = block(rng, k, v)
        distributions, said = padded(d.marginals(joint), v), [drawn(rng, v) for _ in range(k)]

        def loss(distributions: Distributions, joint: Joint = joint) -> float:
            drafted = {x: math.prod(m[y] for m, y in zip(distributions, x)) for x in joint}
            return -sum(float(c) * math.log(drafted[x]) for x, c in joint.items())

        autoregressive = -sum(float(c) * math.log(c) for c in joint.values())
        correlation = sum(
            float(c) * math.log(c / math.prod(m[y] for m, y in zip(distributions, x, strict=True)))
            for x, c in joint.items()
        )
        assert loss(distributions) == pytest.approx(autoregressive + correlation)
        assert loss(said) == pytest.approx(
            loss(distributions)
            + sum(divergence(m, q) for m, q in zip(distributions, said, strict=True))
        )

        # hidden places S, the others seen: what is lost is a sum over S, with laws of its own for
        # each
        found = least = over = 0.0
        for hidden in (s for n in range(1, k + 1) for s in combinations(range(k), n)):
            weight, said_there = rng.random(), {}
            for x, c in joint.items():
                known = {i: x[i] for i in range(k) if i not in hidden}
                for i in hidden:
                    best = given(joint, known, i, v)
                    other = said_there.setdefault((i, *known.items()), drawn(rng, v))
                    found -= weight * float(c) * math.log(other[x[i]])
                    least -= weight * float(c) * math.log(best[x[i]])
                    over += weight * float(c) * divergence(best, other)
        assert found == pytest.approx(least + over)
        assert over > 0.01
        assert [given(joint, {}, i, v) for i in range(k)] == distributions  # all hidden


def test_how_far_off_it_can_be():
    """One place: bounds from both sides. A round: the expected sum over the places that are
    tested."""
    rng, equal = random.Random(8), 0
    for _ in range(300):
        v = rng.choice([2, 3, 4])
        p, q = drawn(rng, v, 0), drawn(rng, v)
        for x in range(v):
            a = min(F(1), p[x] / q[x])
            off = E.tv(d.ratio_distribution(p, q, x), p)
            assert a - p[x] <= off <= 1 - q[x]
            assert v > 2 or off == a - p[x]
            assert (a == p[x]) == (p[x] in (0, 1) or q[x] == 1)
            assert E.tv(d.ratio_distribution(q, q, x), q) == 1 - q[x]
            equal += off == a - p[x]
    assert equal > 100
    strict = 0
    for seed in range(8):
        target, draft = models(seed, 3, "dense")
        distributions = [draft((0,) * i) for i in range(2)]
        outcomes = list(WRONG_RULES["searched_ratio"].outcomes(target, draft, (-1, 0, 1)))
        path = max(
            (path for path, _, _ in outcomes), key=len
        )  # laws without zeros: sometimes all of it is kept
        bound = sum(
            prob * sum(1 - distributions[i][path[i]] for i in range(min(len(kept) + 1, 2)))
            for kept, _, prob in outcomes
        )
        off = E.tv(E.completed(outcomes, target, 3), E.target_distribution(target, 3))
        assert len(path) == 2
        assert 0 < off <= bound
        tested_once = sum(prob for kept, _, prob in outcomes if not kept)
        strict += (
            bound < 2 - distributions[0][path[0]] - distributions[1][path[1]] and tested_once > 0
        )
    assert strict > 3


def test_choosing_against_drawing_at_one_place():
    rng, ahead = random.Random(12), set()
    for _ in range(300):
        v = rng.choice([2, 3, 4])
        p, q = drawn(rng, v, 0), drawn(rng, v)
        alpha = E.overlap(p, q)
        for x in range(v):
            kept = p[x]
            assert alpha - kept == sum(
                (min(a, b) for y, (a, b) in enumerate(zip(p, q, strict=True)) if y != x), F(0)
            ) - max(p[x] - q[x], F(0))
            assert kept - alpha <= max(p[x] - q[x], F(0))
            assert p[x] > q[x] or alpha >= kept
            ahead.add((alpha > kept) - (alpha < kept))
        square = sum(a * a for a in p)
        assert math.exp(sum(float(a) * math.log(a) for a in p if a)) <= float(square) + 1e-12
        assert square <= max(p)
        assert E.acceptance(E.naive, E.iid, p, p, 1) == square
        uniform = len({a for a in p if a}) == 1
        assert (square == max(p)) == uniform
        assert (
            abs(math.exp(sum(float(a) * math.log(a) for a in p if a)) - float(square)) < 1e-9
        ) == uniform
    assert ahead == {-1, 0, 1}


def test_walks_are_drawn_as_in_the_theorem():
    """What the drafter calls the q of a node, against the theorem's weights: behind a candidate and
    behind another token, also with a temperature."""
    rng, behind_others = random.Random(5), 0
    for _ in range(40):
        kept = [rng.sample(range(4), 2) for _ in range(2)]
        own = [E.norm([F(rng.randint(1, 5)) for _ in range(4)]) for _ in range(2)]
        weights = [
            [[F(rng.randint(1, 6), 4) for _ in range(2)] for _ in range(2)] for _ in range(2)
        ]
        weights[0][1] = weights[0][0]  # behind the anchor
        t = rng.choice([1.0, 0.5])
        tokens, q = sampled_walk(
            torch.tensor([[[[float(x) for x in b] for b in a] for a in weights]]).double().log(),
            torch.tensor([kept]),
            torch.tensor([[[float(x) for x in row] for row in own]]).double().log(),
            Sampling(t),
            torch.tensor([[rng.random(), rng.random()]]).double(),
        )
        first = int(tokens[0, 0])
        behind_others += first not in kept[0]
        for i in range(2):
            wanted = list(own[i])
            if not i or first in kept[0]:
                rank = kept[0].index(first) if i else 0
                for b, x in zip(kept[i], weights[i][rank], strict=True):
                    wanted[b] = x
            if t == 0.5:
                wanted = [x * x for x in wanted]
            exact = torch.tensor([float(x) for x in E.norm(wanted)]).double()
            assert torch.allclose(q[0, i], exact, atol=1e-7)
    assert 5 < behind_others < 35
