"""The views of stopping show the rounds of decodings, their predicted and measured speed, and what
they are given."""

from __future__ import annotations

from statistics import fmean

import pytest
import tiny
from drawn import numbers, shown
from explorers import EXITS, TOKENS, stop, traces

import specwb
from specwb.evaluation.exits import Simulation
from specwb.studies.kangaroo import cells as reproduced
from specwb.studies.kangaroo.claims import etas
from specwb.widgets import StopExplorer
from specwb.widgets.kangaroo import ETAS


@pytest.mark.parametrize(("eta", "gamma"), [(0.6, 4), (0.0, 5), (0.15, 3), (1.0, 2), (0.3, 1)])
def test_the_rounds_shown_are_those_of_decodings(eta, gamma):
    view = stop()
    view.eta.value, view.gamma.value = eta, gamma
    kept, drafted = [], []
    for prompt in tiny.PROMPTS:
        at = 0
        method = specwb.method(
            f"kangaroo:gamma={gamma},eta={eta}", tiny.target(), head=tiny.head("kangaroo")
        )
        for step in specwb.rounds(tiny.target(), prompt, method, max_new_tokens=TOKENS + 8, eos=()):
            if at >= TOKENS:
                break
            kept.append(int(step.verdict.accepted[0]))
            drafted.append(int(step.draft.valid.sum()) - 1)
            at += kept[-1] + 1
    assert (view.rounds.kept, view.rounds.drafted) == (kept, drafted)
    seconds = {1: 1.5, 2: 1.8, 3: 2.2, 4: 2.6, 5: 3.0}
    cr, speed = 1 + fmean(kept), (1 + fmean(kept)) / fmean(seconds[d] for d in drafted)
    assert view.predicted == pytest.approx(speed)
    assert "measured 1.25x" in view.summary or (eta, gamma) != (0.6, 4)
    said = [eta, gamma, fmean(drafted), fmean(kept), 1, cr, fmean(drafted) - fmean(kept), speed]
    best = max((s, -e) for e, (_, s) in zip(ETAS, view.curve("own", gamma)))
    said += [1.25] * ((eta, gamma) == (0.6, 4)) + [-best[1], best[0]]
    assert list(map(float, numbers(view))) == pytest.approx(said, abs=0.0051)


def predicted(name: str, one: Simulation) -> float:
    return one.speedup(EXITS[name].seconds, EXITS[name].plain)


def of(view: StopExplorer, name: str) -> list[tuple[list, list]]:
    """x and y of the series of this name, in every panel."""
    return [(t["x"], t["y"]) for t in shown(view)["data"] if t.get("name") == name]


def test_curves_and_points_of_the_figure():
    view = stop(eta=0.3, gamma=4)
    tau, drafted, both, *_published, speed, chosen, _, _ = shown(view)["data"]
    every = [traces()["own"].simulate("top", eta, 4) for eta in ETAS]
    assert tau["x"] == drafted["x"] == speed["x"] == list(ETAS)
    assert tau["y"] == pytest.approx([one.cr for one in every], abs=1e-4)
    assert drafted["y"] == pytest.approx([one.mean_drafted + 1 for one in every], abs=1e-4)
    assert speed["y"] == pytest.approx([predicted("own", one) for one in every], abs=1e-4)
    assert (both["x"], chosen["x"]) == ([0.3, 0.3], [0.3])
    assert both["y"] == [tau["y"][6], drafted["y"][6]]
    assert chosen["y"] == [speed["y"][6]]
    assert of(view, "measured") == [([0.6, 0.3], [2.0, 2.1]), ([0.6, 0.3], [1.25, 1.2])]
    assert of(view, "paper, g") == [([0.0, 0.5], [2.5, 2.0]), ([0.0, 0.5], [1.1, 1.5])]
    view.exit.value = "other"
    other = traces()["other"].simulate("top", 0.3, 4)
    assert view.rounds == other
    assert view.predicted == predicted("other", other)
    assert of(view, "measured") == [([], [])] * 2  # nothing was measured of it


def test_what_reproduce_has_stored():
    cells = {
        0.6: reproduced.chain(0.6, 4),
        0.3: reproduced.chain(0.3, 4),
        0: reproduced.chain(0, 4, variant="exit2"),
    }
    rows = [
        {"cell": cell.key, "tau": 2 + eta, "speedup": 1 + eta} for eta, cell in cells.items()
    ] + [{"cell": "ar", "tau": 1.0, "speedup": None}]
    document = {
        "rows": rows,
        "traces": {
            "": reproduced.trace_to_json(traces()["own"]),
            "exit2": reproduced.trace_to_json(traces()["other"]),
        },
        "costs": {
            "": reproduced.costs_to_json(EXITS["own"]),
            "exit2": reproduced.costs_to_json(EXITS["other"]),
            "mlp": {},
        },
    }
    view = StopExplorer.of(document, gamma=4, eta=0.3)
    assert view.exit.options == ("own", "exit2")
    assert view.rounds == traces()["own"].simulate("top", 0.3, 4)
    assert of(view, "measured") == [([0.3, 0.6], [2.3, 2.6]), ([0.3, 0.6], [1.3, 1.6])]
    assert "measured 1.30x" in view.summary
    for gamma in (4, 6, 8):
        (etas_of, cr), (same, _) = of(view, f"paper, gamma {gamma}")
        assert etas_of == same
        assert cr == [etas()[eta, gamma]["cr"] for eta in etas_of]
    assert view.predicted == pytest.approx(predicted("own", view.rounds))
    view.exit.value = "exit2"
    assert view.predicted == pytest.approx(predicted("other", view.rounds))
    assert of(view, "measured")[0] == ([0], [2])


def test_what_is_missing():
    assert stop().gamma.max == 5
    with pytest.raises(ValueError, match="nothing to choose exit from"):
        StopExplorer({}, EXITS, {}, {})
    with pytest.raises(ValueError, match="third has none"):
        StopExplorer({**traces(), "third": traces()["own"]}, EXITS, {}, {})
