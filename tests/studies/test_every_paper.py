"""What holds of every paper's study: its claims, and what its command refuses."""

from __future__ import annotations

import pytest
import tiny
from once import refused

import specwb
from specwb.lab.studies import PLACES, study_of, trained
from specwb.lab.studies.run import shipped
from specwb.lab.studies.verdicts import LACKING


@pytest.mark.parametrize("name", PLACES)
def test_claims_are_about_cells_that_are_measured(name):
    study = study_of(name)
    document = shipped(study)[0]
    cells = {False: study.cells(document), True: study.ablation()}
    keys = {which: {cell.key for cell in some} for which, some in cells.items()}
    assert all(len(keys[which]) == len(cells[which]) for which in cells)
    claims = study.claims(document)
    assert len({(claim.text, claim.what) for claim in claims}) == len(claims)
    for claim in claims:
        assert {cell.key for cell in claim.cells} <= keys[claim.ablation], claim
        assert claim.first != claim.second
        assert claim.sign or (claim.paper is None) == (claim.table == LACKING), claim
        says_which = claim.even or claim.least < 1 or claim.paper is None or claim.paper > 1
        assert says_which, "claims say which of the two is larger"


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("falcon", ("--set", "rounds=0")),
        ("kangaroo", ("--set", "head=nothing")),
        ("mcsd_ti", ("--set", "head=nothing")),
        ("diffuspec", ("--set", "head=nothing")),
        ("easyspec", ("--draft", "nothing")),
    ],
)
def test_bad_settings_are_refused_before_work(monkeypatch, capsys, tmp_path, name, options):
    refused(monkeypatch, capsys, tmp_path, name, options)


def test_a_target_without_the_heads_of_a_study():
    bare = specwb.load(tiny.target().model)
    with pytest.raises(ValueError, match="has no medusa and no eagle and no falcon of its own"):
        trained.checksums(bare, study_of("falcon").heads)
