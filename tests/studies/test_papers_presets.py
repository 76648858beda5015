"""What a paper's number is held against: presets of that paper, or what differs is said."""

from __future__ import annotations

import re

import pytest

from specwb.core.options import spell
from specwb.engine.methods import METHODS, read_spec
from specwb.lab.studies import PLACES, study_of
from specwb.lab.studies.run import shipped
from specwb.lab.studies.verdicts import LACKING

SWEPT = {
    ("mcsd_ti", "table width"): {"roots", "stop"},
    ("mcsd_ti", "table shapes"): {"roots", "tree"},
    ("falcon", "table 4"): {"tree"},
    ("falcon", "table 5"): {"tree", "nodes", "passes"},
    ("kangaroo", "figure eta"): {"gamma", "eta"},
    ("kangaroo", "table main"): {"tree"},  # Medusa's chain
    ("kangaroo", "table temperature"): {"stop"},
    ("diffuspec", "table 2"): {"k", "k_min", "k_max", "delta", "share", "lam", "beams"},
    ("diffuspec", "table 5"): {"k", "k_min", "k_max", "delta", "share"},
    ("diffuspec", "figure 7"): {"steps", "beams", "top", "mass"},
    ("easyspec", "stated"): {"n", "width", "calibrate"},
}
"""Options that a table or figure of a paper has its numbers over."""


def settings(spec: str) -> dict[str, object]:
    """All options of a spec, its rule among them."""
    entry, rule, options = read_spec(spec, None, {})
    usual = {name: option.default for name, option in entry.options.items()}
    return {**usual, **options, "rule": None if rule is None else rule.name}


def differing(spec: str) -> list[dict[str, object]]:
    """What differs from each of the method's published presets; nothing where there is none."""
    own, key = settings(spec), spec.partition(":")[0]
    presets = [
        settings(f"{key}:preset={name}") for name in METHODS[key].presets if name not in OURS
    ]
    return [{name: x for name, x in own.items() if x != there[name]} for there in presets] or [{}]


def unsaid(name: str, claim) -> set[str]:
    """Cells whose options are neither a preset's nor the table's, nor in the claim's words."""
    if claim.differs:
        return set()
    words = re.split(r"[\s:,()]+", claim.text)

    def is_said(cell, options: dict[str, object]) -> bool:
        swept = SWEPT.get((name, claim.table), set()) | KNOWN.get(cell.kind, set())
        return all(option in swept or spell(x) in words for option, x in options.items())

    return {
        f"{claim.text}: {cell.spec}"
        for cell in claim.cells
        if not any(is_said(cell, options) for options in differing(cell.spec))
    }


OURS = {"repaired"}
"""Presets that no paper has."""
KNOWN = {"sps": {"schedule"}}
"""Baselines: options that go with one that is said."""


@pytest.mark.parametrize("name", PLACES)
def test_papers_numbers_are_held_against_that_papers_settings(name):
    study = study_of(name)
    claims = study.claims(shipped(study)[0])
    judged = [claim for claim in claims if claim.paper is not None and claim.table != LACKING]
    assert set().union(*(unsaid(name, claim) for claim in judged)) == set()
    assert bool(judged) == (name != "mcsd")  # none of its numbers is known


def test_a_setting_that_is_not_the_papers_is_found():
    from specwb.lab.studies.claim import Claim
    from specwb.lab.studies.mcsd_ti.cells import TI, as_published, rooted

    for cell, is_found in ((as_published(), False), (rooted(2, TI), True)):
        claim = Claim("two roots over plain", "abstract", "speedup", cell, cell, 1.9)
        assert bool(unsaid("mcsd_ti", claim)) == is_found
