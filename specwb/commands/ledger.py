"""specwb reproduce all: the ledger of all papers, measured by a plan or from shipped results."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from specwb.commands.reproduce import TEMPERATURES, WORDS, measured, numbers
from specwb.commands.shared import (
    DEVICE,
    DRAFT,
    DTYPE,
    LIKE_COMPARE,
    RESTART,
    SEED,
    TARGET,
    errors,
    folder,
    table,
    tell,
    wide,
)

QUICK, MINUTES = 3, 20.0
"""Decoding steps of each prompt and cell with --quick, and the time that is planned for it."""


def reproduce_all(
    out: Annotated[
        Path,
        typer.Option(
            help="Folder of the results, one file a paper, and of the page.", writable=True
        ),
    ] = Path("build/reproduce"),
    shipped: Annotated[
        bool, typer.Option("--shipped", help="Judge the shipped results; measure nothing.")
    ] = False,
    quick: Annotated[
        bool,
        typer.Option(
            "--quick",
            help=f"Only {QUICK} decoding steps of each prompt and cell, and {MINUTES:g} minutes.",
        ),
    ] = False,
    minutes: Annotated[
        float | None,
        typer.Option(
            help="About how long to measure in all, parted among the papers by their cells; two "
            "prompts a cell are measured at least.",
        ),
    ] = None,
    seconds: Annotated[
        float | None, typer.Option(help="About how long to measure each paper in all.")
    ] = None,
    prompts: LIKE_COMPARE = "lab",
    target: TARGET = "lab",
    draft: DRAFT = None,
    device: DEVICE = "auto",
    dtype: DTYPE = "auto",
    seed: SEED = 0,
    restart: RESTART = False,
) -> None:
    """The ledger of all papers: what each claims, what is measured here, and the verdict.

    It is written as ledger.html, ledger.md and ledger.json. A paper that cannot be shown with these
    models is named with the reason. Stop it at any moment: the page is then of what there is, and
    the same command goes on.
    """
    import json

    from specwb.errors import SpecwbError
    from specwb.files import check_path, write
    from specwb.studies import PLACES, ledger, study_of
    from specwb.studies import run as studies_run

    times = {"--minutes": minutes, "--seconds": seconds}
    for option, value in times.items():
        if value is not None and not 0 < value < float("inf"):
            raise ValueError(f"{option} must be > 0, got {value:g}; leave it out to measure all")
    given = {**times, "--quick": quick or None, "--restart": restart or None}
    if shipped and (idle := [option for option, value in given.items() if value is not None]):
        raise ValueError(f"--shipped measures nothing; leave {' and '.join(idle)} out")
    folder(out, "--out")
    pages = {kind: out / f"ledger.{kind}" for kind in ("html", "md", "json")}
    for path in pages.values():
        check_path(path, "--out")
    documents: dict[str, Any] = {}
    left_out: dict[str, str] = {}
    if minutes is None and quick and seconds is None:
        minutes = MINUTES
    shares = {} if shipped or minutes is None else _plan(60 * minutes, target, draft, device, dtype)
    stopped = False
    for name in PLACES:
        study = study_of(name)
        if shipped:
            own, ablation = studies_run.shipped(study)
            if own is None:
                left_out[name] = "no shipped results"
            else:
                documents[name] = study.report(own, ablation)
            continue
        if stopped:
            left_out[name] = "interrupted before it was measured"
            continue
        try:
            _, documents[name], _, stopped = measured(
                name,
                out=out / f"{name}{'-quick' * quick}.json",
                temperatures=TEMPERATURES if name == "mcsd" else None,
                rounds=QUICK if quick else study.rounds,
                prompts=prompts,
                target=target,
                draft=None if name == "easyspec" else draft,  # it drafts with a deep model
                device=device,
                dtype=dtype,
                seed=seed,
                restart=restart,
                seconds=shares.get(name, seconds),
            )
        except (SpecwbError, ValueError) as error:
            left_out[name] = str(error)
        except typer.Exit:  # before its first result
            left_out[name], stopped = "interrupted before its first result", True
        else:
            spent = documents[name]["spent"]
            tell(errors, f"{name}: {spent:.0f} s of measuring{', interrupted' * stopped}")
    page = ledger.sections(documents, left_out)
    figures = ledger.drawings(documents)
    for drawn in (one for of_paper in figures.values() for one in of_paper):
        write(drawn.png, out / drawn.file)
    write(ledger.html_page(page, figures), pages["html"])
    write(ledger.markdown(page, figures), pages["md"])
    write(json.dumps(ledger.as_json(documents), indent=1) + "\n", pages["json"])
    screen = wide()
    for title, _, header, rows in page[:2]:
        screen.print(title, highlight=False, markup=False)
        if rows:
            screen.print(table([dict(zip(header, row, strict=True)) for row in rows], WORDS))
    screen.print(f"kept in {pages['html']}, {pages['md']} and {pages['json']}", highlight=False)
    if stopped:
        raise typer.Exit(130)


def _plan(
    seconds: float, target: str, draft: str | None, device: str, dtype: str
) -> dict[str, float]:
    """Part the time among the papers by their cells, and print the plan.

    A fifth is left for what is measured beside the cells and for loading.
    """
    from specwb import load
    from specwb.errors import SpecwbError
    from specwb.studies import PLACES, study_of
    from specwb.studies.study import Models

    model, cells = load(target, device=device, dtype=dtype), {}
    sampled = {"arguments": {"temperatures": numbers(TEMPERATURES, "--temperatures")}}
    for name in PLACES:
        study = study_of(name)
        try:
            models = Models(model, study.draft(model, None if name == "easyspec" else draft))
            cells[name] = len(study.cells(sampled | study.facts(models)))
        except (SpecwbError, ValueError):  # its own turn says why
            continue
    total = sum(cells.values())
    shares = {name: 0.8 * seconds * n / total for name, n in cells.items()}
    rows = [
        {"paper": name, "cells": str(n), "seconds": f"{shares[name]:.0f}"}
        for name, n in cells.items()
    ]
    errors.print(table(rows, WORDS))
    tell(
        errors,
        f"About {seconds / 60:.0f} minutes in all, or longer where two prompts a cell take longer; "
        "what is in the folder is not measured again.",
    )
    return shares
