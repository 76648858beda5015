"""The views of a lattice and of adaptive lengths show the library's searches, ranks and rounds."""

from __future__ import annotations

import types
from functools import cache

import numpy as np
import pytest
import tiny
from drawn import picture, shown

from specwb import analysis, figures
from specwb.analysis.diffusion import AdlRound
from specwb.evaluation import lattices
from specwb.lattice import beam, viterbi
from specwb.ngram import NGram
from specwb.widgets import LatticeExplorer, LengthExplorer

TEXTS = [[1, 2, 3], [5, 9], [7, 8, 9, 10, 11, 12, 13]]


@cache
def proxy() -> NGram:
    return NGram.count([np.array([1, 2, 3, *tiny.plain("llama", (1, 2, 3), 40)])], tiny.VOCABULARY)


@cache
def found() -> list[lattices.Place]:
    return lattices.places(tiny.target(), tiny.head("diffusion"), TEXTS, 5, 8)


def explorer(**options) -> LatticeExplorer:
    return LatticeExplorer(tiny.target(), found(), proxy(), **options)


def replay(tokens: int = 30) -> lattices.Replay:
    return lattices.Replay(tiny.target(), tiny.head("diffusion"), TEXTS[0], tokens, proxy)


@pytest.mark.parametrize(
    ("place", "lam", "mass", "top", "beams"),
    [(1, 0.5, 0.8, 8, 3), (2, 1.0, 0.3, 8, 1), (3, 0.0, 0.95, 4, 5), (3, 0.3, 1.0, 2, 2)],
)
def test_the_lattice_shown_is_the_one_searched(place, lam, mass, top, beams):
    view = explorer()
    view.place.value, view.lam.value, view.mass.value, view.top.value, view.beams.value = (
        place,
        lam,
        mass,
        top,
        beams,
    )
    at = found()[place - 1]
    lattice = at.lattice(mass, top)
    chosen, best = (
        beam(lattice, proxy(), at.text, lam, beams)[0],
        viterbi(lattice, proxy(), at.text, lam),
    )
    assert (view.paths[0], view.best) == (chosen, best)
    drawn = {t.get("name"): t for t in shown(view)["data"]}
    (cells,) = [t for t in shown(view)["data"] if t["type"] == "heatmap"]
    assert cells["text"] == [[str(at.ids[i, r]) for i in range(5)] for r in range(top)]
    assert [[v is not None for v in row] for row in cells["z"]] == [
        [r < len(lattice.ids[i]) for i in range(lattice.depth)] for r in range(top)
    ]
    assert drawn["beam"]["y"] == [r + 1 for r in chosen.ranks]
    assert drawn["best score"]["y"] == [r + 1 for r in best.ranks]
    assert drawn["target"]["y"] == [r + 1 if r < top else top + 1 for r in at.ranks.tolist()]
    kept = [at.kept(path) for path in (lattice.row, chosen.tokens, best.tokens)]
    hot = lattices.expected_length(
        tiny.target(), at.text, [lattice.row, chosen.tokens, best.tokens]
    )
    assert f"stays in the lattice for {at.reach(lattice)} of 5 tokens" in view.summary
    assert (
        f"keeps {kept[0]} of the first choices, {kept[1]} of the beam's path, {kept[2]} of the "
        "best score's" in view.summary
    )
    assert "expected to keep {:.2f}, {:.2f}, {:.2f}".format(*hot) in view.summary
    assert view.summary.startswith(
        f"place {place}, lambda {lam:.2f}, mass {mass:.2f}, M = {top}, B = {beams}: "
        f"{sum(map(len, lattice.ids))} candidates"
    )
    assert ("the best of all has" in view.summary) == (best.mean > chosen.mean + 1e-12)


@pytest.mark.parametrize(
    ("least", "most", "delta", "rho", "share"),
    [(4, 8, 2, 0.5, 1.0), (1, 10, 3, 0.25, 0.5), (6, 6, 0, 1.0, 0.0), (9, 3, 2, 0.5, 0.8)],
)
def test_rounds_under_adaptive_length(least, most, delta, rho, share):
    text = replay()
    view = LengthExplorer(text, top=12)
    view.least.value, view.most.value, view.delta.value, view.rho.value, view.share.value = (
        least,
        most,
        delta,
        rho,
        share,
    )
    low, high = min(least, most), max(least, most)
    rounds = text.rounds(low, high, delta, rho, share)
    assert view.rounds == rounds
    assert rounds == analysis.adl_trace(
        [r.generated for r in rounds], [r.accepted for r in rounds], low, high, delta, rho, share
    )
    assert view.tau == pytest.approx(30 / len(rounds))
    assert shown(view) == picture(figures.adaptive(rounds, low, high))
    assert view.summary.startswith(
        f"k from {low} to {high}, delta {delta}, rho {rho:.2f}, share {share:.2f}: {len(rounds)} "
        "rounds, "
    )
    assert f"{view.tau - 1:.2f} accepted + 1 = {view.tau:.2f}" in view.summary
    rises = [i for i in range(1, len(rounds)) if rounds[i].k > rounds[i - 1].k]
    assert (
        f"k rises before {len(rises)} of them, the last one round {rises[-1] + 1}"
        if rises
        else "k never rises"
    ) in view.summary
    broken = [i for i, r in enumerate(rounds, 1) if r.accepted < r.generated]
    assert (
        f"the first round that is not whole is round {broken[0]}"
        if broken
        else "every round is whole"
    ) in view.summary


def test_what_is_drafted_behind_an_end_of_text_counts():
    rounds = [
        AdlRound(6, 2, 2, 2.0, 2.0, False, 4),
        AdlRound(4, 4, 1, 3.0, 1.5, False, 4),
    ]
    told = types.SimpleNamespace(most=9, text=[1, 2, 3, 4, 5], rounds=lambda **_: rounds)
    view = LengthExplorer(told, top=9)
    assert "2 rounds, 5.0 tokens drafted a round, 1.50 accepted + 1 = 2.50" in view.summary


def test_controls_and_what_is_missing():
    for widget in (explorer(), LengthExplorer(replay(6), top=9)):
        controls = [c for box in widget.children if hasattr(box, "children") for c in box.children]
        assert len(controls) == 5
        assert all(c.description and c.continuous_update is False for c in controls)
        assert widget.summary in widget.children[-2].value.replace("&#x27;", "'")
    with pytest.raises(ValueError, match="no place"):
        LatticeExplorer(tiny.target(), [], proxy())
    with pytest.raises(ValueError, match="the context has no more room"):
        LengthExplorer(replay(6), top=600)
