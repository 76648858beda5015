"""Probabilities are those of the library's warpers, and draws follow their distribution exactly.

A token without probability is never drawn.
"""

from __future__ import annotations

from itertools import permutations

import pytest
import tiny
import torch
from transformers import (
    LogitsProcessorList,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

import specwb
from specwb import Sampling
from specwb.core.probability import WIDE, draw_without_replacement, inverse_cdf, most_probable

TINY, LARGEST = 2.0**-33, 1 - 2.0**-33  # the smallest and largest uniform there are


def logits(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0)) * 3.0


@pytest.mark.parametrize("temperature", [0.3, 1.7])
@pytest.mark.parametrize("top_k", [0, 1, 5, 1000])
@pytest.mark.parametrize("top_p", [1.0, 0.9])
def test_probabilities_are_the_librarys(temperature, top_k, top_p):
    x = logits(6, 40)
    warpers = LogitsProcessorList([TemperatureLogitsWarper(temperature)])
    if top_k:
        warpers.append(TopKLogitsWarper(top_k))
    if top_p < 1:
        warpers.append(TopPLogitsWarper(top_p))
    wanted = warpers(torch.zeros(6, 1, dtype=torch.long), x.clone()).softmax(-1)
    before = x.clone()
    p = Sampling(temperature, top_k, top_p).probabilities(x)
    assert torch.equal(x, before)
    torch.testing.assert_close(p, wanted, atol=1e-7, rtol=1e-6)
    assert torch.equal(p == 0, wanted == 0)
    shaped = Sampling(temperature, top_k, top_p).probabilities(x.view(2, 3, 40))
    assert torch.equal(shaped.view(6, 40), p)


@pytest.mark.parametrize("top_k", [0, 100, 1000])
def test_top_p_of_a_large_vocabulary_is_the_librarys(top_k):
    """By the most probable tokens, or in flat rows, which lie among others, by all."""
    x = logits(6, 20_000) * torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0])[:, None]
    x[5, :3] = x[5].max() + 1  # ties
    for top_p in (0.05, 0.5, 0.95, 0.9999):
        warper = TopPLogitsWarper(top_p)
        before = TopKLogitsWarper(top_k)(None, x) if top_k else x
        wanted = warper(None, before.double()).softmax(-1)
        p = Sampling(1.0, top_k, top_p).probabilities(x.double())
        assert (p > 0).sum(-1).tolist() == (wanted > 0).sum(-1).tolist()
        torch.testing.assert_close(p.sort().values, wanted.sort().values)
        alone = torch.cat(
            [Sampling(1.0, top_k, top_p).probabilities(row.double()) for row in x[:, None]]
        )
        assert torch.equal(alone, p)
    x[2, 7] = torch.nan
    assert Sampling(1.0, 0, 0.9).probabilities(x)[2].isnan().all()


@pytest.mark.parametrize("filters", [{}, {"top_k": 2}, {"top_p": 0.1}])
def test_temperature_zero_is_one_hot_at_the_lowest_argmax(filters):
    for temperature in (9.99e-5, 5e-324, torch.tensor(1e-9)):
        assert Sampling(temperature, **filters) == Sampling(0.0, **filters)
    assert not Sampling(1e-4).greedy
    x = torch.tensor([[0.0, 2.0, 2.0, 1.0], [5.0, 5.0, 5.0, 5.0], [-3.0, -2.0, -1.0, 0.0]])
    assert Sampling(0.0).greedy
    p = Sampling(0.0, **filters).probabilities(x)
    assert p.tolist() == [[0, 1, 0, 0], [1, 0, 0, 0], [0, 0, 0, 1]]


@pytest.mark.parametrize("temperature", [1e-4, 1e-38])
def test_cold_texts_are_the_greedy_ones(temperature):
    """At 1e-4 draws are still draws, of tokens whose logits are far apart here."""
    model, spec = tiny.target(), "mcsd:tree=3-2,rule=traversal"
    how = {"max_new_tokens": 12, "seed": 3, "draft": tiny.draft()}
    wanted = specwb.decode(model, tiny.PROMPTS, spec, **how)
    out = specwb.decode(model, tiny.PROMPTS, spec, temperature=temperature, top_p=0.9, **how)
    assert out.tokens == wanted.tokens
    if temperature < 1e-4:  # the rule and the draws are greedy too
        assert out.step_counts == wanted.step_counts
        trace = specwb.record(model, tiny.PROMPTS[0], spec, temperature=temperature, **how)
        assert trace["sampling"]["temperature"] == 0


# -------------------------------------------------------------------------------------- inverse CDF


def test_inverse_cdf_distribution_by_stratified_uniforms():
    p = logits(9).softmax(-1)
    cells = 100_000
    u = (torch.arange(cells, dtype=torch.float64) + 0.5) / cells
    frequency = torch.bincount(inverse_cdf(p.expand(cells, 9), u), minlength=9) / cells
    torch.testing.assert_close(frequency.double(), p.double(), atol=2 / cells, rtol=0)


def test_a_token_without_probability_is_never_drawn():
    generator = torch.Generator().manual_seed(1)
    p = torch.tensor([[0.1, 0.2, 0.0, 0.0], [0.0, 0.0, 0.0, 1.0], [1.0, 0.0, 0.0, 0.0]])
    assert inverse_cdf(p, torch.full((3,), 1 - 2.0**-53, dtype=torch.float64)).tolist() == [1, 3, 0]
    for scale in (1.0, 1e-30, 1e30):
        p = torch.rand(4000, 12, generator=generator) * scale
        p[torch.rand(4000, 12, generator=generator) < 0.6] = 0
        p[:, 5] += (p.sum(1) == 0) * scale
        for u in (TINY, 1e-300, 2.0**-53, 0.3, 0.5, LARGEST, 1 - 2.0**-53):
            x = inverse_cdf(p, torch.full((4000,), u, dtype=torch.float64))
            assert bool((p.gather(1, x[:, None]) > 0).all()), (scale, u)


def test_a_small_probability_far_out_is_not_lost():
    """A float32 cumulative sum would drop tokens of 1e-9 in a vocabulary of 50000."""
    p = torch.full((1, 50_000), 1e-9)
    p[0, 0] = 1
    point = (1 + 40_000.5e-9) / float(p.double().sum())
    assert abs(int(inverse_cdf(p, torch.tensor([point], dtype=torch.float64))) - 40_000) <= 2


def test_wide_rows_are_cut_like_narrow_ones():
    """Drawing by blocks is drawing by cumulation: it gives the same token but where u is within
    rounding of an edge, and never one of probability 0."""
    torch.manual_seed(1)
    for v in (WIDE, 50257):
        p = Sampling(0.3, top_k=40).probabilities(3 * torch.randn(64, v))
        p[0], p[1] = 0, 0
        p[0, v - 1], p[1, 0] = 1, 1
        p[2] = torch.rand(v)
        ends = torch.tensor([1 - 2.0**-33, 2.0**-33], dtype=torch.float64)
        cdf = p.double().cumsum(1)
        for u in (torch.rand(64, dtype=torch.float64), *ends[:, None].expand(-1, 64)):
            drawn = inverse_cdf(p, u)[:, None]
            assert bool((p.gather(1, drawn) > 0).all())
            at, before = (x.gather(1, drawn).squeeze(1) / cdf[:, -1] for x in (cdf, cdf - p))
            assert bool((before - 1e-4 <= u).all() & (u <= at + 1e-4).all())
        grid = (torch.arange(500, dtype=torch.float64) + 0.5) / 500
        frequencies = torch.bincount(inverse_cdf(p[3].expand(500, v), grid), minlength=v) / 500
        assert float((frequencies - p[3]).abs().max()) <= 1.01 / 500


# ------------------------------------------------------------------------------ without replacement


def distribution(q: list[float], k: int) -> dict[tuple[int, ...], float]:
    """Returns every ordered draw of k tokens with its probability, from the definition."""
    chances = {}
    for tokens in permutations([x for x in range(len(q)) if q[x] > 0], k):
        left, chance = 1.0, 1.0
        for x in tokens:
            chance *= q[x] / left
            left -= q[x]
        chances[tokens] = chance
    return chances


@pytest.mark.parametrize("q", [[0.1, 0.0, 0.6, 0.3], [0.97, 0.01, 0.01, 0.01]])
@pytest.mark.parametrize("k", [1, 2, 3])
def test_draws_without_replacement_follow_their_distribution(q, k):
    """Fills [0, 1]^k with equal cells.

    The frequencies are the probabilities, up to the cells that a border crosses.
    """
    cells = {1: 6000, 2: 600, 3: 90}[k]
    axis = (torch.arange(cells, dtype=torch.float64) + 0.5) / cells
    u = torch.cartesian_prod(*[axis] * k).view(-1, k)
    rows = torch.tensor(q, dtype=torch.float64).expand(len(u), -1)
    tokens, ok = draw_without_replacement(rows, u)
    assert bool(ok.all())
    wanted = distribution(q, k)
    assert sum(wanted.values()) == pytest.approx(1)
    code = (tokens * len(q) ** torch.arange(k)).sum(1)
    frequency = torch.bincount(code, minlength=len(q) ** k).double() / len(u)
    for drawn, chance in wanted.items():
        index = sum(x * len(q) ** j for j, x in enumerate(drawn))
        assert float(frequency[index]) == pytest.approx(chance, abs=2.5 * k / cells), drawn
        frequency[index] = 0
    assert not frequency.any(), "something impossible was drawn"


def test_where_the_support_ends_the_rest_is_not_ok():
    q = torch.tensor([[0.0, 0.7, 0.0, 0.3], [0.0, 0.0, 1.0, 0.0], [0.25, 0.25, 0.25, 0.25]])
    for value in (TINY, 0.4, LARGEST):
        before = q.clone()
        tokens, ok = draw_without_replacement(q, torch.full((3, 4), value, dtype=torch.float64))
        assert torch.equal(q, before)
        assert ok.tolist() == [[True, True, False, False], [True, False, False, False], [True] * 4]
        assert sorted(tokens[0, :2].tolist()) == [1, 3]
        assert tokens[1, 0] == 2
        assert sorted(tokens[2].tolist()) == [0, 1, 2, 3]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_most_probable_token_of_a_wide_vocabulary_is_the_first_of_equals(dtype):
    logits = torch.randn(3, 2, 384 * 128, generator=torch.Generator().manual_seed(2)).to(dtype)
    logits[0, 0, [700, 127, 128, 40000]] = 9
    logits[0, 1, [49151, 30000]] = 9
    logits[1, 0] = -torch.inf
    logits[1, 1, [5000, 4999]] = torch.nan
    logits[2] = 0
    best = most_probable(logits)
    assert best.tolist() == [[127, 30000], [0, 4999], [0, 0]]
    some = torch.randn(50, 384 * 128, generator=torch.Generator().manual_seed(3)).to(dtype)
    assert torch.equal(most_probable(some), some.float().max(-1).indices)
