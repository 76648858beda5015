"""The explorer of heads shows the cards' accuracies and the library's trees."""

from __future__ import annotations

from itertools import accumulate

import pytest
from drawn import picture, shown

from specwb import analysis, figures
from specwb.drafters.heads import measured_tree
from specwb.verify.exact import depths
from specwb.widgets import HeadsExplorer
from specwb.widgets.heads import accuracies


def card(*firsts: float) -> dict:
    """Two domains; at each position the first guess is right so often, and the further ones ever
    less."""
    tables = {
        "code": [[a * 0.3**r for r in range(5)] for a in firsts],
        "prose": [[a * 0.5 * 0.6**r for r in range(5)] for a in firsts],
    }
    return {
        "held_out": {
            d: {"rank": [[round(x, 4) for x in row] for row in t], "sampled": [0.5] * len(t)}
            for d, t in tables.items()
        }
    }


CARDS = {"medusa": card(0.5, 0.3, 0.2), "eagle": card(0.7, 0.6, 0.6, 0.5)}


@pytest.fixture
def explorer() -> HeadsExplorer:
    return HeadsExplorer(CARDS)


def grown(rates, nodes) -> list[int]:
    return analysis.grow_tree([list(accumulate(row, min)) for row in rates], nodes)


def test_accuracies_are_the_cards():
    table = CARDS["eagle"]["held_out"]
    assert accuracies(CARDS["eagle"], "code") == table["code"]["rank"]
    assert (
        accuracies(CARDS["eagle"])[2][1]
        == (table["code"]["rank"][2][1] + table["prose"]["rank"][2][1]) / 2
    )
    for bad, domain in ((CARDS["eagle"], "math"), ({}, "all")):
        with pytest.raises(ValueError, match="domain must be one that was measured"):
            accuracies(bad, domain)


@pytest.mark.parametrize(
    ("head", "nodes", "domain"),
    [("medusa", 10, "all"), ("eagle", 2, "code"), ("eagle", 32, "prose"), ("medusa", 25, "code")],
)
def test_it_shows_the_librarys_trees(explorer, head, nodes, domain):
    before = shown(explorer)
    explorer.nodes.value, explorer.head.value, explorer.domain.value = nodes, head, domain
    rates = accuracies(CARDS[head], domain)
    parents = grown(rates, nodes)
    if domain == "all":
        assert parents == list(measured_tree(CARDS[head], nodes).host[0]), (
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
        for name, one in CARDS.items()
    }
    assert shown(explorer) == picture(figures.heads(rates, parents, values, taus, head))
    assert (shown(explorer) != before) == ((head, nodes, domain) != ("medusa", 10, "all"))
    deep = max(depths(parents))
    assert explorer.summary.startswith(
        f"{head}, {domain} text, {nodes} nodes in {deep} level{'s' if deep > 1 else ''}: "
        f"{tau - 1:.2f} accepted + 1 = {tau:.2f} tokens a round "
        f"expected at T = 0; first guess right at {rates[0][0]:.0%}, "
    )
    assert explorer.summary in explorer.children[1].value


def test_one_of_the_guesses_is_right_as_often_as_any_is(explorer):
    """0.5 + 0.15 + 0.045 + .. and 0.3 + 0.09 + 0.027 + .."""
    explorer.domain.value = "code"
    assert "first guess right at 50%, 30%, 20% of places" in explorer.summary
    assert "one of 5 at 71%, 43%, " in explorer.summary


def test_controls_and_what_is_missing(explorer):
    for control in (explorer.head, explorer.nodes, explorer.domain):
        assert control.description
    assert explorer.nodes.continuous_update is False
    assert HeadsExplorer({"medusa": CARDS["medusa"]}, most=8, nodes=8, domain="code").nodes.max == 8
    for cards, message in (({}, "at least one head"), ({"eagle": {}}, "the card has none")):
        with pytest.raises(ValueError, match=message):
            HeadsExplorer(cards)
