"""specwb sweep and specwb results: settings measured side by side, and looked at by parameter."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from specwb.commands.shared import DEVICE, DTYPE, errors, loaded, table, wide
from specwb.files import home

STORE = Path("build/sweep.sqlite")


def sweep(
    file: Annotated[Path, typer.Argument(help="A sweep as TOML, see docs/sweeps.md.")],
    out: Annotated[
        Path,
        typer.Option(help="The store; what is in it is not measured again.", writable=True),
    ] = STORE,
    jobs: Annotated[
        int, typer.Option(min=1, help="Processes at once; more than one note no times.")
    ] = 1,
    dask: Annotated[
        str | None,
        typer.Option(help="Address of a Dask scheduler, such as tcp://host:8786: its workers run."),
    ] = None,
    timed: Annotated[
        bool, typer.Option("--timed", help="Note times although several processes decode at once.")
    ] = False,
    shard: Annotated[
        str, typer.Option(help="i/n: only every n-th configuration, from the i-th on (0 <= i < n).")
    ] = "0/1",
    device: DEVICE = "auto",
    dtype: DTYPE = "auto",
) -> None:
    """Measure many settings of methods; stop and restart it at any moment."""
    from specwb.bench.prompts import interleave, load_prompts
    from specwb.sweeps import space as spaces
    from specwb.sweeps.run import sweep as run

    index, slash, count = shard.partition("/")
    if not slash or not index.isdecimal() or not count.isdecimal():
        raise ValueError(f"--shard must be i/n, such as 0/4, got {shard!r}")
    plan = spaces.read(file)
    questions = interleave(load_prompts(plan.prompts))[: plan.first]
    model = loaded(plan.target, device, dtype, stored=True)
    columns = TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn()
    with Progress(*columns, console=errors, disable=not errors.is_terminal) as progress:
        task = progress.add_task("sweep", total=1.0)
        found = run(
            model,
            questions,
            space=plan.space,
            store=out,
            halving=plan.halving,
            jobs=jobs,
            dask=dask,
            timed=True if timed else None,
            shard=(int(index), int(count)),
            progress=lambda done, text: progress.update(task, completed=done, description=text),
        )
    configurations = found["id"].nunique()
    errors.print(
        f"{len(found)} runs of {configurations} configurations are in {out}; "
        f"look at them with specwb results {out} --by method",
        highlight=False,
        soft_wrap=True,
    )


def results(
    store: Annotated[
        Path, typer.Argument(help="A store that specwb sweep wrote.", writable=True)
    ] = STORE,
    by: Annotated[
        str, typer.Option(help="Parameters with commas; one row for each combination.")
    ] = "method",
    value: Annotated[
        str,
        typer.Option(help="tau, accepted, tokens_per_second, speedup or identical."),
    ] = "tau",
    where: Annotated[
        list[str] | None, typer.Option(help="name=value, only these runs; may be repeated.")
    ] = None,
    over: Annotated[
        str,
        typer.Option(help="name=value with commas: differences to this combination, paired."),
    ] = "",
    merge: Annotated[
        list[Path] | None, typer.Option(help="Take over the runs of another store first.")
    ] = None,
    csv: Annotated[
        Path | None, typer.Option(help="Write one row a run to this file.", writable=True)
    ] = None,
    parquet: Annotated[
        Path | None, typer.Option(help="The same, as Parquet.", writable=True)
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(
            help="An HTML page: a curve over one parameter, a heat map over two.", writable=True
        ),
    ] = None,
) -> None:
    """Means of a sweep's results by parameter, with 95 % intervals over prompts."""
    from specwb.bench.report import csv_bytes
    from specwb.bench.store import Store
    from specwb.files import check_path, write
    from specwb.sweeps import results as looking
    from specwb.sweeps.space import SweepError

    if not home(store).is_file():
        raise SweepError(f"store {store} does not exist; specwb sweep FILE --out {store} makes it")
    for path, name in ((csv, "--csv"), (parquet, "--parquet"), (plot, "--plot")):
        if path is not None:
            check_path(path, name)
    with Store(store, False) as opened:
        for other in merge or ():
            looking.frame(other)  # a sweep has written it
            count = opened.merge(other)
            errors.print(f"{count} runs taken over from {other}", highlight=False)
        found = looking.filtered(looking.frame(opened), where or ())
    if csv is not None:
        write(csv_bytes(found, csv), csv)
    if parquet is not None:
        looking.write_parquet(found, parquet)
    columns = [name.strip() for name in by.split(",") if name.strip()]
    means = looking.summary(found, columns, value, looking.combination(found, over))
    rows = [
        {
            **{name: looking.spelled(row[name]) for name in columns},
            value if not over else f"{value} less {over}": f"{row[looking.middle_of(value)]:.3f}",
            # of one prompt there is no interval
            "95 %": f"{row['low']:.3f} .. {row['high']:.3f}" if row["prompts"] > 1 else "-",
            "prompts": str(row["prompts"]),
            "runs": str(row["runs"]),
        }
        for row in means.to_dict("records")
    ]
    wide().print(table(rows, tuple(columns)))
    if found.disturbed.any():
        errors.print(f"{int(found.disturbed.sum())} runs were disturbed by other programs")
    if plot is not None:
        from specwb.figures.sweeps import by_parameter

        write(by_parameter(means, columns, value).to_html(include_plotlyjs=True), plot)
