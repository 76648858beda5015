"""The explorer of rules shows the library's numbers, and laws counted in fractions."""

from __future__ import annotations

import numpy as np
import pytest
from drawn import every_figure, numbers, picture

from specwb import analysis, figures
from specwb.verify import exact
from specwb.verify.mutants import MUTANTS
from specwb.widgets import RulesExplorer
from specwb.widgets.rules import NAMES, UNITS, pair


@pytest.fixture(scope="module")
def explorer() -> RulesExplorer:
    return RulesExplorer()


@pytest.fixture(autouse=True)
def _as_at_first(request):
    if "explorer" in request.fixturenames:
        one = request.getfixturevalue("explorer")
        for name, value in {
            "temperature": 1.0,
            "mismatch": 1.0,
            "vocabulary": 5,
            "k": 2,
            "seed": 0,
            "verifier": "rrsw",
        }.items():
            getattr(one, name).value = value


def expected(
    temperature=1.0, mismatch=1.0, vocabulary=5, k=2, seed=0, verifier="rrsw"
) -> list[dict]:
    """The three figures, from direct calls."""
    p, q = pair(temperature, mismatch, vocabulary, seed)
    drawn = {NAMES.get(name, name): scheme for name, scheme in analysis.DRAWN.items()}
    a, b = np.array(p, dtype=float), np.array(q, dtype=float)
    rates = {NAMES.get(name, name): float(rate(a, b, k)) for name, rate in analysis.RATES.items()}
    optima = {
        scheme: float(analysis.optimum(a, b, k, scheme)) for scheme in dict.fromkeys(drawn.values())
    }
    wrong = {m.name: m for m in MUTANTS}.get(verifier)
    out = (
        exact.output_distribution(wrong.node, wrong.scheme, p, q, 1 if wrong.k == 1 else k)
        if wrong
        else p
    )
    name = f"the WRONG rule {verifier}" if wrong else NAMES.get(verifier, verifier)
    return [
        picture(f)
        for f in (
            figures.slices(p, q, exact.rrs_levels(p, q, k)),
            figures.rule_rates(rates, optima, drawn),
            figures.output(p, out, name),
        )
    ]


@pytest.mark.parametrize(
    "change",
    [
        {"temperature": 2.0},
        {"mismatch": 0.4},
        {"vocabulary": 4},
        {"k": 3},
        {"k": 1},
        {"seed": 7},
        {"verifier": "sorted_by_q"},
        {},
    ],
)
def test_the_pictures_are_the_librarys(explorer, change):
    before = every_figure(explorer)
    for name, value in change.items():
        getattr(explorer, name).value = value
    assert every_figure(explorer) == expected(**change)
    assert (every_figure(explorer) != before) == bool(change)
    assert explorer.summary in explorer.children[2].value
    assert f"{float(exact.overlap(explorer.p, explorer.q)):.3f}" in numbers(explorer)


@pytest.mark.parametrize("k", [1, 2, 3])
def test_rules_give_p_and_wrong_ones_do_not(explorer, k):
    explorer.k.value = k
    wrong = {m.name: m for m in MUTANTS}
    names = [value for _, value in explorer.verifier.options]
    assert set(names) == {*exact.RULES, *wrong}
    for name in names:
        explorer.verifier.value = name
        off = exact.tv(explorer.out, explorer.p)
        if name in wrong:
            if k >= wrong[name].k:
                assert off > 0
                assert numbers(explorer)[-1] == f"{float(off):.4f}"
        else:
            assert explorer.out == explorer.p
            assert numbers(explorer)[-1] == "0"


def test_no_bar_is_above_its_line(explorer):
    for seed in range(8):
        explorer.seed.value = seed
        drawn = {NAMES.get(name, name): scheme for name, scheme in analysis.DRAWN.items()}
        assert all(
            rate <= explorer.optima[drawn[name]] + 1e-9 for name, rate in explorer.rates.items()
        )
        assert f"{max(explorer.rates.values()):.3f}" in numbers(explorer)


def test_equal_distributions_have_no_residual(explorer):
    explorer.mismatch.value = 0
    assert explorer.p == explorer.q
    names = [trace["name"] for trace in every_figure(explorer)[0]["data"]]
    assert names == ["candidate 1", "bonus token", "these lines"]
    assert not any(every_figure(explorer)[0]["data"][1]["y"])


def test_pairs_are_distributions_in_small_fractions():
    for seed in range(20):
        for distribution in pair(0.3, 3.0, 6, seed) + pair(3.0, 0.5, 2, seed):
            assert sum(distribution) == 1
            assert all(x >= 0 and UNITS % x.denominator == 0 for x in distribution)


def test_the_errors_of_a_draft_are_its_own():
    """They put its tokens into another order, and do not only sharpen the target's distribution."""
    pairs = [pair(1.0, 3.0, 5, seed) for seed in range(6)]
    assert any(p.index(max(p)) != q.index(max(q)) for p, q in pairs)
    p, q = pair(2.5, 0.0, 5, 0)  # without errors it is the target, at every temperature
    assert p == q
