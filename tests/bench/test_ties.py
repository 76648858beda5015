"""Where greedy texts part: at a tie up to rounding or otherwise."""

from __future__ import annotations

import pytest
import tiny
import torch

import specwb
from specwb.lab.bench import ties
from specwb.lab.bench.ties import Same, same_texts

GROUPS = [[[1, 2, 3], [4, 5, 6, 7]], [[8]]]


def plain(target: specwb.Target, length: int = 8) -> list[list[list[int]]]:
    settings = {"max_new_tokens": length, "eos": ()}
    return [specwb.decode(target, rows, "ar", **settings).tokens for rows in GROUPS]


def expected(target: specwb.Target, row: list[int], text: list[int]) -> torch.Tensor:
    """The logits at every place of a text, from one forward pass of the library's model."""
    with torch.inference_mode():
        whole = target.model(torch.tensor([row + text])).logits[0]
    return whole[len(row) - 1 : -1].float()


def test_a_replay_has_plain_decodings_logits():
    target = tiny.target(dtype=tiny.EXACT)  # whose norms are in float32: 2e-6 apart
    for rows, own in zip(GROUPS, plain(target), strict=True):
        found = ties.replayed(target, rows, own)
        for row, text, logits in zip(rows, own, found, strict=True):
            assert [int(x.argmax()) for x in logits] == text
            wanted = expected(target, row, text)
            torch.testing.assert_close(torch.stack(logits), wanted, atol=1e-5, rtol=0)


def test_a_replay_goes_on_behind_a_token_that_is_chosen_otherwise_now():
    target = tiny.target(dtype=tiny.EXACT)
    # a long row and a short one, each up to the end of the context
    rows = [[*range(1, 31)] * ((target.context - 8) // 30), [4, 5, 6]]
    lengths = [target.context - len(rows[0]), 20]
    settings = {"max_new_tokens": lengths, "eos": ()}
    texts = [list(text) for text in specwb.decode(target, rows, "ar", **settings).tokens]
    for row, at in ((0, 2), (1, 3), (1, 4), (1, 16)):
        texts[row][at] = (texts[row][at] + 1) % tiny.VOCABULARY
    found = ties.replayed(target, rows, texts)
    for row, text, logits in zip(rows, texts, found, strict=True):
        wanted = expected(target, row, text)
        torch.testing.assert_close(torch.stack(logits), wanted, atol=1e-5, rtol=0)


def test_texts_part_at_a_tie_or_otherwise(monkeypatch):
    target = tiny.target()
    own = plain(target)
    assert str(same_texts(target, GROUPS, own, {"a": own})["a"]) == "yes"
    second = []
    for rows, texts in zip(GROUPS, own, strict=True):
        logits = ties.replayed(target, rows, texts)
        choice = [int(row[3].topk(2).indices[1]) for row in logits]
        second.append([[*t[:3], c, *t[4:]] for t, c in zip(texts, choice, strict=True)])
    texts = {"ar": own, "late": [own[0], second[1]], "all": second}
    found = same_texts(target, GROUPS, own, texts)
    assert str(found["ar"]) == "yes"
    assert str(found["late"]) == "2 of 3 (1 NOT)"
    assert str(found["all"]) == "0 of 3 (3 NOT)"
    assert 0 <= found["all"].margin < 1e-3  # float32
    monkeypatch.setattr(ties, "rounding", lambda *_: 1e9)
    found = same_texts(target, GROUPS, own, texts)
    assert str(found["all"]) == "0 of 3 (3 at a tie)"
    shorter = [[own[0][0][:-1], own[0][1]], own[1]]
    assert same_texts(target, GROUPS, own, {"a": shorter})["a"].others == 1


def test_rounding_is_of_the_number_type():
    found = {}
    for dtype in (torch.float32, torch.bfloat16):
        target = tiny.target(dtype=dtype)
        (text,) = specwb.decode(target, [[1, 2, 3]], "ar", max_new_tokens=24, eos=()).tokens
        logits = ties.replayed(target, [[1, 2, 3]], [text])[0]
        found[dtype] = ties.rounding(target, [1, 2, 3], text, logits)
    assert 0 <= found[torch.float32] < 1e-4
    assert found[torch.bfloat16] < 1


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_logits_that_are_not_finite_are_no_tie_and_no_error(value, monkeypatch):
    target = tiny.target()
    own = plain(target)
    other = [[[(t + 1) % 64 for t in text] for text in texts] for texts in own]
    broken = [[torch.full((64,), value) for _ in text] for text in own[0]]
    monkeypatch.setattr(ties, "replayed", lambda target, rows, texts: broken[: len(rows)])
    found = same_texts(target, GROUPS, own, {"a": other})["a"]
    assert (found.ties, found.others) == (0, 3)


def test_in_words():
    assert str(Same(5)) == "yes"
    assert str(Same(5, 2, 1, 0.5)) == "2 of 5 (2 at a tie, 1 NOT)"
