"""Bad input is one clear line: the kind of error, and what the line must say.

A row of the table is a call, the kind of error that it must raise, and words of its message.
"""

from __future__ import annotations

import io
import json
import math
import sys
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import pytest
import tiny
import torch
from tokenizers import Regex, normalizers

import specwb
from specwb import LoadError, MethodError, PromptError, SpecwbError
from specwb.core.errors import ArgumentError
from specwb.core.stops import StopError
from specwb.lab.bench.store import RunStore, StoreError
from specwb.lab.sweeps import SweepError, frame
from specwb.models.folder import folder_of
from specwb.models.load import data_dir
from specwb.models.prompts import chat
from specwb.show import course
from specwb.show.scope import TraceError, page

TARGET = tiny.target()
TEMPLATE = "{% for m in messages %}{{ m['content'] }} {% endfor %}"


def talker():
    tokenizer = tiny.tokenizer()
    tokenizer.chat_template = TEMPLATE
    return tokenizer


def panicking():
    """A tokenizer whose expression goes back further than the library allows: a panic in Rust."""
    tokenizer = tiny.tokenizer()
    tokenizer.backend_tokenizer.normalizer = normalizers.Replace(Regex("(a+)+$"), "")
    return tokenizer


TALKER, PANICKING = (specwb.load(TARGET.model, tokenizer=make()) for make in (talker, panicking))


def says(content: object) -> Callable[[], object]:
    return lambda: chat(TALKER.tokenizer, [{"role": "user", "content": content}])


def trace(**changes) -> dict:
    return {**specwb.record(TALKER, "w1 w2", "ar", max_new_tokens=2), **changes}


def decode(**settings) -> Callable[[], object]:
    return lambda: specwb.decode(TALKER, "w1", max_new_tokens=2, **settings)


PYTHON = {
    "load ~nobody": (lambda: specwb.load("~nobodyx/x"), LoadError, "~nobodyx/x does not exist"),
    "load nul": (lambda: specwb.load("a\0b"), LoadError, "is no name of a file: embedded null"),
    "load None": (lambda: specwb.load(None), LoadError, "hub id OWNER/NAME is needed, got None"),
    "head long": (lambda: folder_of("a" * 5000), LoadError, "too long"),
    "register": (lambda: specwb.register(5, specwb.Drafter), MethodError, "key 5 must be a plain"),
    "jobs": (
        lambda: specwb.sweep(TARGET, [[1]], "ar", jobs="2"),
        SweepError,
        "jobs must be an int",
    ),
    "microscope": (
        lambda: specwb.microscope(5),
        TraceError,
        "a trace is the dictionary .* got int",
    ),
    "page nan": (lambda: page(trace(x=math.nan)), TraceError, "cannot be written as JSON: .*range"),
    "stop half": (
        decode(until="\ud800"),
        StopError,
        r"until= is not valid Unicode .*'\\ud800'",
    ),
    "content None": (says(None), PromptError, "content of a message is a text, got None"),
    "panic": (
        lambda: specwb.decode(PANICKING, "a" * 40 + "!", max_new_tokens=1),
        PromptError,
        "the prompt cannot be read by the tokenizer: ",
    ),
    "frame of nothing": (lambda: frame("no.sqlite"), StoreError, "no.sqlite does not exist"),
    "prompts of a sweep": (lambda: specwb.sweep(TARGET, 5, "ar"), PromptError, "got int"),
    "blocks": (
        lambda: specwb.sweep(TARGET, [[1]], blocks=[5]),
        SweepError,
        r"blocks must be a list of tables, got \[5\]",
    ),
    "clock": (decode(clock=5), ArgumentError, r"clock must be a specwb\.Clock, got 5"),
    "rescore": (decode(rescore=5), ArgumentError, "rescore must be a function, got 5"),
    "ids None": (
        lambda: specwb.decode(TALKER, {"input_ids": None}),
        PromptError,
        r"input_ids must be one list a row, got \[None\]",
    ),
    "mask": (
        lambda: specwb.decode(TALKER, {"input_ids": [[1]], "attention_mask": [None]}),
        PromptError,
        "row 0 of attention_mask must be 1 at the tokens of a text",
    ),
    "ranks": (lambda: specwb.load("lab", ranks=5), LoadError, "ranks must come from .* got 5"),
    "tokenizer": (
        lambda: specwb.load(TARGET.model, tokenizer=5),
        LoadError,
        "tokenizer must be a tokenizer of transformers, got 5",
    ),
    "template": (
        lambda: specwb.load("lab", template=[]),
        SpecwbError,
        r"unknown chat template \[\]",
    ),
    "explain": (lambda: specwb.explain(None), ArgumentError, "a step is what specwb.rounds yields"),
    "options": (lambda: specwb.register("x", print, options=5), MethodError, "must be a dataclass"),
    "page half": (lambda: page(trace(x="\ud800")), TraceError, "JSON: .*surrogates not allowed"),
    "store ~nobody": (lambda: RunStore("~nobodyx/s.sqlite"), StoreError, "unable to open"),
}

if not torch.cuda.is_available():
    no_cuda = (lambda: specwb.load("lab", device="cuda"), LoadError, "sees no CUDA device")
    PYTHON["no CUDA"] = no_cuda


@pytest.mark.parametrize(("act", "kind", "words"), PYTHON.values(), ids=PYTHON)
def test_a_call(act, kind, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(kind, match=words) as caught:
        act()
    assert isinstance(caught.value, SpecwbError)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 600


def test_a_solution_that_ends_the_program_is_wrong():
    grade = course.grade(next(iter(course.exercises())), lambda *_: sys.exit("bye"))
    assert not grade.right
    assert "it raises SystemExit: bye" in str(grade)


# ------------------------------------------------------------------------------ the command line


def toml(text: str) -> Callable[[Path], None]:
    return lambda folder: (folder / "s.toml").write_text(text)


def text(name: str, content: str | bytes) -> Callable[[Path], object]:
    raw = content.encode() if isinstance(content, str) else content
    return lambda folder: (folder / name).write_bytes(raw)


SWEEP = ["sweep", "s.toml", "--out", "o.sqlite"]
HUGE = "\n".join(f"{name} = {list(range(1, 101))}" for name in ("seed", "max_new_tokens", "top_k"))
LINES = {
    "toml huge": (text("s.toml", '[[methods]]\nmethod="ar"\n' + HUGE), SWEEP, "1000000 config"),
    "store text": (
        text("o.sqlite", "some text " * 100),
        ["sweep", "o.sqlite"],
        "o.sqlite is not a store of specwb's runs: file is not a database",
    ),
    "no picture": (text("x", ""), ["check", "--rule", "nope:x"], "--rule nope:x: cannot import it"),
    "prompts nested": (
        text("p.jsonl", "[" * 50_000),
        ["compare", "--prompts", "p.jsonl"],
        "p.jsonl, line 1",
    ),
    "steps": (
        text("c.txt", "a b c " * 5000),
        ["train", "medusa", "--corpus", "c.txt", "--steps", "99999999999", "--text", "read"],
        "medusa: 99,999,999,999 steps of 16 rows of 256 tokens: about ",
    ),
    "talks": (
        text("x", ""),
        ["train", "talks", "--target", "lab", "--rows", "999999999"],
        "lower --set tokens or --rows",
    ),
    "ngram": (
        text("c.txt", "a b c " * 5000),
        ["train", "ngram", "--corpus", "c.txt", "--set", "tokens=99999999999999"],
        "writes 99,999,999,999,999 tokens, 64 rows at a time: about ",
    ),
    "texts": (text("x", ""), ["check", "--rows", "99999999999"], "99,999,999,999 texts: about "),
    "seconds": (text("x", ""), ["tune", "--seconds", "inf"], "--seconds must be a finite number"),
    "rule that exits": (
        text("m_exit.py", "import sys\nsys.exit(0)"),
        ["check", "--rule", "m_exit:R"],
        "--rule m_exit:R: cannot import it: SystemExit: 0",
    ),
    "rule that exits later": (
        text(
            "m_late.py",
            "from specwb.rules import RRS\nclass R(RRS):\n"
            "  def __init__(self): raise SystemExit(0)",
        ),
        ["check", "--rule", "m_late:R"],
        "code that the command ran ended the process",
    ),
}


@pytest.mark.parametrize(("make", "arguments", "words"), LINES.values(), ids=LINES)
def test_a_command(refused, make, arguments, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    make(tmp_path)
    err = refused(*arguments)
    assert err.startswith("error: ")
    assert words in err
    assert not Path("o.sqlite").exists() or not Path("o.sqlite").read_bytes().startswith(b"SQLite")


RESULTS = json.loads((data_dir() / "results" / "csgd-lab.json").read_text("utf-8"))
DOCUMENTS = {
    "a cell without its steps": ({**RESULTS, "cells": {"a": {"ms": []}}}, "cells.a must contain"),
    "no spent": ({k: v for k, v in RESULTS.items() if k != "spent"}, "it must contain ['spent']"),
    "another study's": (
        {**RESULTS, "arguments": {"system": "mcsd"}},
        "holds no results of csgd, but of mcsd",
    ),
    "no object": (b"[]", "csgd.json is there and not a file of results"),
    "a large number": (b'{"arguments": 1' + b"0" * 400 + b"}", "is too large"),
}


@pytest.mark.parametrize(("content", "words"), DOCUMENTS.values(), ids=DOCUMENTS)
def test_damaged_results_are_not_drawn(refused, content, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "csgd.json"
    raw = content if isinstance(content, bytes) else json.dumps(content).encode()
    path.write_bytes(raw)
    arguments = ["reproduce", "csgd", "--figure", "budget", "--out", "csgd.json"]
    err = refused(*arguments)
    assert words in err
    assert "csgd.json" in err
    assert [path] == [*tmp_path.iterdir()]
    assert path.read_bytes() == raw


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (MemoryError(), "there is not enough memory for that"),
        (MemoryError("Unable to allocate 7 GiB"), "memory for that: Unable to allocate 7 GiB"),
        (RuntimeError("[enforce fail] can't allocate memory: you tried"), "not enough memory"),
        (RecursionError("maximum recursion depth exceeded"), "something is nested too deep"),
    ],
    ids=str,
)
def test_what_the_machine_has_no_room_for(refused, error, words, monkeypatch):
    monkeypatch.setattr("specwb.training.talks.write", Mock(side_effect=error))
    line = refused("train", "talks", "--rows", "9", "--out", "build/no.jsonl")
    assert words in line


def test_a_prompt_without_an_end(refused, monkeypatch):
    class Zeros(io.StringIO):
        def read(self, size=-1):
            assert 0 < size < 10**9, "it reads for ever"
            return "0" * size

    monkeypatch.setattr("terminal.io.StringIO", lambda _: Zeros())
    assert "more than 67108864 characters" in refused("generate", "-")
