"""The shipped results of EasySpec."""

from __future__ import annotations

import json

import pytest

import specwb
from specwb.evaluation.prompts import load_prompts
from specwb.models.load import data_dir
from specwb.reproduce import easyspec, verdicts

pytestmark = pytest.mark.slow


def test_the_shipped_results_are_those_of_the_shipped_family():
    lab, questions = specwb.load("lab", device="cpu"), load_prompts("lab")
    path = data_dir() / "results/easyspec-lab-cpu.json"
    own, draft = json.loads(path.read_text("utf-8")), easyspec.draft_of(lab)
    assert path.stat().st_size < 700_000
    assert own["arguments"]["sha256"] == lab.sha256
    assert own["arguments"]["draft_sha256"] == draft.sha256
    assert own["layers"] == len(draft.backbone.layers)
    assert {c.key for c in easyspec.cells(own["layers"])} == set(own["cells"])
    assert len(questions) >= verdicts.ENOUGH
    assert all(len(cell["ms"]) == len(questions) for cell in own["cells"].values())
    assert own["command"].startswith("specwb reproduce easyspec")
    # the verdicts that are printed follow from the measurements
    assert own["rows"] == [easyspec.row(own, cell) for cell in easyspec.cells(own["layers"])]
    assert own["verdicts"] == [
        v for c in easyspec.claims(own["layers"]) if (v := easyspec.judge_claim(own, c))
    ]
    assert own["facts"] == easyspec.facts(own)

    # drafts do not depend on how they are executed, nor, with one layer a group, on calibration
    def accepted(cell: easyspec.Cell) -> list:
        return own["cells"][cell.key]["accepted"]

    assert accepted(easyspec.plain()) == accepted(easyspec.easy(1))
    assert accepted(easyspec.easy()) == accepted(easyspec.easy(execution="simulation"))
    for r in own["drift"]["true"]:
        assert max(*r["key_error"], *r["value_error"]) < 1e-5
