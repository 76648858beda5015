"""Steps whose passes are priced by measured parts."""

from __future__ import annotations

import tiny

from specwb.lab.cost.passes import ExitCost, exit_cost


def test_what_early_exits_cost_on_this_machine():
    head, short = tiny.head("kangaroo"), {"depths": (1, 3), "count": 3, "repeats": 1}
    here = exit_cost(tiny.target(), head, [1, 2, 3], **short)
    assert here.plain > 0
    low, high = sorted(here.round.values())
    assert low <= here.seconds(2) <= high


def test_seconds_between_the_measured_depths():
    cost = ExitCost(plain=2.0, round={1: 3.0, 3: 6.0})
    assert [cost.seconds(drafted) for drafted in (1, 2, 3)] == [3.0, 4.5, 6.0]
