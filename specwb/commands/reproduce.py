"""specwb reproduce: measure what papers claim."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import Progress

from specwb.commands.shared import (
    DEVICE,
    DRAFT,
    DTYPE,
    LIKE_COMPARE,
    RESTART,
    RESULTS,
    SEED,
    TARGET,
    Commands,
    command_line,
    errors,
    loaded,
    table,
    wide,
)

reproduce = Commands(
    no_args_is_help=True,
    help="Measure what papers claim; an interrupted run goes on where it stopped.",
)

OVER = (
    "Speedups measured here are over ar, plain decoding by specwb itself, round by round without "
    "prompt processing. The library's may be faster on this machine: specwb compare measures both "
    "and says which."
)
"""The note below tables with speedups."""
TEMPERATURES = "0,0.3,0.7,1"
"""Those of MCSD's grid."""
WORDS = (
    "tree",
    "text",
    "best",
    "setting",
    "method",
    "by depth",
    "claim",
    "verdict",
    "ours",
    "cells",
    "paper",
    "",
)
"""Columns of text."""


def _option(kind: Any, text: str, default: Any, **more: Any) -> tuple[Any, Any]:
    return Annotated[kind, typer.Option(help=text, **more)], default


OPTIONS: dict[str, tuple[Any, Any]] = {
    "figure": _option(
        str | None,
        "Draw this figure of the paper (all: every one) with ours from stored results, as a page "
        "and a picture, or as --out FILE.png, .svg, .pdf or .html; measure nothing.",
        None,
    ),
    "out": (RESULTS, None),
    "train": (
        Annotated[
            bool,
            typer.Option(
                "--train",
                help="Train and measure the ablation's heads instead of showing shipped results.",
            ),
        ],
        False,
    ),
    "heads": _option(
        Path, "Where --train keeps its heads; those that are finished stay.", None, writable=True
    ),
    "runs": _option(int, "Training runs of every head that --train makes.", 1, min=1),
    "head": _option(str | None, "Folder of a trained head; default the target's own.", None),
    "diffusion": _option(
        str | None, "Folder or hub id of a diffusion model; default the target's own.", None
    ),
    "positions": _option(int, "How many, of each prompt and temperature.", 4, min=1),
    "tokens": _option(int, "Length of the texts that positions are taken from.", 48, min=1),
    "temperatures": _option(str, "Comma-separated.", TEMPERATURES),
    "seconds": _option(
        float | None,
        "About how long to measure in all, but two prompts a cell at least; default every prompt.",
        None,
        min=0,
    ),
    "rounds": _option(int, "Decoding steps of each prompt and cell.", 10, min=2),
    "prompts": (LIKE_COMPARE, "lab"),
    "target": (TARGET, "lab"),
    "draft": (DRAFT, None),
    "device": (DEVICE, "auto"),
    "dtype": (DTYPE, "auto"),
    "seed": (SEED, 0),
    "restart": (RESTART, False),
}
"""Option -> its type with help, and its default."""
COMMON = (
    "figure",
    "out",
    "seconds",
    "rounds",
    "prompts",
    "target",
    "draft",
    "device",
    "dtype",
    "seed",
)
ABLATION = ("train", "heads", "runs")
SEEDED = "--seed is of decoding; the ablation's heads are trained with seeds 1, 2, .. of --runs."


def _add(name: str, run: Callable[..., None], options: tuple[str, ...], **defaults: Any) -> None:
    """Add the command of a paper, with these options in the order of :data:`OPTIONS`."""

    def command(**given: Any) -> None:
        run(name, **given)

    defaults = {"out": Path(f"build/reproduce/{name}.json"), **defaults}
    parameters = [
        inspect.Parameter(
            option,
            inspect.Parameter.KEYWORD_ONLY,
            default=defaults.get(option, default),
            annotation=annotation,
        )
        for option, (annotation, default) in OPTIONS.items()
        if option in (*options, "restart")
    ]
    command.__doc__ = PAPERS.get(name, run.__doc__)
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    reproduce.command(name)(command)


PAPERS = {
    "mcsd": "Multi-candidate decoding: trees, draws and temperatures on one pair, with verdicts.",
    "falcon": (
        "Falcon: its tables 1, 4 and 5 beside the same comparisons here, with verdicts.\n\n"
        f"Comparisons that the paper lacks are measured too. {SEEDED}"
    ),
    "diffuspec": (
        "DiffuSpec: its tables 1, 2, 4, 5 and figures 5 to 7 beside the same comparisons here.\n\n"
        "Comparisons that the paper lacks are measured too, and verdicts given."
    ),
    "kangaroo": (
        "Kangaroo: threshold and steps, exit layers, adapters, trees and temperatures.\n\n"
        "They stand beside the paper's, with verdicts, and measured speedups beside predicted "
        f"ones. {SEEDED}"
    ),
    "mcsd_ti": (
        "Improved MCSD: the decision model against none on one pair, shapes, and several roots.\n\n"
        "Several roots are LOSSY; how far they move the output is measured."
    ),
    "easyspec": (
        "EasySpec: N, calibration, widths, layers and executions on one pair, with verdicts.\n\n"
        "Cosines, the drift of the cache and the cost model are measured too."
    ),
}
"""A paper -> what its command says."""


def reproduce_paper(name: str, figure: str | None = None, **given: Any) -> None:
    """Measure a paper's study, judge and print it."""
    if figure is not None:
        _draw(name, figure, given["out"])
        return
    study, document, path, interrupted = measured(name, **given)
    screen = wide()
    tables = study.printed(document)
    for title, rows in tables:
        screen.print(title, highlight=False, markup=False)
        screen.print(table(rows, WORDS))
    columns = [column for _, rows in tables for column in rows[0]]
    over = [OVER] if "speedup" in columns else []
    for note in [*study.summary(document), *over, f"kept in {path}"]:
        screen.print(note, highlight=False, markup=False, soft_wrap=True)
    if interrupted:
        raise typer.Exit(130)


def _draw(name: str, figure: str, out: Path) -> None:
    """Draw figures of a paper with ours, from the results in ``out`` or those that are shipped.

    An ``out`` that is no results' file is where the figure is written.
    """
    from specwb.files import check_path, write
    from specwb.studies import run, study_of
    from specwb.studies.pictures import can_picture, draw, picture_of
    from specwb.studies.store import results_in

    study = study_of(name)
    if figure not in (*study.figures, "all"):
        known = ", ".join(study.figures) or "none"
        raise ValueError(f"--figure: {name} has no figure {figure!r}; it has: {known}")
    results, kinds = out, ("html", *(["png"] if can_picture() else []))
    written = out.suffix[1:]
    if written != "json":
        if written not in ("html", "png", "svg", "pdf") or figure == "all":
            raise ValueError(
                "--out with --figure must be FILE.html, .png, .svg or .pdf of one figure, or a "
                f"file of results, FILE.json; got {str(out)!r}"
            )
        results, kinds = Path(f"build/reproduce/{name}.json"), (written,)
    if results.exists():
        document, source = results_in(results, name), str(results)
    else:
        found, ablation = run.shipped(study)
        if found is None:
            raise ValueError(f"--figure: there are no results of {name}, in {results} or shipped")
        document, source = study.report(found, ablation), "the shipped results"
    for key in study.figures if figure == "all" else (figure,):
        for kind in kinds:
            path = out if written != "json" else out.with_name(f"{out.stem}-{key}.{kind}")
            if path.parts[:1] == ("build",):
                path.parent.mkdir(parents=True, exist_ok=True)
            check_path(path, "--out")
            if kind == "html":
                write(draw(study.figures[key], document).to_html(include_plotlyjs=True), path)
            else:
                write(picture_of(study.figures[key], document, kind), path)
            line = f"{path}, from {source}"
            wide().print(line, highlight=False, markup=False, soft_wrap=True)


def measured(
    name: str,
    *,
    out: Path,
    prompts: str,
    target: str,
    device: str,
    dtype: str,
    seed: int,
    restart: bool,
    rounds: int,
    seconds: float | None = None,
    draft: str | None = None,
    head: str | None = None,
    diffusion: str | None = None,
    temperatures: str | None = None,
    train: bool = False,
    heads: Path | None = None,
    runs: int = 1,
) -> tuple[Any, dict[str, Any], Path, bool]:
    """Measure a paper's study into its store and judge it.

    Returns:
        The study, the document of its results, their file, and whether it was interrupted.
    """
    from specwb.bench.prompts import load_prompts
    from specwb.options import MethodError
    from specwb.studies import study_of, trained
    from specwb.studies.run import measure, shipped
    from specwb.studies.store import Store, identity, with_commit
    from specwb.studies.study import Models

    study, head = study_of(name), head or diffusion
    sampled_at: dict[str, Any] = {}
    if temperatures is not None:
        sampled_at = {"temperatures": numbers(temperatures, "--temperatures")}
    questions, model = load_prompts(prompts), loaded(target, device, dtype, stored=True)
    chosen: Any = None
    try:
        chosen = study.draft(model, draft)
    except MethodError:
        if draft is not None or not study.partial:
            raise
    models = Models(model, chosen, head)
    kinds = [
        kind
        for kind in study.heads
        if not study.partial or kind in (study.name, study.given) or model.own_head(kind)
    ]
    sums = trained.checksums(model, kinds, {study.given: head})
    arguments = identity(
        name,
        model,
        models.draft,
        sha256=model.sha256,
        **({} if chosen is None else {"draft_sha256": chosen.sha256}),
        **({"heads": sums} if sums else {}),
        **sampled_at,
        prompts=prompts,
        rounds=rounds,
        seed=seed,
    )
    store = Store(out, arguments, restart)
    run = partial(measure, study, rounds_each=rounds, seconds=seconds, seed=seed)
    ablation, beside = shipped(study, model)[1], None
    if train:
        # a head that cannot be used is refused before the work that takes long
        study.build(study.cells(store.document | study.facts(models)), models)
        folder = heads or Path(f"build/heads/{name}-ablation")
        cards = trained.train(study.head, study.variants, target, folder, device=device, runs=runs)
        beside = _ablation(out, arguments, cards, restart)
        beside.document["runs"] = runs
        variants = Models(model, models.draft, heads=folder)
        stopped = _run(partial(run, variants, questions, beside, study.trained_cells(runs)))
        beside.save(final=True)
        if stopped:
            raise typer.Exit(130)
        ablation = beside.document
    interrupted = _run(partial(run, models, questions, store))
    if not store.cells:
        raise typer.Exit(130)
    store.document |= {"command": command_line(), "commit": with_commit(store.document)}
    study.report(store.document, ablation)
    store.save(final=True)
    if beside is not None:
        beside.save(final=True)  # the report has added to it
    return study, store.document, store.path, interrupted


def reproduce_acceptance(
    name: str,
    *,
    out: Path,
    positions: int,
    temperatures: str,
    tokens: int,
    prompts: str,
    target: str,
    draft: str | None,
    device: str,
    dtype: str,
    seed: int,
    restart: bool,
) -> None:
    """Acceptance of every rule beside the optimum: which rule wins where.

    It is computed from both models' exact distributions along the target's own texts.
    """
    from specwb.bench.prompts import load_prompts
    from specwb.models.load import draft_model
    from specwb.studies import acceptance
    from specwb.studies.store import Store, identity

    sampled_at = numbers(temperatures, "--temperatures")
    questions, model = load_prompts(prompts), loaded(target, device, dtype, stored=True)
    pair = draft_model(model, draft)
    settings = {
        "prompts": prompts,
        "temperatures": sampled_at,
        "ks": list(acceptance.KS),
        "tokens": tokens,
        "positions": positions,
        "seed": seed,
    }
    store = Store(out, identity(name, model, pair, **settings), restart, acceptance.CELL)
    interrupted = _run(
        partial(
            acceptance.run,
            model,
            questions,
            store,
            draft=pair,
            temperatures=sampled_at,
            tokens=tokens,
            positions=positions,
            seed=seed,
        )
    )
    if not store.cells:
        raise typer.Exit(130)
    store.document["command"] = command_line()
    document = acceptance.report(store)
    store.save(final=True)
    screen = wide()
    for title, rows in acceptance.tables(document):
        screen.print(title, highlight=False, markup=False)
        screen.print(table(rows, WORDS))
    for note in [*acceptance.notes(document), f"kept in {store.path}"]:
        screen.print(note, highlight=False, markup=False, soft_wrap=True)
    if interrupted:
        raise typer.Exit(130)


_add("mcsd", reproduce_paper, (*COMMON, "temperatures"), seconds=300.0)
_add(
    "acceptance",
    reproduce_acceptance,
    ("out", "positions", "temperatures", "tokens", *COMMON[4:]),
    temperatures="0.3,0.7,1",
)
_add("falcon", reproduce_paper, (*COMMON, *ABLATION))
_add("diffuspec", reproduce_paper, (*COMMON, "diffusion"), rounds=16)
_add("kangaroo", reproduce_paper, (*COMMON, *ABLATION, "head"))
_add("mcsd_ti", reproduce_paper, (*COMMON, "head"))
_add("easyspec", reproduce_paper, COMMON)


def _ablation(out: Path, arguments: dict[str, Any], cards: dict[str, Any], restart: bool) -> Any:
    """Make the store for the results of an ablation's heads, beside those of ``out``."""
    from specwb.studies.store import Store, with_commit

    heads = {name: card["sha256"] for name, card in cards.items()}
    settings = {**arguments, "system": f"{arguments['system']}-ablation", "heads": heads}
    store = Store(out.with_name(f"{out.stem}-ablation.json"), settings, restart)
    store.document |= {
        "heads": cards,
        "command": command_line(),
        "commit": with_commit(store.document),
    }
    return store


def _run(run: Any) -> bool:
    """Run with a progress bar; return whether it was interrupted."""
    with Progress(console=errors, transient=True, disable=not errors.is_terminal) as bar:
        task = bar.add_task("reproducing", total=1.0)
        return run(
            progress=lambda done, text: bar.update(task, completed=min(done, 1.0), description=text)
        )


def numbers(text: str, option: str) -> list[float]:
    """Read temperatures such as ``"0,0.7,1"``; each is returned once.

    Raises:
        ValueError: one is no number, or no temperature.
    """
    from specwb.probability import Sampling

    try:
        return list(dict.fromkeys(Sampling(float(part)).temperature for part in text.split(",")))
    except ValueError as error:
        raise ValueError(
            f"{option} must be temperatures such as 0,0.7,1, got {text!r}: {error}"
        ) from error
