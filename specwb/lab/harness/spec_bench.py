"""Answers in Spec-Bench's schema, and its metrics beside ours.

A line is a question: question_id, category, answer_id, model_id, tstamp and choices; a choice has
index, turns (texts), decoding_steps, new_tokens and wall_time (a number per turn) and
accept_lengths (one list over all turns, the bonus token counted). Ours have more keys: of a line
``subtask``, of a choice ``tokens``, ``tested``, ``drafted``, ``prompt_tokens``, ``cut`` and
``disturbed``, lists by turn. Files without them can be read for all that does not need them.

Source: hemingkx/Spec-Bench, ``evaluation/eval.py`` and ``speed.py`` (Xia et al. 2024, 2401.07851).
"""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from specwb.core.errors import ArgumentError, SpecwbError
from specwb.core.files import from_json
from specwb.lab.harness.record import Turn, speeds
from specwb.models.questions import Question


class AnswersError(SpecwbError, ValueError):
    """A file that is no answers' file."""


def answers_path(out: Path, method: str) -> Path:
    """Returns the file of a method's answers."""
    return out / "answers" / (re.sub(r"[^A-Za-z0-9.=,-]+", "_", method) + ".jsonl")


def line(turns: Sequence[Turn], model_id: str, question: Question) -> dict[str, Any]:
    """Returns the line of a question's answers."""
    choice = {
        "index": 0,
        "turns": [turn.text for turn in turns],
        "decoding_steps": [len(turn.accepted) for turn in turns],
        "new_tokens": [len(turn.tokens) for turn in turns],
        "wall_time": [turn.seconds for turn in turns],
        "accept_lengths": [a + 1 for turn in turns for a in turn.accepted],
        "tokens": [list(turn.tokens) for turn in turns],
        "tested": [list(turn.tested or ()) for turn in turns],
        "drafted": [list(turn.drafted or ()) for turn in turns],
        "prompt_tokens": [turn.prompt_tokens for turn in turns],
        "cut": [turn.cut for turn in turns],
        "disturbed": [turn.disturbed for turn in turns],
    }
    return {
        "question_id": question.question_id,
        "category": question.category,
        "subtask": question.subtask,
        "answer_id": uuid.uuid4().hex[:22],
        "model_id": model_id,
        "choices": [choice],
        "tstamp": time.time(),
    }


def read(path: Path) -> list[Turn]:
    """Reads an answers' file, ours or Spec-Bench's own.

    The tokens of a file without them are not known: they are as many zeros. What was tested and
    drafted is then None, and figures that need it are NaN.
    """
    turns = []
    for number, line in enumerate(_lines(path), 1):
        try:
            turns += turns_of(line)
        except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
            problem = f"{path}, answer {number} is not in Spec-Bench's form: {error!r}"
            raise AnswersError(problem) from error
    return turns


def _lines(path: Path) -> list[dict[str, Any]]:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise AnswersError(f"cannot read {path}: {error.strerror}") from error
    lines: dict[int, dict[str, Any]] = {}
    for number, line in enumerate(content.split(b"\n"), 1):
        if not line.strip():
            continue
        try:
            row = from_json(line)
            lines[row["question_id"]] = row  # of a question answered twice, the last one counts
        except (ValueError, KeyError, TypeError) as error:
            raise AnswersError(f"{path}, line {number} is no answer: {error}") from error
    return list(lines.values())


def turns_of(line: Mapping[str, Any]) -> list[Turn]:
    """The turns of one line, by its first choice, as Spec-Bench's own metrics take it."""
    choice = line["choices"][0]
    steps = choice.get("decoding_steps", choice.get("idxs"))  # Kangaroo's copy has the older name
    lengths = [int(x) for x in choice["accept_lengths"]]
    if sum(steps) > len(lengths):
        raise ArgumentError(f"{len(lengths)} accept_lengths for {sum(steps)} decoding_steps")
    turns, begin = [], 0
    for i, text in enumerate(choice["turns"]):
        # what is more than the steps are is of the last turn: some methods list the prompt's token
        end = len(lengths) if i == len(choice["turns"]) - 1 else begin + steps[i]
        accepted = tuple(x - 1 for x in lengths[begin:end])
        begin = end
        tokens = choice["tokens"][i] if "tokens" in choice else [0] * choice["new_tokens"][i]
        turns.append(
            Turn(
                line["question_id"],
                line["category"],
                line.get("subtask", line["category"]),
                i,
                text,
                tuple(tokens),
                choice["wall_time"][i],
                accepted,
                tuple(choice["tested"][i]) if "tested" in choice else None,
                tuple(choice["drafted"][i]) if "drafted" in choice else None,
                choice.get("prompt_tokens", {i: 0})[i],
                choice.get("cut", {i: False})[i],
                choice.get("disturbed", {i: False})[i],
            )
        )
    return turns


def metrics(
    turns: Sequence[Turn], baseline: Sequence[Turn], tokenizer: Any
) -> dict[str, float | None]:
    """Computes what Spec-Bench prints of a method, by its own definitions.

    Tokens a second of a question are the sum over its turns of new tokens over the sum of seconds;
    the figure is their mean over questions, and the speedup the ratio of two such means. The
    baseline's tokens are not the recorded ones: its answers are tokenised again, less one token for
    the beginning of text, so that the end of text does not count for it alone. The one is taken off
    where the tokenizer adds none too, as there: short answers then look a little faster than they
    are, plain decoding's own among them.

    Args:
        turns: of a method, of one subtask or of all.
        baseline: of plain decoding, of the same questions.
        tokenizer: the target's.
    """
    if not turns or not baseline:
        return {"mean_accepted_tokens": None, "tokens_per_second": None, "speedup": None}
    own = fmean(speeds(turns).values())
    again = [len(tokenizer(turn.text).input_ids) - 1 for turn in baseline]
    plain = fmean(speeds(baseline, again).values())
    return {
        "mean_accepted_tokens": fmean(a + 1 for turn in turns for a in turn.accepted),
        "tokens_per_second": own,
        "speedup": own / plain if plain else None,
    }
