"""The tables of a comparison and the notes below them."""

from __future__ import annotations

import pandas as pd
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
    assert rows["ar"]["tau"] == "1.00"
    assert rows[over]["(quartiles)"] == "1.00-1.00"
    assert rows["sps"]["same text"] == "yes"
    speedups = frame["speedup"].sort_values(ascending=False)
    assert [row[f"speedup over {over}"] for row in rows.values()] == [f"{x:.2f}x" for x in speedups]
    assisted = frame.attrs["reference"]["library"]["hf_assisted"]
    notes = report.notes(frame.attrs)
    assert any(f"hf_assisted {assisted:.2f}x" in note for note in notes)
    assert any(note.startswith(f"speedup is over {over} (") for note in notes)
    shares = {row["method"]: row for row in report.times(frame)}
    # in the same order, and nothing is known of the library's
    assert list(shares) == [name for name in rows if not name.startswith("hf_")]
    assert sum(int(shares["sps"][p].rstrip("%")) for p in PARTS) == pytest.approx(100, abs=2)


def test_the_caption_has_the_largest_margin_of_a_tie(frame):
    """Those of the library's rows are larger than those of this engine's."""
    margins = {"ar": None, "sps": 0.0, "hf_greedy": 0.25, "hf_assisted": 0.125}
    same = {name: {"margin": margin} for name, margin in margins.items()}
    assert "best up to 0.25, " in report.captions({**frame.attrs, "same_text": same})[1]
    assert "at a tie" not in report.captions({**frame.attrs, "same_text": None})[1]


def test_markdown_and_lossy_methods(frame):
    changed = frame.assign(lossless=frame["method"] != "sps")
    changed.attrs = frame.attrs
    text = report.markdown(changed).splitlines()
    names = [line.split(" | ")[0] for line in text[2 : 2 + len(frame)]]
    assert names == [f"| {row['method']}" for row in report.cells(changed)]
    assert "| sps (LOSSY)" in names
    assert len({line.count("|") for line in text[: 2 + len(frame)]}) == 1
    assert text[-1] == report.notes(frame.attrs)[-1]


def test_notes_of_a_busy_machine_loops_and_cuts(frame):
    settings = frame.attrs["settings"] | {"top_k": 7, "top_p": 0.5}
    busy = frame.attrs["machine"] | {"busy": True}
    changes = {"cut_prompts": 2, "looping": 1, "machine": busy, "settings": settings}
    first, *rest = report.notes({**frame.attrs, **changes})
    assert first.startswith("BUSY MACHINE: other work disturbed 0 of ")
    text = "\n".join(rest)
    assert "float32, top_k 7, top_p 0.5, 2 cut to the context" in text
    assert "repeats itself (8 tokens three times) after 1 of 4 prompts" in text


def facts_of(best: str, tied: list[str], speedup: float = 1.5, **changes) -> dict:
    """What a conclusion is drawn from; five methods over 20 prompts."""
    fastest = {"method": best, "speedup": speedup, "lossless": best != "medusa", "tied": tied}
    return {
        "fastest": {**fastest, "others": changes.pop("others", 4)},
        "reference": {"method": "ar", "plain": {"ar": 9.0, "hf_greedy": 8.0}},
        "runs": changes.pop("runs", 20),
        "settings": {"batch": 1},
    }


@pytest.mark.parametrize(
    ("facts", "line"),
    [
        (facts_of("pld", []), "Fastest here is pld, 1.50x over plain decoding."),
        (
            facts_of("medusa", ["sps", "eagle"]),
            "Fastest here is medusa (LOSSY), 1.50x over plain decoding; 20 prompts cannot tell it "
            "from sps, eagle.",
        ),
        (
            facts_of("pld", ["ar", "sps"]),
            "The largest speedup is pld's, 1.50x; 20 prompts cannot tell it from ar, sps.",
        ),
        (facts_of("ar", [], 1.0), "No method is faster here than plain decoding, ar."),
        (
            facts_of("pld", ["ar", "sps", "eagle", "hf_greedy"], runs=1),
            "The largest speedup is pld's, 1.50x, but 1 prompt cannot rank the methods: measure "
            "longer (--seconds).",
        ),
        (facts_of("ar", [], others=1), "Nothing but plain decoding was measured."),
    ],
)
def test_the_conclusion_says_what_the_pairs_tell(facts, line):
    assert report.conclusion(facts) == line


def test_rates_that_are_ordered_otherwise_than_the_pairs_are_explained():
    plain = {"ar": 90.0, "hf_greedy": 100.0}
    agree = report.over({"reference": {"method": "hf_greedy", "plain": plain}})
    assert agree.endswith(" has 90.0 tokens/s")
    differ = report.over({"reference": {"method": "ar", "plain": plain}})
    assert differ.endswith("tokens/s, as all tokens over all seconds are ordered the other way")
    # the table is ordered by the pairs
    figures = {"speedup": [1.0, 1.2, 1.1], "tokens_per_second": [30.0, 10.0, 20.0]}
    assert report.ranked(pd.DataFrame(figures)).index.tolist() == [1, 2, 0]
    reasons = {"medusa": "no heads", "sps": "no draft", "mcsd": "no draft"}
    lines = ["left out: medusa: no heads", "left out: sps mcsd: no draft"]
    assert report.left_out(reasons) == lines
