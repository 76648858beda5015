"""Tables of a benchmark run: figures by method and subtask, equality of texts, right answers."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from decimal import Decimal, InvalidOperation
from statistics import fmean
from typing import Any

import numpy as np
import pandas as pd

from specwb.lab.bench.results import interval, mean_rate, ratios_of, speedup
from specwb.lab.harness import spec_bench
from specwb.lab.harness.record import CONVENTIONS, Turn, speeds
from specwb.models.questions import Question


def reference(answers: Mapping[str, Sequence[Turn]]) -> str:
    """Returns the faster of the plain decodings, by the median of their pairs over questions."""
    first, *others = [name for name in ("ar", "hf_greedy", "hf_sample") if answers.get(name)]
    return next((name for name in others if speedup(_pairs(answers, name, first)) > 1), first)


def _pairs(answers: Mapping[str, Sequence[Turn]], name: str, over: str) -> np.ndarray:
    own, base = speeds(answers[name]), speeds(answers[over])
    return np.array([[own[q], base[q]] for q in sorted(set(own) & set(base))]).reshape(-1, 2)


def frame(answers: Mapping[str, Sequence[Turn]], tokenizer: Any) -> pd.DataFrame:
    """Makes a table with one row a method and subtask, and one a method for all of them.

    Its columns are method, subtask, questions, tokens, every figure of
    :data:`specwb.lab.harness.record.CONVENTIONS`, and

    - tokens_per_second: the mean over questions of tokens over seconds.
    - speedup: over the faster plain decoding (:func:`reference`), the median over questions, see
      :data:`specwb.lab.bench.results.FIGURES`.
    - low, high: 95 % of it, by resampling questions.
    - speedup.mean_rate: the ratio of the mean of tokens a second to the reference's.
    - spec_bench_speedup: by Spec-Bench's own definition, see
      :func:`specwb.lab.harness.spec_bench.metrics`.
    - identical: the share of answers whose tokens are those of ``ar``; of sampled text it says
      nothing.
    """
    rows, over = [], answers[reference(answers)]
    for method, turns in answers.items():
        groups: dict[str, list[Turn]] = {}
        for turn in turns:
            groups.setdefault(turn.subtask, []).append(turn)
        for subtask, own in [*groups.items(), ("overall", list(turns))]:
            asked = {turn.question_id for turn in own}
            base, plain = (
                [turn for turn in some if turn.question_id in asked]
                for some in (over, answers["ar"])
            )
            row = _row(own, base, plain, tokenizer)
            rows.append({"method": method, "subtask": subtask, **row})
    return pd.DataFrame(rows)


def _row(
    turns: Sequence[Turn], over: Sequence[Turn], plain: Sequence[Turn], tokenizer: Any
) -> dict[str, Any]:
    own, pairs = speeds(turns), _pairs({"own": turns, "over": over}, "own", "over")
    low, high = interval(ratios_of(pairs), np.median)
    tokens = {(turn.question_id, turn.turn): turn.tokens for turn in plain}
    same = [turn.tokens == tokens.get((turn.question_id, turn.turn)) for turn in turns]
    return {
        "questions": len(own),
        "tokens": sum(len(turn.tokens) for turn in turns),
        **{name: convention.compute(turns) for name, convention in CONVENTIONS.items()},
        "tokens_per_second": fmean(own.values()),
        "speedup": speedup(pairs),
        "speedup.mean_rate": mean_rate(pairs),
        "low": low,
        "high": high,
        "spec_bench_speedup": spec_bench.metrics(turns, over, tokenizer)["speedup"],
        "identical": fmean(same),
    }


def differences(turns: Sequence[Turn], plain: Sequence[Turn]) -> list[tuple[int, int, int]]:
    """Lists (question, turn, place) of the answers that differ from plain decoding's.

    The place is the first token that differs. A later turn of a question is left out: it was
    asked after another answer.
    """
    others = {(turn.question_id, turn.turn): turn.tokens for turn in plain}
    found: dict[int, tuple[int, int, int]] = {}
    for turn in sorted(turns, key=lambda t: (t.question_id, t.turn)):
        other = others.get((turn.question_id, turn.turn))
        if other is None or other == turn.tokens or turn.question_id in found:
            continue
        pairs = enumerate(zip(turn.tokens, other, strict=False))
        shorter = min(len(turn.tokens), len(other))
        place = next((i for i, (a, b) in pairs if a != b), shorter)
        found[turn.question_id] = (turn.question_id, turn.turn, place)
    return list(found.values())


def final_number(text: str) -> Decimal | None:
    """Returns the number that an answer ends in, None if there is none.

    It is the first one behind ``####``, which GSM8K's references have, otherwise the last one.
    Commas between digits and a sign of money are left out.
    """
    number = r"(?<![\d.])-?(?:\d[\d,]*(?:\.\d+)?|\.\d+)"
    marked = re.search(r"####[^\d.-]*(" + number + ")", text)
    numbers = [marked[1]] if marked else re.findall(number, text)
    try:
        return Decimal(numbers[-1].replace(",", "")) if numbers else None
    except InvalidOperation:
        return None


def exact_match(turns: Sequence[Turn], questions: Sequence[Question]) -> float | None:
    """Returns the share of GSM8K's questions whose answer has the reference's final number.

    None where no question is of GSM8K.
    """
    wanted = {
        q.question_id: final_number(q.reference[0])
        for q in questions
        if q.category in ("gsm8k", "math_reasoning")
        and q.reference
        and final_number(q.reference[0]) is not None
    }
    right = [
        final_number(turn.text) == wanted[turn.question_id]
        for turn in turns
        if turn.question_id in wanted and turn.turn == 0
    ]
    return fmean(right) if right else None
