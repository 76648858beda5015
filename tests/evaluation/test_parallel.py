"""specwb parallel: its report on one process and on several.

The several processes are made up here; tests/models/test_ranks.py starts real ones.
"""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import ranked
import tiny
from terminal import call, refused

import specwb
from specwb.evaluation import ranked as ranked_times
from specwb.evaluation.ranked import cells, measure, notes

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def _one_process(monkeypatch):
    monkeypatch.delenv("RANK", raising=False)


@pytest.fixture(scope="module")
def one_process() -> dict:
    options = {"draft": ranked.deep("llama"), "n": 4, "gamma": 3, "width": 1}
    return measure(tiny.target(), tiny.PROMPTS[0], None, options, {"max_new_tokens": 16, "eos": ()})


def test_one_process(one_process):
    wanted = list(tiny.plain("llama", tuple(tiny.PROMPTS[0]), 16))
    text = []
    for step in one_process["rounds"]:
        assert len(step["draft"]) == 3
        text += [*step["draft"][: step["accepted"]], step["bonus"]]
    assert text == wanted
    assert one_process["same"] is True
    (times,) = one_process["by_rank"]
    assert times["draft"] > 0 < times["target"]
    assert times["round"] == pytest.approx(times["draft"] + times["target"] + times["rest"])
    assert times["attention"] == times["exchange"] == 0
    assert [list(row) for row in cells(one_process)] == [
        ["rank", "drafting", "target", "verify, commit", "round"]
    ]
    count = len(one_process["rounds"])
    assert notes(one_process)[0] == (
        f"{count} steps, {16 / count:.2f} tokens per step; "
        "times are milliseconds per step, the first left out"
    )
    assert "one process" in notes(one_process)[1]


@pytest.mark.parametrize(
    ("exchange", "limit", "verdict"),
    [(0.5, 0.6, "less than that: drafting gains"), (0.7, 0.6, "more than that: drafting loses")],
)
def test_several_processes(one_process, exchange, limit, verdict):
    """The slowest rank's exchanges are what counts."""
    times = one_process["by_rank"][0] | {"attention": 0.25, "draft": 2.0}
    several = {
        **one_process,
        "by_rank": [times | {"exchange": 0.1}, times | {"rank": 1, "exchange": exchange}],
        "attention": 0.2,
        "limit": limit,
        "same": False,
    }
    rows = cells(several)
    assert [row["rank"] for row in rows] == ["0", "1"]
    assert rows[1]["exchange"] == f"{exchange:.2f}"
    assert rows[1]["rest of drafting"] == f"{2.0 - 0.25 - exchange:.2f}"
    lines = notes(several)
    assert lines[1] == "drafts equal those of one process: NO"
    assert f"exchanges may take {limit:.2f} ms per step at most" in lines[2]
    assert lines[2].endswith(
        f"they took {exchange:.2f} ms, waiting for the slowest rank included, {verdict}"
    )


def test_the_first_step_is_not_timed(monkeypatch):
    """Three steps draft for 7, 1 and 3 seconds; the prompt is in the first."""
    clock = SimpleNamespace(seconds=dict.fromkeys(("draft", "score", "verify", "commit"), 0.0))

    def steps(*given, **settings):
        for drafting in (7.0, 1.0, 3.0):
            clock.seconds["draft"] += drafting
            clock.seconds["score"] += 0.5
            yield None

    monkeypatch.setattr(ranked_times, "Clock", lambda device: clock)
    monkeypatch.setattr(ranked_times, "rounds", steps)
    times = ranked_times.step_times(tiny.target(), [1], None, {}, None)
    assert (times["draft"], times["target"], times["round"]) == (2000.0, 500.0, 2500.0)


def test_a_single_step_is_not_timed(one_process):
    single = {
        **one_process,
        "rounds": one_process["rounds"][:1],
        "by_rank": one_process["by_rank"] * 2,
        "limit": 1.0,
        "attention": 1.0,
    }
    assert notes(single) == [
        "one step alone, which has the prompt in it, is not timed; ask for more tokens"
    ]


def test_the_command(monkeypatch, capsys):
    code, out, _ = call(
        monkeypatch,
        capsys,
        "parallel",
        "It was",
        "-n",
        "3",
        "--gamma",
        "2",
        "--max-new-tokens",
        "6",
    )
    assert code == 0
    lab = specwb.load("lab")
    text = specwb.decode(lab, "It was", "easyspec:n=3,gamma=2", max_new_tokens=6)
    first = out.splitlines()[0]
    assert first.startswith("step 1: drafted ")
    assert (
        len([line for line in out.splitlines() if line.startswith("step ")]) == text.step_counts[0]
    )


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--ranks", "2"], "several processes need the environment that torchrun makes"),
        (["-n", "9"], "n=9 is more than its 8 layers allow"),
        (["--groups", "3-1"], "groups must be ranges such as 1-3.4-6"),
        (["--draft", "lab-draft"], "of its 1 layer 1 stand alone"),
        (["--device", "gpu"], "device must be auto, cpu, cuda"),
    ],
    ids=lambda x: "" if isinstance(x, str) else " ".join(x),
)
def test_bad_input_is_one_line_before_work(monkeypatch, capsys, words, line):
    assert line in refused(monkeypatch, capsys, "parallel", *words)
