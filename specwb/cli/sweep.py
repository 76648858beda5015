"""specwb sweep: settings measured side by side, and looked at by parameter."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from specwb.cli import options as opt
from specwb.cli.shared import alone, errors, loaded, refuse, table, wide
from specwb.core.files import FILE, STORE, claim, home
from specwb.core.progress import progress

RUNS = Path("build/sweep.sqlite")


def grid_of(paper: str) -> str:
    """Write the settings that a paper is measured with, of the target's own heads, as a sweep."""
    from specwb.core.options import parse_value, spell
    from specwb.lab.papers import NAMES
    from specwb.lab.papers.grid import Cell
    from specwb.lab.papers.paper import read_paper
    from specwb.lab.sweeps.space import SHARED, blocks, written

    if paper not in NAMES:
        raise ValueError(f"--paper is one of {', '.join(NAMES)}; got {paper!r}")
    rows: list[dict[str, Any]] = []
    for cell in map(Cell.read, read_paper(paper).measure):
        method, _, text = cell.spec.partition(":")
        # plain decoding is in every sweep; a batch of paths and a long prompt are no axes of it
        if method == "ar" or cell.layout != "tree" or cell.long:
            continue
        pairs = (item.partition("=") for item in text.split(",") if item)
        options = {name: parse_value(value) for name, _, value in pairs}
        own = {
            name: x if isinstance(x, bool | int | float) else spell(x)
            for name, x in options.items()
        }
        rows.append({"method": method, "temperature": cell.temperature, **own})
    head = (
        f"# The settings of specwb reproduce {paper}, to be edited; run with specwb sweep FILE.\n"
        f'target = "lab"\nprompts = "lab"\nfirst = 12\n\n'
        f"[axes]\nmax_new_tokens = {SHARED['max_new_tokens']}\n"
    )
    return head + written(blocks(rows))


def sweep(
    ctx: typer.Context,
    file: Annotated[
        Path | None,
        typer.Argument(
            help="File.toml that describes the sweep, see docs/sweeps.md; or a store, whose runs "
            "are shown."
        ),
    ] = None,
    paper: Annotated[
        str,
        typer.Option(
            help="Paper whose settings are printed as such a file, to edit; nothing is measured."
        ),
    ] = "",
    out: Annotated[
        Path | None,
        typer.Option(
            help=f"Store of the runs; runs that it has are not measured again. Default: {RUNS}."
        ),
        STORE,
    ] = None,
    jobs: Annotated[
        int,
        typer.Option(
            min=1,
            max=256,
            help="Number of processes; with more than one no times are recorded.",
        ),
    ] = 1,
    timed: Annotated[
        bool, typer.Option("--timed", help="Note times although several processes decode at once.")
    ] = False,
    device: opt.DEVICE = "auto",
    dtype: opt.DTYPE = "auto",
    by: Annotated[
        str,
        typer.Option(help="Parameters to show, separated by commas; a row for each combination."),
    ] = "method",
    value: Annotated[
        str,
        typer.Option(
            help="Figure to show: tau, accepted, drafted (per step), tokens_per_second, "
            "speedup, cost (of a step, in plain ones) or identical."
        ),
    ] = "tau",
    where: Annotated[
        list[str] | None,
        typer.Option(help="Condition name=value on the runs that are shown; may be repeated."),
    ] = None,
    csv: Annotated[
        Path | None, typer.Option(help="File for one row per run, as CSV."), FILE
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(help="HTML page with a curve over one parameter, or a heat map over two."),
        FILE,
    ] = None,
) -> None:
    """Measure many settings of methods, and show the results by parameter with 95 % intervals.

    Stop and restart it at any moment. specwb sweep --paper kangaroo > kangaroo.toml writes a file
    to begin with; specwb sweep STORE --by gamma shows what is in a store, without measuring.
    """
    from specwb.lab.sweeps import space as spaces
    from specwb.lab.sweeps.run import sweep as run
    from specwb.models.questions import interleave, load_prompts

    if paper:
        alone(ctx, "--paper", "paper")
        sys.stdout.write(grid_of(paper))
        return
    if file is None:
        raise ValueError("a sweep needs a FILE, or --paper NAME, which prints one to begin with")
    if file.suffix != ".toml":
        refuse(ctx, "sweep STORE", "out", "jobs", "timed", "device", "dtype")
        files = {"--csv": csv, "--plot": plot}
        written = {option: (path, FILE) for option, path in files.items() if path is not None}
        claim({"FILE": (file, STORE), **written})
        if not home(file).exists():
            raise ValueError(f"FILE: {file} does not exist; it is a .toml file or a store")
        _show(file, by, value, where or [], csv, plot)
        return
    out = RUNS if out is None else out
    claim({"--out": (out, STORE)})
    plan = spaces.read(file)
    questions = interleave(load_prompts(plan.prompts))[: plan.first]
    model = loaded(plan.target, device, dtype, stored=True)
    with progress("sweep", lasting=True) as move:

        def report(done: float, text: str) -> None:
            move(done, text)
            if not done:
                errors.print(text, highlight=False, soft_wrap=True)

        found = run(
            model,
            questions,
            space=plan.space,
            store=out,
            jobs=jobs,
            timed=True if timed else None,
            progress=report,
        )
    configurations = found["id"].nunique()
    errors.print(
        f"{len(found)} runs of {configurations} configurations are in {out}; "
        f"specwb sweep {out} --by PARAMETER shows them again",
        highlight=False,
        soft_wrap=True,
    )
    _show(out, by, value, where or [], csv, plot)


def _show(
    store: Path, by: str, value: str, where: list[str], csv: Path | None, plot: Path | None
) -> None:
    """Print the middle of a figure by parameters, with 95 % intervals over prompts."""
    from specwb.core.files import Content, write_all
    from specwb.lab.bench.report import csv_bytes
    from specwb.lab.bench.store import Store
    from specwb.lab.sweeps import results

    with Store(store, False) as opened:
        found = results.filtered(results.frame(opened), where)
    columns = [name.strip() for name in by.split(",") if name.strip()]
    means = results.summary(found, columns, value)
    rows = []
    for row in means.to_dict("records"):
        line = {name: results.spelled(row[name]) for name in columns}
        line[value] = f"{row[results.middle_of(value)]:.3f}"
        # of one prompt there is no interval
        line["95 %"] = f"{row['low']:.3f} .. {row['high']:.3f}" if row["prompts"] > 1 else "-"
        rows.append(line | {"prompts": str(row["prompts"]), "runs": str(row["runs"])})
    screen = wide()
    screen.print(table(rows, tuple(columns), screen))
    if found.disturbed.any():
        errors.print(f"{int(found.disturbed.sum())} runs were disturbed by other programs")
    contents: dict[Path, Content] = {}
    if csv is not None:
        contents[csv] = csv_bytes(found, csv)
    if plot is not None:
        from specwb.show.figures.sweeps import by_parameter

        drawn = by_parameter(means, columns, value)
        contents[plot] = drawn.to_html(include_plotlyjs=True)
    write_all(contents)
