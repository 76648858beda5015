"""specwb sweep: settings measured side by side, and looked at by parameter."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from specwb.cli import options as opt
from specwb.cli.shared import errors, interval, loaded, refuse, table, whole, wide
from specwb.core.files import FILE, STORE, claim
from specwb.core.progress import progress

RUNS = Path("build/sweep.sqlite")


def sweep(
    ctx: typer.Context,
    file: Annotated[
        Path,
        typer.Argument(
            help="File.toml that describes the sweep, see docs/sweeps.md; or a store, whose runs "
            "are shown."
        ),
    ],
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
    device: opt.DEVICE = "auto",
    dtype: opt.DTYPE = "auto",
    by: Annotated[
        str,
        typer.Option(help="Parameters to show, separated by commas; a row for each combination."),
    ] = "method",
    value: Annotated[
        str,
        typer.Option(
            help="Figure to show: tau, drafted (per step), tokens_per_second, speedup, "
            "cost (of a step, in plain ones) or identical."
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

    Stop and restart it at any moment. specwb sweep STORE --by gamma shows the runs of a store,
    without measuring.
    """
    if file.suffix == ".toml":
        file = _measured(file, out or RUNS, jobs, device, dtype)
    else:
        refuse(ctx, "sweep STORE", "out", "jobs", "device", "dtype")
    _show(file, by, value, where or [], csv, plot)


def _measured(file: Path, store: Path, jobs: int, device: str, dtype: str) -> Path:
    """Run the sweep that a file describes; return the store of its runs."""
    from specwb.lab.sweeps.run import sweep as run
    from specwb.lab.sweeps.space import read
    from specwb.models.questions import interleave, load_prompts

    claim({"--out": (store, STORE)})
    plan = read(file)
    questions = interleave(load_prompts(plan.prompts))[: plan.first]
    # other processes load the target themselves
    model = loaded(plan.target, device, dtype, stored=True) if jobs == 1 else plan.target
    with progress("sweep", lasting=True) as move:

        def moved(done: float, text: str) -> None:
            move(done, text)
            if not done:
                whole(errors, text)

        frame = run(model, questions, blocks=plan.methods, store=store, jobs=jobs, progress=moved)
    whole(
        errors,
        f"{len(frame)} runs of {frame['id'].nunique()} configurations are in {store}; "
        f"specwb sweep {store} --by PARAMETER shows them again",
    )
    return store


def _show(
    store: Path, by: str, value: str, where: list[str], csv: Path | None, plot: Path | None
) -> None:
    """Print the middle of a figure by parameters, with 95 % intervals over prompts."""
    from specwb.core.files import write
    from specwb.lab.sweeps import results

    runs = results.filtered(results.frame(store), where)
    columns = [name.strip() for name in by.split(",") if name.strip()]
    means = results.summary(runs, columns, value)
    rows = []
    for row in means.to_dict("records"):
        cells = {name: results.spelled(row[name]) for name in columns}
        cells[value] = f"{row[results.middle_of(value)]:.3f}"
        cells["95 %"] = interval(row["low"], row["high"], 3)
        rows.append({**cells, "prompts": str(row["prompts"]), "runs": str(row["runs"])})
    screen = wide()
    screen.print(table(rows, tuple(columns), screen))
    if runs.disturbed.any():
        whole(errors, f"{int(runs.disturbed.sum())} runs were disturbed by other programs")
    if csv is not None:
        write(runs.to_csv(index=False), csv)
    if plot is not None:
        from specwb.show.figures.sweeps import by_parameter

        write(by_parameter(means, columns, value).to_html(include_plotlyjs=True), plot)
