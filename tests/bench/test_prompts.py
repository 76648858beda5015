"""Prompt sets: official files, files by path, a fair order, and the cut of long prompts."""

from __future__ import annotations

import gzip
import json
import socket
import sys
from collections import Counter

import pytest
import tiny
from transformers import AutoTokenizer

import specwb
from specwb.cli import main as cli
from specwb.core import files, texts
from specwb.models.load import data_dir
from specwb.models.questions import OFFICIAL as OFFICIAL_FILES
from specwb.models.questions import PromptSetError, Question, interleave, load_prompts, sets

EIGHT = ["writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities"]
FIVE = ["translation", "summarization", "qa", "math_reasoning", "rag"]
OFFICIAL = list(OFFICIAL_FILES)

needs_data = pytest.mark.skipif(
    not all(texts.local(texts.FILES[key]) for key in OFFICIAL_FILES.values()),
    reason="SPECWB_DATA names no folder with the official files",
)


def write(path, rows) -> str:
    text = "\n".join(json.dumps(row) for row in rows).encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return str(path)


def spec_rows(of_each: int = 2) -> list[dict]:
    rows = [
        {"question_id": 0, "category": c, "turns": [f"{c} {i}", "again"], "reference": ["a", "b"]}
        for c in EIGHT
        for i in range(of_each)
    ]
    rows += [
        {"question_id": 0, "category": c, "turns": [f"{c} {i}"]}
        for c in FIVE
        for i in range(8 * of_each)
    ]
    return [row | {"question_id": 81 + i} for i, row in enumerate(rows)]


@needs_data
def test_official_sets():
    questions = load_prompts("spec_bench")
    assert [q.question_id for q in questions] == list(range(81, 561))
    assert Counter(q.subtask for q in questions) == dict.fromkeys(["mt_bench", *FIVE], 80)
    assert all(len(q.turns) == (2 if q.subtask == "mt_bench" else 1) for q in questions)
    assert load_prompts("spec_bench/mt_bench") == questions[:80]
    mt_bench = load_prompts("mt_bench")
    assert Counter(q.subtask for q in mt_bench) == dict.fromkeys(EIGHT, 10)
    assert [q.turns for q in mt_bench] == [q.turns for q in questions[:80]]
    code, sums = load_prompts("humaneval"), load_prompts("gsm8k")
    assert [q.question_id for q in code] == list(range(164))
    assert all(q.format == "text" and "def " in q.turns[0] and q.reference for q in code)
    assert [q.question_id for q in sums] == list(range(1319))
    assert all(q.format == "chat" and "####" in q.reference[0] for q in sums)
    for some in (questions, mt_bench, code, sums):
        assert all(turn.strip() for q in some for turn in q.turns)
        assert len({q.question_id for q in some}) == len(some) == len(interleave(some))


def test_spec_bench_format_by_path(tmp_path):
    questions = load_prompts(write(tmp_path / "question.jsonl", spec_rows()))
    assert Counter(q.subtask for q in questions) == dict.fromkeys(["mt_bench", *FIVE], 16)
    assert questions[0] == Question(
        81, "writing", ("writing 0", "again"), "chat", "mt_bench", ("a", "b")
    )
    # only the eight (MT-Bench), or a set with its own "math", is reported by its own categories
    rows = [row for row in spec_rows() if row["category"] in [*EIGHT, "qa"]]
    part = load_prompts(write(tmp_path / "part.jsonl", rows))
    assert all(q.subtask == q.category for q in part)


def test_humaneval_format_by_path(tmp_path):
    row = {
        "task_id": "HumanEval/7",
        "prompt": "def f():\n",
        "entry_point": "f",
        "canonical_solution": "    return 1\n",
        "test": "...",
    }
    assert load_prompts(write(tmp_path / "HumanEval.jsonl.gz", [row])) == [
        Question(7, "humaneval", ("def f():\n",), "text", reference=("    return 1\n",))
    ]


def test_gsm8k_format_by_path(tmp_path):
    rows = [{"question": f"{i}?", "answer": f"#### {i}"} for i in range(3)]
    assert load_prompts(tmp_path / write(tmp_path / "test.jsonl", rows))[2] == Question(
        2, "gsm8k", ("2?",), reference=("#### 2",)
    )


def test_line_separators_inside_a_text_do_not_split_its_row(tmp_path):
    path = tmp_path / "p.jsonl"
    path.write_text(
        json.dumps({"question_id": 1, "category": "x", "turns": ["a\u2028b"]}, ensure_ascii=False)
        + "\r\n\r\n",
        "utf-8",
        newline="",
    )
    assert load_prompts(path)[0].turns == ("a\u2028b",)


ROW = {"question_id": 1, "category": "x", "turns": ["a"]}


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ([1], "a row must be a JSON object, not list"),
        ({"text": "a"}, r"no question_id, category, turns; a row has .*HumanEval.*GSM8K"),
        (ROW | {"question_id": "1"}, "question_id must be an integer, not '1'"),
        (ROW | {"turns": ["a", " "]}, "turns must be a list of non-empty strings"),
        (ROW | {"format": "code"}, "format must be 'chat' or 'text', not 'code'"),
        ({"task_id": "a", "prompt": "b", "entry_point": "c"}, "task_id must end in a number"),
        ({"question": "who", "answer": "she"}, "answer has no '#### number'"),
        (ROW | {"turns": ["\ud800"]}, "turns is not valid Unicode"),
    ],
)
def test_a_bad_row_is_named_by_file_and_line(tmp_path, row, message):
    path = write(tmp_path / "bad.jsonl", [ROW, row])
    with pytest.raises(PromptSetError, match=rf"bad\.jsonl, line 2: {message}"):
        load_prompts(path)


def test_files_that_are_no_text_at_all(tmp_path):
    path = tmp_path / "p.jsonl"
    path.write_bytes(b'{"turns": ["\xff"]}')
    with pytest.raises(PromptSetError, match=r"line 1: .*utf-8"):
        load_prompts(path)
    path.write_bytes(b'\n{"question_id": 1,}')
    with pytest.raises(PromptSetError, match=r"line 2: .* column 19"):
        load_prompts(path)
    packed = tmp_path / "p.jsonl.gz"
    packed.write_bytes(b"plain")
    with pytest.raises(files.DataError, match="not a whole gzip file"):
        load_prompts(packed)
    path.write_text("[" * 100_000)
    with pytest.raises(PromptSetError, match="line 1: brackets are nested too deep"):
        load_prompts(path)
    path.write_text("")
    with pytest.raises(PromptSetError, match="no prompts"):
        load_prompts(path)
    with pytest.raises(PromptSetError, match="does not exist"):
        load_prompts(tmp_path / "none.jsonl.gz")
    (tmp_path / "else.json").write_text("[]")
    with pytest.raises(PromptSetError, match=r"else\.json must be one JSON value a line"):
        load_prompts(str(tmp_path / "else.json"))


def test_shipped_prompts():
    lab, tune, chat = map(load_prompts, ("lab", "tune", "chat"))
    for questions, least in ((lab, 48), (tune, 12)):
        assert len(questions) >= least
        assert [q.category for q in interleave(questions)[:3]] == ["code", "math", "prose"]
        assert len({q.turns for q in questions}) == len(questions)
    # settings are chosen on other prompts than methods are measured on
    assert not {q.turns for q in lab} & {q.turns for q in tune}
    categories = [q.category for q in chat]
    assert (len(chat), len(set(categories[:8]))) == (48, 8)
    assert categories == categories[:8] * 6
    assert {q.format for q in chat} == {"chat"}


def test_parts_and_names():
    assert sets() == ["chat", "edit", "lab", "tune", *OFFICIAL]
    assert {q.category for q in load_prompts("lab/math")} == {"math"}
    for part in ("nope", ""):
        with pytest.raises(
            PromptSetError,
            match=rf"prompt set 'lab' has no part '{part}'; its parts: code, math, prose",
        ):
            load_prompts(f"lab/{part}")
    with pytest.raises(
        PromptSetError,
        match="unknown prompt set 'nope/math'; shipped: chat, edit, lab, tune; "
        "official: gsm8k, humaneval, mt_bench, spec_bench",
    ):
        load_prompts("nope/math")


def test_any_first_part_is_a_fair_mix_of_columns_and_within_them(tmp_path):
    mixed = interleave(load_prompts(write(tmp_path / "q.jsonl", spec_rows())))
    assert [q.subtask for q in mixed[:12]] == ["mt_bench", *FIVE] * 2
    assert [q.category for q in mixed[::6]] == EIGHT * 2


TEMPLATES = {  # and what stands before and after a prompt
    "special": (None, "<|user|>", "<|assistant|>"),  # the shipped one
    "trims": ("[INST] {{ messages[0]['content'] | trim }} [/INST]", "[INST] ", " [/INST]"),
}


@pytest.fixture
def tokenizer():
    return AutoTokenizer.from_pretrained(data_dir() / "lab" / "target")


@pytest.mark.parametrize("template", TEMPLATES)
@pytest.mark.parametrize(
    "text",
    [
        "Summarize: the first sentence. " + "word and 17, " * 20 + "What is it?",
        " \n" + "é" * 80 + ".\n",
    ],
)
def test_a_cut_chat_prompt_keeps_its_template_and_both_ends(tokenizer, template, text):
    written, before, after = TEMPLATES[template]
    tokenizer.chat_template = written or tokenizer.chat_template
    question = Question(1, "x", (text,))
    uncut = question.ids(tokenizer)
    assert question.fit(tokenizer, len(uncut)) == (uncut, False)
    front, back = len(tokenizer(before)["input_ids"]), len(tokenizer(after)["input_ids"])
    rooms = range(front + back + 4, len(uncut))
    assert len(rooms) > 5
    for room in rooms:
        ids, cut = question.fit(tokenizer, room)
        assert cut
        assert len(ids) == room
        shown = tokenizer.decode(ids)
        assert shown.startswith(before)
        assert shown.endswith(after)
        # one run of the prompt's tokens is gone; of what is left, the text's beginning and end have
        # equal parts
        middle = front + (room - front - back) // 2
        assert any(
            ids == uncut[:i] + uncut[len(uncut) - (room - i) :]
            for i in range(middle - 2, middle + 3)
        )


def begin_with_end_of_text(tokenizer) -> None:
    """Make it put a special token first, as most published tokenizers do."""
    from tokenizers.processors import TemplateProcessing

    end = tokenizer.eos_token
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single=f"{end} $A", special_tokens=[(end, tokenizer.eos_token_id)]
    )


@pytest.mark.parametrize("bos", [False, True])
def test_a_cut_text_keeps_its_end_and_the_first_special_token(tokenizer, bos):
    if bos:
        begin_with_end_of_text(tokenizer)
    question = Question(1, "x", ("x = 1\n" * 40 + "def f(x):\n    return",), "text")
    uncut = question.ids(tokenizer)
    assert (uncut[0] == tokenizer.eos_token_id) == bos
    for room in (1 + bos, 12, len(uncut) - 1):
        assert question.fit(tokenizer, room) == (
            uncut[:bos] + uncut[len(uncut) - room + bos :],
            True,
        )
    assert question.fit(tokenizer, len(uncut)) == (uncut, False)


def test_no_room_and_no_tokenizer(tokenizer):
    question = Question(5, "x", ("one two three four five six seven",))
    assert question.fit(tokenizer, 4)[1]
    with pytest.raises(
        PromptSetError, match=r"question 5 does not fit: 2 tokens around it, \d+ in all, room for 3"
    ):
        question.fit(tokenizer, 3)
    with pytest.raises(specwb.PromptError, match="without a tokenizer"):
        question.ids(None)


def test_a_template_writes_its_own_special_tokens(tokenizer):
    begin_with_end_of_text(tokenizer)
    ids = Question(1, "x", ("hello",)).ids(tokenizer)
    assert tokenizer.decode(ids) == "<|user|>hello<|assistant|>"


def test_an_official_set_that_cannot_be_had_is_one_line_and_exit_2(monkeypatch, capfd, tmp_path):
    name, pooch = OFFICIAL[0], pytest.importorskip("pooch")
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{s.getsockname()[1]}/{name}.jsonl"
    monkeypatch.setattr(pooch, "os_cache", lambda _: tmp_path)
    monkeypatch.setenv("NO_PROXY", "*")
    monkeypatch.setenv("SPECWB_DATA", str(tmp_path / "nothing"))
    monkeypatch.setitem(
        texts.FILES, OFFICIAL_FILES[name], texts.Remote(f"{name}/q.jsonl", address, "0" * 64, "x")
    )
    monkeypatch.setattr(sys, "argv", ["specwb", "compare", "--prompts", name])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    out, err = capfd.readouterr()
    assert stop.value.code == 2
    assert not out
    assert len(err.strip().splitlines()) == 1
    assert f"{name}/q.jsonl under SPECWB_DATA" in err
    assert f"{address} failed: no connection" in err


def test_questions_are_prompts_of_every_decoding():
    words = tiny.tokenizer([f"w{i}" for i in range(tiny.VOCABULARY)])
    target = specwb.Target(tiny.target().model, words)
    asked = [Question(i, "c", (f"w{i} w4", "w9"), "text") for i in (1, 2)]
    both = specwb.decode(target, asked, max_new_tokens=4)
    assert both.tokens == specwb.decode(target, [[1, 4], [2, 4]], max_new_tokens=4).tokens
    alone = specwb.decode(target, asked[0], max_new_tokens=4)
    assert alone.tokens == both.tokens[:1]
