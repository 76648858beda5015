"""Which rule wins where: acceptance of every rule on a real pair of models.

It is computed from the pair's exact distributions, by domain, number of candidates and temperature.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from statistics import median
from typing import Any

from specwb.core.errors import ArgumentError
from specwb.core.files import OBJECT
from specwb.engine.decoding import decode
from specwb.lab.evaluation import acceptance
from specwb.lab.studies.study import Document, Models, Rows, Study, Tables
from specwb.models.questions import Question, interleave

SAMPLES = 64
"""Of the rate that is estimated, see :func:`specwb.lab.evaluation.acceptance.rates`."""
READING = (
    "Every rule is judged on the same positions of texts that the target sampled itself. best = "
    "the largest mean over prompts, and what is not behind it by more than two standard errors of "
    "the paired difference. coupling is a lower bound and never counted as best."
)


def probe(
    models: Models, questions: Sequence[Question], _: Sequence[Any], document: Document, seed: int
) -> Iterator[tuple[float, str]]:
    """Make one record for each prompt and temperature.

    Every prompt is continued by the target alone, up to ``tokens`` tokens at that temperature;
    ``positions`` positions of the continuation are chosen at random.
    """
    target, draft, cells = models.target, models.draft, document["cells"]
    settings = document["arguments"]
    temperatures, ks = settings["temperatures"], settings["ks"]
    tokens, positions = settings["tokens"], settings["positions"]
    if not min(temperatures) > 0:
        raise ArgumentError("every temperature must be > 0: at 0 every distribution is one-hot")
    room = min(target.context, draft.context) - tokens
    if room < 2:
        raise ArgumentError(
            f"tokens={tokens} leave no room for a prompt in the context of {target.name!r} "
            f"({target.context})"
        )
    questions = interleave(list(questions))
    prompts = [q.fit(target.tokenizer, room)[0] for q in questions]
    for temperature in temperatures:
        keys = [f"T={temperature:g} prompt {q.question_id}" for q in questions]
        if all(key in cells for key in keys):
            continue
        texts = decode(
            target, prompts, "ar", max_new_tokens=tokens, temperature=temperature, seed=seed
        ).tokens
        rows = zip(keys, questions, prompts, texts, strict=True)
        for i, (key, question, prompt, text) in enumerate(rows):
            if key in cells:
                continue
            began = time.monotonic()
            at = acceptance.random_positions(len(text), positions, seed + i)
            p, q = acceptance.distributions_along(target, draft, prompt, text, at, temperature)
            rates = acceptance.rates(p, q, ks, samples=SAMPLES, seed=seed + i).cpu().tolist()
            cells[key] = {
                "temperature": temperature,
                "domain": question.subtask,
                "ks": list(ks),
                "at": at,
                "rates": [[[round(rate, 4) for rate in row] for row in at_k] for at_k in rates],
            }
            document["spent"] = round(document["spent"] + time.monotonic() - began, 3)
            yield len(cells) / (len(prompts) * len(temperatures)), key


def comparison(document: Document, _: Any) -> Document:
    """The ``rows`` of :func:`specwb.lab.evaluation.acceptance.table`, and ``columns`` of the
    rates."""
    frame = acceptance.table(list(document["cells"].values()))
    rows = [
        {name: _number(value) for name, value in row.items()} for row in frame.to_dict("records")
    ]
    return {"columns": list(acceptance.COLUMNS), "rows": rows}


def _number(value: Any) -> Any:
    """A float with five digits; None for NaN, which JSON does not have."""
    if not isinstance(value, float):
        return value
    return None if value != value else round(value, 5)


def tables(document: Document, _: Rows, __: Rows) -> Tables:
    """Make the printed tables: one a domain with one row for each temperature and k.

    A row has every rule's mean, the errors' median, alpha*, and the best rules.
    """
    titled = []
    for domain in dict.fromkeys(r["domain"] for r in document["rows"]):
        rows = [r for r in document["rows"] if r["domain"] == domain]
        lines = []
        for t, k in dict.fromkeys((r["temperature"], r["k"]) for r in rows):
            cell = {r["rule"]: r for r in rows if (r["temperature"], r["k"]) == (t, k)}
            lines.append(_line(t, k, cell))
        title = (
            f"{domain}: acceptance of one node, {rows[0]['prompts']} prompts, "
            f"{rows[0]['positions']} positions a cell; "
            "* the most any rule can accept of such candidates"
        )
        titled.append((title, lines))
    return titled


def _line(temperature: float, k: int, cell: dict[str, dict[str, Any]]) -> dict[str, str]:
    """One row of a table; ``cell``: rule -> its row of the comparison."""
    optimum = {row["drawn"]: row["optimum"] for row in cell.values()}
    errors = [row["error"] for row in cell.values() if row["error"] is not None]
    best = "one child"
    if k > 1:
        best = next(iter(cell.values()))["verdict"].replace("top_and_sample", "top")
    return {
        "T": f"{temperature:g}",
        "k": str(k),
        **{name: f"{row['mean']:.3f}" for name, row in cell.items() if name != "rejection"},
        "iid*": f"{optimum['iid']:.3f}",
        "without*": f"{optimum['without']:.3f}",
        "error": f"{median(errors or [float('nan')]):.3f}",
        "best": best,
    }


def notes(document: Document) -> list[str]:
    """Say in how many cells each rule was best."""
    cells = {
        (r["domain"], r["temperature"], r["k"]): r["verdict"]
        for r in document["rows"]
        if r["domain"] != "all" and r["k"] > 1
    }
    counts = Counter(name for verdict in cells.values() for name in verdict.split(" = "))
    wins = ", ".join(f"{name} {n}" for name, n in counts.most_common())
    return [f"Best or tied, of {len(cells)} cells with k > 1: {wins}."]


STUDY = Study(
    name="acceptance",
    rounds=0,
    tables=tables,
    notes=notes,
    probe=probe,
    extra=comparison,
    rules=READING,
    settings={"temperatures": [0.3, 0.7, 1.0], "ks": [1, 2, 4, 8], "tokens": 48, "positions": 4},
    cell={
        **OBJECT,
        "required": ["temperature", "domain", "ks", "at", "rates"],
        "properties": {
            "temperature": {"type": "number"},
            "domain": {"type": "string"},
            **{key: {"type": "array"} for key in ("ks", "at", "rates")},
        },
    },
    is_paper=False,
)
