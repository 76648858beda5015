"""What a notebook shows of a result is the same in every run: nbval compares it as text.

A widget is compared by its repr alone, so an address in it never passes.
"""

from __future__ import annotations

import re

import tiny

import specwb


def results() -> dict[str, object]:
    """What a user's cell may end in."""
    target, draft = tiny.target(), tiny.draft()
    trace = specwb.record(target, [1, 2, 3], "sps", draft=draft, max_new_tokens=4)
    return {
        "target": target,
        "method": specwb.method("mcsd:tree=2-1", target, draft=draft, rule="rrsw"),
        "decode": specwb.decode(target, [1, 2, 3], "sps", draft=draft, max_new_tokens=4),
        "record": trace,
        "microscope": specwb.microscope(trace),
        "explorer": specwb.show.widgets.SpeedExplorer(),
    }


def test_a_result_is_shown_alike_in_every_run():
    first, second = results(), results()
    for name, result in first.items():
        shown = repr(result)
        assert shown == repr(second[name]), name
        assert not re.search(r"0x[0-9a-f]{6}|second", shown), (name, shown)
    assert repr(first["method"]).startswith("Method(key='mcsd:tree=2-1,rule=rrsw', exactness=")
    steps = len(first["record"]["rounds"])
    line = f"sps: 4 tokens in {steps} steps, {4 / steps:.2f} per step"
    assert repr(first["record"]) == f"Trace({line})"
    assert repr(first["microscope"]) == f"Microscope({line})"
    assert first["decode"].seconds > 0
