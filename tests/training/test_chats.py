"""Conversations: whose tokens count, and which files are refused."""

from __future__ import annotations

import json

import numpy as np
import pytest
import tiny

from specwb.core.files import DataError
from specwb.training import reading
from specwb.training.chats import tokens, turns

WORDS = ["user", "bot", "end", *(f"w{i}" for i in range(20))]
TEMPLATE = (
    "{% for m in messages %}{{ 'user ' if m['role'] == 'user' else 'bot ' }}"
    "{{ m['content'] }}{% if m['role'] == 'assistant' %} end {% else %} {% endif %}{% endfor %}"
    "{% if add_generation_prompt %}bot {% endif %}"
)


@pytest.fixture
def tokenizer():
    tokenizer = tiny.tokenizer(WORDS)
    tokenizer.chat_template = TEMPLATE
    return tokenizer


def chat(*contents: str) -> list[dict[str, str]]:
    roles = ("user", "assistant")
    return [{"role": roles[i % 2], "content": text} for i, text in enumerate(contents)]


def test_only_what_the_assistant_says_counts(tokenizer):
    ids, counted = tokens(chat("w1 w2", "w3", "w4", "w5 w6"), tokenizer)
    words = tokenizer.convert_ids_to_tokens(ids)
    assert " ".join(words) == "user w1 w2 bot w3 end user w4 bot w5 w6 end"
    told = [word for word, counts in zip(words, counted, strict=True) if counts]
    assert told == ["w3", "end", "w5", "w6", "end"]


def test_share_gpt_is_read_too():
    entry = {"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]}
    assert turns(entry, "x") == chat("a", "b")
    assert turns({"messages": chat("a", "b")}, "x") == chat("a", "b")


def test_a_file_of_conversations(tmp_path, tokenizer):
    path = tmp_path / "c.jsonl"
    lines = [{"messages": chat(f"w{i}", f"w{i + 1} w{i + 2}")} for i in range(8)]
    path.write_text("\n".join(map(json.dumps, [*lines, {"text": "w1 w2"}, *lines])))
    data = reading.from_file(path, tokenizer)
    assert len(data.train["text"]) == len(data.counted["text"]) == 16 * 6 + 2 - 6
    ids, counted = data.batch_counted(0, 0, 3, 12, {"text": 1.0})
    assert ids.shape == counted.shape == (3, 13)
    stream = data.train["text"].tolist()
    for row, mask in zip(ids.tolist(), counted, strict=True):
        start = next(i for i in range(len(stream)) if stream[i : i + 13] == row)
        assert np.array_equal(data.counted["text"][start : start + 13], mask)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ({"messages": [{"role": "user", "content": "w1"}]}, "line 2: .* no turn of an assistant"),
        ({"messages": [{"role": "user"}]}, "line 2: every turn must have role and content"),
        ({"messages": "w1"}, "line 2: every line must be JSON with a text field, or with messages"),
        (["w1"], "line 2: every line must be JSON with a text field, or with messages"),
    ],
)
def test_what_is_no_conversation_is_named(tmp_path, tokenizer, line, message):
    path = tmp_path / "c.jsonl"
    path.write_text("\n".join(map(json.dumps, [{"text": "w1"}, line])))
    with pytest.raises(DataError, match=message):
        reading.from_file(path, tokenizer)


def test_a_conversation_may_begin_with_the_assistant(tokenizer):
    messages = [{"role": "assistant", "content": "w1"}, {"role": "user", "content": "w2"}]
    ids, counted = tokens(messages, tokenizer)
    assert " ".join(tokenizer.convert_ids_to_tokens(ids)) == "bot w1 end user w2"
    assert counted == [True, True, True, False, False]


@pytest.mark.parametrize(
    ("template", "message"),
    [
        (None, r"has conversations, and .* no chat template"),
        ("{{ messages | length }} " + TEMPLATE, "cannot write conversation 1: it writes earlier"),
        ("{{ raise_exception('roles must alternate') }}", "conversation 1: roles must alternate"),
    ],
)
def test_a_template_that_cannot_tell_who_says_what_is_refused(
    tmp_path, tokenizer, template, message
):
    path = tmp_path / "c.jsonl"
    path.write_text("\n".join([json.dumps({"messages": chat("w1", "w2", "w3", "w4")})] * 3))
    tokenizer.chat_template = template
    with pytest.raises(DataError, match=message):
        reading.from_file(path, tokenizer)
