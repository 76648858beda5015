"""Steps whose passes are priced by measured parts."""

from __future__ import annotations

import pytest
import tiny

from specwb.lab.cost.passes import ExitCost, exit_cost


def test_what_early_exits_cost_on_this_machine():
    head, short = tiny.head("kangaroo"), {"depths": (1, 3), "count": 3, "repeats": 1}
    here = exit_cost(tiny.target(), head, [1, 2, 3], **short)
    assert here.r > 0
    assert here.a > 0
    assert here.seconds(1) == here.round[1]
    low, high = sorted(here.round.values())
    assert low <= here.seconds(2) <= high
    with pytest.raises(ValueError, match="depths"):
        exit_cost(tiny.target(), head, depths=())


def test_passes_of_an_early_exit_by_hand():
    cost = ExitCost(plain=2.0, shallow=0.5, adapter=0.25, round={1: 3.0, 3: 6.0})
    assert [cost.of_passes(drafted) for drafted in (1, 4)] == [2.75, 5.0]  # 2 + 0.75 D
    assert (cost.r, cost.a) == (0.25, 0.125)
    assert [cost.seconds(drafted) for drafted in (1, 2, 3)] == [3.0, 4.5, 6.0]
