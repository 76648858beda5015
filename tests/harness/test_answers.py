"""The figures by name, on steps counted by hand; files of Spec-Bench; shipped measurements."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from specwb.lab.harness import answers
from specwb.lab.harness.answers import CONVENTIONS, AnswersError, Turn, shipped_turns
from specwb.models.questions import Question


def turn(question: int, accepted, drafted, seconds: float = 1.0, number: int = 0) -> Turn:
    tokens = tuple(range(sum(accepted) + len(accepted)))
    text = " ".join(map(str, tokens))
    steps = tuple(accepted), tuple(drafted)
    return Turn(question, "qa", "qa", number, text, tokens, seconds, *steps)


# six steps, five of them drafts: 3 + 0 + 1 and 2 + 2 + (nothing drafted)
TURNS = [turn(1, (3, 0, 1), (3, 3, 3)), turn(2, (2, 2, 0), (3, 2, 0), 3.0)]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("mean_accept_length", 14 / 6),
        ("mean_accept_length_per_request", ((4 / 3 + 1) + (4 / 3 + 1)) / 2),
        ("accepted_drafts_per_step", 8 / 6),
        ("accepted_drafts_per_request", 4 / 3),
        ("mean_acceptance_length", 1 + 8 / 5),
        ("draft_acceptance_rate", 8 / 14),
    ],
)
def test_conventions(name, value):
    assert CONVENTIONS[name].compute(TURNS) == pytest.approx(value)


def test_answers_there_and_back(tmp_path):
    path = tmp_path / "m.jsonl"
    two = [turn(5, (1, 0), (2, 2)), turn(5, (2,), (2,), number=1)]
    line = answers.line(two, "lab", Question(5, "qa", ("a", "b")))
    path.write_text(json.dumps(line))
    assert answers.read(path) == two
    choice = line["choices"][0]
    assert choice["accept_lengths"] == [2, 1, 3]
    assert choice["decoding_steps"] == [2, 1]
    assert choice["new_tokens"] == [3, 3]
    assert set(line) >= {"question_id", "category", "answer_id", "model_id", "choices", "tstamp"}


def test_spec_benchs_own_files_are_read(tmp_path):
    path = tmp_path / "m.jsonl"
    choice = {
        "index": 0,
        "turns": ["a b", "c"],
        "idxs": [2, 1],
        "new_tokens": [5, 2],
        "wall_time": [1.0, 1.0],
        "accept_lengths": [3, 2, 2],
    }
    old = {"question_id": 1, "category": "qa", "choices": [{**choice, "new_tokens": [9, 9]}]}
    new = {"question_id": 1, "category": "qa", "choices": [choice]}
    path.write_text(json.dumps(old) + "\n" + json.dumps(new) + "\n")
    turns = answers.read(path)  # the last answer to a question counts
    assert [t.accepted for t in turns] == [(2, 1), (1,)]
    assert [len(t.tokens) for t in turns] == [5, 2]
    assert CONVENTIONS["mean_accept_length"].compute(turns) == pytest.approx(7 / 3)
    rate = CONVENTIONS["draft_acceptance_rate"].compute(turns)
    assert rate != rate  # the file does not have what was drafted
    tokenizer = lambda text: SimpleNamespace(input_ids=["<s>", *text.split()])  # noqa: E731
    # the baseline's tokens are counted anew
    assert answers.spec_bench_speedup(turns, turns, tokenizer) == pytest.approx(3.5 / 1.5)


SHORT = '"choices": [{"turns": ["a"], "idxs": [5], "new_tokens": [5], "wall_time": [1], '


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("no json", "line 1 is not in Spec-Bench's form"),
        ('{"question_id": 1}', "no 'choices'"),
        (
            '{"question_id": 1, "category": "qa", ' + SHORT + '"accept_lengths": [1]}]}',
            "1 accept_lengths for 5 decoding_steps",
        ),
        (None, "No such file"),
    ],
)
def test_files_in_another_form_are_refused(tmp_path, content, message):
    path = tmp_path / "m.jsonl"
    if content is not None:
        path.write_text(content + "\n")
    with pytest.raises(AnswersError, match=message):
        answers.read(path)


@pytest.fixture
def study(tmp_path, monkeypatch):
    """A study of two prompts."""
    cell = {"accepted": [[2, 0, 4], [1, 0]], "drafted": [[4, 4, 4], [4, 0]], "mean": [2.0, 3.0]}
    document = {
        "cells": {"chain": cell, "tree": cell},
        "domains": ["code", "prose"],
        "shapes": {"chain": {"chain": True}, "tree": {"chain": False}},
    }
    (tmp_path / "results").mkdir()
    (tmp_path / "results/some-lab-cpu.json").write_text(json.dumps(document))
    monkeypatch.setattr(answers, "data_dir", lambda: tmp_path)


def test_shipped_turns_by_hand(study):
    first, second = shipped_turns("some", "chain")
    assert (first.accepted, first.drafted) == ((2, 0, 4), (4, 4, 4))
    assert (first.category, len(first.tokens), first.seconds) == ("code", 9, 0.006)
    figures = {name: c.compute([first, second]) for name, c in CONVENTIONS.items()}
    assert figures["mean_accept_length"] == 2.4
    assert figures["mean_acceptance_length"] == 2.75  # a step without a draft is none
    assert figures["draft_acceptance_rate"] == 7 / 16
    # a step counts if it begins before the limit
    steps = [len(shipped_turns("some", "chain", n)[0].accepted) for n in (1, 3, 4, 5, 9)]
    assert steps == [1, 1, 2, 3, 3]
    for place, message in (
        (("other", "chain"), "no shipped study 'other'"),
        (("some", "x"), "no cell 'x'; there are chain, tree"),
        (("some", "tree"), "drafts trees, or does not say"),
    ):
        with pytest.raises(ValueError, match=message):
            shipped_turns(*place)


def test_a_shipped_one():
    turns = shipped_turns("diffuspec", "T=0 pld", 24)
    assert turns
    # prompt lookup has steps that draft nothing, and vLLM does not count them
    assert CONVENTIONS["mean_acceptance_length"].compute(turns) > CONVENTIONS[
        "mean_accept_length"
    ].compute(turns)
