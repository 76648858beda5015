"""Which rule wins where: acceptance of every rule on a real pair of models.

It is computed from the pair's exact distributions, by domain, number of candidates and temperature.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

from specwb.bench.prompts import Question, interleave
from specwb.decoding import decode
from specwb.errors import ArgumentError
from specwb.evaluation import acceptance
from specwb.models.load import draft_model
from specwb.models.target import Target
from specwb.studies.store import Store

KS = (1, 2, 4, 8)
"""Numbers of candidates."""
TEMPERATURES = (0.3, 0.7, 1.0)
READING = (
    "Every rule is judged on the same positions of texts that the target sampled itself. best = "
    "the largest mean over prompts, and what is not behind it by more than two standard errors of "
    "the paired difference. coupling is a lower bound and never counted as best."
)

CELL: dict[str, Any] = {
    "temperature": int | float,
    "domain": str,
    "ks": list,
    "at": list,
    "rates": list,
}
"""The fields of a record, of one prompt at one temperature."""


def run(
    target: Target,
    questions: Sequence[Question],
    store: Store,
    *,
    draft: Target | str | None = None,
    temperatures: Sequence[float] = TEMPERATURES,
    ks: Sequence[int] = KS,
    tokens: int = 48,
    positions: int = 4,
    samples: int = 64,
    seed: int = 0,
    progress: Callable[[float, str], None] | None = None,
) -> bool:
    """Fill ``store.cells`` with one record for each prompt and temperature.

    The records are those of :func:`specwb.evaluation.acceptance.table`. Every prompt is continued
    by the target alone, up to ``tokens`` tokens at that temperature; ``positions`` positions of the
    continuation are chosen at random.

    Args:
        target: the target model.
        questions: the prompts.
        store: of the results.
        draft: the draft model, default the target's own.
        temperatures: of texts and distributions, > 0.
        ks: numbers of candidates.
        tokens: length of a continuation.
        positions: chosen in a continuation.
        samples: of the rate that is estimated, see :func:`specwb.evaluation.acceptance.rates`.
        seed: of texts, positions and estimates.
        progress: called with (fraction done, text).
    Returns:
        Whether it was interrupted.
    Raises:
        ValueError: there is no prompt, a number is < 1, a temperature is not > 0, or the models do
            not fit each other.
    """
    if not questions or min(tokens, positions, *ks) < 1 or not min(temperatures) > 0:
        raise ArgumentError(
            "there must be a prompt, tokens, positions and every k must be >= 1 and every "
            "temperature > 0 (at 0 every distribution is one-hot)"
        )
    draft = draft_model(target, draft)
    room = min(target.context, draft.context) - tokens
    if room < 2:
        raise ArgumentError(
            f"tokens={tokens} leave no room for a prompt in the context of {target.name!r} "
            f"({target.context})"
        )
    questions = interleave(list(questions))
    prompts = [q.fit(target.tokenizer, room)[0] for q in questions]
    done, total = 0, len(prompts) * len(temperatures)
    try:
        for temperature in temperatures:
            keys = [f"T={temperature:g} prompt {q.question_id}" for q in questions]
            if all(key in store.cells for key in keys):
                done += len(keys)
                continue
            texts = decode(
                target, prompts, "ar", max_new_tokens=tokens, temperature=temperature, seed=seed
            ).tokens
            rows = zip(keys, questions, prompts, texts, strict=True)
            for i, (key, question, prompt, text) in enumerate(rows):
                done += 1
                if key in store.cells:
                    continue
                if progress:
                    progress((done - 1) / total, key)
                began = time.monotonic()
                at = acceptance.random_positions(len(text), positions, seed + i)
                p, q = acceptance.distributions_along(target, draft, prompt, text, at, temperature)
                rates = acceptance.rates(p, q, ks, samples=samples, seed=seed + i).cpu().tolist()
                store.cells[key] = {
                    "temperature": temperature,
                    "domain": question.subtask,
                    "ks": list(ks),
                    "at": at,
                    "rates": [[[round(rate, 4) for rate in row] for row in at_k] for at_k in rates],
                }
                seconds = store.document["spent"] + time.monotonic() - began
                store.document["spent"] = round(seconds, 3)
                store.save()
    except KeyboardInterrupt:
        return True
    return False


def report(store: Store) -> dict[str, Any]:
    """Add the comparison to ``store.document`` and return it.

    Added are ``columns`` (of the cells' rates), ``rows``
    (:func:`specwb.evaluation.acceptance.table`) and ``reading``, how to read them.
    """
    frame = acceptance.table(list(store.cells.values()))
    rows = [
        {name: _number(value) for name, value in row.items()} for row in frame.to_dict("records")
    ]
    store.document |= {"columns": list(acceptance.COLUMNS), "reading": READING, "rows": rows}
    return store.document


def _number(value: Any) -> Any:
    """A float with five digits; None for NaN, which JSON does not have."""
    if not isinstance(value, float):
        return value
    return None if value != value else round(value, 5)


def tables(document: dict[str, Any]) -> list[tuple[str, list[dict[str, str]]]]:
    """Make the printed tables, as (title, rows of text).

    There is one table a domain with one row for each temperature and k: every rule's mean, the
    errors' median, alpha*, and the best rules.
    """
    titled = []
    for domain in dict.fromkeys(r["domain"] for r in document["rows"]):
        rows = [r for r in document["rows"] if r["domain"] == domain]
        lines = []
        for t, k in dict.fromkeys((r["temperature"], r["k"]) for r in rows):
            cell = {r["rule"]: r for r in rows if (r["temperature"], r["k"]) == (t, k)}
            lines.append(_line(t, k, cell))
        counts = ""
        if rows:
            counts = f"{rows[0]['prompts']} prompts, {rows[0]['positions']} positions a cell"
        title = (
            f"{domain}: acceptance of one node, {counts}; "
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


def notes(document: dict[str, Any]) -> list[str]:
    """Say how to read the tables, and in how many cells each rule was best."""
    cells = {
        (r["domain"], r["temperature"], r["k"]): r["verdict"]
        for r in document["rows"]
        if r["domain"] != "all" and r["k"] > 1
    }
    counts = Counter(name for verdict in cells.values() for name in verdict.split(" = "))
    wins = ", ".join(f"{name} {n}" for name, n in counts.most_common())
    return [
        READING,
        f"Best or tied, of {len(cells)} cells with k > 1: {wins}.",
        f"{document['spent']:.0f} s of computing.",
    ]
