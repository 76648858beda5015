"""Prompt sets.

There are the shipped ones, the official files of the field's benchmarks, and anybody's file in one
of their formats.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

from specwb.core import files, texts
from specwb.core.errors import ArgumentError, SpecwbError
from specwb.core.files import home
from specwb.core.inputs import check_unicode, is_many
from specwb.models.load import data_dir
from specwb.models.prompts import Prompt, chat, encode, token_rows
from specwb.models.target import Target


class PromptSetError(SpecwbError, ValueError):
    """An unknown prompt set, or a file that is not in a known format."""


# set -> its file in specwb.core.texts.FILES
OFFICIAL = {
    "gsm8k": "gsm8k_test",
    "humaneval": "humaneval",
    "mt_bench": "mt_bench",
    "spec_bench": "spec_bench",
}

_MT_BENCH = {
    *("writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities")
}
_SPEC_BENCH = _MT_BENCH | {"translation", "summarization", "qa", "math_reasoning", "rag"}


@dataclass(frozen=True)
class Question:
    """One prompt of a set.

    Attributes:
        question_id: the file's own number of it.
        category: the file's own word.
        turns: the user's messages.
        format: ``"chat"`` (a user's turn, put through the tokenizer's chat template where it has
            one) or ``"text"`` (continued as it is).
        subtask: the column of the benchmark's table that the question counts for, by which figures
            are reported; default its category. Spec-Bench has six: its eight categories of two-turn
            questions are one, ``mt_bench`` (Xia et al. 2024, arXiv 2401.07851).
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
        """Return all token ids of the first turn."""
        return self._encode(tokenizer, self.turns[0])

    def fit(self, tokenizer, room: int) -> tuple[list[int], bool]:
        """Return the first turn in at most ``room`` tokens, and whether it was cut.

        Chat template and special tokens stay whole. The user's text loses one run of tokens. A chat
        turn loses its middle, since instructions stand at either end ("Summarize: ...", passages
        before a question; LongBench does so too, arXiv 2308.14508). A text loses its beginning,
        since its end is what is continued.
        """
        ids = self.ids(tokenizer)
        if len(ids) <= room:
            return ids, False
        # What the ids have in common with those of the template around another text tells where
        # the user's text begins and ends. That other text is "x" and not empty, since templates
        # may leave an empty message out.
        bare = self._encode(tokenizer, "x" if self._has_template(tokenizer) else "")
        front = _common(ids, bare)
        back = _common(ids[::-1], bare[front:][::-1])
        text_room = room - front - back
        needed = 2 if self.format == "chat" else 1
        if text_room < needed:
            raise PromptSetError(
                f"question {self.question_id} does not fit: {front + back} tokens around it, "
                f"{len(ids)} in all, room for {room}"
            )
        # Half of the text's room is rounded up: a token may straddle the seam of template and text,
        # so one of the text's tokens stays at either end.
        head = front + (text_room + 1) // 2 if self.format == "chat" else front
        return ids[:head] + ids[len(ids) - (room - head) :], True

    def _has_template(self, tokenizer) -> bool:
        return self.format == "chat" and bool(getattr(tokenizer, "chat_template", None))

    def _encode(self, tokenizer, text: str) -> list[int]:
        """Token ids of a text, inside the chat template where there is one."""
        name = f"question {self.question_id}"
        if self._has_template(tokenizer):
            return chat(tokenizer, [{"role": "user", "content": text}], name)
        return encode(tokenizer, text, name)


def sets() -> list[str]:
    """List the names of the sets: the shipped ones, then the official ones."""
    return [*sorted(p.stem for p in (data_dir() / "prompts").glob("*.jsonl")), *OFFICIAL]


def load_prompts(name: str | Path) -> list[Question]:
    """Load a set by its name, a part of one, or a file by its path.

    The lines of a file are JSON objects in one of these formats, which are told apart by their
    keys:

    - Spec-Bench and MT-Bench: question_id, category, turns, optional format and reference.
    - HumanEval: task_id, prompt, entry_point.
    - GSM8K: question, answer. It has no ids; its rows are counted from 0.

    HumanEval's prompts are "text", the others "chat" unless they say otherwise.

    Args:
        name: of a set; a set and a subtask or category of it, such as ``"spec_bench/rag"``; or the
            path of a ``.jsonl`` or ``.jsonl.gz`` file.
    Raises:
        PromptSetError: the name or the part is unknown, a file is missing or has no rows, or a line
            is in none of the formats (the message names file and number).
        DataError: an official file is neither under ``SPECWB_DATA`` nor downloadable, or is not the
            one that its checksum names.
    """
    text = str(name)
    path = home(text)
    if text.endswith((".jsonl", ".jsonl.gz")):
        if not path.is_file():
            raise PromptSetError(f"prompt file {text} does not exist")
        return _parse(texts.unpack(path), text)
    if path.is_file():
        raise PromptSetError(
            f"prompt file {text} must be one JSON value a line and its name end in "
            ".jsonl or .jsonl.gz"
        )
    key, slash, part = text.partition("/")
    if key not in sets():
        shipped = ", ".join(s for s in sets() if s not in OFFICIAL)
        raise PromptSetError(
            f"unknown prompt set {text!r}; shipped: {shipped}; official: {', '.join(OFFICIAL)}; "
            "or give the path of a .jsonl or .jsonl.gz file"
        )
    shipped_path = data_dir() / "prompts" / f"{key}.jsonl"
    content = texts.read(OFFICIAL[key]) if key in OFFICIAL else shipped_path.read_bytes()
    questions = _parse(content, key)
    if not slash:
        return questions
    chosen = [q for q in questions if part in (q.subtask, q.category)]
    if not chosen:
        parts = dict.fromkeys(p for q in questions for p in (q.subtask, q.category))
        raise PromptSetError(
            f"prompt set {key!r} has no part {part!r}; its parts: {', '.join(parts)}"
        )
    return chosen


def interleave(questions: list[Question]) -> list[Question]:
    """Order the questions so that any first part of them is a fair mix.

    One question of every subtask comes in turn, and within a subtask one of every category.
    """
    return _in_turn(_in_turn(questions, "category"), "subtask")


def fitted(
    target: Target, prompts: Sequence[Question] | Sequence[Prompt], new_tokens: int
) -> list[tuple[str, list[int], bool]]:
    """Subtask ("all" of what is no question), token ids, and whether they were cut, of every prompt
    with room for so many new tokens; questions in the order of :func:`interleave`."""
    room = target.context - new_tokens
    if room < 1:
        raise ArgumentError(
            f"max_new_tokens={new_tokens} leaves no room for a prompt in the context of "
            f"{target.name!r} ({target.context})"
        )
    if is_many(prompts) and len(prompts) and isinstance(prompts[0], Question):
        rows = [(q.subtask, *q.fit(target.tokenizer, room)) for q in interleave(list(prompts))]  # type: ignore[arg-type]
        return [(name, token_rows(target, [ids])[0], cut) for name, ids, cut in rows]
    return [("all", ids[-room:], len(ids) > room) for ids in token_rows(target, prompts)]


def _in_turn(questions: list[Question], by: str) -> list[Question]:
    """The first of every group with the same attribute ``by``, then the second of each, and so
    on."""
    groups: dict[str, list[Question]] = {}
    for question in questions:
        groups.setdefault(getattr(question, by), []).append(question)
    rows = zip_longest(*groups.values())
    return [question for row in rows for question in row if question is not None]


def _common(a: list[int], b: list[int]) -> int:
    """Length of the beginning that both have in common."""
    pairs = enumerate(zip(a, b, strict=False))
    return next((i for i, (x, y) in pairs if x != y), min(len(a), len(b)))


def _parse(content: bytes, where: str) -> list[Question]:
    """The questions of a file; ``where`` names it in messages."""
    questions: list[Question] = []
    # Footgun: the content is split at line feeds alone. str.splitlines would also split at U+2028,
    # which a JSON string may hold as it is.
    for number, line in enumerate(content.split(b"\n"), 1):
        if not line.strip():
            continue
        with files.foreign(f"{where}, line {number}", PromptSetError):
            questions.append(_question(files.from_json(line), len(questions)))
    if not questions:
        raise PromptSetError(f"{where} has no prompts")
    # Spec-Bench is recognised by all its categories, however it was named. No single row tells:
    # other sets have a "math" too.
    if {q.category for q in questions} == _SPEC_BENCH:
        return [replace(q, subtask="mt_bench") if q.category in _MT_BENCH else q for q in questions]
    return questions


def _question(row: Any, index: int) -> Question:
    """One row of a known format; a ValueError says what is wrong with it."""
    if not isinstance(row, dict):
        raise ArgumentError(f"a row must be a JSON object, not {type(row).__name__}")
    if {"task_id", "prompt", "entry_point"} <= row.keys():  # HumanEval
        number = str(row["task_id"]).rpartition("/")[2]
        if not number.isdecimal():
            raise ArgumentError(
                f"task_id must end in a number, as in HumanEval/0, not {row['task_id']!r}"
            )
        answers = _answers(row.get("canonical_solution"))
        prompt = _texts("prompt", [row["prompt"]])
        return Question(int(number), "humaneval", prompt, "text", reference=answers)
    if {"question", "answer"} <= row.keys():  # GSM8K
        if "####" not in str(row["answer"]):
            raise ArgumentError(
                "answer has no '#### number' as GSM8K's have; "
                "give other questions as question_id, category, turns"
            )
        answers, question = _answers(row["answer"]), _texts("question", [row["question"]])
        return Question(index, "gsm8k", question, reference=answers)
    if missing := [key for key in ("question_id", "category", "turns") if key not in row]:
        raise ArgumentError(
            f"no {', '.join(missing)}; a row has question_id, category, turns "
            "(Spec-Bench, MT-Bench), task_id, prompt, entry_point (HumanEval) "
            "or question, answer (GSM8K)"
        )
    if type(row["question_id"]) is not int:
        raise ArgumentError(f"question_id must be an integer, not {row['question_id']!r}")
    form = row.get("format", "chat")
    if form not in ("chat", "text"):
        raise ArgumentError(f"format must be 'chat' or 'text', not {form!r}")
    (category,) = _texts("category", [row["category"]])
    turns, answers = _texts("turns", row["turns"]), _answers(row.get("reference"))
    return Question(row["question_id"], category, turns, form, reference=answers)


def _texts(key: str, values: Any) -> tuple[str, ...]:
    """The values of a key, checked: non-empty strings, one for every key but ``turns``."""
    texts = isinstance(values, list) and all(isinstance(v, str) and v.strip() for v in values)
    if not values or not texts:
        kind = "a list of non-empty strings" if key == "turns" else "a non-empty string"
        raise ArgumentError(f"{key} must be {kind}")
    check_unicode(key, "".join(values))  # JSON may escape half of a pair of surrogates
    return tuple(values)


def _answers(value: Any) -> tuple[str, ...]:
    """The right answers, one a turn. Decoding does not need them, so a row may have none."""
    if value is None:
        return ()
    return tuple(map(str, value)) if isinstance(value, list) else (str(value),)
