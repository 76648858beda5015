"""How far several roots move real output.

The semi-exact distribution agrees with enumeration and with the texts of the method.
"""

from __future__ import annotations

import numpy as np
import pytest
import tiny
import torch

import specwb
from specwb.core.probability import Sampling
from specwb.lab.evaluation.roots import RootDistributions, output_shifts, root_distributions
from specwb.theory import exact

PROMPT = [7, 8, 9, 10, 11]
LOSSY = {"draft": tiny.draft(), "lossy": True, "stop": "none", "eos": ()}
TEMPERATURE = 0.4  # at 1 the tiny target is near uniform


def distributions(depth: int = 2, drafts: int = 40, candidates: int = 32) -> RootDistributions:
    how = {"temperature": TEMPERATURE, "depth": depth, "drafts": drafts, "candidates": candidates}
    return root_distributions(tiny.target(), tiny.draft(), PROMPT, **how)


def probabilities(model: specwb.Target, tokens: list[int]) -> np.ndarray:
    return (
        Sampling(TEMPERATURE).probabilities(tiny.forward(model.model, tokens)[-1]).double().numpy()
    )


def test_probabilities_and_one_token_below_are_the_models_own():
    roots = distributions(depth=1, drafts=1)
    p = probabilities(tiny.target(), PROMPT)
    assert roots.tokens.tolist() == np.argsort(-p, kind="stable")[:32].tolist()
    assert roots.p[:-1] == pytest.approx(p[roots.tokens], abs=1e-6)
    assert roots.p[-1] == pytest.approx(1 - p[roots.tokens].sum(), abs=1e-6)
    assert roots.lengths.sum(1) == pytest.approx(np.ones(33))
    rates = []
    for x in roots.tokens.tolist():
        p_next, q_next = (probabilities(m, [*PROMPT, x]) for m in (tiny.target(), tiny.draft()))
        rates.append(np.minimum(p_next, q_next).sum())
    # the acceptance rate: nothing is sampled
    *means, others = roots.lengths @ [0, 1]
    assert means == pytest.approx(rates, abs=1e-5)
    assert others == pytest.approx(np.average(rates, weights=roots.p[:-1]), abs=1e-5)


@pytest.mark.parametrize("roots", [1, 2, 3, 4])
def test_the_root_that_stays_is_the_enumerated_one(roots):
    rng = np.random.default_rng(roots)
    p = rng.dirichlet(np.ones(4))
    lengths = rng.dirichlet(np.ones(3), size=4)
    wanted = np.array(exact.kept_root(p.tolist(), lengths.tolist(), roots))
    four = RootDistributions(np.arange(4), np.append(p, 0), np.append(lengths, lengths[:1], 0))
    assert four.kept_root(roots)[:-1] == pytest.approx(wanted, abs=0.012)
    assert four.tv(roots) == pytest.approx(abs(wanted - p).sum() / 2, abs=0.012)
    assert abs(wanted - p).max() > 0.03 or roots == 1


def test_the_first_tokens_of_the_method_have_that_distribution():
    first, rows = distributions(drafts=120, candidates=10), 800
    how = {"roots": 3, "tree": (1, 1), "temperature": TEMPERATURE, "max_new_tokens": 1}
    out = specwb.decode(tiny.target(), [PROMPT] * rows, "mcsd_ti", seed=3, **how, **LOSSY)
    counts = np.bincount([text[0] for text in out.tokens], minlength=tiny.VOCABULARY)
    shares = np.append(counts[first.tokens], rows - counts[first.tokens].sum()) / rows
    expected = first.kept_root(3)
    fair = np.random.default_rng(0).multinomial(rows, expected, size=200) / rows
    floor = np.abs(fair - expected).sum(1).max() / 2
    # the floor is of so many rows; 0.02 is for the 120 drafts
    assert np.abs(shares - expected).sum() / 2 < floor + 0.02
    assert np.abs(shares - first.p).sum() / 2 > floor + 0.05
    assert first.tv(1) < 1e-12


def test_greedy_text_is_judged_by_its_own_prefix():
    one, four = output_shifts(
        tiny.target(), tiny.draft(), tiny.PROMPTS, (1, 4), depth=3, max_new_tokens=16
    )
    assert (one.roots, four.roots) == (1, 4)
    assert (one.other, one.tv) == (0, None)
    assert four.mean_tokens_per_round > one.mean_tokens_per_round
    how = {"roots": 4, "tree": (1, 1, 1), "max_new_tokens": 16}
    texts = specwb.decode(tiny.target(), tiny.PROMPTS, "mcsd_ti", **how, **LOSSY).tokens
    other, sums = 0, []
    for prompt, text in zip(tiny.PROMPTS, texts, strict=True):
        logits = tiny.forward(tiny.target().model, [*prompt, *text])[len(prompt) - 1 : -1]
        other += int((logits.argmax(-1) != torch.tensor(text)).sum())
        sums.append(float(logits.double().log_softmax(-1)[torch.arange(16), text].mean()))
    assert other > 0
    assert four.other == pytest.approx(other / 48)
    assert four.log_p == pytest.approx(np.mean(sums), abs=1e-5)
