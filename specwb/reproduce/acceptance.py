"""Which rule wins where: acceptance of every rule on the exact laws of a real pair, by domain, number of candidates and temperature."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

from specwb.engine import decode
from specwb.evaluation import acceptance
from specwb.evaluation.prompts import Question, interleave
from specwb.methods import draft_model
from specwb.models.target import Target
from specwb.reproduce.store import Store

KS = (1, 2, 4, 8)
TEMPERATURES = (0.3, 0.7, 1.0)
READING = (
    "Every rule is judged on the same positions of texts that the target sampled itself. best = the largest mean over prompts, and what is not "
    "behind it by more than two standard errors of the paired difference. coupling is a lower bound and never counted as best."
)

CELL: dict[str, Any] = {
    "temperature": int | float,
    "domain": str,
    "ks": list,
    "at": list,
    "rates": list,
}
"""What is kept of a prompt at a temperature."""


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
    """Fill ``store.cells`` with one record a prompt and temperature, see :func:`specwb.evaluation.acceptance.table`; returns whether interrupted.

    Every prompt is continued by the target alone, up to ``tokens`` tokens at that temperature; ``positions`` places of the continuation are
    chosen at random.

    Raises:
        ValueError: no prompt, a number < 1, a temperature that is not > 0, or models that do not fit.
    """
    if not questions or min(tokens, positions, *ks) < 1 or not min(temperatures) > 0:
        raise ValueError(
            "there must be a prompt, tokens, positions and every k must be >= 1 and every temperature > 0 (at 0 every law is a point)"
        )
    helper = draft_model(target, draft)
    room = min(target.context, helper.context) - tokens
    if room < 2:
        raise ValueError(
            f"tokens={tokens} leave no room for a prompt in the context of {target.name!r} ({target.context})"
        )
    chosen = interleave(list(questions))
    prompts = [q.fit(target.tokenizer, room)[0] for q in chosen]
    done, whole = 0, len(prompts) * len(temperatures)
    try:
        for temperature in temperatures:
            keys = [f"T={temperature:g} prompt {q.question_id}" for q in chosen]
            if all(key in store.cells for key in keys):
                done += len(keys)
                continue
            texts = decode(
                target, prompts, "ar", max_new_tokens=tokens, temperature=temperature, seed=seed
            ).tokens
            for i, (key, question, prompt, text) in enumerate(
                zip(keys, chosen, prompts, texts, strict=True)
            ):
                done += 1
                if key in store.cells:
                    continue
                if progress:
                    progress((done - 1) / whole, key)
                began = time.monotonic()
                at = acceptance.random_positions(len(text), positions, seed + i)
                p, q = acceptance.distributions_along(target, helper, prompt, text, at, temperature)
                found = acceptance.rates(p, q, ks, samples=samples, seed=seed).cpu().tolist()
                rounded = [[[round(x, 4) for x in place] for place in at_k] for at_k in found]
                store.cells[key] = {
                    "temperature": temperature,
                    "domain": question.subtask,
                    "ks": list(ks),
                    "at": at,
                    "rates": rounded,
                }
                store.document["spent"] = round(
                    store.document["spent"] + time.monotonic() - began, 3
                )
                store.save()
    except KeyboardInterrupt:
        return True
    return False


def report(store: Store) -> dict[str, Any]:
    """``store.document`` with ``columns`` (of the cells' rates), ``rows`` (:func:`specwb.evaluation.acceptance.table`) and how to read them."""
    frame = acceptance.table(list(store.cells.values()))
    rows = [
        {name: _number(value) for name, value in one.items()} for one in frame.to_dict("records")
    ]
    store.document |= {"columns": list(acceptance.COLUMNS), "reading": READING, "rows": rows}
    return store.document


def _number(value: Any) -> Any:
    """Five digits, and None for what JSON cannot say."""
    return value if not isinstance(value, float) else None if value != value else round(value, 5)


def tables(document: dict[str, Any]) -> list[tuple[str, list[dict[str, str]]]]:
    """(title, rows of text): one table a domain, a line a temperature and k: every rule's mean, the errors' median, alpha*, the best."""
    out = []
    for domain in dict.fromkeys(r["domain"] for r in document["rows"]):
        mine = [r for r in document["rows"] if r["domain"] == domain]
        lines = []
        for t, k in dict.fromkeys((r["temperature"], r["k"]) for r in mine):
            cell = {r["rule"]: r for r in mine if (r["temperature"], r["k"]) == (t, k)}
            most = {r["drawn"]: r["optimum"] for r in cell.values()}
            lines.append(
                {
                    "T": f"{t:g}",
                    "k": str(k),
                    **{name: f"{r['mean']:.3f}" for name, r in cell.items() if name != "rejection"},
                    "iid*": f"{most['iid']:.3f}",
                    "without*": f"{most['without']:.3f}",
                    "error": f"{median([r['error'] for r in cell.values() if r['error'] is not None] or [float('nan')]):.3f}",
                    "best": next(iter(cell.values()))["verdict"].replace("top_and_sample", "top")
                    if k > 1
                    else "one child",
                }
            )
        counts = (
            f"{mine[0]['prompts']} prompts, {mine[0]['positions']} positions a cell" if mine else ""
        )
        out.append(
            (
                f"{domain}: acceptance of one node, {counts}; * the most any rule can accept of such candidates",
                lines,
            )
        )
    return out


def notes(document: dict[str, Any]) -> list[str]:
    """How to read the tables, and in how many cells each rule was best."""
    cells = {
        (r["domain"], r["temperature"], r["k"]): r["verdict"]
        for r in document["rows"]
        if r["domain"] != "all" and r["k"] > 1
    }
    counts = Counter(name for verdict in cells.values() for name in verdict.split(" = "))
    won = ", ".join(f"{name} {n}" for name, n in counts.most_common())
    return [
        READING,
        f"Best or tied, of {len(cells)} cells with k > 1: {won}.",
        f"{document['spent']:.0f} s of computing.",
    ]
