"""specwb parallel: what it says of one process and of several (those that are really several: tests/models/test_ranks.py)."""

from __future__ import annotations

import sys

import pytest
import ranked
import tiny

import specwb
from specwb import cli
from specwb.evaluation.ranked import cells, measured, notes

pytestmark = pytest.mark.slow


def call(monkeypatch, capsys, *words: str) -> tuple[int, str, str]:
    monkeypatch.setattr(sys, "argv", ["specwb", *words])
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(SystemExit) as stop:
        cli.main()
    out, err = capsys.readouterr()
    return stop.value.code, out, err


@pytest.fixture(scope="module")
def alone() -> dict:
    options = {"draft": ranked.deep("llama"), "n": 4, "gamma": 3, "width": 1}
    return measured(tiny.target(), tiny.PROMPTS[0], None, options, {"max_new_tokens": 16, "eos": ()})


def test_one_process(alone):
    wanted = list(tiny.plain("llama", tuple(tiny.PROMPTS[0]), 16))
    said = []
    for one in alone["rounds"]:
        assert len(one["drafted"]) == 3
        said += [*one["drafted"][: one["accepted"]], one["closing"]]
    assert said == wanted
    assert alone["same"] is True
    (own,) = alone["by_rank"]
    assert own["draft"] > 0 < own["target"]
    assert own["round"] == pytest.approx(own["draft"] + own["target"] + own["rest"])
    assert own["attention"] == own["exchange"] == 0
    assert [list(row) for row in cells(alone)] == [["rank", "drafting", "target", "verify, commit", "round"]]
    tau = 16 / len(alone["rounds"])
    assert notes(alone)[0] == f"{len(alone['rounds'])} rounds, {tau:.2f} tokens a round; times are milliseconds a round, the first left out"
    assert "one process" in notes(alone)[1]


@pytest.mark.parametrize(("took", "limit", "verdict"), [(0.5, 0.6, "less than that: drafting gains"), (0.7, 0.6, "more than that: drafting loses")])
def test_several_processes(alone, took, limit, verdict):
    """The slowest rank's exchanges are what counts."""
    own = alone["by_rank"][0] | {"attention": 0.25, "draft": 2.0}
    several = {**alone, "by_rank": [own | {"exchange": 0.1}, own | {"rank": 1, "exchange": took}], "attention": 0.2, "limit": limit, "same": False}
    rows = cells(several)
    assert [row["rank"] for row in rows] == ["0", "1"]
    assert rows[1]["exchange"] == f"{took:.2f}"
    assert rows[1]["rest of drafting"] == f"{2.0 - 0.25 - took:.2f}"
    said = notes(several)
    assert said[1] == "drafts equal those of one process: NO"
    assert f"exchanges may take {limit:.2f} ms a round at most" in said[2]
    assert said[2].endswith(f"they took {took:.2f} ms, waiting for the slowest rank included, {verdict}")


def test_a_single_round_is_not_timed(alone):
    one = {**alone, "rounds": alone["rounds"][:1], "by_rank": alone["by_rank"] * 2, "limit": 1.0, "attention": 1.0}
    assert notes(one) == ["one round alone, which has the prompt in it, is not timed; ask for more tokens"]


def test_the_command(monkeypatch, capsys):
    code, out, _ = call(monkeypatch, capsys, "parallel", "It was", "-n", "3", "--gamma", "2", "--max-new-tokens", "6")
    assert code == 0
    lab = specwb.load("lab")
    text = specwb.decode(lab, "It was", "easyspec:n=3,gamma=2", max_new_tokens=6)
    first = out.splitlines()[0]
    assert first.startswith("round 1: drafted ")
    assert len([line for line in out.splitlines() if line.startswith("round ")]) == text.step_counts[0]


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
    code, out, err = call(monkeypatch, capsys, "parallel", *words)
    assert (code, out) == (2, "")
    assert line in err
    assert len(err.strip().splitlines()) == 1
