"""Conversations that a model has with itself: complete, resumed, readable as training text."""

from __future__ import annotations

import json

import pytest
import tiny

import specwb
from specwb.training import chats, talks
from specwb.training.fit import TrainingError
from specwb.training.reading import from_file

TEMPLATE = (
    "w1 {% for m in messages %}{{ 'w2 ' if m['role'] == 'user' else 'w4 ' }}{{ m['content'] }} w3 "
    "{% endfor %}{% if add_generation_prompt %}w4 {% endif %}"
)


@pytest.fixture
def target(monkeypatch):
    words = tiny.tokenizer([f"w{i}" for i in range(64)])
    words.chat_template = TEMPLATE
    words.eos_token = "w5"
    made = specwb.Target(tiny.build("llama", seed=2), words, name="tiny")
    made.eos = [5]
    monkeypatch.setattr(talks, "ROWS", 6)
    monkeypatch.setattr(talks, "QUESTION", 60)
    monkeypatch.setattr(talks, "ANSWER", 12)
    monkeypatch.setattr(talks, "SHORT", 1)
    return made


def test_a_request_ends_where_the_template_ends_it(target):
    assert talks.frame(target.tokenizer) == ("w1 w2 ", " w3 w4 ")
    lines = talks.block(target, specwb.method("ar", target), 2, 0)
    assert lines
    for line in lines:
        user, assistant = line["messages"]
        assert (user["role"], assistant["role"]) == ("user", "assistant")
        assert "w3" not in user["content"].split()
        assert 1 <= line["tokens"] <= 12
        assert line["temperatures"] == [0.6, 1.0]


def test_blocks_are_a_function_of_seed_and_number(target):
    plain = specwb.method("ar", target)
    one, again = (talks.block(target, plain, 1, 0) for _ in range(2))
    assert one == again
    assert talks.block(target, plain, 1, 1) != one
    assert talks.block(target, plain, 4, 0) != one


def test_it_goes_on_where_it_was_and_is_read_as_training_text(target, tmp_path, monkeypatch):
    made = []
    block = talks.block

    def counted(*arguments):
        made.append(arguments[2])
        return block(*arguments)

    monkeypatch.setattr(talks, "block", counted)
    out = tmp_path / "talks.jsonl"
    talks.write(target, out, 60)
    before, first = list(made), out.read_text()
    talks.write(target, out, 120)
    assert made == list(range(len(made)))
    assert len(made) > len(before)
    assert out.read_text().startswith(first)
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert sum(line["tokens"] for line in lines) >= 120
    requests = [line["messages"][0]["content"] for line in lines]
    assert len(set(requests)) == len(requests)
    for line in lines:
        assert chats.turns(line, "here") == line["messages"]
    assert sum(len(stream) for stream in from_file(out, target.tokenizer).train.values()) > 100


def test_an_interrupted_run_loses_nothing(target, tmp_path, monkeypatch):
    block = talks.block

    def interrupted(target, plain, number, seed):
        if number == 2:
            raise KeyboardInterrupt
        return block(target, plain, number, seed)

    out = tmp_path / "talks.jsonl"
    with monkeypatch.context() as patch:
        patch.setattr(talks, "block", interrupted)
        with pytest.raises(KeyboardInterrupt):
            talks.write(target, out, 10_000)
    assert len(list(tmp_path.glob("*.blocks/*/*.json"))) == 2
    assert not out.exists()
    talks.write(target, out, 60)
    whole = tmp_path / "whole.jsonl"
    talks.write(target, whole, 60)
    assert out.read_text() == whole.read_text()


def test_no_template_and_no_requests_are_said(target, tmp_path, monkeypatch):
    monkeypatch.setattr(talks, "block", lambda *_: [])
    with pytest.raises(TrainingError, match="writes no requests"):
        talks.write(target, tmp_path / "a.jsonl", 10)
    target.tokenizer.chat_template = None
    with pytest.raises(TrainingError, match="no chat template"):
        talks.write(target, tmp_path / "b.jsonl", 10)
    target.tokenizer.chat_template = "always the same"
    with pytest.raises(TrainingError, match="as they are"):
        talks.write(target, tmp_path / "c.jsonl", 10)
