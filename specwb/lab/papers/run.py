"""Measure a paper's cells, and its other experiments, into a file of results."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

from specwb.core.files import OBJECT, document, home, weights_hash
from specwb.core.options import MethodError
from specwb.core.progress import Report, unseen
from specwb.drafters.easyspec import deep_draft
from specwb.engine.machine import commit
from specwb.engine.methods import METHODS, Method
from specwb.engine.methods import method as make_method
from specwb.lab.bench.conditions import conditions
from specwb.lab.papers import grid, training
from specwb.lab.papers.figures import SavedResults
from specwb.lab.papers.paper import Cell, Paper
from specwb.lab.papers.store import RECORD, RunSettings, Store
from specwb.models.load import draft_model
from specwb.models.questions import Question, interleave
from specwb.models.target import Target

PROBES = ("mcsd_ti", "kangaroo", "easyspec", "acceptance")
"""Those with measurements beside their cells: the function ``probe`` of the module of that name."""


@dataclass(frozen=True)
class Models:
    """The models that take part."""

    target: Target
    draft: Target | None = None  # the draft model, default the target's own
    heads: Path | None = None  # the folder of heads that were trained to be compared

    def method(self, cell: Cell) -> Method:
        """Build a cell's method.

        Raises:
            MethodError: the target lacks a model or head that it needs.
        """
        options: dict[str, Any] = {}
        if cell.head and self.heads:
            options["head"] = str(self.heads / cell.head)
        if self.draft is not None and "draft" in METHODS[cell.kind].options:
            options["draft"] = self.draft
        return make_method(cell.spec, self.target, **options)

    def texts(
        self, questions: Sequence[Question], more: int, most: int | None = None
    ) -> list[list[int]]:
        """Token ids of at most so many prompts, of all domains in turn, with room for more."""
        room = self.target.context - more
        return [q.fit(self.target.tokenizer, room)[0] for q in interleave(list(questions))[:most]]


Probe = Callable[[Models, Sequence[Question], SavedResults, int], Iterator[tuple[float, str]]]
"""Measures what is no cell, from (models, questions, document, seed): it adds to the document what
is not there yet, and yields (fraction done, what was added)."""


def models_of(paper: Paper, target: Target, draft: Any = None) -> Models:
    """Choose the models of a paper's cells.

    Args:
        paper: the paper.
        target: the target model.
        draft: the draft model or its name; default the target's own, the deep one where the paper
            has ``draft = "deep"``. A target may be without.
    Raises:
        MethodError: the draft model that is named does not fit.
    """
    choose = deep_draft if paper.draft == "deep" else draft_model
    try:
        return Models(target, choose(target, draft))
    except MethodError:
        if draft is not None:
            raise
        return Models(target)


def build(paper: Paper, cells: Sequence[str], models: Models) -> tuple[dict[Cell, Method], list]:
    """Build the methods of cells.

    Returns:
        The methods, and the keys of those that the target lacks a model or head for.
    Raises:
        MethodError: a cell of the paper's own method cannot be built.
    """
    methods, left_out = {}, []
    for cell in map(Cell.read, cells):
        try:
            methods[cell] = models.method(cell)
        except MethodError:
            if cell.kind == paper.name or not paper.is_paper:
                raise
            left_out.append(cell.kind)
    return methods, list(dict.fromkeys(left_out))


def reproduce(
    paper: Paper,
    models: Models,
    questions: Sequence[Question],
    settings: RunSettings,
    trained: training.HeadTraining | None = None,
    progress: Report = unseen,
) -> tuple[list[SavedResults], bool]:
    """Measure a paper into its file, or go on with it.

    Args:
        paper: the paper.
        models: see :func:`models_of`.
        questions: the prompts that the settings name.
        settings: how it is measured.
        trained: trains and measures the heads of ``paper.trained`` first, into a file of their own.
        progress: is told what is measured.
    Returns:
        The documents of the results, and whether it was interrupted.
    Raises:
        KeyboardInterrupt: before there was a result of the target's own heads.
        StoreError: the file has results of other arguments.
        MethodError, HeadError: a model or head is missing or cannot be loaded.
        ArgumentError: prompts and steps do not fit into the context.
    """
    build(paper, paper.measure, models)  # what cannot be used is refused before any work
    arguments, versions = identity(paper, models, settings)
    store = Store(settings, arguments, versions, RECORD if paper.rounds else OBJECT)
    documents = [store.document]
    if trained is not None:
        assert paper.trained is not None
        cards = training.train(paper.trained, trained)
        heads = {name: card["sha256"] for name, card in cards.items()}
        arguments = {**arguments, "system": f"{paper.name}-ablation", "heads": heads}
        out = settings.out.with_name(f"{settings.out.stem}-ablation.json")
        beside = Store(replace(settings, out=out), arguments, versions)
        beside.document |= {"heads": cards, "runs": trained.runs, "command": settings.command}
        others = Models(models.target, models.draft, trained.folder)
        if measure(paper, others, questions, beside, progress, trained.runs):
            raise KeyboardInterrupt
        documents.append(beside.document)
    interrupted = measure(paper, models, questions, store, progress)
    if not store.cells:
        raise KeyboardInterrupt
    return documents, interrupted


def identity(paper: Paper, models: Models, settings: RunSettings) -> tuple[dict, dict]:
    """What the results of a paper depend on, and the versions of the packages they are made by."""
    target, draft = models.target, models.draft
    on = conditions(target, draft=draft)
    arguments = {
        "system": paper.name,
        **on["models"],
        "device": on["device"],
        "dtype": on["dtype"],
        "sha256": target.sha256,
        **paper.settings,
        "prompts": settings.prompts,
        "seed": settings.seed,
    }
    if draft is not None:
        arguments["draft_sha256"] = draft.sha256
    places = {kind: target.own_head(kind) for kind in paper.heads}
    heads = {kind: weights_hash(home(place)) for kind, place in places.items() if place}
    if heads:
        arguments["heads"] = heads
    if paper.rounds:
        arguments["rounds"] = settings.rounds or paper.rounds
    return arguments, on["versions"]


def architectures(paper: Paper, target: Target) -> dict[str, dict[str, Any]]:
    """Read from the cards of the target's heads what the paper states of its own."""
    found = {}
    for kind, settings in paper.published.items():
        place = target.own_head(kind)
        if place and (path := home(place) / "card.json").exists():
            card = document(path, OBJECT)
            found[kind] = {key: card[key] for key in settings if key in card}
    return found


def measure(
    paper: Paper,
    models: Models,
    questions: Sequence[Question],
    store: Store,
    progress: Report,
    runs: int = 0,
) -> bool:
    """Measure a paper's cells, then what its probe measures, and complete the file.

    Args:
        runs: with trained heads: how many there are of each; 0 measures the target's own.
    Returns:
        Whether it was interrupted. Without times only cells are measured.
    """
    document, settings, interrupted, by_task = store.document, store.settings, False, False
    if paper.rounds:
        cells = list(paper.measure)
        if by_task := settings.prompts in paper.by_task.get("prompts", ()):
            cells = list(paper.by_task["measure"])
        if runs and paper.trained:
            cells = list(paper.trained.measure)
            for run in range(1, runs):
                again = (c.replace("]", f"@{run + 1}]") for c in paper.trained.measure if "[" in c)
                cells += again
        if not settings.timed:  # other layouts and longer texts are there for their times
            cells = [cell for cell in cells if not cell.endswith((" batch", " long"))]
        methods, left_out = build(paper, cells, models)
        document["kind"] = models.target.device.type
        if left_out:
            document["left_out"] = left_out
        if not runs and (architecture := architectures(paper, models.target)):
            document["architecture"] = architecture
        shapes = {cell.name: grid.shape(method) for cell, method in methods.items()}
        document.setdefault("shapes", {}).update(shapes)
        steps = settings.rounds or paper.rounds
        interrupted = grid.measure_cells(
            models.target, questions, store, methods, steps, paper.room, progress
        )
    if paper.name in PROBES and settings.timed and not by_task and not interrupted:
        probe: Probe = import_module(f"specwb.lab.papers.{paper.name}").probe
        try:
            for done, text in probe(models, questions, document, settings.seed):
                store.save()
                progress(done, text)
        except KeyboardInterrupt:
            interrupted = True
    before = filter(None, document.get("commit", "").split(", "))
    document["commit"] = ", ".join(dict.fromkeys([*before, commit()]))
    if settings.timed:
        document["command"] = settings.command
    else:
        device = document["arguments"]["device"]
        document["counted"] = {"command": settings.command, "device": device}
    if paper.rounds:
        document["rows"] = grid.rows(document)
    if store.cells:
        store.save(final=True)
    return interrupted
