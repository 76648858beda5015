"""Where greedy texts part: at a near-tie up to rounding or otherwise."""

from __future__ import annotations

import pytest
import tiny
import torch

import specwb
from specwb.core.probability import Sampling
from specwb.lab.bench import ties
from specwb.lab.bench.ties import agreements

PROMPTS = [[1, 2, 3], [4, 5, 6, 7], [8]]


def plain(target: specwb.Target, length: int = 8) -> list[ties.Pair]:
    texts = specwb.decode(target, PROMPTS, "ar", max_new_tokens=length, eos=()).tokens
    return list(zip(PROMPTS, texts, strict=True))


def test_stepwise_logits_are_the_librarys_whatever_token_was_written():
    """Texts up to the end of the context, with tokens that plain decoding would not choose."""
    target = tiny.target(dtype=tiny.EXACT)  # whose norms are in float32: 2e-6 apart
    rows = [[*range(1, 31)] * ((target.context - 8) // 30), [4, 5, 6]]
    lengths = [target.context - len(rows[0]), 20]
    texts = specwb.decode(target, rows, "ar", max_new_tokens=lengths, eos=()).tokens
    for row, text, places in zip(rows, texts, ([2], [3, 4, 16]), strict=True):
        for at in places:
            text[at] = (text[at] + 1) % tiny.VOCABULARY
        with torch.inference_mode():
            wanted = target.model(torch.tensor([row + text])).logits[0][len(row) - 1 : -1]
        logits = ties.stepwise_logits(target, row, text)
        torch.testing.assert_close(logits, wanted.float(), atol=1e-5, rtol=0)


def test_texts_part_at_a_tie_or_otherwise(monkeypatch):
    target = tiny.target()
    pairs = plain(target)
    own, second = [text for _, text in pairs], []
    for prompt, text in pairs:
        choice = int(ties.stepwise_logits(target, prompt, text)[3].topk(2).indices[1])
        second.append([*text[:3], choice, *text[4:]])
    texts = {"ar": own, "late": [*own[:2], second[2]], "all": second, "fewer": own[:1]}
    found = agreements(target, pairs, texts)
    assert [str(one) for one in found.values()] == [
        "yes",
        "2 of 3 (1 NOT)",
        "0 of 3 (3 NOT)",
        "yes",
    ]
    assert 0 <= found["all"].margin < 1e-3  # float32
    monkeypatch.setattr(ties, "rounding", lambda *_: 1e9)
    assert str(agreements(target, pairs, texts)["all"]) == "0 of 3 (3 at a tie)"
    shorter = [own[0][:-1], *own[1:]]
    assert agreements(target, pairs, {"a": shorter})["a"].others == 1


def test_exact_texts_part_at_a_tie_of_perturbed_logits(monkeypatch):
    target, seeds, sampling = tiny.target(), [3, 4, 5], Sampling(0.7, 9, 0.9, True)
    how = {"temperature": 0.7, "top_k": 9, "top_p": 0.9, "exact_text": True}
    own = specwb.decode(target, PROMPTS, "ar", seed=seeds, max_new_tokens=8, eos=(), **how).tokens
    pairs, second = list(zip(PROMPTS, own, strict=True)), []
    for (prompt, text), seed in zip(pairs, seeds):
        logits = ties.stepwise_logits(target, prompt, text, sampling, seed)
        assert logits.argmax(-1).tolist() == text
        assert ties.rounding(target, prompt, text, logits, sampling, seed) < 1e-3
        second.append([*text[:3], int(logits[3].topk(2).indices[1]), *text[4:]])
    settings = pairs, {"a": second}, (), sampling, seeds
    assert str(agreements(target, *settings)["a"]) == "0 of 3 (3 NOT)"
    monkeypatch.setattr(ties, "rounding", lambda *_: 1e9)
    assert str(agreements(target, *settings)["a"]) == "0 of 3 (3 at a tie)"


def test_only_the_librarys_texts_part_by_roundings_of_the_number_type(monkeypatch):
    """Where two passes round alike there is no margin for texts of this engine."""
    target = tiny.target()
    pairs = plain(target)
    monkeypatch.setattr(ties, "rounding", lambda *_: 0.0)
    logits = ties.stepwise_logits(target, *pairs[0])
    logits[3].zero_()
    logits[3, pairs[0][1][3]] = 4.0
    monkeypatch.setattr(ties, "stepwise_logits", lambda *_: logits)
    step = max(torch.finfo(torch.float32).eps, ties.SUMMED)
    largest = float(logits.abs().max())
    logits[0, 1] = -torch.inf  # of a token that is never written
    other = next(t for t in range(64) if t != pairs[0][1][3])
    texts = [[*pairs[0][1][:3], other, *pairs[0][1][4:]]]
    for gap, ties_, others in ((0.0, 1, 0), (1.4 * step * largest, 1, 0), (4.0, 0, 1)):
        logits[3, other] = 4.0 - gap
        found = agreements(target, pairs, {"own": texts, "hf": texts}, library=["hf"])
        assert (found["hf"].ties, found["hf"].others) == (ties_, others)
        assert found["own"].ties == (gap == 0)
        assert found["own"].margin == 0
        assert found["hf"].margin == pytest.approx(1.5 * step * largest)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_logits_that_are_not_finite_are_no_tie_and_no_error(value, monkeypatch):
    target = tiny.target()
    pairs = plain(target)
    other = [[(t + 1) % 64 for t in text] for _, text in pairs]
    monkeypatch.setattr(ties, "stepwise_logits", lambda *_: torch.full((8, 64), value))
    found = agreements(target, pairs, {"a": other})["a"]
    assert (found.ties, found.others) == (0, 3)
