"""``specwb tune``: the best chain or tree for a pair of models on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from specwb.commands import options as opt
from specwb.commands.shared import command_line, compact, loaded, progress, tell, whole, wide


def tune(
    target: opt.TARGET = "lab",
    draft: opt.DRAFT = None,
    device: opt.DEVICE = "auto",
    dtype: opt.DTYPE = "auto",
    loading: opt.LOAD = None,
    temperature: opt.TEMPERATURE = 0.0,
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
    seed: opt.SEED = 0,
    threads: opt.THREADS = None,
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
    with progress("tuning") as report:
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
            progress=report,
            command=command_line(),
        )
    screen = wide()
    screen.print(compact(tuning.cells(result), ("setting",), screen))
    screen.print()
    given = {  # value and default
        "--target": (target, "lab"),
        "--draft": (draft, None),
        "--device": (device, "auto"),
        "--dtype": (dtype, "auto"),
        "--prompts": (prompts, "lab"),
        "--temperature": (f"{temperature:g}", "0"),
        "--threads": (None if threads is None else str(threads), None),
    }
    options = [x for name, (one, usual) in given.items() if one not in (None, usual)
               for x in (name, one)]  # fmt: skip
    *notes, command = tuning.notes(result, options)
    for note in notes:
        tell(screen, note)
    for line in (command, f"kept in {path}"):  # these are copied, so they are never broken
        whole(screen, line)
    if result["interrupted"]:
        raise typer.Exit(130)
