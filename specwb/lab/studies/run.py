"""Measure a study's cells, and the paper's other experiments, into a store."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from specwb.core.errors import ArgumentError
from specwb.core.files import document
from specwb.core.options import MethodError
from specwb.lab.studies import PLACES, grid, study_of, trained
from specwb.lab.studies.store import SAVED, Store, identity, with_commit
from specwb.lab.studies.study import Document, Models, Study
from specwb.models.load import data_dir
from specwb.models.questions import Question
from specwb.models.target import Target

Progress = Callable[[float, str], None]
"""Called with (fraction done, text)."""


@dataclass(frozen=True)
class Settings:
    """How a study is measured, and where its results are kept."""

    out: Path  # the file of the results; those of an ablation lie next to it
    prompts: str  # the name of the prompts
    rounds: int | None = None  # decoding steps of each prompt and cell, default the study's
    seconds: float | None = None  # about how long to measure in all, None takes every prompt
    seed: int = 0  # of the sampling
    restart: bool = False  # replace the results that are there
    # whether times are recorded; otherwise tokens alone are counted, and the file may be of another
    # machine
    timed: bool = True
    # see ``settings`` of a :class:`Study`, in place of their defaults
    own: Mapping[str, Any] = field(default_factory=dict)
    command: str = ""  # what was typed


@dataclass(frozen=True)
class Training:
    """The training of an ablation's heads: of which target, into which folder, how many runs."""

    target: str
    folder: Path
    runs: int = 1
    device: str = "auto"


def models_of(study: Study, target: Target, draft: Any = None, head: Any = None) -> Models:
    """Choose the models of a study; a draft model that a partial one lacks is left out."""
    try:
        return Models(target, study.draft(target, draft), head)
    except MethodError:
        if draft is not None or not study.partial:
            raise
    return Models(target, None, head)


def reproduce(
    study: Study,
    models: Models,
    questions: Sequence[Question],
    settings: Settings,
    training: Training | None = None,
    progress: Progress | None = None,
) -> tuple[Document, bool]:
    """Measure a study into its file, or go on with it, and judge it.

    Args:
        models: see :func:`models_of`.
        questions: the prompts that the settings name.
        training: trains and measures the ablation's heads first; otherwise the shipped results of
            the ablation are shown, if they are of this target.
    Returns:
        The document of the results, and whether it was interrupted.
    Raises:
        KeyboardInterrupt: before there was a result of the target's own heads.
        StoreError: the file has results of other arguments.
        MethodError, HeadError: a model or head is missing or cannot be loaded.
        ValueError: as :func:`specwb.lab.studies.grid.run`.
    """
    arguments = _arguments(study, models, settings)
    elsewhere = () if settings.timed else ("device",)
    store = Store(settings.out, arguments, settings.restart, study.cell, elsewhere)
    run = partial(measure, study, seconds=settings.seconds, seed=settings.seed, progress=progress)
    run = partial(run, rounds_each=settings.rounds, timed=settings.timed)
    ablation, beside = shipped(study, models.target)[1], None
    if training:
        # a head that cannot be used is refused before the work that takes long
        study.build(study.cells(store.document | study.facts(models)), models)
        beside = _ablation_store(study, arguments, settings, training)
        variants = Models(models.target, models.draft, heads=training.folder)
        stopped = run(variants, questions, beside, study.trained_cells(training.runs))
        beside.save(final=True)
        if stopped:
            raise KeyboardInterrupt
        ablation = beside.document
    interrupted = run(models, questions, store)
    if not store.cells:
        raise KeyboardInterrupt
    store.document["commit"] = with_commit(store.document)
    if settings.timed:
        store.document["command"] = settings.command
    else:
        store.document["counted"] = {
            "command": settings.command,
            "device": arguments["device"],
        }
    study.report(store.document, ablation)
    store.save(final=True)
    if beside is not None:
        beside.save(final=True)  # the report has added to it
    return store.document, interrupted


def _arguments(study: Study, models: Models, settings: Settings) -> dict[str, Any]:
    """What the results of a study depend on."""
    target, draft = models.target, models.draft
    kinds = [
        kind
        for kind in study.heads
        if not study.partial or kind in (study.name, study.given) or target.own_head(kind)
    ]
    sums = trained.checksums(target, kinds, {study.given: models.head})
    rounds = settings.rounds or study.rounds
    return identity(
        study.name,
        target,
        draft,
        sha256=target.sha256,
        **({} if draft is None else {"draft_sha256": draft.sha256}),
        **({"heads": sums} if sums else {}),
        **{**study.settings, **settings.own},
        prompts=settings.prompts,
        **({"rounds": rounds} if rounds else {}),
        seed=settings.seed,
    )


def _ablation_store(
    study: Study, arguments: dict[str, Any], settings: Settings, training: Training
) -> Store:
    """Train an ablation's heads, and make the store of their results beside the others."""
    place, folder, runs = training.target, training.folder, training.runs
    cards = trained.train(
        study.head, study.variants, place, folder, device=training.device, runs=runs
    )
    heads = {name: card["sha256"] for name, card in cards.items()}
    arguments = {**arguments, "system": f"{arguments['system']}-ablation", "heads": heads}
    path = settings.out.with_name(f"{settings.out.stem}-ablation.json")
    store = Store(path, arguments, settings.restart)
    store.document |= {
        "heads": cards,
        "command": settings.command,
        "commit": with_commit(store.document),
        "runs": runs,
    }
    return store


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
    timed: bool = True,
    progress: Progress | None = None,
) -> bool:
    """Measure cells with :func:`specwb.lab.studies.grid.run`, then what the study's probe measures.

    Cells, steps and ``most`` are the study's own where they are not given. Without ``timed`` no
    time is recorded, and of a study with cells nothing else is measured.
    """
    document = store.document
    if study.rounds:
        document |= {**study.facts(models), "kind": models.target.device.type}
        if cells is None:
            cells = study.cells(document)
        if not timed:  # other layouts and longer texts are there for their times
            cells = [cell for cell in cells if cell.layout == "tree" and not cell.long]
        methods = study.build(cells, models)
        names = (cell.spec.partition(":")[0] for cell in cells if cell not in methods)
        if left_out := list(dict.fromkeys(names)):
            cells, document["left_out"] = list(methods), left_out
        document.setdefault("shapes", {}).update(
            (cell.key, study.shape(method)) for cell, method in methods.items()
        )
        if grid.run(
            models.target,
            questions,
            store,
            methods,
            rounds_each=rounds_each or study.rounds,
            seconds=seconds,
            seed=seed,
            progress=progress,
            most=most or study.most,
            timed=timed,
        ):
            return True
    if study.rounds and not timed:
        return False
    try:
        for done, text in study.probe(models, questions, cells or (), document, seed):
            store.save()
            if progress:
                progress(done, text)
    except KeyboardInterrupt:
        return True
    return False


FAMILIES = ("lab", "smol")
"""Families of models that results are shipped of."""


def shipped(
    study: Study, target: Target | None = None, family: str = "lab"
) -> tuple[Document | None, Document | None]:
    """Read the shipped results of a family of models, and those of its ablation, as saved.

    None stands for what is not there, or not of this target.
    """

    def read(name: str) -> Document | None:
        path = data_dir() / f"results/{name}.json"
        if not path.exists():
            return None
        found = document(path, SAVED)
        same = target is None or found["arguments"].get("sha256") == target.sha256
        return found if same else None

    own = read(f"{study.name}-{family}-cpu" if study.is_paper else f"{study.name}-{family}")
    return own, read(f"{study.name}-ablation-{family}") if study.variants else None


def shipped_report(study: Study, family: str = "lab") -> Document:
    """Return the shipped results of a family of models, judged anew as they are read.

    Raises:
        ArgumentError: there are none.
    """
    own, ablation = shipped(study, family=family)
    if own is None:
        has = [name for name in FAMILIES if shipped(study, family=name)[0]]
        raise ArgumentError(
            f"there are no shipped results of {study.name} on {family}"
            + (f"; there are of {' and '.join(has)}" if has else "")
        )
    return study.report(own, ablation)


def shipped_reports(family: str) -> dict[str, Document]:
    """Return a family's shipped results, judged anew, of every paper that has some."""
    studies = {name: study_of(name) for name in PLACES}
    return {
        name: shipped_report(study, family)
        for name, study in studies.items()
        if shipped(study, family=family)[0]
    }
