"""Tables of a benchmark run: figures by method and subtask."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from specwb.lab.bench import results
from specwb.lab.bench.statistics import interval
from specwb.lab.harness.answers import CONVENTIONS, Turn, spec_bench_speedup


def rows_of(answers: Mapping[str, Sequence[Turn]]) -> pd.DataFrame:
    """Return one row a method and question, as :mod:`specwb.lab.bench.results` takes them, with
    the columns subtask, answers (token ids by turn) and tokens_per_second."""
    turns = pd.DataFrame(
        {
            "method": method,
            "prompt": turn.question_id,
            "subtask": turn.subtask,
            "answers": [turn.tokens],
            "tokens": len(turn.tokens),
            "forwards": len(turn.accepted),
            "seconds": turn.seconds,
            "disturbed": turn.disturbed,
        }
        for method, some in answers.items()
        for turn in some
    )
    rows = turns.groupby(["method", "prompt", "subtask"], sort=False).sum().reset_index()
    return rows.assign(tokens_per_second=rows.tokens / rows.seconds)


def requests(answers: Mapping[str, Sequence[Turn]]) -> list[dict[str, Any]]:
    """Make one record a request, of no engine's own form: what was written in how many steps.

    Its keys are method, question_id, turn, subtask, output_tokens, steps, seconds, and
    accepted_lengths: by number of kept draft tokens (a string; the bonus token is not counted), the
    number of steps that kept so many.
    """
    return [
        {
            "method": method,
            "question_id": turn.question_id,
            "turn": turn.turn,
            "subtask": turn.subtask,
            "output_tokens": len(turn.tokens),
            "steps": len(turn.accepted),
            "seconds": turn.seconds,
            "accepted_lengths": {str(n): k for n, k in sorted(Counter(turn.accepted).items())},
        }
        for method, some in answers.items()
        for turn in some
    ]


def frame(answers: Mapping[str, Sequence[Turn]], tokenizer: Any) -> pd.DataFrame:
    """Make a table with one row a method and subtask, and one per method for all of them.

    Its columns are method, subtask, questions, tokens, every figure of
    :data:`specwb.lab.harness.answers.CONVENTIONS`, and

    - tokens_per_second: the mean over questions of tokens over seconds.
    - speedup: over the faster plain decoding (``attrs["reference"]``), the median over questions,
      see :data:`specwb.lab.bench.results.FIGURES`.
    - low, high: its 95 % interval, by resampling questions.
    - speedup.mean_rate: the ratio of the mean of tokens per second to the reference's.
    - spec_bench_speedup: by Spec-Bench's own definition, see
      :func:`specwb.lab.harness.answers.spec_bench_speedup`.
    - identical: the share of questions whose answers have the tokens of ``ar``; of sampled text it
      says nothing.
    """
    rows = rows_of(answers)
    over = results.reference(rows)
    plain = results.of_plain(rows, "tokens_per_second", over, ["prompt"])
    rows = rows.assign(plain=plain, speedup=rows.tokens_per_second / plain)
    rows["identical"] = rows.answers == results.of_plain(rows, "answers", "ar", ["prompt"])
    every = pd.concat([rows, rows.assign(subtask="overall")])
    lines = []
    for (method, subtask), part in every.groupby(["method", "subtask"], sort=False):
        ids = {*part.prompt}
        turns, base = (
            [turn for turn in answers[name] if turn.question_id in ids] for name in (method, over)
        )
        low, high = interval(part.speedup.dropna(), np.median)
        figures = {name: one.compute(turns) for name, one in CONVENTIONS.items()}
        lines.append(
            {
                "method": method,
                "subtask": subtask,
                "questions": len(part),
                "tokens": part.tokens.sum(),
                **figures,
                "tokens_per_second": part.tokens_per_second.mean(),
                "speedup": part.speedup.median(),
                "speedup.mean_rate": part.tokens_per_second.mean() / part.plain.mean(),
                "low": low,
                "high": high,
                "spec_bench_speedup": spec_bench_speedup(turns, base, tokenizer),
                "identical": part.identical.mean(),
            }
        )
    table = pd.DataFrame(lines)
    table.attrs["reference"] = over
    return table
