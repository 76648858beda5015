"""theory/11_diffuspec.md: laws in fractions, searches against all paths, and what its theorems say
of the code."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from fractions import Fraction as F
from itertools import product

from specwb.drafters.diffuspec_parts.lattice import Lattice, beam, exhaustive, viterbi
from specwb.theory import exact as E
from specwb.theory.analysis import diffusion as d

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
