"""Conversations that a model has with itself: complete, resumed, readable as training text."""

from __future__ import annotations

import json
import re

import pytest
import tiny
import torch

import specwb
from specwb.core.files import DataError
from specwb.models.load import data_dir
from specwb.models.questions import PromptSetError, load_prompts
from specwb.training import talks
from specwb.training.fit import TrainingError
from specwb.training.reading import from_file, turns

TEMPLATE = (
    "w1 {% for m in messages %}{{ 'w2 ' if m['role'] == 'user' else 'w4 ' }}{{ m['content'] }} w3 "
    "{% endfor %}{% if add_generation_prompt %}w4 {% endif %}"
)


@pytest.fixture
def target(monkeypatch):
    words = tiny.tokenizer()
    words.chat_template = TEMPLATE
    words.eos_token = "w5"
    made = specwb.Target(tiny.build("llama", seed=2), words, name="tiny")
    made.eos = [5]
    monkeypatch.setattr(talks, "QUESTION", 60)
    monkeypatch.setattr(talks, "ANSWER", 12)
    monkeypatch.setattr(talks, "SHORT", 1)
    return made


KINDS = {"say": ["w7", "w8 w9"], "read": ["w6 {text}", "{text} w6"], "own": [""]}


def test_a_request_begins_with_an_opening_of_its_kind(target, monkeypatch):
    monkeypatch.setattr(talks, "PARAGRAPH", (6, 20))
    texts = ["w20 w21 w22\n\nw1", "w23 w24 w25"]
    paragraphs = {"w20 w21 w22", "w23 w24 w25"}
    whole = {o.replace("{text}", p) for o in KINDS["read"] for p in paragraphs}
    lines = talks.block(target, 0, 0, (), 40, KINDS, texts)
    asked = {line["messages"][0]["content"]: line["kind"] for line in lines}
    assert set(asked.values()) == set(KINDS)
    for request, kind in asked.items():
        if kind == "read":
            assert request in whole
        elif kind == "say":
            assert request.startswith(("w7", "w8 w9"))
    assert lines == talks.block(target, 0, 0, (), 40, KINDS, texts)
    # where there is no text yet, kinds that need one wait
    first = talks.block(target, 0, 0, (), 40, KINDS)
    assert {line["kind"] for line in first} == {"say", "own"}


@pytest.mark.parametrize("sampling", [{}, {"temperature": 1.0}])
def test_what_has_ended_leaves_the_batch_and_the_text_stays(target, monkeypatch, sampling):
    prompts = [[i, i + 1] for i in range(6, 30)]
    seeds = [i + (i >= 7) for i in range(24)]
    how = {"max_new_tokens": 12, "seed": seeds, **sampling}
    whole = specwb.decode(target, prompts, "ar", eos=[], **how).tokens
    ends = [whole[0][3], whole[1][6]]
    whole = specwb.decode(target, prompts, "ar", eos=ends, **how).tokens
    keep, rows = talks.Decoding.keep, []
    monkeypatch.setattr(
        talks.Decoding, "keep", lambda self, kept: rows.append(len(kept)) or keep(self, kept)
    )
    monkeypatch.setattr(talks, "LOOK", 5)
    full = [0] * target.context  # has no room
    texts = talks._written(target, [*prompts[:7], full, *prompts[7:]], 12, 0, ends, **sampling)
    assert texts == [*whole[:7], [], *whole[7:]]
    assert rows[0] == sum(len(row) > 5 or row[-1] not in ends for row in whole)
    assert 24 > rows[0] > rows[-1] == 0


def test_the_shipped_openings_are_many_and_no_prompt_of_a_benchmark():
    kinds = talks.openings(data_dir() / "requests.toml")
    assert len(kinds) >= 40
    openings = [text for texts in kinds.values() for text in texts]
    assert len(set(openings)) >= 200
    prompts = [q.turns[0] for name in ("chat", "edit", "tune") for q in load_prompts(name)]
    assert not set(prompts) & set(openings)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("kind = 1", "unknown field 'kind'; known: kinds"),
        ("", "kinds must be a table"),
        ("[kinds]\na = []", "kinds.a must be a list of texts"),
        ("[kinds]\na = ['{text}']", "an opening without {text} is needed"),
        ("[kinds", "is no TOML"),
    ],
)
def test_a_wrong_file_of_openings_is_refused_by_name(target, tmp_path, content, said):
    file = tmp_path / "kinds.toml"
    file.write_text(content)
    with pytest.raises(DataError, match=re.escape(said)):
        talks.write(target, tmp_path / "talks.jsonl", 10, kinds=file)


def test_it_goes_on_where_it_was_and_is_read_as_training_text(target, tmp_path, monkeypatch):
    made = []
    block = talks.block

    def counted(*arguments):
        made.append(arguments[1])
        return block(*arguments)

    monkeypatch.setattr(talks, "block", counted)
    out = tmp_path / "talks.jsonl"
    talks.write(target, out, 60, rows=6)
    before, first = list(made), out.read_text()
    talks.write(target, out, 120, rows=6)
    assert made == list(range(len(made)))
    assert len(made) > len(before)
    assert out.read_text().startswith(first)
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert sum(line["tokens"] for line in lines) >= 120
    requests = [line["messages"][0]["content"] for line in lines]
    assert len(set(requests)) == len(requests)
    for line in lines:
        assert turns(line, "here") == line["messages"]
    assert sum(len(stream) for stream in from_file(out, target.tokenizer).train.values()) > 100


def test_an_interrupted_run_loses_nothing(target, tmp_path, monkeypatch):
    block = talks.block

    def stopped(at, **settings):
        def interrupted(target, number, *more):
            if number == at:
                raise KeyboardInterrupt
            return block(target, number, *more)

        with monkeypatch.context() as patch:
            patch.setattr(talks, "block", interrupted)
            with pytest.raises(KeyboardInterrupt):
                talks.write(target, out, 10_000, rows=6, **settings)

    out = tmp_path / "talks.jsonl"
    stopped(2)
    assert len(list(tmp_path.glob("*.blocks/*/*.json"))) == 2
    assert out.read_text()  # what is complete
    talks.write(target, out, 60, rows=6)
    whole = tmp_path / "whole.jsonl"
    talks.write(target, whole, 60, rows=6)
    assert out.read_text() == whole.read_text()
    stopped(0, seed=1)  # before anything is complete
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


def test_given_questions_are_answered_in_turn_and_once(target, tmp_path):
    asks = [f"w{i} w{i + 1}" for i in range(10, 20)]
    questions = [{"question_id": i, "category": "x", "turns": [ask]} for i, ask in enumerate(asks)]
    file = tmp_path / "questions.jsonl"
    file.write_text("".join(json.dumps(q) + "\n" for q in [*questions, questions[0]]))
    out = talks.write(target, tmp_path / "talks.jsonl", 10_000, given=file, rows=6)
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    asked = [line["messages"][0]["content"] for line in lines]
    assert asked == [ask for ask in asks if ask in asked]
    assert len(asked) >= 8  # a row that ends at once has no answer
    assert {line["temperatures"][0] for line in lines} == {None}
    assert len({line["temperatures"][1] for line in lines}) == 2  # of blocks of six
    with pytest.raises(PromptSetError, match="unknown prompt set"):
        talks.write(target, tmp_path / "other.jsonl", 10, given="nope")


# ------------------------------------------------------------------------------- answers that loop


def test_a_loop_begins_where_the_first_repeated_tokens_do():
    """Against all places, one after another."""
    generator = torch.Generator().manual_seed(0)
    for length in range(30):
        ids = torch.randint(2, (length,), generator=generator).tolist()
        for n, times in ((2, 2), (3, 2), (3, 3), (4, 4)):
            text = "".join(map(str, ids))  # str.count counts what does not overlap
            starts = range(length - n + 1)
            third = [i for i in starts if text[: i + n].count(text[i : i + n]) == times]
            assert talks.before_loop(ids, n, times) == (third[0] if third else length)


def line(words: list[int], request: str = "w9") -> dict:
    said = " ".join(f"w{i}" for i in words)
    messages = [{"role": "user", "content": request}, {"role": "assistant", "content": said}]
    return {"messages": messages, "temperatures": [1.0, 0.0], "tokens": len(words), "ended": True}


def test_an_answer_is_cut_where_it_loops(target):
    loop = line([40, *range(20, 30)] * 4)
    before = json.dumps(loop)
    cut = talks.cut(loop, target.tokenizer)
    assert cut == {**line([40, *range(20, 30)] * 2), "ended": False}
    assert json.dumps(loop) == before
    good = line(list(range(10, 40)))
    assert talks.cut(good, target.tokenizer) is good
