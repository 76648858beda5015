"""Lattices measured against the target's text.

They are compared with small numbers by hand, with plain forwards and with whole decodings.
"""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import tiny
import torch

import specwb
from specwb.drafters.diffuspec_parts.ngram import NGram
from specwb.drafters.diffuspec_parts.proxy import OnlineNGram, UniformProxy
from specwb.lab.evaluation import lattices
from specwb.models.masked import block

TEXTS = [[1, 2, 3], [5], [7, 8, 9, 10, 11, 12, 13]]
K = 5


def head():
    return tiny.head("diffusion")


def proxy() -> NGram:
    text = np.array([*TEXTS[0], *tiny.plain("llama", tuple(TEXTS[0]), 40)])
    return NGram.count([text], tiny.VOCABULARY)


def sample(**options) -> list[lattices.BlockCandidates]:
    return lattices.places(tiny.target(), head(), TEXTS, K, **options)


def place(greedy: list[int], ids: list[list[int]], q: list[list[float]], ends=()):
    states = np.zeros((len(ids), 32))
    return lattices.BlockCandidates([1], np.array(ids), np.log(q), greedy, states, frozenset(ends))


HAND = (
    place([4, 7, 1], [[4, 5], [6, 7], [1, 2]], [[0.9, 0.05], [0.5, 0.4], [0.6, 0.3]]),
    place([5, 6], [[4, 5], [6, 7], [1, 2]], [[0.6, 0.35], [0.5, 0.4], [0.6, 0.3]]),
)


def test_a_learned_walk_keeps_what_drafting_with_it_keeps():
    """The walk is that of a decoding with the same scorer, at every place of a text."""
    target, scorer = tiny.target(), tiny.scorer(tiny.target())
    places = sample(top=15)
    table = lattices.lengths(places, proxy(), scorer=scorer)
    method = specwb.method("diffuspec", target, head=head(), k=K, score=scorer)
    for row, place in enumerate(places):
        step = next(iter(specwb.rounds(target, [place.text], method, max_new_tokens=K + 1)))
        drafted = step.draft.tokens[0, 1:].tolist()
        assert place.walk(scorer) == drafted
        assert table["walk"][row] == place.kept(drafted)


def test_by_hand():
    one, two = HAND
    narrow, wide = one.lattice(0.8), one.lattice(1.0)
    assert (narrow.ids, wide.ids) == ([[4], [6, 7], [1, 2]], [[4, 5], [6, 7], [1, 2]])
    assert (one.kept(narrow.row), one.reach(narrow)) == (1, 3)
    assert (one.kept([4, 7, 2]), one.kept([5, 7, 1])) == (2, 0)
    assert (two.reach(two.lattice(0.5)), two.reach(two.lattice(0.9))) == (0, 2)
    assert two.kept([5, 6, 1]) == 2
    assert one.reach(one.lattice(1.0, top=1)) == 1
    # an end of text ends the lattice: it has no tokens below
    ended = place([4, 7, 1], one.ids.tolist(), np.exp(one.logq).tolist(), ends=[6]).lattice(1.0)
    assert (ended.ids, one.reach(ended)) == ([[4, 5], [6]], 1)

    table = lattices.coverage(HAND, tops=(1, 2))
    assert table["top 1"].tolist() == [0.5, 0.5, 1.0]  # ranks 0 and 1; 1 and 0; 0
    assert table["top 2"].tolist() == [1.0, 1.0, 1.0]

    kept = lattices.lengths(HAND, UniformProxy(9))
    assert kept.row.tolist() == kept.beam.tolist() == [1, 0]
    assert kept.lattice.tolist() == kept.top.tolist() == [3, 2]


def test_places_are_from_the_models_own_forwards():
    model = head()
    ranks = []
    for text, at in zip(TEXTS, sample(top=6)):
        assert at.text == text
        assert at.greedy == list(tiny.plain("llama", tuple(text), K))
        logits = block(model, text, K).double()
        logits[:, model.mask_id] = -torch.inf
        q = logits.softmax(-1)
        order = q.argsort(dim=-1, descending=True, stable=True)
        assert at.ids.tolist() == order[:, :6].tolist()
        assert np.exp(at.logq) == pytest.approx(q.gather(1, order[:, :6]).numpy(), rel=1e-5)
        wanted = [row.index(x) for row, x in zip(order.tolist(), at.greedy)]
        assert at.ranks == [min(rank, 6) for rank in wanted]
        ranks += at.ranks
    assert min(ranks) == 0 < max(ranks)
    for at in sample(top=tiny.VOCABULARY - 1):
        assert model.mask_id not in at.ids


def test_the_expected_length_sums_probabilities_of_beginnings():
    target = tiny.target()
    for temperature, text, path in itertools.product((1.0, 0.4), TEXTS, ([3, 4, 5], [9])):
        logits = tiny.forward(target.model, [*text, *path]).double()
        p = (logits / temperature).softmax(-1)
        chances = [float(p[len(text) - 1 + i, x]) for i, x in enumerate(path)]
        by_hand = sum(math.prod(chances[: j + 1]) for j in range(len(path)))
        length = lattices.expected_length(target, text, path, temperature)
        assert length == pytest.approx(by_hand, rel=1e-5)
    greedy = list(tiny.plain("llama", tuple(TEXTS[0]), 3))
    for path, kept in ((greedy, 3), ([*greedy[:2], greedy[2] ^ 1], 2)):
        assert lattices.expected_length(target, TEXTS[0], path, 0.0) == kept


CONSTANTS = [
    {"least": 2, "most": 6, "delta": 2},
    {"least": 1, "most": 8, "delta": 3, "share": 0.4},
    {"least": 1, "most": 7, "delta": 1},
    {"least": 4, "most": 4, "delta": 0},
]


@pytest.mark.parametrize("constants", CONSTANTS)
@pytest.mark.parametrize("reads", [False, True])
def test_a_replay_goes_through_the_steps_of_a_decoding(constants, reads, tmp_path):
    """It does so with a proxy that learns from the text as it is written, too."""
    target, model, ngram = tiny.target(), head(), proxy()
    ngram.save(tmp_path / "ngram.npz")
    search = {"lam": 0.5, "mass": 0.8, "top": 15, "beams": 3}
    replay = lattices.Replay(
        target,
        model,
        TEXTS[0],
        40,
        (lambda: OnlineNGram(3, tiny.VOCABULARY)) if reads else lambda: ngram,
    )
    rounds = replay.rounds(**constants)
    rest = {name: value for name, value in constants.items() if name not in ("least", "most")}
    adaptive = {"k_min": constants["least"], "k_max": constants["most"], "share": 1.0, **rest}
    method = specwb.method(
        "diffuspec",
        target,
        head=model,
        ngram="online" if reads else str(tmp_path / "ngram.npz"),
        **search,
        **adaptive,
    )
    out = specwb.decode(target, TEXTS[0], method, max_new_tokens=40)
    assert replay.text == out.tokens[0]
    assert [r.accepted for r in rounds] == out.accepted_lengths[0]
    assert len(set(out.accepted_lengths[0])) > 1
    drafted = [
        int(s.draft.valid[:, 1:].sum())
        for s in specwb.rounds(target, TEXTS[0], method, max_new_tokens=40)
    ]
    assert [r.k for r in rounds] == drafted
    assert all(replay.at(n, 3)[1] <= 3 for n in range(len(replay.text)))


def test_bad_input():
    replay = lattices.Replay(tiny.target(), head(), [1], 3, lambda: UniformProxy(9))
    for call, message in (
        (lambda: lattices.places(tiny.target(), head(), [[1] * 510], 3), "with 3 more it exceeds"),
        (lambda: replay.at(0, 600), "k can be at most"),
        (lambda: replay.rounds(least=3, most=2), "least <= most"),
    ):
        with pytest.raises(ValueError, match=message):
            call()
