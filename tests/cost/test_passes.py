"""Steps whose passes are priced by measured parts."""

from __future__ import annotations

from fractions import Fraction as F

import pytest
import tiny

from specwb.analysis import layer_parallel
from specwb.cost.passes import ExitCost, exit_cost, layered
from specwb.methods import METHODS
from specwb.models.fuzzy import grouping


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


@pytest.mark.parametrize("calibrate", [True, False])
@pytest.mark.parametrize(("layers", "n", "depth"), [(8, 3, 4), (6, 1, 5), (16, 4, 1)])
def test_the_closed_forms_of_easyspec_are_sums_of_its_passes(layers, n, depth, calibrate):
    """What theory/14 proves is about the passes that the method states."""
    options = {"gamma": depth, "n": n, "calibrate": calibrate}
    *drafting, _ = METHODS["easyspec"].forwards(options)
    parts = {"attention": F(3), "mlp": F(5)}
    times = [layered(one, layers, parts) for one in drafting]
    groups, exact = grouping(layers, n), layers * sum(parts.values())
    ratio = layer_parallel.fuzzy_ratio(F(3, 8), layer_parallel.attention_rounds(groups), layers)
    assert times[-1] == (exact if depth == 1 and calibrate else ratio * exact)
    stage = layer_parallel.stage_speedup(ratio, depth, calibrate)
    assert depth * exact / sum(times) == stage
    spans = layer_parallel.timeline(groups, *parts.values(), 0, n, depth, calibrate=calibrate)
    assert max(span.stop for span in spans) == sum(times)
