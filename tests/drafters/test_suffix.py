"""Suffix decoding proposes what a vote in plain Python does, row by row."""

from __future__ import annotations

import random
from collections import Counter

import pytest
import tiny
from test_pld import proposed, state_of

from specwb.drafters.suffix import SuffixDecoding


def vote(text: list[int], gamma: int, ngram: int, confidence: float) -> list[int]:
    """The drafted tokens, from the definition."""
    agreeing = {
        place: max(
            m for m in range(ngram + 1) if m <= place and text[place - m : place] == end(text, m)
        )
        for place in range(1, len(text))
    }
    draft: list[int] = []
    survival = 1.0
    while len(draft) < gamma:
        sums: Counter[int] = Counter()
        latest: dict[int, int] = {}
        for place, m in agreeing.items():
            after = place + len(draft)
            if m and after < len(text) and text[place:after] == draft:
                sums[text[after]] += m + len(draft)
                latest[text[after]] = place
        if not sums:
            break
        token = max(sums, key=lambda token: (sums[token], latest[token]))
        survival = survival * sums[token] / (sums.total() + 1)
        if survival < confidence:
            break
        draft.append(token)
    return draft


def end(text: list[int], m: int) -> list[int]:
    return text[len(text) - m :]


def opened(drafter: SuffixDecoding, state) -> SuffixDecoding:
    drafter.open(state, tiny.target())
    return drafter


@pytest.mark.parametrize(
    ("gamma", "ngram", "confidence"), [(16, 8, 0.15), (4, 1, 0.3), (6, 3, 0.01), (1, 2, 0.4)]
)
def test_candidates_are_those_of_the_vote(gamma, ngram, confidence):
    rng = random.Random(gamma)
    drafter = SuffixDecoding(gamma, ngram, confidence)
    seen: set[int] = set()
    for _ in range(60):
        letters = rng.choice([1, 2, 4, 9])
        texts = [[rng.randrange(letters) for _ in range(rng.randint(1, 40))] for _ in range(5)]
        # as where an answer copies from its prompt
        texts += [text + text[: rng.randint(1, len(text))] for text in texts[:2]]
        state = state_of(texts)
        found = proposed(opened(drafter, state), state)
        for text, mine in zip(texts, found):
            assert mine == vote(text, gamma, ngram, confidence), text
            seen.add(len(mine))
    assert seen == set(range(gamma + 1))


def test_rows_that_have_finished_draft_nothing():
    text = [1, 2, 3] * 4
    state = state_of([text, text[:-1]], done=[True, False])
    assert proposed(opened(SuffixDecoding(4), state), state) == [[], text[2:6]]
