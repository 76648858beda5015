"""The one judge: planted ratios get their words, and a wrong number turns them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from specwb.lab.bench import statistics
from specwb.lab.bench.statistics import bootstrap, weights
from specwb.lab.papers.figures import figure
from specwb.lab.papers.judge import PROMPTS, WORDS, counts, judge, series
from specwb.lab.papers.paper import Claim, Side

A, B = (Side((f"T=0 {name}",)) for name in "ab")
CLAIM = Claim("a over b", "table 1", "accepted", A, B, paper=1.44)


def cell(accepted: float, prompts: int = PROMPTS, ms: float = 0.0, noise: float = 0.1) -> dict:
    """What is recorded of steps that accept so many tokens on average, and take so many ms."""
    shift = noise * np.random.default_rng(1).standard_normal(prompts)
    steps = [[a, a] for a in accepted + shift - shift.mean()]
    record = {"accepted": steps, "ms": [], "levels": [[4, 4]] * prompts}
    return record | ({"ms": [ms] * prompts, "mean": [ms] * prompts} if ms else {})


def results(a: float, b: float, prompts: int = PROMPTS, kind: str = "cpu") -> dict:
    """Results in which the cells a, b and ar accept and cost so much."""
    cells = {"T=0 a": cell(a, prompts, 2.0), "T=0 b": cell(b, prompts, 4.0)}
    return {"cells": cells | {"T=0 ar": cell(0, prompts, 2.0)}, "kind": kind}


@pytest.mark.parametrize(
    ("word", "measured", "changes"),
    [
        ("agrees", 1.4, {}),  # above half of the effect, 1.2
        ("undecided", 1.2, {}),
        ("differs", 1.1, {}),
        ("more than claimed", 2.3, {}),  # above twice the effect, 2.07
        ("agrees", 1.1, {"paper": None}),
        ("differs", 0.9, {"paper": None}),
        ("agrees", 0.97, {"paper": 0.93, "least": 0.93}),
        ("differs", 0.88, {"paper": 0.93, "least": 0.93}),
        ("agrees", 1.0, {"paper": 0.99, "even": True}),
        ("differs", 1.2, {"paper": 0.99, "even": True}),
        ("other hardware", 1.4, {"what": "speedup"}),
        ("not measured", 1.4, {"a": Side(("T=0 c",))}),
    ],
)
def test_a_planted_ratio_has_its_word(word, measured, changes):
    verdict = judge(replace(CLAIM, **changes), [results(measured, 1.0)])
    assert verdict.word == word
    evidence = "not measured" if word == "not measured" else "measured here"
    assert verdict.evidence == evidence
    if word not in ("other hardware", "not measured"):
        assert verdict.ratio == pytest.approx(measured, rel=1e-6)
        assert verdict.low <= verdict.ratio <= verdict.high


def test_few_prompts_and_a_single_training_decide_nothing():
    assert judge(CLAIM, [results(1.4, 1.0, PROMPTS - 1)]).word == "undecided"
    document = results(1.4, 1.0)
    cells = document["cells"]
    cells["T=0 a [x]"], cells["T=0 a [y]"] = cells["T=0 a"], cells["T=0 b"]
    claim = replace(CLAIM, a=Side(("T=0 a [x]",)), b=Side(("T=0 a [y]",)))
    once = judge(claim, [results(1.0, 1.0), document])
    assert (once.word, once.note) == ("undecided", "one training run of each head")
    # two runs that agree with each other, and two that do not
    for other, word in ((1.4, "agrees"), (0.7, "undecided")):
        cells["T=0 a [x@2]"], cells["T=0 a [y@2]"] = cell(other), cell(1.0)
        twice = judge(claim, [document])
        assert (twice.word, twice.runs) == (word, 2)
    assert twice.ratio == pytest.approx((1.4 + 0.7) / 2, rel=1e-6)


def test_speeds_are_judged_on_the_papers_kind_of_device():
    claim = replace(CLAIM, what="speedup")  # a: 2.4 tokens in one plain step, b: 2 in two
    on_cpu, on_gpu = (judge(claim, [results(1.4, 1.0, kind=kind)]) for kind in ("cpu", "cuda"))
    assert (on_cpu.word, on_cpu.note) == ("other hardware", "on this machine: more than claimed")
    assert on_gpu.word == "more than claimed"
    assert on_cpu.ratio == on_gpu.ratio == pytest.approx(2.4, rel=1e-6)


def test_a_theorem_decides_and_counts_once():
    excluded = [replace(CLAIM, paper=p, excluded_by="theorem 1") for p in (1.44, 2.0)]
    implied = replace(CLAIM, a=B, b=A, implied_by="theorem 2")
    verdicts = [judge(claim, [results(1.4, 1.0)]) for claim in (*excluded, implied, CLAIM)]
    assert [v.word for v in verdicts] == ["differs", "differs", "agrees", "agrees"]
    assert [v.evidence for v in verdicts] == ["theorem"] * 3 + ["measured here"]
    assert counts(verdicts) == {"agrees": 2, "differs": 1}
    # one measurement against two numbers of the paper counts once, by the less favourable word
    repeats = [judge(replace(CLAIM, paper=p), [results(1.4, 1.0)]) for p in (1.44, 4.0)]
    assert counts(repeats) == {"differs": 1}
    assert set(counts([*verdicts, *repeats])) <= set(WORDS)


def test_a_drafter_with_less_than_half_is_named():
    named = {"drafter": "a", "cell": "T=0 a", "what": "accepted", "paper": 3.0}

    def note(**changes):
        return judge(CLAIM, [results(1.4, 1.0)], [{**named, **changes}]).note

    assert note() == "our a accepts 1.40 draft tokens, not 3.00"
    assert note(paper=2.7) == ""
    assert note(drafter="a [x]", paper=9.0) == ""  # a trained head that the claim is not about


def test_a_tuned_setting_is_chosen_on_the_other_prompts():
    cells = {
        "T=0 a": {"accepted": [[9], [0], [0]], "ms": []},
        "T=0 b": {"accepted": [[0], [4], [4]], "ms": []},
    }
    best = Side(("T=0 a", "T=0 b"), by="accepted")
    # without the first prompt b is best; without another one a has 9 and b 4
    assert series(cells, best, "accepted") == [0, 0, 0]
    like = replace(best, like=("T=0 b", "T=0 a"))
    assert series(cells, like, "accepted") == [9, 4, 4]
    assert series(cells, Side(("T=0 a", "T=0 b", "T=0 c")), "accepted") == [4.5, 2, 2]


def test_figures_by_hand():
    cells = {
        "T=0 x": {
            "accepted": [[1, 3, 2]], "drafted": [[4, 4, 4]], "levels": [[2, 3, 4]],
            "mean": [4.0], "parts": [[1.0, 0.5, 2.0, 0.5]],
        },
        "T=0 ar": {"mean": [2.0], "accepted": [[0, 0, 0]]},
    }  # fmt: skip
    wanted = {
        "tau": 3, "accepted": 2, "alpha": 2 / 3, "at least 2": 2 / 3, "drafted": 4, "levels": 3,
        "depth_fraction": 2 / 3, "ms": 4, "search": 0.5, "search/ms": 0.125, "pace": 0.5,
        "speedup": 3.5 * 0.5,
    }  # fmt: skip
    for what, value in wanted.items():
        assert figure(cells, "T=0 x", what) == [pytest.approx(value)], what
        assert figure(cells, "T=0 y", what) == []
    # of several roots the first level is not drafted
    cells["T=0 mcsd_ti:preset=published"] = cells["T=0 x"]
    assert figure(cells, "T=0 mcsd_ti:preset=published", "depth_fraction") == [1]


def test_intervals_by_hand():
    a = np.random.default_rng(0).normal(10, 2, 400)
    ratio, low, high = bootstrap(np.stack([a, np.full(400, 5.0)]))
    assert ratio == pytest.approx(a.mean() / 5)
    half = 1.96 * a.std(ddof=1) / 20 / 5
    assert (low, high) == pytest.approx((ratio - half, ratio + half), rel=2e-3)
    # of r runs r - 1 are drawn, so that a mean of r has its variance
    runs = np.array([8.0, 10.0, 12.0])
    drawn = runs @ weights(3, 2, seed=1)
    assert drawn.var() == pytest.approx(runs.var(ddof=1) / 3, rel=0.03)
    assert weights(5).sum(0) == pytest.approx(np.ones(statistics.RESAMPLES))


@pytest.mark.parametrize(("word", "measured"), [("agrees", 1.4), ("differs", 1.1)])
def test_settings_of_one_method_are_compared_on_this_machine(word, measured):
    a, b = (Side((f"T=0 k:gamma={n}",)) for n in (4, 8))
    cells = results(2 * measured - 1, 1.0)["cells"]  # a step of a takes half of b's time
    cells = {"T=0 ar": cells["T=0 ar"], a.name: cells["T=0 a"], b.name: cells["T=0 b"]}
    cells[b.name]["mean"] = cells[a.name]["mean"]
    verdict = judge(replace(CLAIM, what="speedup", a=a, b=b), [{"cells": cells}])
    assert verdict.word == word
    assert "on this machine" in verdict.note
    assert verdict.ratio == pytest.approx(measured, abs=0.03)


def test_a_head_of_another_architecture_is_named():
    published = {"a": {"fusion": "lstm", "layers": 2, "vocabulary": "all"}, "x": {"layers": 1}}
    ours = {"a": {"fusion": "linear", "layers": 2}, "x": {"layers": 9}}
    document = results(1.4, 1.0) | {"architecture": ours}
    assert judge(CLAIM, [document], published=published).note == (
        "our a head has fusion=linear, not lstm"
    )
    document["architecture"]["b"] = {"layers": 3}
    both = judge(CLAIM, [document], published={"b": {"layers": 1}, **published})
    assert both.note.startswith("our b head has layers=3, not 1; our a head")
    document["architecture"] = {"a": {"fusion": "lstm", "layers": 2}}
    assert judge(CLAIM, [document], published=published).note == ""
