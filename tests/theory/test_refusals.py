"""What the closed forms are not asked: wrong arguments, each named in the message."""

from __future__ import annotations

import math
from fractions import Fraction as F

import numpy as np
import pytest
import torch

from specwb.theory import analysis
from specwb.theory.analysis import dependence, diffusion, roots, rules, stopping, timing, transport
from specwb.theory.analysis import layer_parallel as layers

GOOD, SURE, NAN = [0.5, 0.5], [F(1), F(0)], float("nan")
HALF = {(0,): F(1, 2), (1,): F(1, 2)}  # a block of one token
PAIR = [[0.5, 0], [0, 0.5]]  # a table of two tokens
P = [F(1, 3), F(1, 3), F(1, 6), F(1, 6)]
EASY = roots.one_token([0, 0, 1, 1])
LOGITS = torch.zeros(2)


def always(value, chance=F(1)):
    return stopping.independent([(value, chance)])


# function -> the word in the message, and the arguments
REFUSED = {
    analysis.acceptance_rate: [(r"\[2\] and \[3\]", GOOD, [0.2, 0.3, 0.5])],
    analysis.residual: [("same tokens", GOOD, [1.0])],
    analysis.output_distribution: [("same tokens", GOOD, [1.0])],
    analysis.simulate: [("two distributions", [GOOD], [GOOD], 10), ("draws=0", GOOD, GOOD, 0)],
    analysis.acceptance_under_temperature: [
        ("temperature", LOGITS, LOGITS, t) for t in (0.0, -1.0, math.nan)
    ],
    analysis.expected_tokens: [
        *(("gamma", 0.5, gamma) for gamma in (-1, 1.5, True)),
        *(("alpha", alpha, 2) for alpha in (-0.1, 1.1)),
    ],
    analysis.speedup: [("c must", 0.5, 2, -1), ("v > 0", 0.5, 2, 0.1, 0)],
    analysis.roofline: [("batch", 2, 0, 32), ("balance", 2, 1, 0)],
    analysis.tree_reach: [
        ("depth 1, rank 1", [[0.5]], (-1, 0, 0)),
        ("depth 2, rank 0", [[0.5]], (-1, 0, 1)),
        ("root", [[0.5]], (0, 0)),
    ],
    analysis.path_values: [("1 ranks", [0.5], [-1, 0, 0])],
    **{
        grow: [
            *(("nodes", [0.5], nodes) for nodes in (0, 1.5, True)),
            ("depth", [0.5], 3, -1),
            ("rates", [[0.5], [1.5]], 3),
        ]
        for grow in (analysis.best_tree, analysis.frontier)
    },
    analysis.grow_tree: [("rise", [0.2, 0.5], 3), ("nodes", [0.5], 0), ("depth", [0.5], 3, -1)],
    analysis.choose_tree: [("seconds", [F(1, 2)], lambda tree: 0.0, 3)],
    analysis.dynamic_tree: [("width", lambda prefix: [1.0], 3, 0, 1)],
    analysis.expected_point: [("parent", lambda prefix: [1.0], [(0, 0)])],
    **{
        rate: [
            *(("p must", x, GOOD, 2) for x in ([0.7, 0.5], [1.5, -0.5], [NAN, 0.5], [0.0, 0.0])),
            ("q must", GOOD, [1.5, -0.5], 2),
            *(("same tokens", p, q, 2) for p, q in ((GOOD, [1.0]), (0.5, 0.5), ([], []))),
            *(("children", GOOD, GOOD, k) for k in (0, -1, 1.5, True)),
        ]
        for rate in analysis.RATES.values()
    },
    analysis.optimum: [("'nope'", GOOD, GOOD, 2, "nope"), ("children", GOOD, GOOD, 0)],
    analysis.optimum_lp: [("'nope'", GOOD, GOOD, 2, "nope"), ("p must", [0.5, 0.6], GOOD, 2)],
    analysis.optimum_by_subsets: [
        ("'nope'", GOOD, GOOD, 2, "nope"),
        ("p must", [0.6] * 2, GOOD, 2),
    ],
    transport.drafts: [("one distribution", np.full((2, 2), 0.5), 2)],
    timing.measured_speedups: [("design", "best of three", 1.3), ("> 0", "one run each", 0)],
    timing.slowdowns: [(">= 1", 0, 1), (">= 1", 1, 0), (">= 1", 1, 1, 0.5)],
    stopping.left_out_distribution: [("tokens are", [F(1)], [F(1)], {1})],
    stopping.compression: [("one step", []), ("one step", [-1])],
    stopping.stopped: [
        ("values in", always(F(2)), 2, lambda h: True, 0.1),
        ("sum to 1", always(F(1), F(1, 2)), 2, lambda h: True, 0.1),
        ("gamma", always(F(1)), -1, lambda h: True, 0.1),
    ],
    stopping.best_stopping: [("no time", always(F(1)), 2, -0.1)],
    diffusion.marginals: [
        ("one length", {}),
        ("one length", {(): F(1)}),
        (r"lengths \[1, 2\]", {(0,): F(1, 2), (0, 1): F(1, 2)}),
        ("sum 1/2", {(0,): F(1, 2)}),
        ("distribution", {(0,): F(3, 2), (1,): F(-1, 2)}),
        ("distribution", {(0,): NAN}),
    ],
    diffusion.expected_accepted: [("path 2", HALF, (0, 1))],
    diffusion.drawn_accepted: [("2 distributions", HALF, [[F(1)], [F(1)]])],
    diffusion.best_path: [("1 positions", HALF, [[0], [1]])],
    diffusion.most_probable: [("candidate", HALF, [[]])],
    diffusion.ratio_distribution: [("= 0", SURE, SURE, 1), ("1 and 2", [F(1)], SURE, 0)],
    diffusion.adl_trace: [
        ("as many lengths", [3], [1, 2]),
        ("none below 0", [3], [-1]),
        ("least=5, most=4", [3], [1], 5, 4),
        ("rho=0", [3], [1], 20, 30, 10, 0),
    ],
    dependence.entropy: [
        *(("distributions", t) for t in ([[0.5, 0.6], [0, 0]], [[0.5, NAN]], [[1.5, -0.5]])),
        ("distributions", [GOOD, [1, 0]], None, (), [0.5, 0.6]),
        ("weights", [GOOD, [1, 0]], None, (), [1.0]),
        ("table", 1.0),
        ("positions", GOOD, (2,)),
    ],
    dependence.mutual_information: [("positions", PAIR, (1,), (0,))],
    dependence.excess: [("reveal", PAIR, [[1.0]])],
    dependence.glanced_loss: [("reveal", PAIR, [[1.0], [0.5, 0.6]])],
    dependence.prefix_reveal: [("k=0", 0, 0.5), ("g=1.5", 2, 1.5)],
    layers.fuzzy_ratio: [("share must", 1.1, 2, 4), ("rounds must", 0.5, 5, 4)],
    layers.stage_speedup: [("ratio must", 0, 5), ("depth must", 0.5, 0)],
    layers.break_even: [("stage above 0", 0, 5, 0.1)],
    layers.exchange_limit: [("devices must", 4, 0, 1)],
    layers.timeline: [
        ("times must", ((0,),), -1, 1, 0, 1, 1),
        ("devices must", ((0,),), 1, 1, 0, True, 1),
    ],
    layers.gained_cosine: [("kappa", 0.5, 0.5)],
    roots.one_token: [(r"0\.\.1", [2])],
    roots.later_draw: [(r"1\.\.4", P, 5)],
    roots.least_shift: [("share", F(2), 1)],
    roots.kept_greedy: [("length for each", P, [1], 1)],
    roots.kept_root: [
        ("W >= 1", P, EASY, 0),
        ("3 distributions", P, EASY[:3], 1),
        ("sum 1", P, [[F(1, 2)]] * 4, 1),
        ("'top'", P, EASY, 1, "top"),
    ],
}


@pytest.mark.parametrize("function", REFUSED, ids=lambda f: f.__name__)
def test_refused(function) -> None:
    for word, *arguments in REFUSED[function]:
        with pytest.raises(ValueError, match=word):
            function(*arguments)


def test_too_few_samples_are_refused() -> None:
    with pytest.raises(ValueError, match="samples"):
        rules.rrsw_estimate(GOOD, GOOD, 2, samples=1)
