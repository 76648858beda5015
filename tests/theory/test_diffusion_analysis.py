"""Blocks drafted in one pass: the functions agree with small tables worked by hand and with the
exact verifiers."""

from __future__ import annotations

import random
from fractions import Fraction as F
from itertools import product

import pytest
import torch

from specwb.drafters.length import Adaptive
from specwb.theory import exact as E
from specwb.theory.analysis import diffusion as d
from specwb.theory.analysis import expected_point
from specwb.theory.instances import models, pairs

CROSSED = {  # the row of most probable tokens is (0, 1), which the target never writes
    (0, 2): F(2, 5),
    (1, 1): F(3, 10),
    (2, 1): F(3, 10),
}


def blocks(k: int, kind: str = "any") -> list[dict]:
    return [E.target_distribution(models(seed, v, kind)[0], k) for seed in range(8) for v in (2, 3)]


def test_a_table_by_hand() -> None:
    assert d.marginals(CROSSED) == [[F(2, 5), F(3, 10), F(3, 10)], [0, F(3, 5), F(2, 5)]]
    assert d.argmax_row(CROSSED) == (0, 1)
    assert d.greedy_path(CROSSED) == d.best_path(CROSSED) == d.most_probable(CROSSED) == (0, 2)
    kept = [d.expected_accepted(CROSSED, x) for x in ((0, 1), (0, 2), (1, 1), (0,), (), (1, 0))]
    assert kept == [F(2, 5), F(4, 5), F(3, 5), F(2, 5), 0, F(3, 10)]
    # the first token is drawn from its own marginal; then min(1, 2/5) after 0 and min(1, 3/5) after
    # the others
    assert d.drawn_accepted(CROSSED) == 1 + F(2, 5) * F(2, 5) + F(3, 5) * F(3, 5)
    assert d.best_path(CROSSED, [[0, 1], [1]]) == (1, 1)
    swapped = {(0, 1): F(1, 2), (1, 0): F(1, 2)}
    assert (d.argmax_row(swapped), d.greedy_path(swapped)) == (
        (0, 0),
        (0, 1),
    )  # of equals the lowest
    assert d.most_probable(CROSSED, [[1, 2], [0, 1]]) == (1, 1)  # of equals the first


@pytest.mark.parametrize("kind", ["any", "dense"])
def test_expected_lengths_are_what_the_exact_rules_accept(kind: str) -> None:
    """A fixed path is verified by the point-mass rule and independent draws by rejection, from the
    marginals and from other distributions."""
    chain = (-1, 0, 1, 2)
    for seed, v in product(range(4), (2, 3)):
        target, draft = models(seed, v, kind)
        joint = E.target_distribution(target, 3)
        for path in product(range(v), repeat=3):
            nodes = [path[:i] for i in range(1, 4)]
            assert d.expected_accepted(joint, path) == expected_point(target, nodes)
        for drafts in (None, [draft((0,) * i) for i in range(3)]):
            flat = d.marginals(joint) if drafts is None else drafts
            flat = [[*q, *[F(0)] * (v - len(q))] for q in flat]
            found = E.expected_accepted(
                E.rejection, E.iid, target, lambda prefix, flat=flat: flat[len(prefix)], chain
            )
            assert d.drawn_accepted(joint, drafts) == found


def test_the_best_and_the_most_probable_path_by_definition() -> None:
    rng, differ = random.Random(0), 0
    for joint in [*blocks(3), *blocks(3, "dense")]:
        v = len(d.marginals(joint)[0])
        among = [sorted(rng.sample(range(v), rng.randint(1, v))) for _ in range(3)]
        for lattice in (None, among):
            paths = list(product(*(lattice or [range(v)] * 3)))
            best, likely = d.best_path(joint, lattice), d.most_probable(joint, lattice)
            assert d.expected_accepted(joint, best) == max(
                d.expected_accepted(joint, path) for path in paths
            )
            assert joint.get(likely, 0) == max(joint.get(path, 0) for path in paths)
            assert best in paths
            assert likely in paths
            differ += d.expected_accepted(joint, likely) < d.expected_accepted(joint, best)
    assert differ > 0


def test_ratio_distribution_is_the_exact_rule_on_a_point() -> None:
    for p, q in pairs(300, sizes=(2, 3, 4)):
        for x, b in enumerate(q):
            if b:
                assert d.ratio_distribution(p, q, x) == E.output_distribution(
                    E.rejection, lambda q, k, x=x: [((x,), F(1))], p, q, 1
                )


def test_a_trace_by_hand() -> None:
    """With the paper's constants there is no end of text; all tokens are accepted twice, then never
    again."""
    rounds = d.adl_trace([None] * 5, [30, 25, 7, 8, 28])
    assert [r.k for r in rounds] == [30, 25, 30, 25, 25]
    assert [r.next for r in rounds] == [25, 30, 25, 25, 25]
    assert [r.mean_generated for r in rounds] == [15, 20, 25, 25, 25]
    # 28 is cut to the 25 that were drafted
    assert [r.mean_accepted for r in rounds] == [15, 20, F(27, 2), F(43, 4), F(143, 8)]
    assert [r.grows for r in rounds] == [True, True, False, False, False]
    # the text ends after 7 positions, then at once; this shows the ceiling and the clip from below
    low = d.adl_trace([7, 0, 9], [3, 0, 9], least=2, most=12, delta=3)
    assert [tuple(r) for r in low] == [
        (12, 7, 3, F(7, 2), F(3, 2), False, 4),
        (4, 0, 0, F(7, 4), F(3, 4), False, 2),
        (2, 2, 2, F(15, 8), F(11, 8), False, 2),
    ]
    # with a smaller share the length grows after the same rounds
    assert [r.next for r in d.adl_trace([7, 0, 9], [3, 0, 9], 2, 12, 3, share=F(2, 5))] == [7, 5, 7]


@pytest.mark.parametrize("seed", range(6))
def test_the_drafters_controller_does_the_same(seed: int) -> None:
    rng = random.Random(seed)
    constants = {
        "rho": rng.choice([0.5, 0.25, 1.0]),
        "share": rng.choice([1.0, 0.75, 0.5]),
        "delta": rng.choice([10, 4, 0]),
    }
    least, most = rng.choice([(20, 30), (4, 64), (1, 7)])
    rows = 4
    ends = [[rng.choice([None, rng.randint(0, most)]) for _ in range(rows)] for _ in range(25)]
    length = Adaptive(least, most, **constants)
    length.open(rows, "cpu")
    generated, accepted, tokens = [], [], [length.tokens.tolist()]
    for row_ends in ends:
        k = tokens[-1]
        generated.append(
            [k[i] if end is None else min(end, k[i]) for i, end in enumerate(row_ends)]
        )
        accepted.append([rng.choice([n, rng.randint(0, n)]) for n in generated[-1]])
        length.observe(torch.tensor(generated[-1]), torch.tensor(accepted[-1]))
        tokens.append(length.tokens.tolist())
    for i in range(rows):
        drafted, kept = [row[i] for row in ends], [row[i] for row in accepted]
        rounds = d.adl_trace(drafted, kept, least, most, **constants)
        assert [r.k for r in rounds] == [k[i] for k in tokens[:-1]]
        assert rounds[-1].next == tokens[-1][i]
        assert rounds[-1].mean_generated == length.generated[i]
        assert rounds[-1].mean_accepted == length.accepted[i]
    assert len({k for row in tokens for k in row}) > 1
