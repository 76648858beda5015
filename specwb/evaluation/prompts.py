"""Prompt sets in Spec-Bench's question.jsonl schema."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from specwb.models.load import data_dir


class PromptSetError(ValueError):
    """An unknown prompt set, or a file that is not in the schema."""


@dataclass(frozen=True)
class Question:
    """``format`` is "chat" (a user's turn, put through the tokenizer's chat template where it has one) or "text" (continued as it is)."""

    question_id: int
    category: str
    turns: tuple[str, ...]
    format: str = "chat"

    def ids(self, tokenizer) -> list[int]:
        """Token ids of the first turn."""
        text = self.turns[0]
        if self.format == "chat" and getattr(tokenizer, "chat_template", None):
            text = tokenizer.apply_chat_template([{"role": "user", "content": text}], tokenize=False, add_generation_prompt=True)
            return tokenizer(text, add_special_tokens=False)["input_ids"]
        return tokenizer(text)["input_ids"]


def sets() -> list[str]:
    return sorted(p.stem for p in (data_dir() / "prompts").glob("*.jsonl"))


def load_prompts(name: str | Path) -> list[Question]:
    """A shipped set by name, or any file in the schema (one JSON object a line: question_id, category, turns, optional format).

    Raises:
        PromptSetError: unknown name, unreadable line, missing key, no rows.
    """
    path = Path(name) if str(name).endswith(".jsonl") else data_dir() / "prompts" / f"{name}.jsonl"
    if str(name).endswith(".jsonl") and not path.is_file():
        raise PromptSetError(f"prompt file {name} does not exist")
    if not path.is_file():
        raise PromptSetError(
            f"unknown prompt set {str(name)!r}; shipped: {', '.join(sets())}; or give the path of a .jsonl file in Spec-Bench's schema"
        )
    out = []
    for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            question = Question(int(row["question_id"]), str(row["category"]), tuple(row["turns"]), row.get("format", "chat"))
        except (ValueError, KeyError, TypeError) as error:
            raise PromptSetError(
                f"{path}, line {number}: not a row of the schema (a JSON object with question_id, category, turns): {type(error).__name__}"
            ) from error
        if not question.turns or not all(isinstance(t, str) and t for t in question.turns) or isinstance(row["turns"], str):
            raise PromptSetError(f"{path}, line {number}: turns must be a list of non-empty strings")
        out.append(question)
    if not out:
        raise PromptSetError(f"{path} has no prompts")
    return out


def interleave(questions: list[Question]) -> list[Question]:
    """One of every category in turn, so that any first part is a fair mix."""
    groups: dict[str, list[Question]] = {}
    for question in questions:
        groups.setdefault(question.category, []).append(question)
    out = []
    for i in range(max(map(len, groups.values()))):
        out += [group[i] for group in groups.values() if i < len(group)]
    return out
