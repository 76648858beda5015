"""Lines about work that lasts: when they come, and what they say."""

from __future__ import annotations

import re
import time

import pytest

from specwb.core import progress


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(progress, "FIRST", 0.05)
    monkeypatch.setattr(progress, "EVERY", 0.2)
    monkeypatch.setattr(progress, "_printed", 0.0)


def printed(capsys) -> list[str]:
    return capsys.readouterr().err.splitlines()


def test_the_first_line_comes_soon_and_others_now_and_then(quick, capsys):
    with progress.progress("measuring", lasting=True) as move:
        move(0.5, "ar")  # which an earlier run did
        time.sleep(0.15)
        first = printed(capsys)
        move(0.6, "pld")
        time.sleep(0.5)
        later = printed(capsys)
    time.sleep(0.3)
    assert printed(capsys) == []  # the work has ended
    assert first == ["ar, 0 s so far"]
    # a tenth took half a second or a little more, so that four times as much is left
    assert later
    assert all(re.fullmatch(r"60%: pld, about [1-9] s left, [01] s so far", x) for x in later)


def test_a_command_that_imports_for_long_says_so_once(quick, capsys):
    with progress.first_line("specwb tune: at work"):
        time.sleep(0.3)
    with progress.first_line("specwb tune: at work"), progress.lines(lambda: "loading", first=1):
        time.sleep(0.1)
    assert printed(capsys) == ["specwb tune: at work"]


def test_what_is_quick_says_nothing(quick, capsys):
    with progress.lines(lambda: "loading", first=0.5):
        time.sleep(0.1)
    assert printed(capsys) == []
    times = (0.4, 119, 120, 7200, 2.6 * 86400, 1e15)
    assert [*map(progress.duration, times)] == [
        *("0 s", "119 s", "2 min", "2 h", "3 days", "31,709,792 years")
    ]


def test_the_first_of_several_processes_prints(quick, monkeypatch, capsys):
    monkeypatch.setenv("RANK", "1")
    with progress.progress("training"):
        time.sleep(0.15)
    assert printed(capsys) == []
