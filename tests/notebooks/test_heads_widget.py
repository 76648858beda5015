"""The explorer of heads shows the cards' accuracies and the library's trees."""

from __future__ import annotations

from itertools import accumulate

import pytest
from drawn import numbers, picture, shown
from explorers import HEADS

from specwb import analysis, figures
from specwb.drafters.heads import measured_tree
from specwb.verify.exact import depths
from specwb.widgets import HeadsExplorer
from specwb.widgets.heads import accuracies


@pytest.fixture
def explorer() -> HeadsExplorer:
    return HeadsExplorer(HEADS)


def grown(rates, nodes) -> list[int]:
    return analysis.grow_tree([list(accumulate(row, min)) for row in rates], nodes)


def test_accuracies_are_the_cards():
    table = HEADS["eagle"]["held_out"]
    assert accuracies(HEADS["eagle"], "code") == table["code"]["rank"]
    assert (
        accuracies(HEADS["eagle"])[2][1]
        == (table["code"]["rank"][2][1] + table["prose"]["rank"][2][1]) / 2
    )
    for bad, domain in ((HEADS["eagle"], "math"), ({}, "all")):
        with pytest.raises(ValueError, match="domain must be one that was measured"):
            accuracies(bad, domain)


@pytest.mark.parametrize(
    ("head", "nodes", "domain"),
    [("medusa", 10, "all"), ("eagle", 2, "code"), ("eagle", 32, "prose"), ("medusa", 25, "code")],
)
def test_it_shows_the_librarys_trees(explorer, head, nodes, domain):
    before = shown(explorer)
    explorer.nodes.value, explorer.head.value, explorer.domain.value = nodes, head, domain
    rates = accuracies(HEADS[head], domain)
    parents = grown(rates, nodes)
    if domain == "all":
        assert parents == list(measured_tree(HEADS[head], nodes).host[0]), (
            "what the method would draft"
        )
    values = analysis.path_values(rates, parents)
    tau = sum(values)
    assert explorer.parents == parents
    assert (
        explorer.tau == pytest.approx(tau) == pytest.approx(analysis.frontier(rates, 32)[nodes - 1])
    )  # these rates fall with the rank
    taus = {
        name: [
            sum(analysis.path_values(accuracies(one, domain), grown(accuracies(one, domain), n)))
            for n in range(1, 33)
        ]
        for name, one in HEADS.items()
    }
    assert shown(explorer) == picture(figures.heads(rates, parents, values, taus, head))
    assert (shown(explorer) != before) == ((head, nodes, domain) != ("medusa", 10, "all"))
    said = [nodes, max(depths(parents)), f"{tau - 1:.2f}", 1, f"{tau:.2f}", 0, f"{rates[0][0]:.0%}"]
    assert numbers(explorer)[:7] == [str(x).rstrip("%") for x in said]


def test_one_of_the_guesses_is_right_as_often_as_any_is(explorer):
    """0.5 + 0.15 + 0.045 + .. and 0.3 + 0.09 + 0.027 + .."""
    explorer.domain.value = "code"
    assert numbers(explorer)[6:12] == ["50", "30", "20", "5", "71", "43"]


def test_what_is_missing():
    assert HeadsExplorer({"medusa": HEADS["medusa"]}, most=8, domain="code").nodes.value == 8
    for cards, message in (({}, "nothing to choose head"), ({"eagle": {}}, "the card has none")):
        with pytest.raises(ValueError, match=message):
            HeadsExplorer(cards)
