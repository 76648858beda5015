"""The shipped results of EasySpec."""

from __future__ import annotations

import json

import pytest

import specwb
from specwb.bench.prompts import load_prompts
from specwb.models.load import data_dir
from specwb.studies import verdicts
from specwb.studies.easyspec import cells

pytestmark = pytest.mark.slow


def test_the_shipped_results_are_those_of_the_shipped_family():
    lab, questions = specwb.load("lab", device="cpu"), load_prompts("lab")
    path = data_dir() / "results/easyspec-lab-cpu.json"
    own, draft = json.loads(path.read_text("utf-8")), cells.draft_of(lab)
    assert path.stat().st_size < 700_000
    assert own["arguments"]["sha256"] == lab.sha256
    assert own["arguments"]["draft_sha256"] == draft.sha256
    assert own["layers"] == len(draft.backbone.layers)
    assert {c.key for c in cells.cells({"kind": "cpu", **own})} == set(own["cells"])
    assert len(questions) >= verdicts.ENOUGH
    assert all(len(cell["ms"]) == len(questions) for cell in own["cells"].values())
    assert own["command"].startswith("specwb reproduce easyspec")

    # drafts do not depend on how they are executed, nor, with one layer a group, on calibration
    def accepted(cell: cells.Cell) -> list:
        return own["cells"][cell.key]["accepted"]

    assert accepted(cells.plain()) == accepted(cells.easy(1))
    assert accepted(cells.easy()) == accepted(cells.easy(execution="simulation"))
    for r in own["drift"]["true"]:
        assert max(*r["key_error"], *r["value_error"]) < 1e-5
