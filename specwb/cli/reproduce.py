"""specwb reproduce: measure what papers claim."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from specwb.cli import options as opt
from specwb.cli.shared import (
    Places,
    alone,
    command_line,
    errors,
    loaded,
    refuse,
    settings_of,
    table,
    tell,
    whole,
    wide,
)
from specwb.core.files import FOLDER, LEDGER, STUDY, claim
from specwb.core.progress import lines, progress
from specwb.lab.studies import OTHERS, PLACES

if TYPE_CHECKING:
    from specwb.core.options import Option
    from specwb.lab.studies.run import Settings
    from specwb.lab.studies.study import Study, Tables
    from specwb.models.target import Target

STUDIES = (*PLACES, *OTHERS)
OUTPUTS = Places(
    "name",
    {"all": (LEDGER, "build/reproduce")}
    | {name: (STUDY, f"build/reproduce/{name}.json") for name in STUDIES},
)
QUICK, MINUTES = 3, 20.0
"""Decoding steps of each prompt and cell with --quick, and the time that is planned for it."""
WORDS = (
    "tree",
    "text",
    "best",
    "setting",
    "method",
    "head",
    "by depth",
    "claim",
    "verdict",
    "ours",
    "cells",
    "paper",
    "",
)
"""Columns of text."""


def reproduce(
    ctx: typer.Context,
    name: Annotated[
        str,
        typer.Argument(help=f"Study: {', '.join(STUDIES)}; or all, the ledger of all papers."),
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
            "results, as a page and a picture, or as --out FILE.png, .svg, .pdf or .html; "
            "nothing is measured."
        ),
    ] = None,
    train: Annotated[
        bool,
        typer.Option(
            "--train",
            help="Train and measure the ablation's heads instead of showing shipped results.",
        ),
    ] = False,
    tokens: Annotated[
        bool,
        typer.Option(
            "--tokens",
            help="Count tokens and record no times, for a busy machine; --out may then hold "
            "results of another machine, whose times are kept.",
        ),
    ] = False,
    quick: Annotated[
        bool,
        typer.Option(
            "--quick",
            help=f"With all: {QUICK} decoding steps of each prompt and cell, and {MINUTES:g} "
            "minutes altogether.",
        ),
    ] = False,
    minutes: Annotated[
        float | None,
        typer.Option(
            help="With all: time to measure altogether, approximately, divided among the papers "
            "by their cells."
        ),
    ] = None,
    seconds: Annotated[
        float | None,
        typer.Option(
            min=0,
            help="Time to measure each study, approximately, but at least two prompts per cell; "
            "default: every prompt.",
        ),
    ] = None,
    settings: Annotated[
        str,
        typer.Option(
            "--set",
            help="Settings of the study as name=value with commas: rounds, head, runs and heads "
            "(with --train), temperatures, positions, tokens.",
        ),
    ] = "",
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

    docs/cli.md says what each study measures. --seed is for decoding; heads of --train are trained
    with the seeds 1, 2, .. of --set runs=N. With all, ledger.html, ledger.md and ledger.json have
    every paper's claims, what is measured here and the verdicts; a paper that cannot be shown with
    these models is named with the reason.
    """
    from specwb.lab.studies import run, study_of
    from specwb.models.questions import load_prompts

    assert out is not None  # by Places
    if name == "all":
        refuse(ctx, "reproduce all", "figure", "train", "tokens", "settings")
        for option, value in {"--minutes": minutes, "--seconds": seconds}.items():
            if value is not None and value <= 0:
                raise ValueError(
                    f"{option} must be > 0, got {value:g}; leave it out to measure all"
                )
        if shipped:
            alone(ctx, "--shipped", "name", "shipped", "out")
        elif quick and minutes is None and seconds is None:
            minutes = MINUTES
        base = run.Settings(
            out,
            prompts,
            rounds=QUICK if quick else None,
            seconds=seconds,
            seed=seed,
            restart=restart,
            command=command_line(),
        )
        _ledger(base, shipped, minutes, target, draft, device, dtype)
        return
    study = study_of(name)
    refuse(
        ctx,
        f"reproduce {name}",
        *("quick", "minutes"),
        *(() if study.rounds else ("tokens", "seconds")),
        *(() if study.variants else ("train",)),
    )
    if figure is not None:
        used = ("name", "figure", "out", "shipped", *(["target"] if shipped else []))
        alone(ctx, "--figure", *used)
        _draw(study, figure, out, target if shipped else None)
        return
    if shipped:
        alone(ctx, "--shipped", "name", "shipped", "target")
        _show(study, run.shipped_report(study, target))
        return
    own = settings_of(settings, _settings(study), f"reproduce {name}")
    if "temperatures" in own:
        own["temperatures"] = numbers(own["temperatures"], "--set temperatures")
    heads = Path(own.pop("heads", f"build/heads/{name}-ablation"))
    runs = own.pop("runs", 1 if study.is_paper else 3)
    rounds, head = own.pop("rounds", None), own.pop("head", None)
    if train:
        claim({"--set heads": (heads, FOLDER)})
    questions, model = load_prompts(prompts), loaded(target, device, dtype, stored=True)
    training = run.Training(target, heads, runs, device) if train else None
    chosen = run.Settings(
        out, prompts, rounds, seconds, seed, restart, not tokens, own, command_line()
    )
    models = run.models_of(study, model, draft, head)
    with progress("reproducing", lasting=True) as report:
        document, interrupted = run.reproduce(study, models, questions, chosen, training, report)
    _show(study, document, f"kept in {out}")
    if interrupted:
        raise typer.Exit(130)


def _settings(study: Study) -> dict[str, Option]:
    """What ``--set`` can say about a study, by name."""
    from specwb.core.options import Option

    every = {
        "rounds": Option(name="rounds", low=2, types=(int,)),
        "head": Option(name="head"),
        "runs": Option(name="runs", low=1, high=100, types=(int,)),
        "heads": Option(name="heads"),
        "temperatures": Option(name="temperatures"),
        "positions": Option(name="positions", low=1, high=4096, types=(int,)),
        "tokens": Option(name="tokens", low=1, types=(int,)),
    }
    uses = {
        "rounds": study.rounds,
        "head": study.given,
        "runs": study.variants,
        "heads": study.variants,
    }
    return {
        name: option for name, option in every.items() if uses.get(name, name in study.settings)
    }


def _show(study: Any, document: dict[str, Any], *more: str) -> None:
    """Print the tables of a study's results, its verdicts and notes."""
    print_tables(study.printed(document))
    for note in [*study.summary(document), *more]:
        tell(wide(), note)


def print_tables(tables: Tables) -> None:
    """Print tables of text below their titles."""
    screen = wide()
    for title, rows in tables:
        screen.print(title, highlight=False, markup=False)
        if rows:
            screen.print(table(rows, WORDS, screen))
            screen.print()


def _draw(study: Any, figure: str, out: Path, family: str | None) -> None:
    """Draw figures of a paper with ours, from the results in ``out`` or the shipped ones of a
    family of models.

    An ``out`` that is no results' file is where the figure is written.
    """
    from specwb.core.files import DRAWING, DRAWN, claim, write
    from specwb.lab.studies.run import shipped_report
    from specwb.lab.studies.store import results_in
    from specwb.show.pictures import can_picture, draw, picture_of

    if figure not in (*study.figures, "all"):
        known = ", ".join(study.figures) or "none"
        raise ValueError(f"--figure: {study.name} has no figure {figure!r}; it has: {known}")
    results, kinds = out, ("html", *(["png"] if can_picture() else []))
    written = out.suffix[1:]
    if written != "json":
        if written not in ("html", "png", "svg", "pdf") or figure == "all":
            raise ValueError(
                "--out with --figure must be FILE.html, .png, .svg or .pdf of one figure, or a "
                f"file of results, FILE.json; got {str(out)!r}"
            )
        results, kinds = Path(f"build/reproduce/{study.name}.json"), (written,)
    if results.exists() and family is None:
        document, source = results_in(results, study.name), str(results)
    else:
        family = family or "lab"
        document, source = shipped_report(study, family), f"the shipped results of {family}"
    keys = [*study.figures] if figure == "all" else [figure]
    places = {key: out.with_name(f"{out.stem}-{key}") for key in keys}
    if written == "json":
        claim({f"--out, figure {key}": (place, DRAWING) for key, place in places.items()})
    for key, place in places.items():
        for kind in kinds:  # the page first, as it has the mark
            path = out if written != "json" else place.with_name(f"{place.name}.{kind}")
            if kind == "html":
                page = draw(study.figures[key], document).to_html(include_plotlyjs=True)
                write(DRAWN + page.encode(), path)
            else:
                write(picture_of(study.figures[key], document, kind), path)
            whole(wide(), f"{path}, from {source}")


def _ledger(
    base: Settings,
    shipped: bool,
    minutes: float | None,
    target: str,
    draft: str | None,
    device: str,
    dtype: str,
) -> None:
    """Write the ledger of all papers, measured by a plan or from shipped results.

    It may be stopped at any moment: the page is then of what there is.

    Args:
        base: settings of every study but their own file and time; ``out`` is the folder.
    """
    from specwb.core.errors import SpecwbError
    from specwb.core.files import write
    from specwb.lab.studies import run, study_of
    from specwb.models.questions import load_prompts
    from specwb.show import ledger

    out = base.out
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
        questions, model = load_prompts(base.prompts), loaded(target, device, dtype, stored=True)
        shares = {} if minutes is None else _plan(60 * minutes, model, draft)
        for name in PLACES:
            study = study_of(name)
            if stopped:
                left_out[name] = "interrupted before it was measured"
                continue
            settings = replace(
                base,
                out=out / f"{name}{'-quick' if base.rounds else ''}.json",
                seconds=shares.get(name, base.seconds),
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
    from specwb.core.errors import SpecwbError
    from specwb.lab.studies import study_of
    from specwb.lab.studies.run import models_of

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


def numbers(text: str, option: str) -> list[float]:
    """Read temperatures such as ``"0,0.7,1"``; each is returned once."""
    from specwb.core.probability import Sampling

    try:
        return list(dict.fromkeys(Sampling(float(part)).temperature for part in text.split(",")))
    except ValueError as error:
        raise ValueError(
            f"{option} must be temperatures such as 0,0.7,1, got {text!r}: {error}"
        ) from error
