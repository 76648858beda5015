"""What is particular to top and sample, k-SEQ, the weighted race and typical acceptance."""

from __future__ import annotations

from itertools import product

import pytest
import tiny
import torch
from driven import LARGEST, Batch, check_against_exact, every_device, random_batch, weights_once

import specwb
from specwb.verify import TopAndSample, Typical
from specwb.verify.kseq import scale
from specwb.verify.race import race_weights

__all__ = ["weights_once"]


@every_device
def test_top_and_sample_without_the_drawn_child(device: str) -> None:
    """Where the support of q ends before the drawn child, or a drafter stops, the token is drawn
    from p among the fixed ones, even by the largest uniform."""
    p = torch.tensor([[0.1, 0.2, 0.3, 0.4], [0.5, 0.5, 0.0, 0.0]], device=device)
    tokens = torch.tensor([[3, 1, 0], [0, 1, 2]], device=device)
    ok = torch.tensor([[True, True, False], [True, True, False]], device=device)
    u = torch.full((2, 2), LARGEST, dtype=torch.float64, device=device)
    choice, residual = TopAndSample().node(p, torch.zeros_like(p), tokens, ok, u)
    assert choice.tolist() == [-1, 1]
    torch.testing.assert_close(
        residual[0] / residual[0].sum(), torch.tensor([0.25, 0, 0.75, 0], device=device)
    )
    u[0, 1] = 0.5  # between p(3) and p(3) + p(1)
    assert TopAndSample().node(p, torch.zeros_like(p), tokens, ok, u)[0][0] == 1


@every_device
def test_rows_with_different_numbers_of_children(device: str) -> None:
    """Independent paths leave different numbers of candidates; rho and weights are those of each
    row's own number."""
    for name in ("kseq", "race"):
        batch = random_batch(name, 3, seed=13, device=device)
        rows = [(p, q, xs[: i % 4]) for i, (p, q, xs) in enumerate(batch.rows)]
        check_against_exact(name, Batch(rows, 3, device=device), 1e-6)


@every_device
def test_the_scale_is_rounded_up(device: str) -> None:
    torch.manual_seed(14)
    p, q = (
        (3 * torch.randn(300, 40, dtype=torch.float64, device=device)).softmax(1) for _ in range(2)
    )
    k = torch.arange(300, device=device) % 8 + 1
    p[:30] = q[:30]
    rho = scale(p, q, k)
    assert bool(((rho >= 1) & (rho <= k)).all())
    assert float((rho[:30] - 1).max()) < 1e-8
    inner = (k > 1) & (rho > 1.001)
    assert int(inner.sum()) > 200
    for lower, smallest, largest in (
        (rho, -1e-15, 1e-7),
        (1 + (rho - 1) * (1 - 1e-7), -torch.inf, 1e-15),
    ):
        beta = torch.minimum(p / lower[:, None], q).sum(1)
        slack = (lower * beta + torch.expm1(k * torch.log1p(-beta)))[inner]  # rho beta - a
        assert bool((slack >= smallest).all())
        assert bool((slack <= largest).all())
        assert smallest < 0 < float(slack.abs().max())


@every_device
@pytest.mark.parametrize(("v", "k"), [(3, 1), (4, 2), (5, 3), (24, 2), (2000, 2)])
def test_the_distribution_of_what_is_selected(v: int, k: int, device: str) -> None:
    """It is that of enumerating all tuples; 2000 tokens are computed in cells. The distributions
    are peaked, flat and one-sided, from half-precision logits."""
    torch.manual_seed(15)
    rows = 2 if v > 1000 else 12
    sharp = torch.tensor([1.0, 5.0, 15.0])[torch.arange(rows) % 3][:, None]
    p, q = ((torch.randn(rows, v) * sharp).half().double().softmax(1).to(device) for _ in range(2))
    p[0, : v // 2] = 0
    q[1, : v // 2] = 0
    p, q = p / p.sum(1, keepdim=True), q / q.sum(1, keepdim=True)
    w, t = race_weights(p, q, k)
    assert float((t.sum(1) - 1).abs().max()) < 2e-10
    counted = torch.zeros_like(t)
    if v > 1000:
        counted = (
            q[:, :, None] * q[:, None] * 2 * w[:, :, None] / (w[:, :, None] + w[:, None])
        ).sum(2)
    else:
        for xs in product(range(v), repeat=k):
            total = w[:, list(xs)].sum(1)
            for x in xs:
                counted[:, x] += q[:, list(xs)].prod(1) * w[:, x] / total
    assert float((t - counted).abs().sum(1).max()) / 2 < 2e-10
    assert bool((torch.minimum(p, t).sum(1) >= torch.minimum(p, q).sum(1) - 1e-9).all())


def test_the_fitted_weights_are_near_the_optimum() -> None:
    """For distributions like those of language models they accept 97 percent of the optimum or
    more, where the ratio p/q alone falls behind."""
    torch.manual_seed(16)
    slope = -1.1 * torch.arange(1, 3001, dtype=torch.float64).log()
    worst, plain = 1.0, 1.0
    for noise, temperature in ((0.5, 1.0), (1.0, 0.6), (2.0, 1.0)):
        p, q = (
            ((slope + noise * torch.randn(4, 3000, dtype=torch.float64)) / temperature).softmax(1)
            for _ in range(2)
        )
        order = (p / q).argsort(1)
        inside, outside = (x.gather(1, order).cumsum(1) for x in (p, q))
        for k in (2, 4):
            optimum = (
                (1 + inside - outside**k).amin(1).clamp_max(1)
            )  # over the prefixes of the tokens by p/q
            for steps in (12, 1):
                accepted = torch.minimum(p, race_weights(p, q, k, steps)[1]).sum(1)
                fraction = float((accepted / optimum).min())
                if steps > 1:
                    worst = min(worst, fraction)
                else:
                    plain = min(plain, fraction)
    assert worst > 0.97
    assert plain < 0.95


@every_device
def test_typical_acceptance_takes_the_most_probable_child_that_passes(device: str) -> None:
    p = torch.tensor(
        [
            [0.6, 0.3, 0.1, 0.0],
            [0.25, 0.25, 0.25, 0.25],
            [0.97, 0.01, 0.01, 0.01],
            [0.85, 0.15, 0.0, 0.0],
        ],
        device=device,
    )
    tokens = torch.tensor(
        [[1, 0], [2, 1], [1, 2], [1, 2]], device=device
    )  # for the last p 0.3 e^-H is 0.197 and epsilon 0.09
    ok = torch.ones_like(tokens, dtype=torch.bool)
    u = torch.full((4, 1), 0.5, dtype=torch.float64, device=device)
    choice, residual = Typical().node(p, None, tokens, ok, u)
    assert choice.tolist() == [1, 0, -1, 0]
    assert torch.equal(residual, p)
    ok[0, 1] = False
    assert Typical().node(p, None, tokens, ok, u)[0].tolist() == [0, 0, -1, 0]
    assert Typical(epsilon=0.5, delta=1.0).node(p, None, tokens, ok, u)[0].tolist() == [
        -1,
        -1,
        -1,
        -1,
    ]  # the thresholds are 0.41, 0.25, 0.5, 0.5
    for wrong in ({"epsilon": 0.0}, {"epsilon": 1.5}, {"delta": 0.0}, {"delta": float("nan")}):
        with pytest.raises(ValueError, match=r"epsilon|delta"):
            Typical(**wrong)


def test_typical_acceptance_is_labelled_lossy_in_every_method() -> None:
    for spec, options in (
        ("mcsd", {}),
        ("mcsd", {"tree": (3, 1), "draw": "with"}),
        ("pld", {}),
        ("sps", {"gamma": 3}),
    ):
        draft = {} if spec == "pld" else {"draft": tiny.draft()}
        method = specwb.method(f"{spec}:rule=typical", tiny.target(), **draft, **options)
        assert method.exactness is specwb.Exactness.LOSSY
        out = specwb.decode(
            tiny.target(), [[1, 2, 1, 2, 1]] * 3, method, max_new_tokens=8, temperature=1.0
        )
        assert all(len(row) == 8 for row in out.tokens)
