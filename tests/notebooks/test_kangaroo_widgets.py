"""The views of stopping show the rounds of decodings, their predicted and measured speed, and what
they are given."""

from __future__ import annotations

from functools import cache
from statistics import fmean

import pytest
import tiny
from drawn import shown

import specwb
from specwb.evaluation.exits import Costs, Rounds, every_round
from specwb.studies.kangaroo import cells as reproduced
from specwb.studies.kangaroo.claims import etas
from specwb.widgets import StopExplorer
from specwb.widgets.kangaroo import ETAS

COSTS = {
    "own": Costs(1.0, 0.2, 0.1, {1: 1.5, 2: 1.8, 5: 3.0}),
    "other": Costs(1.0, 0.1, 0.1, {1: 1.25, 5: 2.0}),
}
TOKENS = 30


@cache
def traces() -> dict[str, Rounds]:
    method = specwb.method("kangaroo:gamma=5", tiny.target(), head=tiny.head("kangaroo"))
    whole = every_round(tiny.target(), tiny.PROMPTS, method, tokens=TOKENS)
    first = whole.text == 0
    return {
        "own": whole,
        "other": Rounds(
            {"top": whole.sure["top"][first]}, whole.kept[first], whole.text[first], whole.nodes
        ),
    }


def explorer(**at) -> StopExplorer:
    return StopExplorer(
        traces(),
        COSTS,
        {("own", 4): {0.6: (2.0, 1.25), 0.3: (2.1, 1.2)}},
        {"g": {0.0: (2.5, 1.1), 0.5: (2.0, 1.5)}},
        **at,
    )


@pytest.mark.parametrize(("eta", "gamma"), [(0.6, 4), (0.0, 5), (0.15, 3), (1.0, 2), (0.3, 1)])
def test_the_rounds_shown_are_those_of_decodings(eta, gamma):
    view = explorer()
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
    assert view.summary.startswith(
        f"own, eta {eta:.2f}, gamma {gamma}: {fmean(drafted):.2f} tokens drafted a round, "
        f"{cr - 1:.2f} kept + 1 = CR {cr:.2f}, "
        f"{fmean(drafted) - fmean(kept):.2f} wasted; predicted speedup {speed:.2f}x"
    )
    assert ("measured 1.25x" in view.summary) == ((eta, gamma) == (0.6, 4))
    best = max((s, -e) for e, (_, s) in zip(ETAS, view.curve("own", gamma)))
    assert view.summary.endswith(f"the best eta here would be {-best[1]:.2f} with {best[0]:.2f}x")


def of(view: StopExplorer, name: str) -> list[tuple[list, list]]:
    """x and y of the series of this name, in every panel."""
    return [(t["x"], t["y"]) for t in shown(view)["data"] if t.get("name") == name]


def test_curves_and_points_of_the_figure():
    view = explorer(eta=0.3, gamma=4)
    tau, drafted, both, *_published, speed, chosen, _, _ = shown(view)["data"]
    every = [traces()["own"].simulate("top", eta, 4) for eta in ETAS]
    assert tau["x"] == drafted["x"] == speed["x"] == list(ETAS)
    assert tau["y"] == pytest.approx([one.cr for one in every], abs=1e-4)
    assert drafted["y"] == pytest.approx([one.mean_drafted + 1 for one in every], abs=1e-4)
    assert speed["y"] == pytest.approx([COSTS["own"].predicted(one) for one in every], abs=1e-4)
    assert (both["x"], chosen["x"]) == ([0.3, 0.3], [0.3])
    assert both["y"] == [tau["y"][6], drafted["y"][6]]
    assert chosen["y"] == [speed["y"][6]]
    assert of(view, "measured") == [([0.6, 0.3], [2.0, 2.1]), ([0.6, 0.3], [1.25, 1.2])]
    assert of(view, "paper, g") == [([0.0, 0.5], [2.5, 2.0]), ([0.0, 0.5], [1.1, 1.5])]
    view.exit.value = "other"
    other = traces()["other"].simulate("top", 0.3, 4)
    assert view.rounds == other
    assert view.predicted == COSTS["other"].predicted(other)
    assert of(view, "measured") == [([], [])] * 2  # nothing was measured of it
    fastest = view.best("other")
    every = [
        (COSTS["other"].predicted(traces()["other"].simulate("top", eta, g)), g, eta)
        for g in range(1, 6)
        for eta in ETAS
    ]
    assert fastest == max(every)


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
            "": reproduced.costs_to_json(COSTS["own"]),
            "exit2": reproduced.costs_to_json(COSTS["other"]),
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
    assert view.predicted == pytest.approx(COSTS["own"].predicted(view.rounds))
    view.exit.value = "exit2"
    assert view.predicted == pytest.approx(COSTS["other"].predicted(view.rounds))
    assert of(view, "measured")[0] == ([0], [2])


def test_controls_and_what_is_missing():
    view = explorer()
    controls = [c for box in view.children if hasattr(box, "children") for c in box.children]
    assert [c.description for c in controls] == ["exit", "eta", "gamma"]
    assert all(c.continuous_update is False for c in controls)
    assert view.summary in view.children[-2].value
    assert view.gamma.max == 5
    for wrong in ({}, {**traces(), "third": traces()["own"]}):
        with pytest.raises(ValueError, match="one adapter at least"):
            StopExplorer(wrong, COSTS, {}, {})
