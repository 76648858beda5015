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
    place = data_dir() / "results/easyspec-lab-cpu.json"
    own, draft = json.loads(place.read_text("utf-8")), easyspec.draft_of(lab)
    assert place.stat().st_size < 700_000
    assert own["arguments"]["sha256"] == lab.sha256
    assert own["arguments"]["draft_sha256"] == draft.sha256
    assert own["layers"] == len(draft.backbone.layers)
    assert {c.key for c in easyspec.cells(own["layers"])} == set(own["cells"])
    assert all(
        len(cell["ms"]) == len(questions) >= verdicts.ENOUGH for cell in own["cells"].values()
    )
    assert own["command"].startswith("specwb reproduce easyspec")
    # what is printed follows from what was measured
    assert own["rows"] == [easyspec.row(own, cell) for cell in easyspec.cells(own["layers"])]
    assert own["verdicts"] == [
        v for c in easyspec.claims(own["layers"]) if (v := easyspec.judge_claim(own, c))
    ]
    assert own["facts"] == easyspec.facts(own)
    # drafts do not depend on how they are executed, nor, with one layer a group, on calibration
    kept = {
        c: own["cells"][c.key]["accepted"]
        for c in (
            easyspec.plain(),
            easyspec.easy(1),
            easyspec.easy(),
            easyspec.easy(execution="simulation"),
        )
    }
    assert kept[easyspec.plain()] == kept[easyspec.easy(1)]
    assert kept[easyspec.easy()] == kept[easyspec.easy(execution="simulation")]
    assert (
        max(
            x for r in own["drift"]["true"] for what in ("key", "value") for x in r[f"{what}_error"]
        )
        < 1e-5
    )
