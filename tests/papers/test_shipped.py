"""The shipped results: they are of the shipped family, complete, and shown as they are."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

import specwb
from specwb.core.files import data_dir, home, weights_hash
from specwb.drafters.easyspec import deep_draft
from specwb.lab.papers import NAMES, OTHERS, grid, training
from specwb.lab.papers.judge import EVEN, JUDGED, PROMPTS, WORDS, counts
from specwb.lab.papers.paper import Cell, read_paper
from specwb.lab.papers.results import shipped, shipped_verdicts
from specwb.models.load import draft_model
from specwb.models.questions import load_prompts
from specwb.show import ledger
from specwb.show.widgets import papers as widgets

ON_SMOL = ("mcsd", "mcsd_ti", "falcon", "kangaroo")
SHIPPED = [*((name, "lab") for name in NAMES), *((name, "smol") for name in ON_SMOL)]
BEFORE = {
    "decision": "5b1d40a9002f3b7fe972e557f8bd00372fbfccdec4214b282f055fb88a1955b7",
    "draft": "2d64fbf51f7a8a333a2429cf16da71e4cebd4e823b06184ddb363a17b44e2323",
    "eagle": "b473953e85404ae2ccd8f9b07258a083833c060e70086a82b29e99f6f98917ea",
    "falcon": "019fd38674133309e767adcb6c0d76a43c49361859c127f891faf593715d404f",
    "kangaroo": "5a4193005f76af61f47ec4b22275e172dfef9a8f12d67881e483f7de288f8b7b",
    "medusa": "e9d412e2cc2931d177fa4857af7ce2fde4865be99df50619a1637ab0e139627a",
}
"""Heads and the draft model of smol before the shipped ones, which have gone on with other text:
the papers compare heads of one text."""
TIMED = {"mcsd": {10}, "mcsd_ti": {0, PROMPTS}}
"""The numbers of prompts that cells were timed on, where they are not all of them."""


@cache
def lab() -> specwb.Target:
    return specwb.load("lab", device="cpu")


@pytest.mark.parametrize(("name", "family"), SHIPPED)
def test_they_are_of_the_shipped_family(name, family):
    paper, (own, *trained) = read_paper(name), shipped(read_paper(name), family)
    made_of, cells = own["arguments"], own["cells"]
    wanted = set(paper.measure)
    if family == "smol":  # tokens alone; its weights are not shipped, its heads know them
        for kind in ("draft", *paper.heads):
            card = json.loads((data_dir() / f"smol/{kind}/card.json").read_text("utf-8"))
            assert made_of["sha256"] == card["target_sha256"]
            sums = {"draft": made_of["draft_sha256"], **made_of.get("heads", {})}
            assert sums[kind] == BEFORE.get(kind, card["sha256"])
        wanted = {c for c in wanted if not c.endswith((" batch", " long"))}
        if name == "mcsd":
            wanted = {c for c in wanted if Cell.read(c).temperature in (0, 1)}
        assert not trained
    else:
        assert made_of["sha256"] == lab().sha256
        choose = deep_draft if paper.draft else draft_model
        assert made_of["draft_sha256"] == choose(lab(), None).sha256
        heads = {kind: weights_hash(home(lab().own_head(kind) or "")) for kind in paper.heads}
        assert made_of.get("heads", {}) == heads
        timed = {len(record["ms"]) for record in cells.values()}
        assert timed == TIMED.get(name, {PROMPTS})
        wanted -= {"T=0 medusa:tree=published"}  # the lab's Medusa has three heads, it needs four
    assert set(cells) == wanted
    prompts = {len(record["accepted"]) for record in cells.values()}
    assert prompts == ({10, PROMPTS} if (name, family) == ("mcsd", "lab") else {PROMPTS})
    assert len(load_prompts("chat" if family == "smol" else "lab")) >= PROMPTS
    for document in trained[: bool(paper.trained)]:
        assert paper.trained is not None
        assert set(document["cells"]) == set(paper.trained.measure)
        assert set(document["heads"]) == set(paper.trained.heads)


@pytest.mark.parametrize("name", OTHERS[1:])
def test_heads_by_budget_are_those_of_their_file(name):
    paper = read_paper(name)
    own, trained = shipped(paper)
    assert paper.trained is not None
    assert own["arguments"]["sha256"] == trained["arguments"]["sha256"] == lab().sha256
    assert set(own["cells"]) == set(paper.measure)
    wanted = {training.run_name(h, run) for h in paper.trained.heads for run in range(3)}
    assert set(trained["heads"]) == wanted
    assert {len(record["accepted"]) for record in trained["cells"].values()} == {PROMPTS}


@pytest.mark.parametrize(("name", "family"), SHIPPED)
def test_rows_follow_from_the_measurements(name, family):
    for document in shipped(read_paper(name), family):
        for row in document["rows"]:
            again = grid.row(document, row["cell"])
            for key in ("tau", "speedup", "by_domain", "ms_per_round", "tau_error", "accepted"):
                close = again[key] == row[key] or (
                    isinstance(row[key], float) and math.isclose(again[key], row[key], abs_tol=1e-3)
                )
                assert close or (name == "mcsd" and key == "speedup"), (row["cell"], key)


def test_what_became_of_the_claims():
    """Frozen: a change of the judge or of the results changes them."""
    found = {name: counts(shipped_verdicts(name)) for name in NAMES}
    assert found["mcsd"] == {"agrees": 4, "undecided": 2}
    assert found["mcsd_ti"]["differs"] == 4
    assert found["diffuspec"]["differs"] == 26
    assert found["easyspec"]["agrees"] == 28
    for name, family in SHIPPED:
        for verdict in shipped_verdicts(name, family):
            claim, half = verdict.claim, (verdict.claim.paper or 1) ** 0.5
            if verdict.evidence != "measured here":
                continue
            if claim.even:
                inside = verdict.low > 1 / EVEN and verdict.high < EVEN
                assert inside == (verdict.word == "agrees") or verdict.word not in WORDS[:4]
            elif verdict.word == "agrees":
                assert verdict.low > (claim.least or max(half, 1))
            elif verdict.word == "differs":
                assert verdict.high < (claim.least or max(half, 1))


def test_the_ledger_is_written_without_torch(tmp_path):
    """So that it is there in seconds."""
    program = (
        "import sys\nfrom specwb.cli.main import main\n"
        "try:\n    main()\nfinally:\n    assert 'torch' not in sys.modules"
    )
    words = [sys.executable, "-c", program, "reproduce", "all", "--shipped", "--out"]
    words.append(str(tmp_path / "l"))
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "Claims by verdict" in done.stdout
    page = (tmp_path / "l/ledger.md").read_text("utf-8")
    for one in ledger.all_shipped():
        assert f"## {ledger.escaped(one.title)}\n" in page
        for verdict in one.verdicts:
            assert ledger.escaped(verdict.claim.text) in page
    tables = [part.splitlines()[2:] for part in page.split("\n\n") if part.startswith("| claim |")]
    assert len(tables) == 1 + len(ledger.all_shipped())
    for rows in tables:  # what was judged comes first
        judged = [row.split(" | ")[3].removesuffix(" (theorem)") in JUDGED for row in rows]
        assert judged == sorted(judged, reverse=True)


@pytest.mark.parametrize("name", ["kangaroo", *OTHERS])
def test_the_command_shows_them(call, monkeypatch, tmp_path, name):
    monkeypatch.chdir(tmp_path)
    code, out, err = call("reproduce", name, "--shipped")
    assert (code, err) == (0, "")
    paper = read_paper(name)
    assert all(drawing["title"] in out for drawing in paper.figures.values())
    assert all(claim.text.split()[0] in out for claim in paper.claims)
    assert "; ." not in out  # comparisons of ours have no setting
    assert not list(tmp_path.iterdir())


def test_figures_are_drawn(call, refused, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    options = ("--figure", "eta", "--shipped", "--out", "mine.json")
    code, out, _ = call("reproduce", "kangaroo", *options)
    assert code == 0
    assert "the shipped results of lab" in out
    assert "threshold and steps" in Path("mine-eta.html").read_text("utf-8")
    for name in (*NAMES, *OTHERS):
        for key in read_paper(name).figures:
            assert len(widgets.paper_figure(name, key).data) > 0
    refusals: list[tuple[tuple[str, ...], str]] = [
        (("--figure", "nothing"), "it has: eta, depth"),
        (("--shipped", "--target", "none"), "there are of lab and smol"),
        (("--shipped", "--rounds", "3"), "--shipped measures nothing; leave --rounds out"),
        (("--runs", "2"), "give that too"),
    ]
    for wrong, words in refusals:
        assert words in refused("reproduce", "kangaroo", *wrong)
