"""Answers to a benchmark's questions, turn by turn, in Spec-Bench's schema, and figures of them.

A line of a file is a question: question_id, category, answer_id, model_id, tstamp and choices; a
choice has index, turns (texts), decoding_steps, new_tokens and wall_time (a number per turn) and
accept_lengths (one list over all turns, the bonus token counted). Ours have more keys: of a line
``subtask``, of a choice ``tokens``, ``drafted``, ``cut`` and ``disturbed``, lists by turn.

The field has several figures of one name: whether the bonus token counts, whether a mean is over
steps or over requests. :data:`CONVENTIONS` has each by a name of its own, with its formula and who
uses it.

Source: hemingkx/Spec-Bench, ``evaluation/eval.py`` and ``speed.py`` (Xia et al. 2024, 2401.07851).
"""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, islice
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from specwb.core.errors import ArgumentError
from specwb.core.files import document
from specwb.models.load import data_dir
from specwb.models.questions import Question


@dataclass(frozen=True)
class Turn:
    """One answer of a method: a request, in the words of servers."""

    question_id: int
    category: str
    subtask: str  # the column of the benchmark's table that it counts for
    turn: int  # 0 for the first
    text: str  # the answer, without special tokens and without what follows a stop string
    tokens: tuple[int, ...]  # new token ids, the end of text included
    seconds: float  # of the decoding, the prompt's processing included
    accepted: tuple[int, ...]  # by step, the draft tokens kept
    # by step, the drafted tokens: a chain's length, a tree's nodes without its root
    drafted: tuple[int, ...]
    cut: bool = False  # whether the prompt was shortened to fit
    # whether the machine was slow beside it, also when it was measured again
    disturbed: bool = False


@dataclass(frozen=True)
class Convention:
    """A figure: its formula in words, who uses it, and its function of turns."""

    formula: str
    used_by: str
    compute: Callable[[Sequence[Turn]], float]


def _mean(values: Iterable[float]) -> float:
    """The mean, NaN of nothing."""
    every = list(values)
    return fmean(every) if every else float("nan")


def _per_step(turns: Sequence[Turn]) -> float:
    return _mean(a for turn in turns for a in turn.accepted)


def _per_request(turns: Sequence[Turn]) -> float:
    return _mean(fmean(turn.accepted) for turn in turns if turn.accepted)


def _drafts(turns: Sequence[Turn]) -> list[tuple[int, int]]:
    """Accepted and drafted tokens of every step in which something was drafted."""
    steps = (step for t in turns for step in zip(t.accepted, t.drafted, strict=True))
    return [(accepted, drafted) for accepted, drafted in steps if drafted]


CONVENTIONS = {
    "mean_accept_length": Convention(
        "sum of (accepted + 1) / steps, over all steps",
        "Spec-Bench (#Mean accepted tokens), EAGLE's tau, SGLang",
        lambda turns: 1 + _per_step(turns),
    ),
    "mean_accept_length_per_request": Convention(
        "mean over requests of each one's (accepted + 1) / steps",
        "specdec_bench (Average_AL)",
        lambda turns: 1 + _per_request(turns),
    ),
    "accepted_drafts_per_step": Convention(
        "sum of accepted / steps, over all steps: the bonus token does not count",
        "Kangaroo's compression rate, less one",
        _per_step,
    ),
    "accepted_drafts_per_request": Convention(
        "mean over requests of each one's accepted / steps",
        "DiffuSpec's MAT, per example",
        _per_request,
    ),
    "mean_acceptance_length": Convention(
        "1 + accepted / drafts, where steps in which nothing was drafted are no drafts",
        "vLLM, llama.cpp",
        lambda turns: 1 + _mean(accepted for accepted, _ in _drafts(turns)),
    ),
    "draft_acceptance_rate": Convention(
        "accepted / draft tokens; those of a tree are of all its branches, so that rates of "
        "different shapes cannot be compared",
        "vLLM",
        lambda turns: _mean(a for a, _ in _drafts(turns)) / _mean(n for _, n in _drafts(turns)),
    ),
}
"""The figures in use, by name. The last two are NaN where nothing was drafted."""


def spec_bench_speedup(turns: Sequence[Turn], plain: Sequence[Turn], tokenizer: Any) -> float:
    """Return the speedup by Spec-Bench's own definition.

    Tokens per second of a question are the sum over its turns of new tokens over the sum of
    seconds; the speedup is the ratio of their means over questions. The baseline's tokens are not
    the recorded ones: its answers are tokenised again, less one token for the beginning of text, so
    that the end of text does not count for it alone. The one is taken off where the tokenizer adds
    none too, as there: short answers then look a little faster than they are.

    Args:
        turns: of a method, of one subtask or of all.
        plain: of plain decoding, of the same questions.
        tokenizer: the target's.
    """
    again = _speed(plain, [len(tokenizer(turn.text).input_ids) - 1 for turn in plain])
    return _speed(turns, [len(t.tokens) for t in turns]) / again if again else float("nan")


def _speed(turns: Sequence[Turn], counts: Sequence[int]) -> float:
    """The mean over questions of tokens per second, over all of its turns."""
    sums: dict[int, np.ndarray] = {}
    for turn, count in zip(turns, counts, strict=True):
        sums[turn.question_id] = sums.get(turn.question_id, 0) + np.array([count, turn.seconds])
    return _mean(tokens / seconds for tokens, seconds in sums.values())


def answers_path(out: Path, method: str) -> Path:
    """Return the file of a method's answers."""
    return out / "answers" / (re.sub(r"[^A-Za-z0-9.=,-]+", "_", method) + ".jsonl")


def line(turns: Sequence[Turn], model_id: str, question: Question) -> dict[str, Any]:
    """Return the line of a question's answers."""
    choice = {
        "index": 0,
        "turns": [turn.text for turn in turns],
        "decoding_steps": [len(turn.accepted) for turn in turns],
        "new_tokens": [len(turn.tokens) for turn in turns],
        "wall_time": [turn.seconds for turn in turns],
        "accept_lengths": [a + 1 for turn in turns for a in turn.accepted],
        "tokens": [list(turn.tokens) for turn in turns],
        "drafted": [list(turn.drafted) for turn in turns],
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


def turns_of(line: Mapping[str, Any]) -> list[Turn]:
    """Return the turns of a line, see :func:`line`."""
    choice = line["choices"][0]
    accepted = iter(choice["accept_lengths"])
    rows = zip(
        choice["turns"],
        choice["tokens"],
        choice["wall_time"],
        choice["decoding_steps"],
        choice["drafted"],
        choice["cut"],
        choice["disturbed"],
        strict=True,
    )
    which = line["question_id"], line["category"], line["subtask"]
    turns = []
    for i, (text, tokens, seconds, steps, drafted, *flags) in enumerate(rows):
        kept = tuple(length - 1 for length in islice(accepted, steps))
        turns.append(Turn(*which, i, text, tuple(tokens), seconds, kept, tuple(drafted), *flags))
    return turns


def shipped_turns(paper: str, cell: str, tokens: int = 10**9) -> list[Turn]:
    """Read a cell of a shipped study as one answer a prompt.

    Args:
        paper: a study's name, such as ``diffuspec``.
        cell: a cell of it, such as ``T=0 sps``.
        tokens: leave out the steps of an answer that begin after so many tokens.
    Returns:
        answers without text; their seconds are those of the steps that were recorded.
    Raises:
        DataError, ArgumentError: there is no such study, or cell of it.
    """
    stored = document(data_dir() / "results" / f"{paper}-lab-cpu.json")
    if cell not in stored["cells"]:
        raise ArgumentError(f"{paper} has no cell {cell!r}; there are {', '.join(stored['cells'])}")
    measured = stored["cells"][cell]
    turns = []
    # a study that was given less time has not measured every prompt
    rows = zip(stored["domains"], measured["accepted"], measured["drafted"], strict=False)
    for i, (domain, accepted, drafted) in enumerate(rows):
        begins = list(accumulate((a + 1 for a in accepted), initial=0))[:-1]
        steps = sum(begin < tokens for begin in begins)
        kept = tuple(accepted[:steps])
        seconds = measured["mean"][i] * steps / 1e3
        ids = tuple([0] * (sum(kept) + steps))
        turns.append(Turn(i, domain, domain, 0, "", ids, seconds, kept, tuple(drafted[:steps])))
    return turns
