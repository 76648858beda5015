"""Proxies: stupid backoff against counts by hand, counting online, files."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest

from specwb.drafters.diffuspec_parts.ngram import NGram
from specwb.drafters.diffuspec_parts.proxy import NGramError, OnlineNGram

V = 7


def random_texts(seed: int = 0, count: int = 4, length: int = 60) -> list[np.ndarray]:
    """Draws texts from a Zipf-like distribution.

    So some contexts are frequent and some words never come.
    """
    rng = np.random.default_rng(seed)
    return [np.minimum(rng.geometric(0.4, length) - 1, V - 2) for _ in range(count)]


def grams(texts: list[np.ndarray], m: int) -> Counter[tuple[int, ...]]:
    return Counter(
        tuple(text[i : i + m].tolist()) for text in texts for i in range(len(text) - m + 1)
    )


def contexts(order: int) -> list[tuple[int, ...]]:
    """Returns all contexts of fewer than ``order`` tokens, also those that were never seen."""
    return [tuple(int(x) for x in c) for m in range(order) for c in np.ndindex(*[V] * m)]


@pytest.mark.parametrize("order", [1, 3])
@pytest.mark.parametrize("least", [1, 2])
def test_stupid_backoff_against_its_definition(order, least):
    texts = [*random_texts(), np.array([6, 6, 0])]  # a token that is rarer than least stays
    proxy = NGram.count(texts, V, order, least)
    tables = {m: grams(texts, m) for m in range(1, order + 1)}
    for m in range(2, order + 1):
        tables[m] = Counter({g: n for g, n in tables[m].items() if n >= least})
    total = sum(tables[1].values())

    def score(h: tuple[int, ...], x: int) -> float:
        if n := tables[len(h) + 1][(*h, x)]:
            return n / (tables[len(h)][h] if h else total)
        return 0.4 * score(h[1:], x) if h else 0.4 / total

    assert proxy.sizes == [len(t) for t in tables.values()]
    for h in contexts(order):
        wanted = [math.log(score(h, x)) for x in range(V)]
        assert proxy.scores(h, range(V)) == pytest.approx(wanted), h


@pytest.mark.parametrize("order", [1, 3])
def test_online_equals_counted(order):
    text = random_texts(3, 1, 200)[0]
    online = OnlineNGram(order, V)
    for length in (0, 1, 2, 3, 50, 51, 200):
        online.add(text[online._total : length].tolist())
        if length:
            counted = NGram.count([text[:length]], V, order)
            for h in contexts(order):
                wanted = pytest.approx(counted.scores(h, range(V)))
                assert online.scores(h, range(V)) == wanted, (length, h)
    assert online.scores((1,) * 9, [2]) == online.scores((1,) * (order - 1), [2])


# -------------------------------------------------------------------------------------------- files


def test_save_and_load(tmp_path):
    rng = np.random.default_rng(0)
    text = np.minimum(rng.geometric(0.02, 2000), 149_999)
    text[::100] = 149_999
    for least in (1, 2):
        model = NGram.count([text], 150_000, 3, least)  # keys of 52 bits
        model.save(tmp_path / "a.npz")
        loaded = NGram.load(tmp_path / "a.npz")
        assert (loaded.order, loaded.vocabulary, loaded.least) == (3, 150_000, least)
        assert loaded.sizes == model.sizes
        for i in range(0, 300, 7):
            h, candidates = tuple(text[i : i + 2].tolist()), text[:50].tolist()
            assert loaded.scores(h, candidates) == model.scores(h, candidates)


def test_a_missing_or_damaged_file(tmp_path):
    path = tmp_path / "a.npz"
    message = r"no n-gram file .*a\.npz; make one with specwb train ngram"
    with pytest.raises(NGramError, match=message):
        NGram.load(path)
    NGram.count(random_texts(), V).save(path)
    content, arrays = path.read_bytes(), dict(np.load(path))
    flipped = bytearray(content)
    flipped[len(content) // 3] ^= 0xFF
    for bad in (b"", b"not an archive", content[: len(content) // 2], bytes(flipped)):
        path.write_bytes(bad)
        with pytest.raises(NGramError, match="is no whole n-gram file") as caught:
            NGram.load(path)
        assert "\n" not in str(caught.value)
    facts, counts = arrays["facts"], arrays.pop("count2")
    for changes, message in [
        ({"facts": np.array([99, *facts[1:]]), "count2": counts}, "has format 99"),
        ({}, "no whole n-gram file"),
        ({"count2": counts[:, :-1]}, "its columns differ in length"),
    ]:
        np.savez(path, **{**arrays, **changes})
        with pytest.raises(NGramError, match=message):
            NGram.load(path)
