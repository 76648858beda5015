"""What is about to be done, as a time: computed by hand, and refused above a day."""

from __future__ import annotations

import pytest
import tiny

from specwb.engine import work
from specwb.engine.work import WorkError, check_work

TARGET = tiny.target()


@pytest.fixture(autouse=True)
def timed(monkeypatch):
    """A forward pass takes a millisecond a token; which were timed."""
    asked: list[tuple[int, int]] = []

    def one_step(target, rows=1, length=1):
        asked.append((rows, length))
        return lambda: rows * length / 1000

    monkeypatch.setattr(work, "one_step", one_step)
    return asked


def test_a_pass_is_timed_in_part(timed):
    # 10 passes over 8 x 1000 tokens: 80 s. Passes over 1, 4, 16, 64 and 256 tokens are timed, and
    # the last one takes longer than SAMPLE
    assert check_work(TARGET, "10 steps", 10, 8, 1000, lower="steps") == (
        f"10 steps: about 80 s of forward passes of {TARGET.name!r}"
    )
    assert timed == [(1, 1), (1, 1), (1, 4), (1, 16), (1, 64), (1, 256)]
    timed.clear()
    assert "about 4 min" in check_work(TARGET, "texts", 3750, 64, lower="rows")
    assert timed[-1] == (64, 1)


def test_more_than_a_day_is_refused_unless_it_is_allowed(monkeypatch):
    passes = 25 * 3_600_000
    words = r"x: about 25 h of .* more than 24 h; lower --n, or set SPECWB_HOURS"
    with pytest.raises(WorkError, match=words):
        check_work(TARGET, "x", passes, 1, lower="--n")
    with pytest.raises(WorkError, match="about 31,710 years"):
        check_work(TARGET, "x", 10**400, 1, lower="--n")
    monkeypatch.setenv("SPECWB_HOURS", "26")
    assert "about 25 h" in check_work(TARGET, "x", passes, 1, lower="--n")
    monkeypatch.setenv("SPECWB_HOURS", "long")
    with pytest.raises(WorkError, match="SPECWB_HOURS must be a number of hours, got 'long'"):
        check_work(TARGET, "x", 1, 1, lower="--n")


@pytest.mark.parametrize(
    ("memory", "words"), [(2**50, "1048576.0 GiB"), (10**400, "GiB of memory")]
)
def test_more_than_the_memory_is_refused(memory, words):
    with pytest.raises(WorkError, match=f"{words}.* free; lower --rows"):
        check_work(TARGET, "x", 1, 1, lower="--rows", memory=memory)
