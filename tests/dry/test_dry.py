"""``make dry``: its judgement of a step. Whether its runtime tells good operations from bad ones is
the first part of each run."""

from __future__ import annotations

import pytest
import run

STEP = {
    **{"case": "sps:gamma=4", "T": 1.0, "mode": "graph"},
    **{"host_reads": 0, "captured": True, "staged": False},
    **{"replays": 1, "syncs": 1, "pageable": 0, "reads": 1, "violations": 0},
}
STAGED = {**STEP, "staged": True, "host_reads": 3, "reads": 4, "syncs": 4, "replays": 6}
EAGER = {**STEP, "mode": "eager", "replays": 0, "captured": False, "pageable": 3, "syncs": 4}


@pytest.mark.parametrize(
    ("step", "change", "fault"),
    [
        (STEP, {"replays": 2}, "2 replays, at most 1"),
        (STEP, {"replays": 0}, "no graph is replayed"),
        (STEP, {"reads": 2}, "2 reads, at most 1"),
        (STEP, {"syncs": 2}, "2 syncs, at most 1"),
        (STEP, {"violations": 1}, "1 violations, at most 0"),
        (STEP, {"pageable": 1}, "1 pageable, at most 0"),
        (STEP, {"error": "RuntimeError: no"}, "RuntimeError: no"),
        (STAGED, {"replays": 7}, "7 replays, at most 6"),
        (EAGER, {"syncs": 5}, "5 syncs, at most 4"),
        (EAGER, {"captured": True, "syncs": 1}, "3 pageable, at most 0"),
    ],
)
def test_a_fault_of_a_step(step, change, fault):
    assert run.faults(step) == []
    assert run.faults(step | change) == [fault]
