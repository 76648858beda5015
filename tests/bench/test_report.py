"""The tables of a comparison and the notes below them."""

from __future__ import annotations

import pytest
import tiny

from specwb.engine import machine
from specwb.lab.bench import compare as module
from specwb.lab.bench import report
from specwb.lab.bench.compare import compare
from specwb.lab.bench.results import PARTS


@pytest.fixture(scope="module")
def frame():
    methods = ["sps", "mcsd:tree=3-1", "hf_assisted:gamma=3"]
    prompts = [[1, 2, 3], [5, 6], [7, 8, 9, 10, 11], [4]]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "one_step", lambda target: lambda: 1.0)
        patch.setattr(machine, "load_average", lambda: 0.0)
        yield compare(tiny.target(), prompts, methods, draft=tiny.draft(), max_new_tokens=20)


def test_cells_and_notes(frame):
    over = frame.attrs["reference"]["method"]
    rows = {row["method"]: row for row in report.cells(frame)}
    assert rows["ar"]["tau"] == rows["ar"]["cost"] == "1.00"
    assert rows["sps"]["same text"] == "yes"
    by = frame.set_index("method")
    speedups = by.speedup[list(rows)]
    assert speedups.is_monotonic_decreasing
    assert [row[f"speedup over {over}"] for row in rows.values()] == [f"{x:.2f}x" for x in speedups]
    low, high = by.loc["sps", ["speedup_low", "speedup_high"]]
    assert rows["sps"]["quartiles"] == f"{low:.2f}-{high:.2f}"
    parts = by.loc["sps", list(PARTS)]
    assert rows["sps"]["draft"] == f"{parts['draft'] / parts.sum():.0%}"
    assert rows["sps"]["cost"] == f"{by.cost['sps']:.2f}"
    notes = report.notes(frame.attrs)
    assert any(note.startswith(f"speedup is over {over}, ") for note in notes)
    assert report.floor(frame.attrs["passes"]) in notes


def test_markdown_and_lossy_methods(frame):
    changed = frame.assign(lossless=frame["method"] != "sps")
    changed.attrs = frame.attrs
    both = report.markdown(changed).split("\n\n| ")[1:]
    for library, text in zip((False, True), both, strict=True):
        table = text.partition("\n\n")[0].splitlines()
        rows = [row["method"] for row in report.cells(changed, library)]
        assert [line.strip("| ").split(" | ")[0] for line in table[2:]] == rows
        assert len({line.strip("| ").count("|") for line in table}) == 1
        assert ("sps (LOSSY)" in rows) != library
    assert report.markdown(changed).strip().endswith(report.notes(frame.attrs)[-1])


def test_notes_of_a_busy_machine_loops_and_cuts(frame):
    settings = frame.attrs["settings"] | {"top_k": 7, "top_p": 0.5}
    busy = frame.attrs["machine"] | {"busy": True}
    changes = {"cut_prompts": 2, "looping": 1, "machine": busy, "settings": settings}
    first, *rest = report.notes({**frame.attrs, **changes})
    assert first.startswith("BUSY MACHINE: other work disturbed 0 of ")
    text = "\n".join(rest)
    assert "top_k 7, top_p 0.5, max_new_tokens 20, batch 1, seed 0, 2 cut" in text
    assert "repeats itself (8 tokens three times) after 1 of 4 prompts" in text


def facts_of(best: str, tied: list[str], speedup: float = 1.5, **changes) -> dict:
    """What a conclusion is drawn from; five methods over 20 prompts."""
    fastest = {"method": best, "speedup": speedup, "lossless": best != "medusa", "tied": tied}
    return {
        "fastest": {**fastest, "others": changes.pop("others", 4)},
        "reference": {"method": "ar", "plain": {"ar": 9.0, "hf_greedy": 8.0}},
        "prompts": changes.pop("prompts", 20),
    }


@pytest.mark.parametrize(
    ("facts", "line"),
    [
        (facts_of("pld", []), "The largest speedup is pld's, 1.50x over plain decoding."),
        (
            facts_of("medusa", ["sps", "eagle"]),
            "The largest speedup is medusa (LOSSY)'s, 1.50x over plain decoding; 20 prompts cannot "
            "tell it from sps, eagle.",
        ),
        (facts_of("ar", [], 1.0), "No method is faster here than plain decoding, ar."),
        (
            facts_of("pld", ["ar", "sps", "eagle", "mcsd"], prompts=1),
            "The largest speedup is pld's, 1.50x over plain decoding, but 1 prompt cannot rank the "
            "methods: measure longer (--seconds).",
        ),
    ],
)
def test_the_conclusion_says_what_the_pairs_tell(facts, line):
    assert report.conclusion(facts) == line
