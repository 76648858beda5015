"""specwb reproduce: measure what papers claim."""

from __future__ import annotations

from inspect import Parameter, Signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from specwb.commands import options as opt
from specwb.commands.shared import (
    Commands,
    alone,
    command_line,
    loaded,
    table,
    tell,
    whole,
    wide,
)
from specwb.files import FOLDER
from specwb.progress import progress

if TYPE_CHECKING:
    from specwb.studies.study import Tables

reproduce = Commands(
    no_args_is_help=True,
    help="Measure what papers claim; an interrupted run goes on where it stopped.",
)
# options that several papers have
FIGURE = Annotated[
    str | None,
    typer.Option(
        help="Figure of the paper to draw (all: every one) with our values from stored "
        "results, as a page and a picture, or as --out FILE.png, .svg, .pdf or .html; "
        "nothing is measured."
    ),
]
SHIPPED = Annotated[
    bool,
    typer.Option(
        "--shipped", help="Show the shipped results, of --target lab or smol; measure nothing."
    ),
]
TRAIN = Annotated[
    bool,
    typer.Option(
        "--train", help="Train and measure the ablation's heads instead of showing shipped results."
    ),
]
HEADS = Annotated[
    Path,
    typer.Option(help="Folder for the heads of --train; finished ones are kept."),
    FOLDER,
]
RUNS = Annotated[
    int,
    typer.Option(min=1, max=100, help="Number of training runs of every head, with --train."),
]
HEAD = Annotated[
    str | None, typer.Option(help="Folder of a trained head; default: the target's own.")
]
TOKENS = Annotated[
    bool,
    typer.Option(
        "--tokens",
        help="Count tokens and record no times, for a busy machine; --out may then hold "
        "results of another machine, whose times are kept.",
    ),
]
POSITIONS = Annotated[
    int,
    typer.Option(min=1, max=4096, help="Number of positions per prompt and temperature."),
]
LENGTH = Annotated[
    int, typer.Option(min=1, help="Number of tokens of the texts that positions are taken from.")
]
DIFFUSION = Annotated[
    str | None,
    typer.Option(
        "--diffusion", help="Folder or hub id of a diffusion model; default: the target's own."
    ),
]
TEMPERATURES = Annotated[str, typer.Option(help="Temperatures, separated by commas.")]
SECONDS = Annotated[
    float | None,
    typer.Option(
        min=0,
        help="Time to measure in all, approximately, but at least two prompts per cell; "
        "default: every prompt.",
    ),
]
ROUNDS = Annotated[int, typer.Option(min=2, help="Number of decoding steps per prompt and cell.")]
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


OPTIONS: dict[str, tuple[Any, Any]] = {
    "figure": (FIGURE, None),
    "shipped": (SHIPPED, False),
    "out": (opt.RESULTS, None),
    "train": (TRAIN, False),
    "heads": (HEADS, None),
    "runs": (RUNS, 1),
    "head": (HEAD, None),
    "positions": (POSITIONS, 4),
    "tokens": (LENGTH, 48),
    "temperatures": (TEMPERATURES, "0,0.3,0.7,1"),
    "seconds": (SECONDS, None),
    "rounds": (ROUNDS, 10),
    "prompts": (opt.LIKE_COMPARE, "lab"),
    "target": (opt.TARGET, "lab"),
    "draft": (opt.DRAFT, None),
    "device": (opt.DEVICE, "auto"),
    "dtype": (opt.DTYPE, "auto"),
    "seed": (opt.SEED, 0),
    "restart": (opt.RESTART, False),
    "tokens_only": (TOKENS, False),
}
"""Parameter -> its type and default."""
MEASURED = ("prompts", "target", "draft", "device", "dtype", "seed", "restart")
SHOWN = ("figure", "shipped", "out")


def _add(name: str, about: str, *options: str, **own: tuple[Any, Any]) -> None:
    """Add the command of a study.

    Args:
        name: of the study.
        about: its help.
        options: of :data:`OPTIONS`, in the order of the help.
        own: type and default of an option that differ from those.
    """

    def command(**given: Any) -> None:
        _reproduce(**given)

    paths = {"out": f"build/reproduce/{name}.json", "heads": f"build/heads/{name}-ablation"}
    parameters = [Parameter("ctx", Parameter.KEYWORD_ONLY, annotation=typer.Context)]
    for option in options:
        kind, default = own.get(option) or OPTIONS[option]
        default = Path(paths[option]) if option in paths else default
        parameters.append(
            Parameter(option, Parameter.KEYWORD_ONLY, default=default, annotation=kind)
        )
    command.__doc__ = about
    command.__annotations__ = {one.name: one.annotation for one in parameters}
    command.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    reproduce.command(name)(command)


_add(
    "mcsd",
    """Multi-candidate decoding: trees, draws and temperatures on one pair, with verdicts.

    The tree layout is compared with the batch layout.
    """,
    *(*SHOWN, "temperatures", "seconds", "rounds", *MEASURED, "tokens_only"),
    seconds=(SECONDS, 300.0),
)
_add(
    "acceptance",
    """Acceptance of every rule compared with the optimum: which rule wins where.

    It is computed from both models' exact distributions along the target's own texts, by domain,
    temperature and number of candidates.
    """,
    *("shipped", "out", "positions", "tokens", "temperatures", *MEASURED),
    temperatures=(TEMPERATURES, "0.3,0.7,1"),
)
_add(
    "falcon",
    """Falcon: its tables 1, 4 and 5 next to the same comparisons here, with verdicts.

    Comparisons that the paper lacks are measured too: equal verified tokens, equal heads, fusion,
    alignment, T = 1. --seed is for decoding; the ablation's heads are trained with seeds 1, 2, ..
    of --runs.
    """,
    *(*SHOWN, "train", "heads", "runs", "seconds", "rounds", *MEASURED, "tokens_only"),
)
for _name, _about in {
    "csgd": """CSGD by training budget: Falcon's head with and without it.

    Heads are trained by our objective and by the published one; drafts are a chain and trees.""",
    "hass": """HASS by training budget: EAGLE's head trained on its own states, and on the target's.

    Drafts are a chain and trees.""",
    "adapters": """Kangaroo's adapters by training budget: their parts, and exit layers.

    Drafts are chains that never stop early; what passes cost is left out.""",
    "losses": """What Medusa's heads learn, by training budget: the text's token, or the target's
    distribution by KL or LK.

    Drafts are a chain and trees.""",
}.items():
    _add(
        _name,
        f"""{_about}

    Heads of 64 to 500 steps are trained from the start, several times each. --seed is for
    decoding; they are trained with seeds 1, 2, .. of --runs.
    """,
        *(*SHOWN, "train", "heads", "runs", "seconds", "rounds", *MEASURED, "tokens_only"),
        runs=(RUNS, 3),
    )
_add(
    "diffuspec",
    """DiffuSpec: its tables 1, 2, 4, 5 and figures 5 to 7 next to the same comparisons here.

    Comparisons that the paper lacks (lambda, n-grams, sampling) and the parts of the time are
    measured too, and verdicts given.
    """,
    *(*SHOWN, "head", "seconds", "rounds", *MEASURED, "tokens_only"),
    head=(DIFFUSION, None),
    rounds=(ROUNDS, 16),
)
_add(
    "kangaroo",
    """Kangaroo: threshold and steps, exit layers, adapters, trees and temperatures.

    The paper's numbers and ours are compared, with verdicts, and so are measured and predicted
    speedups, and ways to scale the confidence. --seed is for decoding; the ablation's heads are
    trained with seeds 1, 2, .. of --runs.
    """,
    *(*SHOWN, "train", "heads", "runs", "head", "seconds", "rounds", *MEASURED, "tokens_only"),
)
_add(
    "mcsd_ti",
    """Improved MCSD: the decision model against none on one pair, shapes, and several roots.

    Trees of 4 to 16 roots are verified as in the paper's code and losslessly below each root.
    Several roots are LOSSY; how far they move the output is measured.
    """,
    *(*SHOWN, "head", "seconds", "rounds", *MEASURED, "tokens_only"),
)
_add(
    "easyspec",
    """EasySpec: N, calibration, widths, layers and executions on one pair, with verdicts.

    Groups of 1 to 6 layers, the first and last layer, parallel MLPs, acceptance by position,
    cosines, the drift of the cache and the cost model are measured.
    """,
    *(*SHOWN, "seconds", "rounds", *MEASURED, "tokens_only"),
)


def _reproduce(
    ctx: typer.Context,
    *,
    shipped: bool,
    out: Path,
    prompts: str,
    target: str,
    draft: str | None,
    device: str,
    dtype: str,
    seed: int,
    restart: bool,
    figure: str | None = None,
    rounds: int | None = None,
    seconds: float | None = None,
    head: str | None = None,
    train: bool = False,
    heads: Path | None = None,
    runs: int = 1,
    temperatures: str | None = None,
    tokens_only: bool = False,
    **own: Any,
) -> None:
    """Draw, show or measure the study that a command is named after."""
    from specwb.bench.prompts import load_prompts
    from specwb.studies import run, study_of

    study = study_of(str(ctx.info_name))
    if figure is not None:
        alone(ctx, "--figure", "figure", "out", "shipped", *(["target"] if shipped else []))
        _draw(study, figure, out, target if shipped else None)
        return
    if shipped:
        alone(ctx, "--shipped", "shipped", "target")
        _show(study, run.shipped_report(study, target))
        return
    if temperatures is not None:
        own["temperatures"] = numbers(temperatures, "--temperatures")
    questions, model = load_prompts(prompts), loaded(target, device, dtype, stored=True)
    training = run.Training(target, heads, runs, device) if train and heads else None
    settings = run.Settings(
        out, prompts, rounds, seconds, seed, restart, not tokens_only, own, command_line()
    )
    models = run.models_of(study, model, draft, head)
    with progress("reproducing", lasting=True) as report:
        document, interrupted = run.reproduce(study, models, questions, settings, training, report)
    _show(study, document, f"kept in {out}")
    if interrupted:
        raise typer.Exit(130)


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
    from specwb.files import DRAWING, DRAWN, claim, write
    from specwb.studies.pictures import can_picture, draw, picture_of
    from specwb.studies.run import shipped_report
    from specwb.studies.store import results_in

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


def numbers(text: str, option: str) -> list[float]:
    """Read temperatures such as ``"0,0.7,1"``; each is returned once."""
    from specwb.probability import Sampling

    try:
        return list(dict.fromkeys(Sampling(float(part)).temperature for part in text.split(",")))
    except ValueError as error:
        raise ValueError(
            f"{option} must be temperatures such as 0,0.7,1, got {text!r}: {error}"
        ) from error
