"""Exact text: its distribution, its acceptance, and its bits in float32 and bfloat16. That every
method writes it in float64 is tested in tests/test_protocol.py."""

from __future__ import annotations

import functools
from itertools import product

import pytest
import tiny
import torch
from scipy import stats
from test_protocol import FIRST, LONG, Pair, cases, every_case, made

import specwb
from specwb.core.flow import Draft, Scheme, Scores
from specwb.core.noise import Noise, row_seeds
from specwb.core.probability import Sampling
from specwb.core.tree import Tree
from specwb.models import compiled
from specwb.rules import Greedy
from specwb.theory.analysis import exact_text_rate

ROWS = 3000


@pytest.mark.parametrize(("temperature", "top_p"), [(0.6, 1.0), (1.0, 0.8)])
def test_first_tokens_have_the_targets_distribution(temperature, top_p):
    target, prompt = tiny.target(), [1, 2, 3]
    p = tiny.forward(target.model, prompt)[-1].double().softmax(-1)
    settings = {"temperature": temperature, "top_p": top_p, "exact_text": True}
    out = specwb.decode(target, [prompt] * ROWS, "ar", max_new_tokens=1, seed=7, **settings)
    counts = torch.bincount(torch.tensor(out.tokens)[:, 0], minlength=tiny.VOCABULARY)
    p = Sampling(temperature, top_p=top_p).probabilities(p.log())
    assert not counts[p == 0].any()
    few = p * ROWS < 5
    seen = torch.cat([counts[~few], counts[few].sum()[None]])
    wanted = torch.cat([p[~few], p[few].sum()[None]]) * ROWS
    keep = wanted > 0
    assert stats.chisquare(seen[keep], wanted[keep]).pvalue > 1e-3


P = torch.tensor([0.45, 0.3, 0.15, 0.06, 0.04, 0.0], dtype=torch.float64)
Q = torch.tensor([0.1, 0.25, 0.25, 0.3, 0.0, 0.1], dtype=torch.float64)


@pytest.mark.parametrize("k", [1, 2, 4])
def test_the_first_arrivals_are_accepted_with_their_rate(k):
    """Theorem 7.8, by the tensors that decode: logits of one node for many rows of seeds."""
    rows = 40_000
    noise = Noise(row_seeds(3, rows, torch.device("cpu")), {}, 1)
    gumbel = noise.gumbel(torch.full((rows, 2), 5) + torch.arange(2), len(P))
    tokens = (Q.log() + gumbel[:, 0]).topk(k, -1).indices
    tokens = torch.cat([torch.zeros_like(tokens[:, :1]), tokens], 1)
    tree = Tree.branching(k)
    draft = Draft(tree, tokens, torch.ones_like(tokens, dtype=torch.bool), Scheme.POINT)
    sampling = Sampling(1.0, exact_text=True)
    scores = Scores(P.log().expand(rows, k + 1, -1), sampling)
    scores.perturb(tree, gumbel)
    accepted = Greedy().verify(draft, scores).accepted
    rate = float(exact_text_rate(P, Q, k))
    assert abs(float(accepted.double().mean()) - rate) < 4 * (rate * (1 - rate) / rows) ** 0.5


ROUNDED = [Pair("qwen3", 0.02, dtype) for dtype in (torch.float32, torch.bfloat16)]
TEXTS = [*tiny.PROMPTS, [40], [2] * 9, LONG, [*range(20, 37)], [63, 1]]


def written(
    pair: Pair, method: str | specwb.Method, rows: list[int], temperature: float, top_p: float
) -> torch.Tensor:
    out = specwb.decode(
        pair.target,
        [TEXTS[row] for row in rows],
        method,
        seed=rows,
        temperature=temperature,
        top_p=top_p,
        exact_text=True,
        max_new_tokens=12,
        eos=(),
    )
    return torch.tensor(out.tokens)


plain = functools.cache(lambda pair, *setting: written(pair, "ar", [*range(len(TEXTS))], *setting))


def check(key: str, options: dict, pair: Pair, row: int, *setting: float) -> None:
    """All rows in a batch, and one of them alone."""
    assert compiled.fits(pair.target.backbone)
    method = made(key, {n: x for n, x in options.items() if n != "rule"}, pair)
    for rows in ([*range(len(TEXTS))], [row]):
        assert torch.equal(written(pair, method, rows, *setting), plain(pair, *setting)[rows])


@cases([(*case, i % len(TEXTS)) for i, case in enumerate(FIRST)], "key, options, row")
def test_rows_of_a_batch_write_plain_decodings_bits(key, options, row):
    """In float32 and bfloat16 too: the compiled pass gives a node of a tree the bits of its path
    (theorem 8.10)."""
    check(key, options, ROUNDED[row % 2], row, 1.7, 0.8)


@pytest.mark.slow
@every_case
@pytest.mark.parametrize("pair", ROUNDED, ids=["float32", "bfloat16"])
def test_every_method_at_every_setting(key, options, pair):
    for row, setting in enumerate(product((0.3, 1.0, 1.7), (1.0, 0.8))):
        check(key, options, pair, row, *setting)


def test_an_explained_step_shows_the_noise_decide():
    target = tiny.target()
    method = specwb.method("mcsd:tree=2-2", target, draft=tiny.draft())
    settings = {"temperature": 1.0, "exact_text": True, "max_new_tokens": 12, "trace": True}
    for step in specwb.rounds(target, [1, 2, 3], method, **settings):
        found = specwb.explain(step)
        kept = [level.accepted.token for level in found.levels if level.accepted]
        assert len(kept) >= int(step.verdict.accepted[0])
        assert {test.p for level in found.levels for test in level.tests} <= {0.0, 1.0}
