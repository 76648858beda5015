"""``specwb tune``: the best chain or tree for a pair of models on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.progress import Progress

from specwb.commands.shared import (
    DEVICE,
    DRAFT,
    DTYPE,
    LOAD,
    SEED,
    TARGET,
    THREADS,
    command_line,
    compact,
    errors,
    loaded,
    tell,
    wide,
)


def tune(
    target: TARGET = "lab",
    draft: DRAFT = None,
    device: DEVICE = "auto",
    dtype: DTYPE = "auto",
    loading: LOAD = None,
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 0.0,
    nodes: Annotated[int, typer.Option(min=2, help="Of the largest tree, its root included.")] = 32,
    prompts: Annotated[
        str, typer.Option(help="As for compare; one in three calibrates, the others measure.")
    ] = "lab",
    max_new_tokens: Annotated[int, typer.Option(min=1)] = 64,
    seconds: Annotated[
        float,
        typer.Option(
            min=0,
            help="About how long to measure, after a few minutes of calibration; 0 = all prompts.",
        ),
    ] = 150.0,
    seed: SEED = 0,
    threads: THREADS = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Default build/tune/TARGET-DEVICE-TTEMPERATURE.json; "
            "its calibration is used again.",
            writable=True,
        ),
    ] = None,
) -> None:
    """Predict the speedup of chains and trees, measure it, and name the best.

    Predictions are made from measured costs and acceptance.
    """
    from specwb.bench.prompts import load_prompts
    from specwb.cost import tune as tuning
    from specwb.files import check_path

    if out is not None:
        check_path(out, "--out")
    questions = load_prompts(prompts)
    model = loaded(target, device, dtype, loading, threads=threads, stored=True)
    path = out or tuning.default_path(model, temperature)
    with Progress(console=errors, transient=True, disable=not errors.is_terminal) as bar:
        task = bar.add_task("tuning", total=1.0)
        result = tuning.tune(
            model,
            questions,
            draft=draft,
            temperature=temperature,
            nodes=nodes,
            max_new_tokens=max_new_tokens,
            seconds=seconds or None,
            seed=seed,
            path=path,
            progress=lambda done, text: bar.update(
                task, completed=min(done, 1.0), description=text
            ),
            command=command_line(),
        )
    screen = wide()
    screen.print(compact(tuning.cells(result), ("setting",), screen))
    screen.print()
    values = {
        "--target": target,
        "--draft": draft,
        "--device": device,
        "--dtype": dtype,
        "--prompts": prompts,
        "--temperature": f"{temperature:g}",
        "--threads": None if threads is None else str(threads),
    }
    defaults = {
        "--target": "lab",
        "--draft": None,
        "--device": "auto",
        "--dtype": "auto",
        "--prompts": "lab",
        "--temperature": "0",
        "--threads": None,
    }
    options = [
        word
        for name, value in values.items()
        if value is not None and value != defaults[name]
        for word in (name, value)
    ]
    *notes, command = tuning.notes(result, options)
    for note in notes:
        tell(screen, note)
    for line in (command, f"kept in {path}"):  # these are copied, so they are never broken
        screen.print(line, highlight=False, markup=False, soft_wrap=True)
    if result["interrupted"]:
        raise typer.Exit(130)
