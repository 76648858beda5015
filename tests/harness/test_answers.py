"""The figures by name, on steps counted by hand; files of Spec-Bench; shipped measurements."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest

from specwb.lab.harness import answers
from specwb.lab.harness.answers import CONVENTIONS, Turn, shipped_turns
from specwb.models.questions import Question


def turn(question: int, accepted, drafted, seconds: float = 1.0, number: int = 0) -> Turn:
    tokens = tuple(range(sum(accepted) + len(accepted)))
    text = " ".join(map(str, tokens))
    steps = tuple(accepted), tuple(drafted)
    return Turn(question, "qa", "qa", number, text, tokens, seconds, *steps)


# six steps, five of them drafts: 3 + 0 + 1 and 2 + 2 + (nothing drafted)
TURNS = [turn(1, (3, 0, 1), (3, 3, 3)), turn(2, (2, 2, 0), (3, 2, 0), 3.0)]


def test_conventions():
    wanted = {
        "mean_accept_length": 14 / 6,
        "mean_accept_length_per_request": ((4 / 3 + 1) + (4 / 3 + 1)) / 2,
        "accepted_drafts_per_step": 8 / 6,
        "accepted_drafts_per_request": 4 / 3,
        "mean_acceptance_length": 1 + 8 / 5,
        "draft_acceptance_rate": 8 / 14,
    }
    found = {name: CONVENTIONS[name].compute(TURNS) for name in wanted}
    assert found == pytest.approx(wanted)


def test_answers_there_and_back():
    two = [turn(5, (1, 0), (2, 2)), turn(5, (2,), (2,), number=1)]
    line = answers.line(two, "lab", Question(5, "qa", ("a", "b")))
    assert answers.turns_of(json.loads(json.dumps(line))) == two
    choice = line["choices"][0]
    assert choice["accept_lengths"] == [2, 1, 3]
    assert choice["decoding_steps"] == [2, 1]
    assert choice["new_tokens"] == [3, 3]
    assert set(line) >= {"question_id", "category", "answer_id", "model_id", "choices", "tstamp"}


def test_spec_benchs_own_speedup():
    """Two turns of a question with 5 and 2 tokens in 2 s; the baseline's are counted anew."""
    first, second = turn(1, (2, 1), (2, 2)), turn(1, (1,), (1,), number=1)
    plain = [replace(first, text="a b"), replace(second, text="c")]
    tokenizer = lambda text: SimpleNamespace(input_ids=["<s>", *text.split()])  # noqa: E731
    speedup = answers.spec_bench_speedup([first, second], plain, tokenizer)
    assert speedup == pytest.approx(3.5 / 1.5)


@pytest.fixture
def study(tmp_path, monkeypatch):
    """A study of two prompts."""
    cell = {"accepted": [[2, 0, 4], [1, 0]], "drafted": [[4, 4, 4], [4, 0]], "mean": [2.0, 3.0]}
    document = {"cells": {"chain": cell}, "domains": ["code", "prose"]}
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
    with pytest.raises(ValueError, match="no cell 'x'; there are chain"):
        shipped_turns("some", "x")
