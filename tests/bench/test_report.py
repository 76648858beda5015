"""The tables of a comparison and the notes below them."""

from __future__ import annotations

import pandas as pd
import pytest
import tiny

from specwb.engine import machine
from specwb.lab.bench import compare as module
from specwb.lab.bench import report
from specwb.lab.bench.compare import compare
from specwb.lab.bench.runs import PARTS

PROMPTS = [[1, 2, 3], [5, 6], [7, 8, 9, 10, 11], [4]]


@pytest.fixture(scope="module", autouse=True)
def quiet():
    """The fixed step takes as long every time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "one_step", lambda target: lambda: 1.0)
        patch.setattr(machine, "load_average", lambda: 0.0)
        yield


@pytest.fixture(scope="module")
def frame():
    compared = compare(
        tiny.target(),
        PROMPTS,
        ["sps", "mcsd:tree=3-1", "hf_assisted:gamma=3"],
        draft=tiny.draft(),
        max_new_tokens=20,
    )
    # one more category than the prompts have
    figures_of = compared.attrs["by_category"]["all"]
    compared.attrs["by_category"]["other"] = figures_of
    compared.attrs["non_looping"] |= {"runs": 3, "of": 4, "methods": figures_of}
    return compared


def test_cells_and_notes(frame):
    over = frame.attrs["reference"]["method"]
    rows = {row["method"]: row for row in report.cells(frame)}
    assert rows["ar"]["tau"] == "1.00"
    assert rows[over][f"speedup over {over}"] == "1.00x"
    assert rows[over]["(quartiles)"] == "1.00-1.00"
    assert rows["sps"]["same text"] == "yes"
    speedups = frame["speedup"].sort_values(ascending=False)
    assert [row[f"speedup over {over}"] for row in rows.values()] == [f"{x:.2f}x" for x in speedups]
    assisted = frame.attrs["reference"]["library"]["hf_assisted"]
    speeds = frame.set_index("method")["speedup"]
    assert assisted == pytest.approx(speeds["hf_assisted"] / speeds["hf_greedy"], rel=0.5)
    assert any(f"hf_assisted {assisted:.2f}x" in note for note in report.notes(frame.attrs))
    shares = {row["method"]: row for row in report.times(frame)}
    # in the same order, and nothing is known of the library's
    assert list(shares) == [name for name in rows if not name.startswith("hf_")]
    assert sum(int(shares["sps"][p].rstrip("%")) for p in PARTS) == pytest.approx(100, abs=2)
    assert any(
        note.startswith(f"speedup is over {over} (") and "by the median of paired runs" in note
        for note in report.notes(frame.attrs)
    )
    few = compare(
        tiny.target(),
        PROMPTS[:2],
        ["ar"],
        max_new_tokens=4,
        temperature=0.5,
        top_k=7,
        library=False,
    )
    by_name = {row["method"]: row for row in report.cells(few)}
    assert set(by_name) == {"ar", "hf_sample"}
    assert by_name["ar"]["same text"] == "-"
    assert "(quartiles)" not in by_name["ar"]
    assert "temperature 0.5, top_k 7, float32" in "\n".join(report.notes(few.attrs))


def test_a_lossy_method_says_so_beside_its_name(frame):
    changed = frame.assign(lossless=frame["method"] != "sps")
    changed.attrs = frame.attrs
    names = [row["method"] for row in report.cells(changed)]
    assert "sps (LOSSY)" in names
    assert {"ar", "mcsd:tree=3-1"} < set(names)
    assert "| sps (LOSSY) |" in report.markdown(changed)


def test_markdown(frame):
    over = frame.attrs["reference"]["method"]
    text = report.markdown(frame).splitlines()
    assert f"speedup over {over}" in text[0]
    assert [line.split(" | ")[0] for line in text[2 : 2 + len(frame)]] == [
        f"| {row['method']}" for row in report.cells(frame)
    ]
    assert "speedup, no loops" in text[0]
    assert len({line.count("|") for line in text[: 2 + len(frame)]}) == 1
    assert text[-1] == report.notes(frame.attrs)[-1]


def test_a_busy_machine_is_warned_of_first(frame):
    facts = dict(frame.attrs) | {"machine": frame.attrs["machine"] | {"busy": True}}
    assert not any("BUSY" in note for note in report.notes(frame.attrs))
    assert report.notes(facts)[0].startswith("BUSY MACHINE: other work disturbed 0 of ")


def test_notes_tell_of_loops_cuts_and_a_second_pass(frame):
    facts = dict(frame.attrs) | {"cut_prompts": 2, "time_split": {"separate": True, "tokens": {}}}
    facts["non_looping"] = {"runs": 3, "of": 4, "prompts": 3, "methods": {}}
    text = "\n".join(report.notes(facts))
    assert "2 cut to the context" in text
    assert "repeats itself (8 tokens three times) after 1 of 4 prompts" in text
    assert "second pass" in text
    facts["non_looping"] = {"runs": 4, "of": 4, "prompts": 4, "methods": {}}
    assert "repeats itself" not in "\n".join(report.notes(facts))


def facts_of(best: str, tied: list[str], speedup: float = 1.5) -> dict:
    """What a conclusion is drawn from; five methods over 20 prompts."""
    return {
        "fastest": {
            "method": best,
            "speedup": speedup,
            "lossless": best != "medusa",
            "others": 4,
            "tied": tied,
        },
        "reference": {"method": "ar", "plain": {"ar": 9.0, "hf_greedy": 8.0}},
        "runs": 20,
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
            facts_of("pld", ["ar", "sps", "eagle", "hf_greedy"]) | {"runs": 1},
            "The largest speedup is pld's, 1.50x, but 1 prompt cannot rank the methods: measure "
            "longer (--seconds).",
        ),
        (
            {
                **facts_of("ar", []),
                "fastest": {
                    "method": "ar",
                    "speedup": 1,
                    "lossless": True,
                    "others": 1,
                    "tied": [],
                },
            },
            "Nothing but plain decoding was measured.",
        ),
    ],
)
def test_the_conclusion_says_what_the_pairs_tell(facts, line):
    assert report.conclusion(facts) == line


def test_what_is_left_out_is_named_once_a_reason():
    reasons = {"medusa": "no heads", "sps": "no draft", "mcsd": "no draft"}
    assert report.left_out(reasons) == [
        "left out: medusa: no heads",
        "left out: sps mcsd: no draft",
    ]
    assert report.left_out({}) == []


def test_a_table_is_packed_as_its_name_says(tmp_path):
    table = pd.DataFrame({"a": [1, 2]})
    for name in ("a.csv", "a.csv.gz", "a.csv.zip"):
        (tmp_path / name).write_bytes(report.csv_bytes(table, tmp_path / name))
        assert pd.read_csv(tmp_path / name).equals(table)


def test_rates_that_are_ordered_otherwise_than_the_pairs_are_explained():
    plain = {"ar": 90.0, "hf_greedy": 100.0}
    agree = report.over({"reference": {"method": "hf_greedy", "plain": plain}})
    assert "the fastest plain decoding by the median of paired runs; ar (" in agree
    assert agree.endswith(" has 90.0 tokens/s")
    differ = report.over({"reference": {"method": "ar", "plain": plain}})
    assert differ.endswith("tokens/s, as all tokens over all seconds are ordered the other way")
    # the table is ordered by the pairs
    figures = {"speedup": [1.0, 1.2, 1.1], "tokens_per_second": [30.0, 10.0, 20.0]}
    assert report.ranked(pd.DataFrame(figures)).index.tolist() == [1, 2, 0]
