"""Tables that a person types from a paper's PDF: checked as they are read, then judged."""

from __future__ import annotations

import copy
import json

import pytest

from specwb.core.errors import ArgumentError
from specwb.lab.studies import PLACES, study, study_of
from specwb.lab.studies.run import shipped
from specwb.lab.studies.study import published, typed_ratio, waiting
from specwb.show import ledger

ROW = {
    "target": "Vicuna-13B",
    "draft": "68M",
    "data": "Alpaca",
    "temperature": 0,
    "method": "MCSD",
    "tau": 3.0,
    "speedup": 1.8,
}
ROWS = [ROW, {**ROW, "method": "SpS", "tau": 2.4, "speedup": 1.5}]


def typed(rows: list, **more) -> dict:
    """MCSD's file with these rows."""
    paper = copy.deepcopy(published("mcsd"))
    table = {"certainty": "read in the PDF", "by": "A. Reader", **more, "rows": rows}
    paper["tables"]["speed"] |= table
    return paper


def read(tmp_path, rows: list, **more) -> dict:
    path = tmp_path / "mcsd.json"
    path.write_text(json.dumps(typed(rows, **more)))
    study._read.cache_clear()
    return study._read(path)


def test_two_papers_wait_and_the_page_says_so():
    assert {name for name in PLACES if waiting(name)} == {"mcsd", "easyspec"}
    (rows,) = [rows for title, *_, rows in ledger.sections({}) if title.startswith("Tables that")]
    assert [row[0] for row in rows] == ["mcsd", "easyspec"]
    assert rows[0][-1] == "data/papers/mcsd.json"


def test_a_typed_table_is_judged_and_no_longer_waits():
    paper = study_of("mcsd")
    document = shipped(paper)[0]
    before = paper.claims(document)
    token = study.NUMBERS.set({"mcsd": typed(ROWS)})
    try:
        assert not waiting("mcsd")
        assert typed_ratio("mcsd", "MCSD", "SpS", "tau", temperature=0) == pytest.approx(1.25)
        assert typed_ratio("mcsd", "MCSD", "SpS", "tau", temperature=0.7) is None
        more = [c for c in paper.claims(document) if c not in before]
        assert {c.what: c.paper for c in more} == pytest.approx({"tau": 1.25, "speedup": 1.2})
        known = {cell.key for cell in paper.cells(document)}
        assert all(cell.key in known for c in more for cell in c.cells)
        entries = [e for e in ledger.entries("mcsd") if e.value is not None]
        assert {e.value for e in entries} == {3.0, 1.8, 2.4, 1.5}
        assert {e.certainty for e in entries} == {"read in the PDF, typed by A. Reader"}
    finally:
        study.NUMBERS.reset(token)


@pytest.mark.parametrize(
    ("row", "more", "message"),
    [
        ({**ROW, "taus": 1}, {}, "row 1 must have the columns target, draft"),
        ({**ROW, "tau": "3.0"}, {}, "row 1: tau must be a number > 0"),
        ({**ROW, "speedup": 0}, {}, "row 1: speedup must be a number > 0"),
        ({**ROW, "temperature": -1}, {}, "row 1: temperature must be a number > 0"),
        ({**ROW, "method": ""}, {}, "row 1: method must be a text, got ''"),
        (ROW, {"by": ""}, "has rows, but no by: say how sure"),
        (ROW, {"by": "", "certainty": ""}, "has rows, but no certainty and no by"),
    ],
)
def test_what_is_typed_wrongly_is_one_clear_error(tmp_path, row, more, message):
    with pytest.raises(ArgumentError, match=r"mcsd\.json: table speed") as caught:
        read(tmp_path, [row], **more)
    assert message in str(caught.value)


def test_what_is_typed_rightly_is_read(tmp_path):
    assert read(tmp_path, ROWS)["tables"]["speed"]["rows"] == ROWS
    assert read(tmp_path, [], by="")["tables"]["speed"]["rows"] == []
