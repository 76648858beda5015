"""Acceptance on a real pair: the distributions, the positions and the comparison are right."""

from __future__ import annotations

import math

import pandas as pd
import pytest
import tiny
import torch

from specwb.lab.papers import acceptance
from specwb.theory import analysis


@pytest.fixture(scope="module")
def distributions():
    prompt, text = [1, 2, 3], list(tiny.plain("llama", (1, 2, 3), 12))
    return acceptance.distributions_along(
        tiny.target(), tiny.draft("llama", 0.05), prompt, text, [0, 4, 12], 0.7
    )


def test_distributions_are_the_models_after_each_beginning(distributions):
    prompt, text = [1, 2, 3], list(tiny.plain("llama", (1, 2, 3), 12))
    for computed, model in zip(distributions, (tiny.target(), tiny.draft("llama", 0.05))):
        for i, n in enumerate((0, 4, 12)):
            logits = tiny.forward(model.model, [*prompt, *text[:n]])[-1]
            expected = (logits.double() / 0.7).softmax(-1)
            torch.testing.assert_close(computed[i], expected, atol=1e-5, rtol=1e-4)
    p, q = distributions
    assert (p - q).abs().sum(-1).min() > 0.05


def test_the_noise_of_positions_is_independent():
    """What is estimated of one and the same position four times is not estimated alike."""
    generator = torch.Generator().manual_seed(0)
    p, q = torch.rand(2, 1, 128, generator=generator, dtype=torch.float64).pow(8).unbind()
    p, q = (x.div(x.sum()).expand(4, -1) for x in (p, q))
    exact, _ = analysis.rrsw_estimate(p, q, 2)
    rates, _ = analysis.rrsw_estimate(p, q, 4, samples=8)
    assert (len(set(exact.tolist())), len(set(rates.tolist()))) == (1, 4)
    again, other = (analysis.rrsw_estimate(p, q, 4, samples=8, seed=s)[0] for s in (0, 1))
    assert again.tolist() == rates.tolist()
    assert not set(other.tolist()) & set(rates.tolist())


def record(domain: str, positions: list[dict[str, float]], k: int = 2) -> dict:
    """A record in which every rule has rate 0.5 and every optimum 0.8, but for ``positions``."""
    usual = {name: 0.8 if name.startswith("optimum") else 0.5 for name in acceptance.COLUMNS}
    return {
        "temperature": 1.0,
        "domain": domain,
        "ks": [k],
        "rates": [[list({**usual, **one}.values()) for one in positions]],
    }


def test_table_by_hand():
    records = [
        record("code", [{"rrs": 0.4}, {"rrs": 0.6}]),  # a prompt's positions are averaged first
        record("code", [{"rrs": 0.7, "kseq": 0.69, "coupling": 0.75}]),
        record("code", [{"rrs": 0.6, "kseq": 0.62}]),
        record("prose", [{"point": 0.9}]),
    ]
    frame = pd.DataFrame(acceptance.table(records)).set_index(["domain", "rule"])
    rrs = frame.loc["code", "rrs"]
    assert rrs["mean"] == pytest.approx(0.6)
    assert rrs["error"] == pytest.approx(0.1 / math.sqrt(3), abs=1e-5)
    assert rrs["optimum"] == pytest.approx(0.8)
    assert (rrs["prompts"], rrs["positions"]) == (3, 4)
    # rrs is 0, 0.01, -0.02 ahead: kseq leads by 0.01 / 3, its error is as large; naive is 0.1
    # behind with an error of 0.058, a tie too; coupling is a bound and never best
    best = rrs["verdict"].split(" = ")
    assert best[:2] == ["kseq", "rrs"]
    assert "naive" in best
    assert "coupling" not in best
    # one prompt has no error: what is behind is behind
    assert frame.loc["prose", "point"]["verdict"] == "point"
    assert frame.loc["all", "rrs"]["prompts"] == 4
