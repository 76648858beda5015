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


def test_the_library_has_a_table_over_its_own_plain_decoding(frame):
    rows = {row["method"]: row for row in report.cells(frame, library=True)}
    named = ["hf_assisted", "hf_assisted:gamma=3", "hf_greedy", "hf_prompt_lookup"]
    assert sorted(rows) == named
    assert not set(rows) & {row["method"] for row in report.cells(frame)}
    speedups = frame.set_index("method").speedup
    ratio = speedups["hf_assisted"] / speedups["hf_greedy"]
    assert rows["hf_assisted"]["speedup over hf_greedy"] == f"{ratio:.2f}x"
    # nothing is known of its steps
    assert set(rows["hf_assisted"]) == set(report.cells(frame)[0]) - {
        "cost",
        "draft",
        "quartiles",
        "speedup over ar",
        "speedup over hf_greedy",
    } | {"speedup over hf_greedy"}
    alone = frame[frame.method != "hf_greedy"]
    over = f"speedup over {frame.attrs['reference']['method']}"
    assert all(over in row for row in report.cells(alone, library=True))


def test_what_can_be_expected_of_any_method():
    """A pass over four tokens in 1.6 times the time of one: 2 / 1.6."""
    assert report.floor({1: 0.05, 4: 0.08}) == (
        "plain decoding writes 20.0 tokens/s; a step over 4 tokens takes 1.60 times as long, so "
        "with it a tau of 2 gives at most 1.25x"
    )


def test_the_legend_has_the_largest_margin_of_a_tie(frame):
    """Those of the library's rows are larger than those of this engine's."""
    margins = {"ar": None, "sps": 0.0, "hf_greedy": 0.25, "hf_assisted": 0.125}
    same = {name: {"margin": margin} for name, margin in margins.items()}
    assert "differ by 0.25 at most" in report.legend({**frame.attrs, "same_text": same})
    assert "differ by 0 at most" in report.legend({**frame.attrs, "same_text": None})


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
        (
            facts_of("pld", ["ar", "sps"]),
            "The largest speedup is pld's, 1.50x over plain decoding; 20 prompts cannot tell it "
            "from ar, sps.",
        ),
        (facts_of("ar", [], 1.0), "No method is faster here than plain decoding, ar."),
        (
            facts_of("pld", ["ar", "sps", "eagle", "mcsd"], prompts=1),
            "The largest speedup is pld's, 1.50x over plain decoding, but 1 prompt cannot rank the "
            "methods: measure longer (--seconds).",
        ),
        (facts_of("ar", [], others=0), "Nothing but plain decoding was measured."),
    ],
)
def test_the_conclusion_says_what_the_pairs_tell(facts, line):
    assert report.conclusion(facts) == line


def test_both_plain_decodings_and_what_is_left_out_are_named():
    plain = {"ar": 90.0, "hf_greedy": 100.0}
    text = report.over({"reference": {"method": "hf_greedy", "plain": plain}})
    assert text.startswith("speedup is over hf_greedy, the faster plain decoding")
    assert text.endswith("has 90.0 tokens/s; hf_greedy (transformers' generate) has 100.0 tokens/s")
    reasons = {"medusa": "no heads", "sps": "no draft", "mcsd": "no draft"}
    lines = ["left out: medusa: no heads", "left out: sps mcsd: no draft"]
    assert report.left_out(reasons) == lines
