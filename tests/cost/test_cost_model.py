"""The cost model: counts by hand, and times that are put together as its formula says."""

from __future__ import annotations

from itertools import pairwise

import pytest
import tiny
import torch

import specwb
from specwb import analysis
from specwb.bench.measure import Run
from specwb.cost import calibrate as measuring
from specwb.cost.calibrate import AcceptanceTally, calibrate, forward_seconds
from specwb.cost.model import CostError, CostModel, at_length, disorder, in_order

PROMPTS = [[1, 2, 3], [5], [7, 8, 9, 10]]


def model(**changes) -> CostModel:
    settings = {
        "target": {1: 1.0, 2: 1.5, 5: 3.0},
        "draft": {1: 0.1, 2: 0.2, 4: 0.4},
        "opening": (2.0, 0.5),
        "rest": 0.25,
        "chain": [[0.5], [0.5], [0.5]],
        "tree": [[0.5, 0.25], [0.5, 0.25]],
    }
    return CostModel(**{**settings, **changes})


def test_round_seconds_by_hand():
    m = model()
    assert m.c == pytest.approx(0.1)
    assert [m.v(g) for g in (0, 1, 4)] == [1, 1.5, 3]
    assert m.v(2) == pytest.approx(2.0)  # between
    assert m.v(6) == pytest.approx(4.0)  # beyond: the last slope
    assert m.round_seconds(specwb.Tree.chain(0)) == 1
    assert m.round_seconds(specwb.Tree.chain(1)) == pytest.approx(1.5 + 0.2 + 0.25)
    assert m.round_seconds(specwb.Tree.chain(3)) == pytest.approx(2.5 + 0.2 + 0.1 + 0.1 + 0.75)
    # five nodes; two are fed for the last level
    assert m.round_seconds(specwb.Tree.branching(2, 1)) == pytest.approx(3.0 + 0.2 + 0.2 + 0.5)


def test_speedup_counts_prompts_and_whole_rounds():
    m, chain = model(), specwb.Tree.chain(2)
    rounds = analysis.expected_rounds([1, 0.5, 0.25], 10)
    assert m.speedup(chain, 10) == pytest.approx((2 + 10) / (2.5 + rounds * m.round_seconds(chain)))
    assert model(opening=(0.0, 0.0)).speedup(specwb.Tree.chain(0), 10) == 1
    assert m.reach(specwb.Tree.branching(2, 1)) == [1, 0.75, 0.375]
    with pytest.raises(ValueError, match="no rate for depth 4"):
        m.reach(specwb.Tree.chain(4))


class Known(specwb.Drafter):
    """Drafts the plain continuation at a chosen rank by depth, and a wrong token elsewhere."""

    def __init__(
        self, ks: tuple[int, ...], ranks: tuple[int, ...], texts: dict[int, list[int]]
    ) -> None:
        self.tree, self.ranks, self.texts = specwb.Tree.branching(*ks), ranks, texts

    def propose(self, state, noise):
        (row,) = state.tokens.tolist()
        length = int(state.length[0])
        text = self.texts[row[0]]
        tokens, (_, *nodes) = [], range(self.tree.n)
        depth, rank = self.tree.depth[0].tolist(), self.tree.rank[0].tolist()
        for node in nodes:
            right = text[min(length + depth[node] - 1, len(text) - 1)]
            wrong = (right + 1 + rank[node]) % tiny.VOCABULARY
            tokens.append(right if rank[node] == self.ranks[depth[node] - 1] else wrong)
        return self.candidates(state, torch.tensor([tokens]))


def tallied(method: specwb.Method, **settings) -> list[list[float]]:
    tally = AcceptanceTally(method)
    for prompt in PROMPTS:
        tally.add(tiny.target(), prompt, **settings)
    return tally.rates


def test_acceptance_counts_the_children_that_the_walk_took():
    texts = {p[0]: p + list(tiny.plain("llama", tuple(p), 40)) for p in PROMPTS}

    def rates(ks, ranks):
        method = specwb.Method("known", Known(ks, ranks, texts), None, specwb.Exactness.LOSSLESS)
        return tallied(method, max_new_tokens=20)

    assert rates((2, 3), (1, 2)) == [[0, 1, 0], [0, 0, 1]]
    assert rates((2, 3), (0, 7)) == [[1, 0, 0], [0, 0, 0]]  # depth 2 is tested and never accepted
    assert rates((1, 1, 1), (3, 0, 0)) == [[0], [0], [0]]  # depths 2 and 3 are never reached


def test_rates_reproduce_tau():
    """Over decoding steps that no limit cuts, the sum of reach is the measured tau."""
    method = specwb.method("sps", tiny.target(), draft=tiny.draft("llama", 0.05), gamma=3)
    settings = {"temperature": 1.0, "max_new_tokens": 60, "seed": 1}
    rates, lengths = tallied(method, **settings), []
    for prompt in PROMPTS:
        lengths += specwb.decode(tiny.target(), prompt, method, **settings).accepted_lengths[0][:-1]
    assert 0.1 < rates[0][0] < 1
    assert sum(analysis.reach([r[0] for r in rates])) == pytest.approx(
        1 + sum(lengths) / len(lengths)
    )


def test_the_prompt_is_in_the_first_step_alone(monkeypatch):
    run = Run([[0] * 4], 4, 16.0, step_seconds=[9.0, 1.0, 2.0, 4.0])
    monkeypatch.setattr(
        measuring, "measure", lambda target, jobs, steps, clock, warm: [(jobs[0], run)][: steps - 3]
    )
    plain = specwb.method("ar", tiny.target())
    assert measuring.step_seconds(tiny.target(), [1], plain, 3, max_new_tokens=4) == (9.0, 2.0)


def test_times_are_those_in_the_middle_of_a_decoding():
    """Prompts of 2 and 4 tokens with 10 new ones: on average 8 tokens lie before a step."""
    assert measuring._typical_length([[1, 2], [3, 4, 5, 6]], 10) == 8
    # half way from 4 tokens to 12, a quarter of the way to 20
    contexts = {4: {1: 1.0, 2: 2.0}, 20: {1: 2.0, 2: 6.0}}
    assert at_length(contexts, 8) == {1: 1.25, 2: 3.0}
    assert at_length(contexts, 12) == {1: 1.5, 2: 4.0}


def test_forwards_take_time_and_more_tokens_more():
    seconds = forward_seconds(tiny.target(), [1, 200], [1, 2, 3], rounds=6)
    assert list(seconds) == [1, 200]
    assert 0 < seconds[1] < seconds[200]
    for widths in ([], [0]):
        with pytest.raises(ValueError, match="widths must be integers >= 1"):
            forward_seconds(tiny.target(), widths, [1])


def test_calibrate():
    m = calibrate(
        tiny.target(),
        tiny.draft(),
        PROMPTS,
        gamma=3,
        tree=(2, 2),
        max_new_tokens=16,
        temperature=1.0,
        rounds=4,
    )
    assert (len(m.chain), len(m.tree), len(m.tree[0])) == (3, 2, 2)
    assert m.c > 0
    assert all(a > b for a, b in pairwise(m.reach(specwb.Tree.chain(3))))
    # scoring four tokens and drafting three costs no less than one token, whatever the machine did
    # meanwhile
    assert m.round_seconds(specwb.Tree.chain(3)) >= m.target[1]
    assert list(m.target.values()) == sorted(m.target.values())
    assert 0 < m.speedup(specwb.Tree.branching(2, 1), 20) < 4


def test_times_in_order_by_hand():
    assert in_order({4: 4.0, 1: 1.0, 2: 1.0}) == {1: 1.0, 2: 1.0, 4: 4.0}
    # the means of neighbours out of order, also where one mean falls below the pool before it
    assert in_order({1: 2.0, 2: 1.0, 3: 3.0}) == {1: 1.5, 2: 1.5, 3: 3.0}
    assert in_order({1: 1.0, 2: 4.0, 3: 3.0, 4: 2.0}) == {1: 1.0, 2: 3.0, 3: 3.0, 4: 3.0}
    assert in_order({1: 3.0, 2: 4.0, 3: 1.0, 4: 8.0}) == pytest.approx(
        {1: 8 / 3, 2: 8 / 3, 3: 8 / 3, 4: 8.0}
    )
    assert disorder({1: 2.0, 2: 1.0, 3: 3.0}) == 0.5
    assert disorder({1: 1.0, 2: 1.0}) == 0
    for bad in (float("nan"), float("inf"), 0.0, -1.0):
        with pytest.raises(CostError, match=f"finite and > 0, got {bad!r} for 2 tokens"):
            in_order({1: 1.0, 2: bad})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"target": {1: 1.0, 2: 0.5}},
            "target: a step of more tokens is cheaper than one of fewer",
        ),
        ({"draft": {1: 0.1, 2: 0.2, 4: 0.1}}, "draft: a step of more tokens is cheaper"),
        ({"target": {1: float("nan")}}, "finite and > 0, got nan for 1 tokens"),
        ({"opening": (-1.0, 0.0)}, "seconds of prompt processing must be finite and >= 0"),
        ({"opening": (0.0, float("nan"))}, "seconds of prompt processing"),
        ({"rest": -0.11}, "a drafted level would take"),
        ({"rest": float("nan")}, "a drafted level would take nan s"),
    ],
)
def test_no_prediction_is_made_from_figures_without_sense(changes, message):
    with pytest.raises(CostError, match=message):
        model(**changes)


WIDE, FALLING = (
    {n: 1.0 + n / 10 for n in measuring.WIDTHS},
    {n: 2.0 - n / 20 for n in measuring.WIDTHS},
)


@pytest.fixture
def scripted(monkeypatch):
    """``calibrate`` with times from a script instead of a clock.

    Forwards take the seconds of the tables, one table a turn; the last table goes on. A decoding
    step takes a second, with the chain ``chain`` seconds. Returned are the model and the turns.
    """
    turns, lengths = [], []

    def forwards(model, widths, prompt, rounds, repeats, temperature):
        lengths.append(len(prompt))
        # four tables a turn
        table = turns[min((len(lengths) - 1) // 4, len(turns) - 1)]
        return {n: table[n] for n in widths}

    def steps(target, prompt, method, count, **settings):
        return 3.0, steps.chain if method.key.startswith("sps") else 1.0

    steps.chain = 5.0
    monkeypatch.setattr(measuring, "_forward_seconds", forwards)
    monkeypatch.setattr(measuring, "step_seconds", steps)

    def run(*tables, chain=5.0):
        turns[:], lengths[:], steps.chain = tables, [], chain
        model = calibrate(
            tiny.target(),
            tiny.draft(),
            PROMPTS[:1],
            gamma=3,
            tree=(2, 2),
            max_new_tokens=6,
            rounds=4,
        )
        return model, len(lengths) // 4

    return run


def test_times_out_of_order_are_measured_again(scripted):
    """The median of three turns outvotes one falling turn, two more turns outvote two.

    Times that always fall are put in order, and the model says so.
    """
    assert scripted(WIDE)[1] == measuring.TURNS
    m, turns = scripted(FALLING, WIDE, WIDE)
    assert (turns, m.doubts) == (measuring.TURNS, ())
    assert m.target == pytest.approx(WIDE)
    m, turns = scripted(FALLING, FALLING, WIDE)
    assert (turns, m.doubts) == (measuring.TURNS + measuring.AGAIN, ())
    assert m.target == pytest.approx(WIDE)
    m, turns = scripted(FALLING)
    assert turns == measuring.TURNS + measuring.AGAIN
    assert len(set(m.target.values())) == 1
    assert m.v(6) == 1.0
    assert len(m.doubts) == 4
    assert m.doubts[0].startswith(
        "target, after 3 tokens: steps of more tokens took less time than steps of fewer"
    )
    with pytest.raises(CostError, match="finite and > 0"):
        scripted(WIDE | {4: float("nan")})


def test_a_step_cheaper_than_its_parts_costs_no_less_than_one_without_drafting(scripted):
    m, _ = scripted(WIDE, chain=0.1)
    assert m.rest == -m.draft[1]
    assert m.round_seconds(specwb.Tree.chain(3)) >= m.target[1]
    assert "took less than its parts" in m.doubts[0]
    assert scripted(WIDE, chain=5.5)[0].doubts == ()
    assert scripted(WIDE)[0].opening == (pytest.approx(3 - WIDE[1]), pytest.approx(3 - WIDE[1]))


def test_openings_are_never_negative(scripted, monkeypatch):
    monkeypatch.setattr(
        measuring, "step_seconds", lambda target, prompt, method, count, **settings: (0.1, 5.0)
    )
    assert scripted(WIDE)[0].opening == (0.0, 0.0)
