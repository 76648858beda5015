"""Studies of heads by training budget, which are no paper's."""

from __future__ import annotations

import pytest

from specwb.core.errors import ArgumentError
from specwb.lab.studies import OTHERS, budget, falcon, study_of
from specwb.lab.studies.adapters import ADAPTERS
from specwb.lab.studies.claim import again
from specwb.lab.studies.csgd import CSGD, PUBLISHED
from specwb.lab.studies.curves import series
from specwb.lab.studies.hass import HASS
from specwb.lab.studies.losses import LOSSES
from specwb.lab.studies.trained import in_layers
from specwb.show.pictures import draw, picture_of
from specwb.training.heads import RECIPES
from specwb.training.run import lab_settings
from specwb.training.settings import parse, read_recipe

COMPARISONS = {c.name: c for c in (CSGD, HASS, ADAPTERS, LOSSES)}


def settings(comparison: budget.Comparison) -> dict[str, dict]:
    kind = comparison.head
    return {
        name: lab_settings(kind, "ablation", options=in_layers(text, 12))
        for name, text in comparison.variants.items()
    }


def differing(one: dict, other: dict) -> set[str]:
    return {key for key in one.keys() | other.keys() if one.get(key) != other.get(key)}


@pytest.mark.parametrize("name", COMPARISONS)
def test_heads_differ_in_steps_and_what_is_compared_alone(name):
    comparison = COMPARISONS[name]
    assert set(COMPARISONS) < set(OTHERS)
    assert study_of(name).variants == comparison.variants
    heads, own = settings(comparison), RECIPES[comparison.head].options
    *_, last = comparison.arms
    assert len(heads) == len(comparison.objectives) * len(budget.STEPS) * len(comparison.arms)
    for end in comparison.objectives:
        for steps in budget.STEPS:
            reference = heads[f"{last}{end}-{steps}"]
            assert (reference["steps"], reference["warmup"]) == (steps, budget.WARMUP)
            for arm in comparison.arms.keys() - {last}:
                differs = differing(heads[f"{arm}{end}-{steps}"], reference)
                assert len(differs) == 1  # parts, depth, number of passes, or the loss
                assert differs <= {*own, "loss"}
    assert len({tuple(sorted(head.items())) for head in heads.values()}) == len(heads)


def test_the_published_objective_of_csgd_is_that_of_its_recipe():
    assert PUBLISHED.items() <= read_recipe("falcon", "falcon").settings.items()
    ours, theirs = (
        parse("falcon", CSGD.variants[name], RECIPES["falcon"].options)
        for name in ("csgd-64", "csgd-paper-64")
    )
    assert ours == {**falcon.FIRST, "warmup": 25, "steps": 64}
    assert theirs == {**ours, **PUBLISHED}


def test_means_and_intervals_are_over_training_runs():
    first, second = CSGD.row(64, "chain of 4")
    runs = {first: [1.0, 1.2, 1.4], second: [0.9, 1.0, 0.8, 5.0]}
    rows = [
        {"cell": again(cell, run).key, "accepted": value, "tau": 1 + value, "tau_error": None}
        for cell, values in runs.items()
        for run, value in enumerate(values)
    ]
    by_key = {r["cell"]: r for r in rows}
    assert budget.by_run(by_key, first, "accepted") == runs[first]
    claim, ratio = CSGD.claims({})[0], {"ratio": 4 / 3, "low": 1.1, "high": 1.6, "seeds": 3}
    assert (claim.first, claim.second) == (first, second)
    verdicts = [{"claim": claim.text, **ratio}]
    heads = {"csgd-64": {"rows": 2, "length": 5}}
    document = {"rows": [], "ablation": {"rows": rows, "verdicts": verdicts, "heads": heads}}
    (title, lines), *_ = CSGD.tables(document, {}, by_key)
    assert title.endswith("chain of 4, T = 0")
    ours = {"steps": "64", "tokens": "640", "runs": "3"}
    assert lines == [
        {**ours, "head": "CSGD", "accepted": "1.20", "over no CSGD": "x1.33 (1.10-1.60)"},
        {**ours, "head": "no CSGD", "accepted": "0.90", "over no CSGD": ""},
    ]
    (panel, *_) = [c for c in CSGD.curves(document) if c.name == "CSGD"]
    here = series(panel, document)[1]
    assert here.x == [0.64]
    assert here.y == [pytest.approx(1.2)]
    # Student's of two degrees of freedom: 4.303 x .2 / sqrt(3)
    assert here.high == [pytest.approx(1.2 + 4.3027 * 0.2 / 3**0.5, abs=1e-4)]


def test_every_arm_has_its_column_and_its_claims():
    texts = ADAPTERS.texts(125, "chain of 6")
    assert texts[0] == "own head over attention at 3, 125 steps, chain of 6"
    assert len(texts) == len(ADAPTERS.arms) - 1
    of_budget = [c for c in ADAPTERS.claims({}) if c.text in texts]
    assert [c.first.variant for c in of_budget] == [f"{a}-125" for a in list(ADAPTERS.arms)[:-1]]
    assert {c.second.variant for c in of_budget} == {"attention-125"}
    assert all(c.trained for c in of_budget)


def test_a_figure_of_heads_that_were_not_trained_is_refused_in_words():
    for drawn in (draw, picture_of):
        with pytest.raises(ArgumentError, match="--train makes them"):
            drawn(study_of("csgd").figures["budget"], {"rows": []})
