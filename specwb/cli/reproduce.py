"""specwb reproduce: measure what papers claim."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from specwb.cli import options as opt
from specwb.cli.shared import (
    ArtifactOf,
    alone,
    command_line,
    errors,
    loaded,
    refuse,
    table,
    tell,
    whole,
    wide,
)
from specwb.core.files import DRAWING, DRAWN, FOLDER, LEDGER, STUDY, claim, write
from specwb.core.progress import progress
from specwb.lab.papers import FAMILIES, NAMES, OTHERS

if TYPE_CHECKING:
    from specwb.lab.papers.paper import Paper
    from specwb.lab.papers.store import RunSettings
    from specwb.show.ledger import Judged, Section

STUDIES = (*NAMES, *OTHERS)
OUTPUTS = ArtifactOf(
    "name",
    {"all": (LEDGER, "build/reproduce")}
    | {name: (STUDY, f"build/reproduce/{name}.json") for name in STUDIES},
)
TABLES = ("mcsd_ti", "easyspec", "acceptance")
"""Those with tables of what is no cell: the function ``tables`` of the module of that name."""
TEXTS = ("claim", "verdict", "note", "cell", "setting", "curve", "panel", "method", "best", "")
"""Columns of text."""


def reproduce(
    ctx: typer.Context,
    name: Annotated[
        str,
        typer.Argument(help=f"Paper: {', '.join(STUDIES)}; or all, the ledger of all papers."),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            help="File of the results; a run with the same arguments continues from it. With "
            "all: folder of the results and the page. Default: in build/reproduce."
        ),
        OUTPUTS,
    ] = None,
    shipped: Annotated[
        bool,
        typer.Option(
            "--shipped",
            help="Show the shipped results, of --target lab or smol; measure nothing.",
        ),
    ] = False,
    figure: Annotated[
        str | None,
        typer.Option(
            help="Figure of the paper to draw (all: every one) with our values from stored "
            "results, as pages next to --out; nothing is measured."
        ),
    ] = None,
    train: Annotated[
        bool,
        typer.Option("--train", help="Train and measure the heads that are compared, too."),
    ] = False,
    runs: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=100,
            help="Training runs of each head with --train; default 1, in comparisons of ours 3.",
        ),
    ] = None,
    tokens: Annotated[
        bool,
        typer.Option(
            "--tokens",
            help="Count tokens and record no times, for a busy machine; --out may then hold "
            "results of another machine, whose times are kept.",
        ),
    ] = False,
    seconds: Annotated[
        float | None,
        typer.Option(
            min=0,
            help="Time to measure each paper, approximately, but at least two prompts per cell; "
            "default: every prompt.",
        ),
    ] = None,
    rounds: Annotated[
        int | None,
        typer.Option(min=2, help="Decoding steps of each prompt and cell; default the paper's."),
    ] = None,
    prompts: opt.LIKE_COMPARE = "lab",
    target: opt.TARGET = "lab",
    draft: opt.DRAFT = None,
    device: opt.DEVICE = "auto",
    dtype: opt.DTYPE = "auto",
    seed: opt.SEED = 0,
    restart: Annotated[
        bool,
        typer.Option("--restart", help="Replace stored results instead of continuing from them."),
    ] = False,
) -> None:
    """Measure what a paper claims; an interrupted run continues where it stopped.

    data/papers/NAME.toml says what a paper claims and what is measured for it. --seed is for
    decoding; heads of --train are trained with the seeds 1, 2, .. of --runs. With all, ledger.md
    has every paper's claims, what is measured here and the verdicts; a paper that cannot be shown
    with these models is named with the reason.
    """
    from specwb.lab.papers.paper import read_paper
    from specwb.lab.papers.results import shipped as shipped_results
    from specwb.show import ledger

    assert out is not None  # by ArtifactOf
    if name == "all":
        refuse(ctx, "reproduce all", "figure", "train", "runs", "tokens")
        if shipped:
            alone(ctx, "--shipped", "name", "shipped", "out")
            _ledger(ledger.all_shipped(), {}, out)
            return
    elif figure is not None:
        alone(ctx, "--figure", "name", "figure", "out", "shipped", "target")
        _draw(read_paper(name), figure, out, target, shipped)
        return
    elif shipped:
        alone(ctx, "--shipped", "name", "shipped", "target")
        paper = read_paper(name)
        results = shipped_results(paper, target)
        _print(ledger.judged(paper, results, target), paper, results)
        return
    from specwb.lab.papers.store import RunSettings
    from specwb.lab.papers.training import HeadTraining
    from specwb.models.questions import load_prompts

    settings = RunSettings(
        out, prompts, rounds, seconds, seed, restart, not tokens, command=command_line()
    )
    if name == "all":
        questions, model = load_prompts(prompts), loaded(target, device, dtype, stored=True)
        _measure_all(settings, questions, model, draft)
        return
    paper = read_paper(name)
    unused = [*(() if paper.rounds else ("tokens", "seconds", "rounds"))]
    refuse(ctx, f"reproduce {name}", *unused, *(() if paper.trained else ("train", "runs")))
    if runs is not None and not train:
        raise ValueError("--runs is of the heads of --train; give that too")
    heads = Path(f"build/heads/{name}-ablation")
    training = None
    if train:
        claim({"heads": (heads, FOLDER)})
        training = HeadTraining(target, heads, runs or (1 if paper.is_paper else 3), device)
    questions, model = load_prompts(prompts), loaded(target, device, dtype, stored=True)
    documents, interrupted = _measured(paper, settings, questions, model, draft, training)
    _print(ledger.judged(paper, documents), paper, documents)
    tell(wide(), f"kept in {out}")
    if interrupted:
        raise typer.Exit(130)


def _measured(
    paper: Paper,
    settings: RunSettings,
    questions: Sequence[Any],
    model: Any,
    draft: str | None,
    training: Any = None,
) -> tuple[list[dict[str, Any]], bool]:
    """Measure one paper: its results, and whether it was interrupted.

    Where no heads were trained, the shipped results of such heads stand beside them, if they are of
    this target.
    """
    from specwb.lab.papers import run
    from specwb.lab.papers.results import trained_results

    models = run.models_of(paper, model, draft)
    with progress("reproducing", lasting=True) as report:
        documents, stopped = run.reproduce(paper, models, questions, settings, training, report)
    if training is None:
        documents += trained_results(paper, model.sha256)
    return documents, stopped


def _measure_all(
    settings: RunSettings, questions: Sequence[Any], model: Any, draft: str | None
) -> None:
    """Measure every paper, each into a file of its own, and write the ledger of what there is."""
    from specwb.core.errors import SpecwbError
    from specwb.lab.papers.paper import read_paper
    from specwb.show import ledger

    every: list[Judged] = []
    left_out: dict[str, str] = {}
    stopped = False
    for name in NAMES:
        paper = read_paper(name)
        if stopped:
            left_out[name] = "interrupted before it was measured"
            continue
        own = replace(settings, out=settings.out / f"{name}.json")
        try:
            named = None if paper.draft else draft
            documents, stopped = _measured(paper, own, questions, model, named)
        except (SpecwbError, ValueError) as error:
            left_out[name] = str(error)
        except KeyboardInterrupt:
            left_out[name], stopped = "interrupted before its first result", True
        else:
            every.append(ledger.judged(paper, documents))
            tell(errors, f"{name}: {documents[0]['spent']:.0f} s of measuring")
    _ledger(every, left_out, settings.out)
    if stopped:
        raise typer.Exit(130)


def _ledger(every: Sequence[Judged], left_out: dict[str, str], out: Path) -> None:
    """Write the ledger, and print its counts and the abstracts' claims."""
    from specwb.show import ledger

    page = ledger.sections(every, left_out)
    path = out / "ledger.md"
    write(ledger.markdown(page), path)
    _sections(page[:2])
    wide().print(f"kept in {path}", highlight=False)


def _sections(page: Sequence[Section]) -> None:
    """Print tables of the page with their texts."""
    for title, text, header, rows in page:
        print_table(title, [dict(zip(header, row, strict=True)) for row in rows])
        if text:
            tell(wide(), text)


def _print(judged: Judged, paper: Paper, documents: Sequence[dict[str, Any]]) -> None:
    """Print a paper's figures as tables, its cells, and what became of its claims."""
    from specwb.lab.papers.curves import curves
    from specwb.show import ledger

    for key, drawing in paper.figures.items():
        points = [
            {
                "panel": curve.panel,
                "curve": curve.name,
                drawing.get("x") or "of": str(point.x),
                "paper": "" if point.paper is None else f"{point.paper:.2f}",
                "here": ledger.seen(point.here),
            }
            for curve in curves(paper, key, documents)
            for point in curve.points
        ]
        print_table(f"{key}: {drawing['title']}", points)
    if paper.name in TABLES:
        module = import_module(f"specwb.lab.papers.{paper.name}")
        for title, rows in module.tables(documents[0]):
            print_table(title, rows)
    if not paper.rounds:
        return
    for document in documents:
        print_table("Every cell", ledger.cell_rows(document))
    _sections([ledger.claims(judged)])
    for line in (*paper.contradictions, ledger.chance(judged.verdicts), ledger.RULE):
        tell(wide(), line)


def print_table(title: str, rows: list[dict[str, str]]) -> None:
    """Print a table of text below its title; nothing where it has no rows."""
    screen = wide()
    if rows:
        screen.print(title, highlight=False, markup=False)
        screen.print(table(rows, TEXTS, screen))
        screen.print()


def _draw(paper: Paper, figure: str, out: Path, target: str, shipped: bool) -> None:
    """Draw figures of a paper with ours, from the results in ``out`` or the shipped ones, as pages
    next to ``out``."""
    from specwb.lab.papers.results import shipped as shipped_results
    from specwb.lab.papers.store import read_results
    from specwb.show.pictures import draw

    if figure not in (*paper.figures, "all"):
        known = ", ".join(paper.figures) or "none"
        raise ValueError(f"--figure: {paper.name} has no figure {figure!r}; it has: {known}")
    if out.exists() and not shipped:
        documents, source = [read_results(out)], str(out)
        if (system := documents[0]["arguments"].get("system")) != paper.name:
            raise ValueError(f"--out: {out} holds no results of {paper.name}, but of {system}")
    else:
        family = target if target in FAMILIES else FAMILIES[0]
        documents, source = shipped_results(paper, family), f"the shipped results of {family}"
    keys = [*paper.figures] if figure == "all" else [figure]
    pages = {key: out.with_name(f"{out.stem}-{key}.html") for key in keys}
    claim({f"--out, figure {key}": (page.with_suffix(""), DRAWING) for key, page in pages.items()})
    for key, page in pages.items():
        write(DRAWN + draw(paper, key, documents).to_html(include_plotlyjs=True).encode(), page)
        whole(wide(), f"{page}, from {source}")
