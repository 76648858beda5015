"""Learned walks through a diffusion drafter's lattice: what is chosen, what it was drawn from, that
decoding keeps the distribution, and what is refused."""

from __future__ import annotations

import itertools

import pytest
import test_decoding_distribution as decoding
import tiny
import torch
from test_diffuspec_drafts import little

import specwb
from specwb.core.options import MethodError
from specwb.core.probability import Sampling
from specwb.models.checkpoint import HeadError
from specwb.models.path import (
    PathScorer,
    follows_in,
    sampled_walk,
)


def scores(rows: int = 2, k: int = 3, m: int = 3) -> torch.Tensor:
    return torch.randn(rows, k, m, m, generator=torch.Generator().manual_seed(0)).double()


# ------------------------------------------------------------------------------------------- walks


def test_a_walk_is_drawn_from_what_it_says():
    """Shares of 40,000 draws against the walks' probabilities (chi-square), by the definition:
    scores for candidates, the model's own log-probabilities for others and behind them."""
    n, table = 40_000, scores(1, 2, 2)
    ids = torch.tensor([[[2, 0], [1, 2]]])
    logq = torch.randn(1, 2, 3, generator=torch.Generator().manual_seed(3)).double().log_softmax(-1)

    def row(i: int, before: int | None) -> torch.Tensor:
        logits = logq[0, i].clone()
        if before is None or before in ids[0, 0].tolist():
            a = 0 if before is None else ids[0, 0].tolist().index(before)
            logits[ids[0, i]] = table[0, i, a]
        return logits.softmax(-1)

    u = torch.rand(n, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    given = table.expand(n, -1, -1, -1), ids.expand(n, -1, -1), logq.expand(n, -1, -1)
    tokens, q = sampled_walk(*given, Sampling(1.0), u)
    x = 0.0
    for first, second in itertools.product(range(3), repeat=2):
        wanted = float(row(0, None)[first] * row(1, first)[second])
        here = (tokens == torch.tensor([first, second])).all(1)
        said = q[here, 0, first] * q[here, 1, second]
        assert torch.allclose(said, torch.full_like(said, wanted), atol=1e-6)
        x += (int(here.sum()) - n * wanted) ** 2 / (n * wanted)
    assert x < 37, "chi-square with 8 degrees of freedom; 37 has p = 1e-5"


def test_what_followed_what_in_the_text():
    text = torch.tensor([[4, 5, 4, 6, 4, 5, 4, 9], [1, 1, 1, 1, 1, 1, 1, 1]])
    ids = torch.tensor([[[5, 6], [4, 9]], [[1, 2], [1, 2]]])
    found = follows_in(text, torch.tensor([7, 3]), torch.tensor([4, 1]), ids)
    # the 4 at the end of the seven tokens has no successor yet
    assert found[0, 0].tolist() == [pytest.approx([2 / 3, 1 / 3])] * 2
    assert found[0, 1].tolist() == [[1.0, 0.0], [1.0, 0.0]]
    assert found[1].tolist() == [[[1.0, 0.0], [1.0, 0.0]], [[1.0, 0.0], [0.0, 0.0]]]


# ----------------------------------------------------------------------------------------- decoding


def method(**options) -> specwb.Method:
    target, _ = decoding.models()
    scorer = PathScorer(target, 16, places=4, top=4, rank=4)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        for weight in scorer.parameters():
            weight.data.add_(0.3 * torch.randn_like(weight))
    model = little(7)
    scorer = scorer.requires_grad_(False).eval()
    return specwb.method("diffuspec", target, head=model, k=2, top=4, score=scorer, **options)


@pytest.mark.parametrize(
    ("options", "name"),
    [({"draw": "sample"}, "plain"), ({"draw": "sample", "paths": 2}, "top_p")],
)
def test_the_distribution_of_the_text_is_the_targets(options, name):
    """Theorem 11.8, on whole texts."""
    counts, tau = decoding.sampled(method(**options), name)
    assert decoding.chi_square(counts, decoding.enumerated(name)) > 1e-4
    assert 1.05 < tau < decoding.LENGTH, "drafts that are never accepted prove nothing"


# ------------------------------------------------------------------------------- training and files


def test_scorers_that_do_not_fit_are_refused_by_name(tmp_path):
    target, model = tiny.target(), tiny.head("diffusion")
    made = tiny.scorer(target)
    made.save(tmp_path / "path", {"diffusion_sha256": "0" * 64})

    def build(**options):
        return specwb.method("diffuspec", target, head=model, **options)

    with pytest.raises(MethodError, match="blocks of up to 8 tokens, this has 9"):
        build(k=9, score=made)
    with pytest.raises(MethodError, match="up to 15 candidates per place, top is 16"):
        build(k=4, top=16, score=made)
    with pytest.raises(MethodError, match="there is no folder nowhere"):
        build(k=4, score="nowhere")
    with pytest.raises(MethodError, match="leave out tree or steps"):
        build(k=4, score=made, tree=True)
    narrow = PathScorer(target, 16, places=8, top=15)
    with pytest.raises(MethodError, match="reads states of 16 numbers"):
        build(k=4, score=narrow)
    model.card = {"sha256": "1" * 64}
    try:
        with pytest.raises(HeadError, match="trained for the diffusion model with sha256 0000"):
            build(k=4, score=tmp_path / "path")
    finally:
        model.card = {}
    (tmp_path / "path" / "config.json").write_text('{"specwb_path": {"kind": "corr"}}')
    with pytest.raises(HeadError, match="is no path scorer"):
        build(k=4, score=tmp_path / "path")
