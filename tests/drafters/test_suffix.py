"""Suffix decoding proposes what a vote in plain Python does, row by row."""

from __future__ import annotations

import copy
import random
from collections import Counter

import pytest
import tiny
from test_pld import proposed, state_of

import specwb
from specwb.drafters import suffix
from specwb.drafters.suffix import SuffixDecoding


def vote(
    text: list[int], gamma: int, ngram: int, confidence: float, pool: tuple[int, ...] = ()
) -> list[int]:
    """The drafted tokens, from the definition: of the places of a pool and of the text."""
    places = [(list(pool), i) for i in range(1, len(pool))] + [
        (text, i) for i in range(1, len(text))
    ]
    agreeing = [
        max(m for m in range(ngram + 1) if m <= at and source[at - m : at] == end(text, m))
        for source, at in places
    ]
    draft: list[int] = []
    survival = 1.0
    while len(draft) < gamma:
        sums: Counter[int] = Counter()
        latest: dict[int, int] = {}
        for place, ((source, at), m) in enumerate(zip(places, agreeing)):
            after = at + len(draft)
            if m and after < len(source) and source[at:after] == draft:
                sums[source[after]] += m + len(draft)
                latest[source[after]] = place
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


# ------------------------------------------------------------------------------------------- pools


@pytest.mark.parametrize(("gamma", "ngram", "confidence"), [(8, 8, 0.1), (3, 2, 0.01)])
def test_a_pools_places_vote_before_those_of_the_text(gamma, ngram, confidence):
    """Pools that a draft runs to the end of, and texts shorter than what is compared, in which a
    match must not go on into the pool."""
    rng = random.Random(gamma)
    other = False
    for _ in range(60):
        letters = rng.choice([1, 2, 4])
        pool = tuple(rng.randrange(letters) for _ in range(rng.randint(1, 12)))
        texts = [[rng.randrange(letters) for _ in range(n)] for n in (1, 2, 5, rng.randint(6, 30))]
        state = state_of(texts)
        drafts = proposed(opened(SuffixDecoding(gamma, ngram, confidence, pool), state), state)
        for text, mine in zip(texts, drafts):
            assert mine == vote(text, gamma, ngram, confidence, pool), (pool, text)
            other |= mine != vote(text, gamma, ngram, confidence)
    assert other


@pytest.fixture
def target():
    """One that loads for itself, with a tokenizer of whole words."""
    other = copy.copy(tiny.target())
    other.tokenizer = tiny.tokenizer()
    return other


def test_a_pool_is_read_from_a_text_file(target, tmp_path):
    """Its tokens are drafted where the text alone has nothing to copy, and change no text."""
    prompt, plain = [5, 9], specwb.decode(target, [[5, 9]], "ar", max_new_tokens=12, eos=[]).tokens
    path = tmp_path / "notes.txt"
    path.write_text(" ".join(tiny.WORDS[i] for i in prompt + plain[0]), "utf-8")
    method = specwb.method("suffix", target, pool=path)
    assert method.drafter.pool.tolist() == prompt + plain[0]
    assert method.drafter.files == (path,)
    out = specwb.decode(target, [prompt], method, max_new_tokens=12, eos=[])
    assert out.tokens == plain
    assert out.step_counts[0] < 8
    assert specwb.method(f"suffix:pool={path}", target).key == f"suffix:pool={path}"


def test_pools_that_cannot_be_used(target, tmp_path, monkeypatch):
    monkeypatch.setattr(suffix, "MOST_TOKENS", 3)
    monkeypatch.setattr(suffix, "MOST_BYTES", 20)
    for content, words in (
        (None, "there is no file"),
        (b"", "is empty"),
        (b"\xff\xfe", "cannot be read: 'utf-8' codec"),
        (b"w1 w2 w3 w4", "and has 4 tokens"),
        (b"w1 " * 9, "is too large: it may have 3 tokens and 20 bytes"),
    ):
        path = tmp_path / "pool.txt"
        if content is not None:
            path.write_bytes(content)
        with pytest.raises(specwb.MethodError, match=f"^suffix: pool.*{words}"):
            specwb.method("suffix", target, pool=path)
    with pytest.raises(specwb.MethodError, match="has no tokenizer"):
        specwb.method("suffix", tiny.target(), pool=path)
