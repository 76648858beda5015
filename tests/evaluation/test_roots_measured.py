"""How far several roots move real output: the semi-exact law agrees with enumeration and with what the method writes."""

from __future__ import annotations

from functools import cache
from itertools import islice

import numpy as np
import pytest
import tiny
import torch

import specwb
from specwb.evaluation.roots import RootLaws, drawn, moved, root_laws
from specwb.probability import Sampling
from specwb.verify import exact

PROMPT = [7, 8, 9, 10, 11]
COLD = 0.4  # at 1 the tiny target is near uniform


@cache
def laws(depth: int = 2, drafts: int = 40, candidates: int = 32) -> RootLaws:
    return root_laws(tiny.target(), tiny.draft(), PROMPT, temperature=COLD, depth=depth, drafts=drafts, candidates=candidates)


def probabilities(model: specwb.Target, tokens: list[int]) -> np.ndarray:
    return Sampling(COLD).probabilities(tiny.forward(model.model, tokens)[-1]).double().numpy()


def test_probabilities_and_one_token_below_are_the_models_own():
    found = laws(depth=1, drafts=1)
    p = probabilities(tiny.target(), PROMPT)
    assert found.tokens.tolist() == np.argsort(-p, kind="stable")[:32].tolist()
    assert found.p[:-1] == pytest.approx(p[found.tokens], abs=1e-6)
    assert found.p[-1] == pytest.approx(1 - p[found.tokens].sum(), abs=1e-6)
    assert found.lengths.sum(1) == pytest.approx(np.ones(33))
    rates = []
    for x in found.tokens.tolist():
        below, guess = (probabilities(m, [*PROMPT, x]) for m in (tiny.target(), tiny.draft()))
        rates.append(np.minimum(below, guess).sum())
    assert found.mean_length[:-1] == pytest.approx(rates, abs=1e-5)  # the acceptance rate: nothing is sampled
    assert found.mean_length[-1] == pytest.approx(np.average(rates, weights=found.p[:-1]), abs=1e-5)


def test_longer_chains_are_accepted_as_the_method_accepts_them():
    """Mean accepted tokens below a root are those of chains drafted there by sps, which is lossless by itself."""
    found = laws(depth=3, drafts=150, candidates=2)
    for x, mean in zip(found.tokens.tolist(), found.mean_length, strict=False):
        out = specwb.decode(
            tiny.target(), [[*PROMPT, x]] * 400, "sps", draft=tiny.draft(), gamma=3, temperature=COLD, max_new_tokens=4, seed=5, eos=()
        )
        lengths = np.array([row[0] for row in out.accepted_lengths])
        assert abs(lengths.mean() - mean) < 4 * lengths.std() * (1 / 400 + 1 / 150) ** 0.5


@pytest.mark.parametrize("roots", [1, 2, 3, 4])
def test_the_root_that_stays_is_the_enumerated_one(roots):
    made = np.random.default_rng(roots)
    p = made.dirichlet(np.ones(4))
    lengths = made.dirichlet(np.ones(3), size=4)
    wanted = np.array(exact.kept_root(p.tolist(), lengths.tolist(), roots))
    laws = RootLaws(np.arange(4), np.append(p, 0), np.append(lengths, lengths[:1], 0))
    assert laws.kept(roots)[:-1] == pytest.approx(wanted, abs=0.012)
    assert laws.tv(roots) == pytest.approx(abs(wanted - p).sum() / 2, abs=0.012)
    assert abs(wanted - p).max() > 0.03 or roots == 1


def test_the_others_are_as_many_unlikely_tokens():
    made = np.random.default_rng(0)
    p, lengths = np.array([0.4, 0.2]), made.dirichlet(np.ones(3), size=3)
    laws = RootLaws(np.arange(2), np.append(p, 0.4), lengths)
    many = RootLaws(np.arange(202), np.concatenate([p, np.full(200, 0.002), [0]]), np.concatenate([lengths, np.tile(lengths[2:], (200, 1))]))
    for roots in (2, 3):
        assert laws.kept(roots)[:2] == pytest.approx(many.kept(roots)[:2], abs=0.012)


def test_of_equal_lengths_the_first_drawn_stays():
    """Then nothing is changed, and exactly so; under any other rule for ties later draws, which are flatter, would stay."""
    p, certain = np.array([0.7, 0.2, 0.1, 0]), np.tile([0.0, 0.0, 1.0], (4, 1))
    for roots in (1, 2, 3):
        assert RootLaws(np.arange(3), p, certain).tv(roots) == pytest.approx(0, abs=1e-12)


def test_the_method_writes_that_law():
    found, rows = laws(drafts=120, candidates=10), 800
    settings = {"temperature": COLD, "seed": 3}
    out = specwb.decode(
        tiny.target(), [PROMPT] * rows, "mcsd_ti", draft=tiny.draft(), tree=(1, 1), roots=3, lossy=True, stop="none", max_new_tokens=1, eos=(),
        **settings,
    )  # fmt: skip
    counts = np.bincount([text[0] for text in out.tokens], minlength=tiny.VOCABULARY)
    shares = np.append(counts[found.tokens], rows - counts[found.tokens].sum()) / rows
    fair = np.random.default_rng(0).multinomial(rows, found.kept(3), size=200) / rows
    floor = np.abs(fair - found.kept(3)).sum(1).max() / 2
    assert np.abs(shares - found.kept(3)).sum() / 2 < floor + 0.02  # of so many rows, and of 120 drafts
    assert np.abs(shares - found.p).sum() / 2 > floor + 0.05
    assert found.tv(1) < 1e-12

    p = probabilities(tiny.target(), PROMPT)
    several = drawn(tiny.target(), tiny.draft(), PROMPT, 3, depth=2, rows=rows, **settings)
    assert several.tv == pytest.approx(np.abs(counts / rows - p / p.sum()).sum() / 2, abs=1e-6)
    one = drawn(tiny.target(), tiny.draft(), PROMPT, 1, depth=2, rows=400, **settings)
    assert several.tv > 1.5 * several.floor
    assert one.tv < 1.3 * one.floor


def test_greedy_text_is_judged_by_its_own_prefix():
    found = {one.roots: one for one in moved(tiny.target(), tiny.draft(), tiny.PROMPTS, (1, 4), depth=3, max_new_tokens=16)}
    assert (found[1].other, found[1].tv, found[1].tokens) == (0, None, 48)
    assert found[4].mean_tokens_per_round > found[1].mean_tokens_per_round
    settings = {"draft": tiny.draft(), "tree": (1, 1, 1), "lossy": True, "stop": "none", "max_new_tokens": 16, "eos": ()}
    texts = specwb.decode(tiny.target(), tiny.PROMPTS, "mcsd_ti", roots=4, **settings).tokens
    other, sums = 0, []
    for prompt, text in zip(tiny.PROMPTS, texts, strict=True):
        logits = tiny.forward(tiny.target().model, [*prompt, *text])[len(prompt) - 1 : -1]
        other += int((logits.argmax(-1) != torch.tensor(text)).sum())
        sums.append(float(logits.double().log_softmax(-1)[torch.arange(16), text].mean()))
    assert other > 0
    assert found[4].other == pytest.approx(other / 48)
    assert found[4].log_p == pytest.approx(np.mean(sums), abs=1e-5)


def test_sampled_text_comes_with_the_law_of_its_first_token():
    settings = {"depth": 2, "candidates": 16, "drafts": 2, "max_new_tokens": 4}
    each = moved(tiny.target(), tiny.draft(), tiny.PROMPTS, (1, 3), COLD, **settings)
    (first,) = islice(each, 1)  # one at a time
    second = next(each)
    own = [root_laws(tiny.target(), tiny.draft(), p, temperature=COLD, depth=2, candidates=16, drafts=2, seed=i) for i, p in enumerate(tiny.PROMPTS)]
    assert first.tv == pytest.approx(0, abs=1e-12)
    assert second.tv == pytest.approx(np.mean([law.tv(3) for law in own]))
    assert second.tv > 0.02
    assert next(each, None) is None


def test_bad_input():
    t, d = tiny.target(), tiny.draft()
    for call, message in (
        (lambda: root_laws(t, d, PROMPT, temperature=0), "must be > 0"), (lambda: drawn(t, d, PROMPT, 2, temperature=0), "must be > 0"),
        (lambda: root_laws(t, d, PROMPT, candidates=65), "at most 64"), (lambda: root_laws(t, d, PROMPT, depth=0), "depth must be"),
        (lambda: root_laws(t, d, PROMPT, drafts=0), "drafts must be"), (lambda: root_laws(t, d, [1] * 510), "exceeds the context"),
        (lambda: root_laws(t, d, []), "empty|no prompt"), (lambda: drawn(t, d, PROMPT, 2, rows=0), "rows must be"),
        (lambda: laws().kept(0), "roots must be"), (lambda: RootLaws(np.arange(1), np.array([1.0, 0]), np.ones((2, 1))).kept(2), "at most 1"),
        (lambda: moved(t, d, [PROMPT], ()), "at least one"), (lambda: moved(t, d, [PROMPT], (0,)), "roots must be"),
        (lambda: moved(t, d, [[1] * 500], (1,)), "exceeds the context"), (lambda: moved(t, d, [PROMPT], (1,), -1.0), "temperature"),
        (lambda: moved(t, d, [PROMPT], (65,)), "65 children"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=message):
            call()
