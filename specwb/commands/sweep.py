"""specwb sweep and specwb results: settings measured side by side, and looked at by parameter."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from specwb.commands import options as opt
from specwb.commands.shared import alone, errors, loaded, table, wide
from specwb.files import FILE, STORE, home
from specwb.progress import progress

RUNS = Path("build/sweep.sqlite")


def grid_of(paper: str) -> str:
    """Write the settings that a paper's study decodes with the target's own heads as a sweep."""
    from specwb.options import parse_value, spell
    from specwb.studies import PLACES, study_of
    from specwb.studies.run import shipped
    from specwb.sweeps.space import SHARED, blocks, written

    if paper not in PLACES:
        raise ValueError(f"--paper is one of {', '.join(PLACES)}; got {paper!r}")
    rows: list[dict[str, Any]] = []
    study = study_of(paper)
    for cell in study.cells(shipped(study)[0] or {}):
        method, _, text = cell.spec.partition(":")
        # plain decoding is in every sweep; a batch of paths and a long prompt are no axes of it
        if method == "ar" or cell.layout != "tree" or cell.long or cell.variant:
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
        typer.Argument(help="File that describes the sweep in TOML, see docs/sweeps.md."),
    ] = None,
    paper: Annotated[
        str,
        typer.Option(
            help="Paper whose settings are printed as such a file, to edit; nothing is measured."
        ),
    ] = "",
    out: Annotated[
        Path,
        typer.Option(help="Store of the runs; runs that it has are not measured again."),
        STORE,
    ] = RUNS,
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
) -> None:
    """Measure many settings of methods; stop and restart it at any moment.

    specwb sweep --paper kangaroo > kangaroo.toml writes a file to begin with.
    """
    from specwb.bench.prompts import interleave, load_prompts
    from specwb.sweeps import space as spaces
    from specwb.sweeps.run import sweep as run

    if paper:
        alone(ctx, "--paper", "paper")
        sys.stdout.write(grid_of(paper))
        return
    if file is None:
        raise ValueError("a sweep needs a FILE, or --paper NAME, which prints one to begin with")
    if home(out).is_dir():
        raise ValueError(f"--out: {out} is a folder, give the name of a file")
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
        f"look at them with specwb results {out} --by method",
        highlight=False,
        soft_wrap=True,
    )


def results(
    store: Annotated[Path, typer.Argument(help="Store that specwb sweep wrote."), STORE] = RUNS,
    by: Annotated[
        str, typer.Option(help="Parameters, separated by commas; each combination has a row.")
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
        typer.Option(help="Condition name=value on the runs that are counted; may be repeated."),
    ] = None,
    over: Annotated[
        str,
        typer.Option(
            help="Combination, as name=value with commas, to which paired differences are shown."
        ),
    ] = "",
    cost: Annotated[
        str,
        typer.Option(
            help="Column (drafted or cost) to show the value against, with the front that "
            "nothing beats."
        ),
    ] = "",
    pivot: Annotated[
        bool,
        typer.Option("--pivot", help="Show the last parameter of --by across and the others down."),
    ] = False,
    csv: Annotated[
        Path | None, typer.Option(help="File for one row per run, as CSV."), FILE
    ] = None,
    parquet: Annotated[
        Path | None, typer.Option(help="File for one row per run, as Parquet."), FILE
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(
            help="HTML page with a curve over one parameter, a heat map over two, or with "
            "--cost the value against the cost."
        ),
        FILE,
    ] = None,
) -> None:
    """Means of a sweep's results by parameter, with 95 % intervals over prompts."""
    import pandas as pd

    from specwb.bench.report import csv_bytes
    from specwb.bench.store import Store
    from specwb.files import write
    from specwb.sweeps import results as looking
    from specwb.sweeps.space import SweepError

    if not home(store).exists():
        raise SweepError(f"store {store} does not exist; specwb sweep FILE --out {store} makes it")
    with Store(store, False) as opened:
        found = looking.filtered(looking.frame(opened), where or ())
    if csv is not None:
        write(csv_bytes(found, csv), csv)
    if parquet is not None:
        looking.write_parquet(found, parquet)
    columns = [name.strip() for name in by.split(",") if name.strip()]
    if cost and (over or pivot):
        raise SweepError("--cost goes with neither --over nor --pivot")
    if cost:
        means = looking.front(found, columns, value, cost)
        shown = {name: (name, f"{name}_") for name in (value, cost)}
    else:
        means = looking.summary(found, columns, value, looking.combination(found, over))
        shown = {f"{value} less {over}" if over else value: (looking.middle_of(value), "")}
    rows = []
    for row in means.to_dict("records"):
        line = {name: looking.spelled(row[name]) for name in columns}
        for name, (middle, ends) in shown.items():
            line[name] = f"{row[middle]:.3f}"
            # of one prompt there is no interval
            low, high = f"{row[f'{ends}low']:.3f}", f"{row[f'{ends}high']:.3f}"
            interval = f"{low} .. {high}" if row["prompts"] > 1 else "-"
            line[f"{name}: 95 %" if cost else "95 %"] = interval
        line["prompts"] = str(row["prompts"])
        line |= {"front": "yes" if row["front"] else ""} if cost else {"runs": str(row["runs"])}
        rows.append(line)
    if pivot:
        *down, across = columns
        if not down:
            raise SweepError("--pivot needs at least two parameters in --by")
        wide_rows = pd.DataFrame(rows).pivot(index=down, columns=across, values=next(iter(shown)))
        wide_rows.columns = [f"{across} {x}" for x in wide_rows.columns]
        rows = wide_rows.fillna("").reset_index().to_dict("records")
    screen = wide()
    screen.print(table(rows, tuple(columns), screen))
    if found.disturbed.any():
        errors.print(f"{int(found.disturbed.sum())} runs were disturbed by other programs")
    if plot is not None:
        from specwb.figures.sweeps import by_parameter, trade

        drawn = trade(means, columns, value, cost) if cost else by_parameter(means, columns, value)
        write(drawn.to_html(include_plotlyjs=True), plot)
