"""The views of a lattice and of adaptive lengths show the library's searches, ranks and rounds."""

from __future__ import annotations

import types

import pytest
import tiny
from drawn import numbers, picture, shown
from explorers import EXPLORERS, found, proxy, replay

from specwb import analysis, figures
from specwb.analysis.diffusion import AdlRound
from specwb.evaluation import lattices
from specwb.lattice import Lattice, beam, viterbi
from specwb.widgets import LatticeExplorer, LengthExplorer


@pytest.mark.parametrize(
    ("text", "reached", "lam", "mass", "top", "beams"),
    [
        (1, 5, 0.5, 0.8, 8, 3),
        (2, 2, 1.0, 0.3, 8, 1),
        (3, 1, 0.0, 0.95, 4, 5),
        (3, 5, 0.3, 1.0, 2, 2),
    ],
)
def test_the_lattice_shown_is_the_one_searched(text, reached, lam, mass, top, beams):
    settings = {"text": text, "lam": lam, "mass": mass, "top": top, "beams": beams}
    view = EXPLORERS["LatticeExplorer"](reached=reached, **settings)
    at = found()[text - 1]
    whole = at.lattice(mass, top)
    part = Lattice(whole.ids[:reached], whole.logq[:reached], whole.ends)
    paths, best = beam(part, proxy(), at.text, lam, beams), viterbi(part, proxy(), at.text, lam)
    assert [path for name, path in view.paths.items() if name.startswith("beam")] == paths
    assert view.paths["first choices"].tokens == tuple(part.row)
    assert view.paths.get("best score", paths[0]).mean == pytest.approx(best.mean)
    drawn = {t.get("name"): t for t in shown(view)["data"]}
    (cells,) = [t for t in shown(view)["data"] if t["type"] == "heatmap"]
    assert [row[::2] for row in cells["text"]] == [
        [str(at.ids[i, r]) for i in range(5)] for r in range(top)
    ]
    assert [[v is not None for v in row[::2]] for row in cells["z"]] == [
        [i < whole.depth and r < len(whole.ids[i]) for i in range(5)] for r in range(top)
    ]
    drafter, reader = drawn["drafter, −λ log q"], drawn["trigrams, −(1 − λ) log r"]
    for cost, r, path in zip(drafter["x"], reader["x"], view.paths.values(), strict=True):
        assert cost == pytest.approx(-lam * sum(path.logq) / len(path.tokens), abs=1e-4)
        assert cost + r == pytest.approx(-path.mean, abs=2e-4)
    said = [str(text), str(reached), str(whole.depth), f"{lam:.2f}", str(beams), f"{mass:.2f}"]
    said += [str(top), str(sum(map(len, part.ids))), f"{-paths[0].mean:.3f}", f"{-best.mean:.3f}"]
    words = "".join("".join(t["text"]) for t in shown(view)["data"] if t.get("mode") == "text")
    assert ("✓" in words or "✗" in words) == (reached >= whole.depth)
    if reached >= whole.depth:
        three = [part.row, paths[0].tokens, best.tokens]
        hot = lattices.expected_length(tiny.target(), at.text, three)
        said += ["0", *(str(at.kept(path)) for path in three), "1", *(f"{x:.2f}" for x in hot)]
    assert numbers(view) == said


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
    rises = [i for i in range(1, len(rounds)) if rounds[i].k > rounds[i - 1].k]
    broken = [i for i, r in enumerate(rounds, 1) if r.accepted < r.generated]
    drafted = sum(r.k for r in rounds) / len(rounds)
    assert numbers(view) == [
        *map(str, (low, high, delta)), f"{rho:.2f}", f"{share:.2f}", str(len(rounds)),
        f"{drafted:.1f}", f"{view.tau - 1:.2f}", "1", f"{view.tau:.2f}",
        *map(str, broken[:1]), *(map(str, (len(rises), rises[-1] + 1)) if rises else ()),
        str(rounds[-1].k),
    ]  # fmt: skip


def test_what_is_drafted_behind_an_end_of_text_counts():
    rounds = [
        AdlRound(6, 2, 2, 2.0, 2.0, False, 4),
        AdlRound(4, 4, 1, 3.0, 1.5, False, 4),
    ]
    told = types.SimpleNamespace(most=9, text=[1, 2, 3, 4, 5], rounds=lambda **_: rounds)
    view = LengthExplorer(told, top=9)
    assert numbers(view)[5:10] == ["2", "5.0", "1.50", "1", "2.50"]


def test_what_is_missing():
    with pytest.raises(ValueError, match="no place"):
        LatticeExplorer(tiny.target(), [], proxy())
    with pytest.raises(ValueError, match="got 600"):
        LengthExplorer(replay(6), top=600)
