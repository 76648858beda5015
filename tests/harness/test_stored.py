"""Shipped measurements as answers."""

from __future__ import annotations

import json

import pytest

from specwb.lab.harness.record import CONVENTIONS, counters
from specwb.lab.harness.stored import shipped_turns


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A study of two prompts."""
    cell = {
        "accepted": [[2, 0, 4], [1, 0]],
        "drafted": [[4, 4, 4], [4, 0]],
        "mean": [2.0, 3.0],
    }
    document = {
        "cells": {"T=0 sps": cell, "T=0 tree": cell, "T=0 old": {"accepted": [[0], [0]]}},
        "domains": ["code", "prose"],
        "shapes": {name: {"chain": name != "T=0 tree"} for name in ("T=0 sps", "T=0 tree")}
        | {"T=0 old": {"chain": True}},
    }
    (tmp_path / "results").mkdir()
    (tmp_path / "results/some-lab-cpu.json").write_text(json.dumps(document))
    monkeypatch.setattr("specwb.lab.harness.stored.data_dir", lambda: tmp_path)


def test_by_hand(folder):
    first, second = shipped_turns("some", "T=0 sps")
    assert (first.accepted, first.tested, first.drafted) == ((2, 0, 4), (3, 1, 4), (4, 4, 4))
    assert (first.category, len(first.tokens), first.seconds) == ("code", 9, 0.006)
    assert second.tested == (2, 0)
    assert counters([first, second]).drafts == 4  # a step without a draft is none
    figures = {name: c.compute([first, second]) for name, c in CONVENTIONS.items()}
    assert figures["mean_accept_length"] == 2.4
    assert figures["mean_accept_length_per_request"] == 2.25
    assert figures["accepted_drafts_per_request"] == 1.25
    assert figures["mean_acceptance_length"] == 2.75
    assert figures["draft_acceptance_rate"] == 7 / 16


@pytest.mark.parametrize(("tokens", "steps"), [(1, 1), (3, 1), (4, 2), (5, 3), (9, 3)])
def test_a_step_counts_if_it_begins_before_the_limit(folder, tokens, steps):
    assert len(shipped_turns("some", "T=0 sps", tokens)[0].accepted) == steps


def test_what_cannot_be_read(folder):
    with pytest.raises(ValueError, match="no shipped study 'other'"):
        shipped_turns("other", "T=0 sps")
    with pytest.raises(ValueError, match="no cell 'T=1 sps'; there are T=0 sps, "):
        shipped_turns("some", "T=1 sps")
    for cell in ("T=0 tree", "T=0 old"):
        with pytest.raises(ValueError, match="drafts trees, or does not say"):
            shipped_turns("some", cell)


def test_a_shipped_one():
    turns = shipped_turns("diffuspec", "T=0 pld", 24)
    assert turns
    assert all(len(turn.accepted) == len(turn.drafted) for turn in turns)
    # prompt lookup has steps that draft nothing, and vLLM does not count them
    assert CONVENTIONS["mean_acceptance_length"].compute(turns) > CONVENTIONS[
        "mean_accept_length"
    ].compute(turns)
