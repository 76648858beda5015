"""The ledger: every number of the papers once, every claim with its verdict, one page."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser

import pytest
from terminal import call

from specwb.lab.studies import PLACES, study_of
from specwb.lab.studies.run import shipped, shipped_report
from specwb.lab.studies.study import published
from specwb.lab.studies.verdicts import counts
from specwb.show import ledger
from specwb.show.ledger import Drawn


def leaves(x: object) -> int:
    """How many numbers there are in a table's rows, the settings left out."""
    if isinstance(x, bool) or x is None or isinstance(x, str):
        return 0
    if isinstance(x, int | float):
        return 1
    if isinstance(x, list):
        return sum(map(leaves, x))
    return sum(leaves(value) for name, value in x.items() if name not in ledger.LABELS)


def test_every_number_of_a_paper_is_an_entry_with_its_own_id():
    for name in PLACES:
        entries = ledger.entries(name)
        assert entries
        assert len({entry.id for entry in entries}) == len(entries), name
        assert all(entry.certainty and entry.id.startswith(f"{name}/") for entry in entries)
        paper = published(name)
        numbers = sum(
            leaves(row) - (5 if "shape" in row else 0)
            for kind in ("tables", "figures")
            for table in paper.get(kind, {}).values()
            for rows in table.values()
            if isinstance(rows, list)
            for row in rows
        )
        assert len(entries) == numbers + len(paper.get("statements", {})), name


def test_entries_by_hand():
    falcon = {entry.id: entry for entry in ledger.entries("falcon")}
    assert falcon["falcon/table 1/Vicuna 7B/SpS/MT-Bench"].value == 1.82
    assert falcon["falcon/table 4/tree=False/csgd=True/accepted"].value == 2.13
    kangaroo = {entry.id: entry for entry in ledger.entries("kangaroo")}
    point = kangaroo["kangaroo/figure eta/eta=0/gamma=6/speedup"]
    assert (point.value, point.certainty) == (1.21, "read off a plot, ±0.01")
    assert kangaroo["kangaroo/figure ctar/Kangaroo, chain/ctar/1"].value == 0.507
    assert ledger.entries("mcsd")[0].value is None
    shapes = {entry.id: entry.value for entry in ledger.entries("mcsd_ti")}
    assert shapes["mcsd_ti/table shapes/2-1-1-1-1/rate"] == 69.5


def test_a_number_is_in_a_claim_where_the_claim_is_made_from_it():
    own, _ = shipped(study_of("falcon"))
    used = ledger.claimed(study_of("falcon"), own)
    assert "falcon/table 4/tree=True/csgd=True/accepted" in used
    assert "falcon/table 4/tree=True/csgd=True/alpha" not in used  # alpha is in no claim
    assert not any(id.startswith("falcon/table 2") for id in used)
    assert used <= {entry.id for entry in ledger.entries("falcon")}
    assert published("falcon")["tables"]["4"]["rows"][0]["speedup"] == 2.06  # as it was


def test_markdown_shows_texts_as_they_are():
    text = "a|b *c* _d_ `e` <f> [g] ~h~ $i$ # \\\nj"
    shown = ledger.escaped(text)
    assert "\n" not in shown
    assert re.sub(r"\\(.)", r"\1", shown) == text.replace("\n", " ")
    assert all(f"\\{sign}" in shown for sign in "|*_`<>[]~$#\\")


class Cells(HTMLParser):
    """The numbers of headers and cells of a page, and what it leaves open."""

    def __init__(self) -> None:
        super().__init__()
        self.count = {"th": 0, "td": 0, "table": 0}
        self.open: list[str] = []

    def handle_starttag(self, tag, attrs):
        if tag in self.count:
            self.count[tag] += 1
        if tag not in ("meta",):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_the_page_of_a_document_and_of_papers_left_out():
    own, ablation = shipped(study_of("falcon"))
    document = study_of("falcon").report(own, ablation)
    others = {"smol": {"falcon": shipped_report(study_of("falcon"), "smol")}}
    page = ledger.sections({"falcon": document}, {"kangaroo": "no adapter | of its own <"}, others)
    text, site = ledger.markdown(page), ledger.html_page(page)
    verdicts = [*document["verdicts"], *document["ablation"]["verdicts"]]
    judged = [v for v in verdicts if v["verdict"] != "not claimed"]
    assert all(ledger.escaped(v["claim"]) in text for v in judged)
    titles = {title: rows for title, _, _, rows in page}
    assert len(titles["falcon"]) == len(judged)
    assert len(titles["Headline claims"]) == 2
    summary = {row[0]: row for row in titles["Claims by verdict"]}
    repeats = sum(bool(v.get("repeats")) for v in judged)
    assert sum(map(int, summary["falcon"][2:-1])) == len(judged) - repeats
    assert summary["falcon"][-1] == f"0 foregone, {repeats} repeats"
    tally = counts(others["smol"]["falcon"]["verdicts"])
    assert sum(map(int, summary["falcon on smol"][2:-1])) == sum(tally.values())
    assert summary["all"][2:] == (*summary["falcon"][2:-1], "")
    assert summary["all on smol"][2:] == (*summary["falcon on smol"][2:-1], "")
    assert len(titles["falcon on smol"]) == len(
        [v for v in others["smol"]["falcon"]["verdicts"] if v["verdict"] != "not claimed"]
    )
    assert summary["falcon"][1] == str(len(ledger.entries("falcon")))
    assert summary["kangaroo"][-1] == "no adapter | of its own <"
    assert "no adapter \\| of its own \\<" in text
    assert "of its own &lt;" in site
    assert {row[0] for row in titles["Methods of the papers that are not here"]} >= {"REST"}
    (drawn,) = [Drawn("a <title>", "a note", "a.png", "specwb x", b"\x89PNG")]
    both = {"falcon": [drawn]}
    assert "![a \\<title\\>](a.png)" in ledger.markdown(page, both)
    assert 'src="data:image/png;base64,iVBORw=="' in ledger.html_page(page, both)
    parser = Cells()
    parser.feed(site.removeprefix("<!doctype html>\n"))
    assert parser.open == []
    assert parser.count["table"] == len(page)
    assert parser.count["td"] == sum(len(row) for *_, rows in page for row in rows)
    for block in text.split("\n\n"):
        if block.startswith("| "):
            widths = {len(re.findall(r"(?<!\\)\|", line)) for line in block.splitlines()}
            assert len(widths) == 1


@pytest.mark.slow
def test_all_papers_by_a_plan_that_is_interrupted(monkeypatch, capsys, tmp_path):
    """A fifth of the time is left; what was interrupted is on the page, what follows is named."""
    asked = {}

    def reproduce(study, models, questions, settings, progress):
        asked[study.name] = settings.rounds, settings.seconds, settings.out.name
        if study.name == "falcon":
            raise ValueError("no head | of its own")
        return study.report(*shipped(study)), study.name == "kangaroo"

    monkeypatch.setattr("specwb.lab.studies.run.reproduce", reproduce)
    monkeypatch.setattr(ledger, "drawings", lambda documents: {})
    command = ("reproduce", "all", "--quick", "--minutes", "10", "--out", str(tmp_path))
    code, _, err = call(monkeypatch, capsys, *command)
    assert code == 130
    before = list(PLACES)[: list(PLACES).index("kangaroo") + 1]
    after = [name for name in PLACES if name not in before]
    assert list(asked) == list(before)
    assert after
    assert {rounds for rounds, _, _ in asked.values()} == {3}
    assert 0 < sum(seconds for _, seconds, _ in asked.values()) < 0.8 * 600
    assert asked["kangaroo"][2] == "kangaroo-quick.json"
    assert "About 10 minutes in all" in " ".join(err.split())
    assert "kangaroo: " in err
    page = json.loads((tmp_path / "ledger.json").read_text())
    assert page["kangaroo"]["verdicts"]
    text = (tmp_path / "ledger.md").read_text()
    assert text.count("interrupted before it was measured") == len(after)
    assert "no head \\| of its own" in text


@pytest.mark.slow
def test_the_command_on_the_shipped_results(monkeypatch, capsys, tmp_path):
    folder = tmp_path / "a" / "folder"  # made by the command
    code, out, err = call(
        monkeypatch, capsys, "reproduce", "all", "--shipped", "--out", str(folder)
    )
    assert code == 0, err
    assert "Headline claims" in out
    ledger_of = json.loads((folder / "ledger.json").read_text())
    assert set(ledger_of) == set(PLACES)
    text = (folder / "ledger.md").read_text()
    for name in PLACES:
        headlines = [v for v in ledger_of[name]["verdicts"] if v.get("headline")]
        assert headlines, name
        assert all(ledger.escaped(v["claim"]) in text for v in headlines)
        for key in study_of(name).figures:
            assert (folder / f"{name}-{key}.png").read_bytes()[:4] == b"\x89PNG"
            assert f"({name}-{key}.png)" in text
    site = (folder / "ledger.html").read_text()
    assert site.startswith("<!doctype html>")
    assert site.count("<img ") == sum(len(study_of(name).figures) for name in PLACES)
