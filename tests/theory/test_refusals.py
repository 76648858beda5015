"""Arguments that would give a wrong number are refused, each named in the message."""

from __future__ import annotations

from fractions import Fraction as F

import pytest

from specwb.theory import analysis, exact
from specwb.theory.analysis import dependence, diffusion, stopping, timing

GOOD, NAN = [0.5, 0.5], float("nan")


@pytest.mark.parametrize(
    ("call", "word"),
    [
        (lambda: analysis.acceptance_rate(GOOD, [0.2, 0.3, 0.5]), r"\[2\] and \[3\]"),
        (lambda: analysis.simulate(GOOD, GOOD, 0), "draws=0"),
        *(
            (lambda rate=rate, p=p: rate(p, GOOD, 2), "p must be probabilities")
            for rate in analysis.RATES.values()
            for p in ([0.5, 0.4], [NAN, 1.0])
        ),
        (lambda: analysis.optimum(GOOD, GOOD, 0), "integer >= 1"),
        (lambda: analysis.optimum(GOOD, GOOD, 2, "nope"), "unknown sampling scheme"),
        (lambda: analysis.tree_reach([[0.5]], (-1, 0, 0)), "depth 1, rank 1"),
        (lambda: analysis.grow_tree([0.2, 0.5], 3), "rise"),
        (lambda: analysis.expected_point(lambda prefix: [1.0], [(0, 0)]), "parent"),
        (lambda: dependence.entropy([[0.5, 0.4], [0, 0]]), "sum 1"),
        (lambda: diffusion.marginals({(0,): F(1, 2), (0, 1): F(1, 2)}), "one length"),
        (lambda: diffusion.ratio_distribution([F(1), F(0)], [F(1), F(0)], 1), r"q\(x\) > 0"),
        (lambda: stopping.best_stopping(lambda history: [(F(1, 2), F(1, 2))], 1, 1), "sum to 1"),
        (lambda: timing.measured_speedups("nope", 1.0), "design"),
        (lambda: exact.root_chances([F(1)], [[F(1, 2)]], 1), "sum 1"),
    ],
)
def test_wrong_arguments(call, word):
    with pytest.raises(ValueError, match=word):
        call()
