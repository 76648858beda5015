"""Improved MCSD, beside its cells: how far several roots move the output."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from specwb.lab.evaluation import roots
from specwb.lab.papers.results import SavedResults
from specwb.lab.papers.run import Models
from specwb.models.questions import Question

TEMPERATURES, ROOTS, NEW = (0.0, 1.0), (1, 2, 3, 4), 32
"""Temperatures, numbers of roots, and tokens of the texts that several roots are judged by."""


def probe(
    models: Models, questions: Sequence[Question], document: SavedResults, seed: int
) -> Iterator[tuple[float, str]]:
    """Measure how far several roots move the output: ``document["moved"]``."""
    texts = models.texts(questions, NEW)
    moved = document.setdefault("moved", {})
    for t in TEMPERATURES:
        missing = [n for n in ROOTS if f"T={t:g} roots={n}" not in moved]
        if not missing:
            continue
        shifts = roots.output_shifts(
            models.target, models.draft, texts, missing, t, max_new_tokens=NEW, seed=seed
        )
        for shift in shifts:
            moved[f"T={t:g} roots={shift.roots}"] = {
                name: round(x, 5) if isinstance(x, float) else x
                for name, x in asdict(shift).items()
            }
            done = len(moved) / len(TEMPERATURES) / len(ROOTS)
            yield done, f"how far {shift.roots} roots move the output"


def tables(document: SavedResults) -> list[tuple[str, list[dict[str, str]]]]:
    """What is printed of it."""
    lines: list[dict[str, str]] = []
    for name, shift in document.get("moved", {}).items():
        line: dict[str, Any] = {"setting": name, "not its first choice": f"{shift['other']:.1%}"}
        line["log p"] = f"{shift['log_p']:.2f}±{shift['error']:.2f}"
        lines.append(line)
    return [("LOSSY from two on: roots, and how far they move the output", lines)]
