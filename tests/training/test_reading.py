"""Text and conversations: whose tokens count, what is held out, and which files are refused."""

from __future__ import annotations

import json
import lzma

import numpy as np
import pytest
import tiny

from specwb.core.files import DataError
from specwb.training import reading
from specwb.training.corpus import Corpus, pieces
from specwb.training.reading import from_file, turns

WORDS = ["user", "bot", "end", *(f"w{i}" for i in range(60))]
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


def chat(*contents: str, first: int = 0) -> list[dict[str, str]]:
    roles = ("user", "assistant")
    return [{"role": roles[i % 2], "content": text} for i, text in enumerate(contents, start=first)]


@pytest.mark.parametrize(
    ("messages", "said"),
    [
        (chat("w1 w2", "w3", "w4", "w5 w6"), "user w1 w2 bot |w3 end |user w4 bot |w5 w6 end "),
        (chat("w1", "w2", first=1), "|bot w1 end |user w2 "),
    ],
)
def test_only_what_the_assistant_says_counts(tokenizer, messages, said):
    parts = pieces(messages, tokenizer)
    assert "".join(f"|{text}|" if counts else text for text, counts in parts).strip("|") == (
        said.strip("|")
    )


def test_a_file_of_conversations(tmp_path, tokenizer):
    path = tmp_path / "c.jsonl"
    lines = [{"messages": chat(f"w{i}", f"w{i + 1} w{i + 2}")} for i in range(8)]
    path.write_text("\n".join(map(json.dumps, [*lines, {"text": "w1 w2"}, *lines])))
    data = from_file(path, tokenizer)
    assert len(data.train["text"]) == len(data.counted["text"]) == 16 * 6 + 2 - 6
    ids, counted = data.batch(0, 0, 3, 12, {"text": 1.0})
    assert ids.shape == counted.shape == (3, 13)
    stream = data.train["text"].tolist()
    for row, mask in zip(ids.tolist(), counted, strict=True):
        start = next(i for i in range(len(stream)) if stream[i : i + 13] == row)
        assert np.array_equal(data.counted["text"][start : start + 13], mask)
    share_gpt = [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]
    assert turns({"conversations": share_gpt}, "x") == chat("a", "b")


def test_a_text_of_the_users(tmp_path, tokenizer):
    lines = [{"text": " ".join(WORDS[i : i + 30])} for i in range(30)]
    (tmp_path / "c.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n\n")
    read = from_file(tmp_path / "c.jsonl", tokenizer)
    assert len(read.train["text"]) == 29 * 30  # this tokenizer has no end of text
    assert read.held_out["text"].tolist() == list(range(29, 59))
    packed = tmp_path / "c.jsonl.xz"
    packed.write_bytes(lzma.compress((tmp_path / "c.jsonl").read_bytes()))
    assert from_file(packed, tokenizer).sha256 == read.sha256
    packed.write_bytes(b"x")
    with pytest.raises(DataError, match="cannot be unpacked"):
        from_file(packed, tokenizer)
    # what is held out is no short rest at the end
    (tmp_path / "c.txt").write_text(" ".join(WORDS * 40))
    assert len(from_file(tmp_path / "c.txt", tokenizer).held_out["text"]) > 1000


REFUSED = [
    ('{"words": "a"}\n{"text": "b"}', TEMPLATE, "line 1: every line must be JSON with a text"),
    ({"messages": chat("w1")}, TEMPLATE, "line 2: .* no turn of an assistant"),
    (["w1"], TEMPLATE, "line 2: every line must be JSON with a text field, or with messages"),
    ({"messages": chat("w1", "w2")}, None, "has conversations, and .* no chat template"),
    (
        {"messages": chat("w1", "w2", "w3", "w4")},
        "{{ messages | length }} " + TEMPLATE,
        "cannot write conversation 2: it writes earlier",
    ),
    (
        {"messages": chat("w1", "w2")},
        "{{ raise_exception('roles must alternate') }}",
        "conversation 2: roles must alternate",
    ),
]


@pytest.mark.parametrize(("line", "template", "message"), REFUSED)
def test_what_cannot_be_read_is_named(tmp_path, tokenizer, line, template, message):
    path = tmp_path / "c.jsonl"
    rows = [json.dumps({"text": "w1"}), json.dumps(line), json.dumps({"text": "w2"})]
    path.write_text(line if isinstance(line, str) else "\n".join(rows))
    tokenizer.chat_template = template
    with pytest.raises(DataError, match=message):
        from_file(path, tokenizer)


def test_rows_are_of_the_mixture_and_windows_of_the_held_out_text():
    streams = {"a": np.zeros(50, np.uint16), "b": np.ones(500, np.uint16)}
    text = Corpus(streams, {"a": np.arange(100, 130)}, [], "")
    rows, _ = text.batch(0, 0, 1000, 8, {"a": 0.75, "b": 0.25})
    assert rows.mean() == pytest.approx(0.25, abs=0.05)
    windows, _ = text.windows("a", 3, 9)
    assert windows[:, 0].tolist() == [100, 109, 119]
    assert windows[1].tolist() == list(range(109, 119))


def test_text_is_read_once_in_a_process(tmp_path, monkeypatch):
    """A study trains many heads, and splitting its text into tokens takes longer than one."""
    path, target = tmp_path / "c.txt", tiny.target()
    with_words = tiny.with_mask(target)
    with_words.tokenizer = tiny.tokenizer(WORDS)
    path.write_text("w1 w2 w3 " * 2000)
    first = reading.training_text(with_words, path)
    with monkeypatch.context() as patch:
        patch.setattr(reading, "from_file", lambda *_: pytest.fail("read again"))
        assert reading.training_text(with_words, path) is first
    path.write_text("w1 w3 w2 " * 2001)
    assert reading.training_text(with_words, path)[0].sha256 != first[0].sha256


def test_windows_say_which_tokens_are_an_assistants(tmp_path, tokenizer):
    """Its tokens are those that only it says; the held-out ones are the last conversation's."""
    said = "w50 w51"
    lines = [json.dumps({"messages": chat("w1 w2 w3", said, "w4", said)}) for _ in range(5)]
    (tmp_path / "c.jsonl").write_text("\n".join(lines))
    data = from_file(tmp_path / "c.jsonl", tokenizer)
    windows, counted = data.windows("text", 3, 5)
    assert counted.shape == windows.shape == (3, 6)
    is_said = np.isin(windows, tokenizer.encode(f"{said} end", add_special_tokens=False))
    assert np.array_equal(counted, is_said)
    assert 0 < counted.sum() < counted.size
    assert data.measured == "held-out answers of conversations, c.jsonl"
