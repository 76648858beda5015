"""Measure a study's cells, and the paper's other experiments, into a store."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from specwb.bench.prompts import Question
from specwb.models.load import data_dir
from specwb.models.target import Target
from specwb.studies import grid
from specwb.studies.store import Store
from specwb.studies.study import Document, Models, Study

RESULTS = "results/{}-lab-cpu.json"
"""Where a study's results lie beside the lab family."""
ABLATION = "results/{}-ablation-lab.json"
"""Where those of its ablation do."""


def measure(
    study: Study,
    models: Models,
    questions: Sequence[Question],
    store: Store,
    cells: Sequence[Any] | None = None,
    *,
    rounds_each: int | None = None,
    seconds: float | None = None,
    seed: int = 0,
    most: int | None = None,
    progress: Callable[[float, str], None] | None = None,
) -> bool:
    """Measure cells with :func:`specwb.studies.grid.run`, then what the study's probe measures.

    Args:
        study: the study.
        models: the models that take part.
        questions: the prompts.
        store: of the results.
        cells: the settings, default the study's own.
        rounds_each: decoding steps of each prompt and cell, default the study's.
        seconds: about how long to measure in all, None takes every prompt.
        seed: of the sampling.
        most: new tokens that there is room for behind a prompt, default the study's.
        progress: called with (fraction done, text).
    Returns:
        Whether it was interrupted.
    Raises:
        ValueError: as :func:`specwb.studies.grid.run`.
    """
    rounds_each = rounds_each or study.rounds
    document = store.document
    if cells is None:
        document |= study.facts(models)
        cells = study.cells(document)
    grid.check(questions, cells, rounds_each)
    document |= {**study.facts(models), "kind": models.target.device.type}
    methods = study.build(cells, models)
    names = (cell.spec.partition(":")[0] for cell in cells if cell not in methods)
    if left_out := list(dict.fromkeys(names)):
        cells, document["left_out"] = list(methods), left_out
    document["shapes"] = {cell.key: study.shape(method) for cell, method in methods.items()}
    if grid.run(
        models.target,
        questions,
        store,
        methods,
        rounds_each=rounds_each,
        seconds=seconds,
        seed=seed,
        progress=progress,
        most=most or study.most,
    ):
        return True
    try:
        for text in study.probe(models, questions, cells, document, seed):
            store.save()
            if progress:
                progress(1.0, text)
    except KeyboardInterrupt:
        return True
    return False


def shipped(study: Study, target: Target | None = None) -> tuple[Document | None, Document | None]:
    """Read the results that lie beside the lab family, and those of its ablation.

    Args:
        study: the study.
        target: the target whose results they must be, None takes any.
    Returns:
        The documents as they were saved; None where there is none, or of another target.
    """

    def read(place: str) -> Document | None:
        path = data_dir() / place.format(study.name)
        if not path.exists():
            return None
        document = json.loads(path.read_text("utf-8"))
        same = target is None or document["arguments"].get("sha256") == target.sha256
        return document if same else None

    return read(RESULTS), read(ABLATION) if study.variants else None
