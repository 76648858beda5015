"""Prompt sets: the shipped ones, the official files of the field's benchmarks, and anybody's file in one of their formats."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

from specwb import files
from specwb.errors import SpecwbError
from specwb.inputs import chat, encode
from specwb.models.load import data_dir


class PromptSetError(SpecwbError, ValueError):
    """An unknown prompt set, or a file that is not in a known format."""


# set -> its file in specwb.files.FILES
OFFICIAL = {"gsm8k": "gsm8k_test", "humaneval": "humaneval", "mt_bench": "mt_bench", "spec_bench": "spec_bench"}

_MT_BENCH = {"writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities"}
_SPEC_BENCH = _MT_BENCH | {"translation", "summarization", "qa", "math_reasoning", "rag"}


@dataclass(frozen=True)
class Question:
    """One prompt of a set.

    Args:
        category: the file's own word.
        format: "chat" (a user's turn, put through the tokenizer's chat template where it has one) or "text" (continued as it is).
        subtask: the column of the benchmark's table it counts for, which figures are reported by; default its category. Spec-Bench
            has six: its eight categories of two-turn questions are one, ``mt_bench`` (Xia et al. 2024, arXiv 2401.07851).
        reference: right answers, one a turn, where the file has them.
    """

    question_id: int
    category: str
    turns: tuple[str, ...]
    format: str = "chat"
    subtask: str = ""
    reference: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.subtask:
            object.__setattr__(self, "subtask", self.category)

    def ids(self, tokenizer) -> list[int]:
        """Token ids of the first turn, whole."""
        return self._encode(tokenizer, self.turns[0])

    def fit(self, tokenizer, room: int) -> tuple[list[int], bool]:
        """The first turn in at most ``room`` tokens, and whether it was cut.

        Chat template and special tokens stay whole. The user's text loses one run of tokens: of a chat turn the middle, since
        instructions stand at either end ("Summarize: ...", passages before a question; as LongBench does, arXiv 2308.14508);
        of a text the beginning, since its end is what is continued.

        Raises:
            PromptSetError: ``room`` does not hold the template and a token at each end of the text.
        """
        ids = self.ids(tokenizer)
        if len(ids) <= room:
            return ids, False
        # the same around next to nothing (not nothing: templates may leave an empty message out) tells where the text begins and ends
        bare = self._encode(tokenizer, "x" if self._templated(tokenizer) else "")
        front = _common(ids, bare)
        back = _common(ids[::-1], bare[front:][::-1])
        own, least = room - front - back, 2 if self.format == "chat" else 1
        if own < least:
            raise PromptSetError(f"question {self.question_id} does not fit: {front + back} tokens around it, {len(ids)} in all, room for {room}")
        # rounded up: a token may straddle the seam of template and text, so one of the text's is kept at either end
        head = front + (own + 1) // 2 if self.format == "chat" else front
        return ids[:head] + ids[len(ids) - (room - head) :], True

    def _templated(self, tokenizer) -> bool:
        return self.format == "chat" and bool(getattr(tokenizer, "chat_template", None))

    def _encode(self, tokenizer, text: str) -> list[int]:
        if tokenizer is None:
            raise PromptSetError("prompt sets are text but the target was loaded without a tokenizer; pass one to load()")
        name = f"question {self.question_id}"
        if self._templated(tokenizer):
            return chat(tokenizer, [{"role": "user", "content": text}], name)
        return encode(tokenizer, text, name)


def sets() -> list[str]:
    """Names of the sets: the shipped ones, then the official ones."""
    return [*sorted(p.stem for p in (data_dir() / "prompts").glob("*.jsonl")), *OFFICIAL]


def load_prompts(name: str | Path) -> list[Question]:
    """A set by name, a part of one as ``"spec_bench/rag"`` (a subtask or a category), or a file by its path (``.jsonl``, ``.jsonl.gz``).

    A file's lines are JSON objects in the format of Spec-Bench and MT-Bench (question_id, category, turns, optional format and
    reference), of HumanEval (task_id, prompt, entry_point) or of GSM8K (question, answer), told apart by their keys. HumanEval is
    "text", the others "chat" unless they say otherwise. GSM8K has no ids; its rows are counted from 0.

    Raises:
        PromptSetError: unknown name or part, missing file, no rows, a line that is in none of the formats (named by file and number).
        DataError: an official file is neither under ``SPECWB_DATA`` nor downloadable, or is not the one its checksum names.
    """
    given = str(name)
    path = Path(given).expanduser()
    if given.endswith((".jsonl", ".jsonl.gz")):
        if not path.is_file():
            raise PromptSetError(f"prompt file {given} does not exist")
        return _parse(files.unpack(path), given)
    if path.is_file():
        raise PromptSetError(f"prompt file {given} must be one JSON value a line and its name end in .jsonl or .jsonl.gz")
    key, slash, part = given.partition("/")
    if key not in sets():
        shipped = ", ".join(s for s in sets() if s not in OFFICIAL)
        raise PromptSetError(
            f"unknown prompt set {given!r}; shipped: {shipped}; official: {', '.join(OFFICIAL)}; or give the path of a .jsonl or .jsonl.gz file"
        )
    content = files.read(OFFICIAL[key]) if key in OFFICIAL else (data_dir() / "prompts" / f"{key}.jsonl").read_bytes()
    questions = _parse(content, key)
    if not slash:
        return questions
    chosen = [q for q in questions if part in (q.subtask, q.category)]
    if not chosen:
        parts = dict.fromkeys(p for q in questions for p in (q.subtask, q.category))
        raise PromptSetError(f"prompt set {key!r} has no part {part!r}; its parts: {', '.join(parts)}")
    return chosen


def interleave(questions: list[Question]) -> list[Question]:
    """One of every subtask in turn, and within a subtask one of every category, so that any first part is a fair mix."""
    return _in_turn([_in_turn(_groups(mine, "category")) for mine in _groups(questions, "subtask")])


def _groups(questions: list[Question], by: str) -> list[list[Question]]:
    groups: dict[str, list[Question]] = {}
    for question in questions:
        groups.setdefault(getattr(question, by), []).append(question)
    return list(groups.values())


def _in_turn(groups: list[list[Question]]) -> list[Question]:
    return [question for row in zip_longest(*groups) for question in row if question is not None]


def _common(a: list[int], b: list[int]) -> int:
    """Length of the common beginning."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def _parse(content: bytes, where: str) -> list[Question]:
    out: list[Question] = []
    # split at line feeds alone: str.splitlines would also split at U+2028, which a JSON string may hold as it is
    for number, line in enumerate(content.split(b"\n"), 1):
        if not line.strip():
            continue
        try:
            out.append(_question(files.from_json(line), len(out)))
        except UnicodeDecodeError as error:
            raise PromptSetError(f"{where}, line {number}: not UTF-8 text") from error
        except RecursionError as error:
            raise PromptSetError(f"{where}, line {number}: nested too deeply") from error
        except json.JSONDecodeError as error:
            raise PromptSetError(f"{where}, line {number}: not JSON ({error.msg}, column {error.colno})") from error
        except ValueError as error:
            raise PromptSetError(f"{where}, line {number}: {error}") from error
    if not out:
        raise PromptSetError(f"{where} has no prompts")
    if {q.category for q in out} == _SPEC_BENCH:  # by name or by path; no single row tells, other sets have a "math" too
        out = [replace(q, subtask="mt_bench") if q.category in _MT_BENCH else q for q in out]
    return out


def _question(row: Any, index: int) -> Question:
    """One row of a known format; a ValueError says what is wrong with it."""
    if not isinstance(row, dict):
        raise ValueError(f"a row must be a JSON object, not {type(row).__name__}")
    if {"task_id", "prompt", "entry_point"} <= row.keys():
        number = str(row["task_id"]).rpartition("/")[2]
        if not number.isdecimal():
            raise ValueError(f"task_id must end in a number, as in HumanEval/0, not {row['task_id']!r}")
        return Question(int(number), "humaneval", _texts("prompt", [row["prompt"]]), "text", reference=_answers(row.get("canonical_solution")))
    if {"question", "answer"} <= row.keys():
        if "####" not in str(row["answer"]):
            raise ValueError("answer has no '#### number' as GSM8K's have; give other questions as question_id, category, turns")
        return Question(index, "gsm8k", _texts("question", [row["question"]]), reference=_answers(row["answer"]))
    if missing := [key for key in ("question_id", "category", "turns") if key not in row]:
        raise ValueError(
            f"no {', '.join(missing)}; a row has question_id, category, turns (Spec-Bench, MT-Bench), task_id, prompt, entry_point (HumanEval) "
            "or question, answer (GSM8K)"
        )
    if type(row["question_id"]) is not int:
        raise ValueError(f"question_id must be an integer, not {row['question_id']!r}")
    if row.get("format", "chat") not in ("chat", "text"):
        raise ValueError(f"format must be 'chat' or 'text', not {row['format']!r}")
    (category,) = _texts("category", [row["category"]])
    return Question(row["question_id"], category, _texts("turns", row["turns"]), row.get("format", "chat"), reference=_answers(row.get("reference")))


def _texts(key: str, values: Any) -> tuple[str, ...]:
    if not isinstance(values, list) or not values or not all(isinstance(v, str) and v.strip() for v in values):
        raise ValueError(f"{key} must be a list of non-empty strings" if key == "turns" else f"{key} must be a non-empty string")
    try:
        "".join(values).encode()
    except UnicodeEncodeError:  # JSON may escape half of a pair of surrogates
        raise ValueError(f"{key} has half of a surrogate pair, which is no character") from None
    return tuple(values)


def _answers(value: Any) -> tuple[str, ...]:
    """A reference is not needed for decoding: kept where there is one, a lone string as a list of one."""
    return tuple(map(str, value)) if isinstance(value, list) else () if value is None else (str(value),)
