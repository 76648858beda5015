"""specwb reproduce all: the ledger of all papers, measured by a plan or from shipped results."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from specwb.commands import options as opt
from specwb.commands.reproduce import print_tables
from specwb.commands.shared import (
    alone,
    command_line,
    errors,
    loaded,
    table,
    tell,
    wide,
)
from specwb.files import LEDGER, claim
from specwb.progress import lines, progress

if TYPE_CHECKING:
    from specwb.models.target import Target

QUICK, MINUTES = 3, 20.0
"""Decoding steps of each prompt and cell with --quick, and the time that is planned for it."""


def reproduce_all(
    ctx: typer.Context,
    out: Annotated[
        Path,
        typer.Option(help="Folder for the results, one file per paper, and for the page."),
        LEDGER,
    ] = Path("build/reproduce"),
    shipped: Annotated[
        bool, typer.Option("--shipped", help="Judge the shipped results; measure nothing.")
    ] = False,
    quick: Annotated[
        bool,
        typer.Option(
            "--quick",
            help=f"Take {QUICK} decoding steps of each prompt and cell, and {MINUTES:g} minutes "
            "in all.",
        ),
    ] = False,
    minutes: Annotated[
        float | None,
        typer.Option(
            help="Time to measure in all, approximately, divided among the papers by their "
            "cells; at least two prompts per cell are measured.",
        ),
    ] = None,
    seconds: Annotated[
        float | None, typer.Option(help="Time to measure for each paper, approximately.")
    ] = None,
    prompts: opt.LIKE_COMPARE = "lab",
    target: opt.TARGET = "lab",
    draft: opt.DRAFT = None,
    device: opt.DEVICE = "auto",
    dtype: opt.DTYPE = "auto",
    seed: opt.SEED = 0,
    restart: opt.RESTART = False,
) -> None:
    """The ledger of all papers: what each claims, what is measured here, and the verdict.

    It is written as ledger.html, ledger.md and ledger.json. A paper that cannot be shown with these
    models is named with the reason. Stop it at any moment: the page is then of what there is, and
    the same command goes on.
    """
    import json

    from specwb.bench.prompts import load_prompts
    from specwb.errors import SpecwbError
    from specwb.files import write
    from specwb.studies import PLACES, ledger, run, study_of

    times = {"--minutes": minutes, "--seconds": seconds}
    for option, value in times.items():
        if value is not None and not 0 < value < float("inf"):
            raise ValueError(f"{option} must be > 0, got {value:g}; leave it out to measure all")
    if shipped:
        alone(ctx, "--shipped", "shipped", "out")
    pages = {kind: out / f"ledger.{kind}" for kind in ("html", "md", "json")}
    pictures = tuple("{}/" + name for name in ledger.pictures())
    claim({"--out": (out, replace(LEDGER, names=LEDGER.names + pictures))})
    documents: dict[str, Any] = {}
    others: dict[str, Any] = {}
    left_out: dict[str, str] = {}
    stopped = False
    if shipped:
        with progress("judging the shipped results") as move:
            for i, family in enumerate(run.FAMILIES):
                move(i / len(run.FAMILIES), f"judging the shipped results of {family}")
                others[family] = run.shipped_reports(family)
        documents = others.pop(run.FAMILIES[0])
        left_out = {name: "no results are shipped" for name in PLACES if name not in documents}
    else:
        if minutes is None and quick and seconds is None:
            minutes = MINUTES
        questions, model = load_prompts(prompts), loaded(target, device, dtype, stored=True)
        shares = {} if minutes is None else _plan(60 * minutes, model, draft)
        for name in PLACES:
            study = study_of(name)
            if stopped:
                left_out[name] = "interrupted before it was measured"
                continue
            settings = run.Settings(
                out / f"{name}{'-quick' * quick}.json",
                prompts,
                rounds=QUICK if quick else None,
                seconds=shares.get(name, seconds),
                seed=seed,
                restart=restart,
                command=command_line(),
            )
            try:
                models = run.models_of(study, model, None if study.deep else draft)
                with progress("reproducing", lasting=True) as report:
                    documents[name], stopped = run.reproduce(
                        study, models, questions, settings, progress=report
                    )
            except (SpecwbError, ValueError) as error:
                left_out[name] = str(error)
            except KeyboardInterrupt:
                left_out[name], stopped = "interrupted before its first result", True
            else:
                spent = documents[name]["spent"]
                tell(errors, f"{name}: {spent:.0f} s of measuring{', interrupted' * stopped}")
    page = ledger.sections(documents, left_out, others)
    with lines(lambda: "drawing the figures"):
        figures = ledger.drawings(documents)
    write(ledger.markdown(page, figures), pages["md"])  # the first, as it has the mark
    write(ledger.html_page(page, figures), pages["html"])
    for drawn in (one for of_paper in figures.values() for one in of_paper):
        write(drawn.png, out / drawn.file)
    write(json.dumps(ledger.as_json(documents, others), indent=1) + "\n", pages["json"])
    print_tables(
        [
            (title, [dict(zip(header, row, strict=True)) for row in rows])
            for title, _, header, rows in page[:2]
        ]
    )
    wide().print(f"kept in {pages['html']}, {pages['md']} and {pages['json']}", highlight=False)
    if stopped:
        raise typer.Exit(130)


def _plan(seconds: float, model: Target, draft: str | None) -> dict[str, float]:
    """Part the time among the papers by their cells, and print the plan.

    A fifth is left for what is measured beside the cells and for loading.
    """
    from specwb.errors import SpecwbError
    from specwb.studies import PLACES, study_of
    from specwb.studies.run import models_of

    cells: dict[str, int] = {}
    for name in PLACES:
        study = study_of(name)
        try:
            models = models_of(study, model, None if study.deep else draft)
            document = {"arguments": study.settings, **study.facts(models)}
            cells[name] = len(study.cells(document))
        except (SpecwbError, ValueError):  # its own turn says why
            continue
    total = sum(cells.values())
    shares = {name: 0.8 * seconds * n / total for name, n in cells.items()}
    rows = [
        {"paper": name, "cells": str(n), "seconds": f"{shares[name]:.0f}"}
        for name, n in cells.items()
    ]
    errors.print(table(rows, ("paper",), errors))
    tell(
        errors,
        f"About {seconds / 60:.0f} minutes in all, or longer where two prompts per cell take "
        "longer; what is in the folder is not measured again.",
    )
    return shares
