"""Ways to measure a speedup, on drawn machines whose truth is known."""

from __future__ import annotations

import numpy as np
import pytest

from specwb.theory.analysis import timing


def spread(design, load):
    low, high = np.quantile(
        timing.measured_speedups(design, 1.3, trials=800, load=load), [0.05, 0.95]
    )
    return high - low


def test_on_a_busy_machine_only_pairs_find_the_truth():
    once, apart, paired = (spread(design, 1.6) for design in timing.DESIGNS)
    assert apart > 10 * paired  # many runs, and a stretch of load lies on one side
    assert once > 2 * paired
    assert paired < 1.3 * spread("in turn, paired", 1.0)
    for design in timing.DESIGNS:
        assert np.median(timing.measured_speedups(design, 1.3, trials=800)) == pytest.approx(
            1.3, rel=0.02
        )
