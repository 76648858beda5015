"""``specwb tune``: the best chain or tree for a pair of models on this machine."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Annotated, Any

import typer

from specwb.cli import options as opt
from specwb.cli.shared import command_line, loaded, refuse, table, tell, whole, wide
from specwb.core.files import TUNED
from specwb.core.progress import progress

MOST = 512
"""Nodes of a tree that is looked for in under a minute; the search takes their square."""
COLUMNS = {
    "tau predicted": "tau_predicted",
    "tau": "tau_measured",
    "over ar predicted": "predicted",
    "over ar": "measured",
    "speedup": "speedup",
}


def tune(
    ctx: typer.Context,
    target: opt.TARGET = "lab",
    draft: opt.DRAFT = None,
    device: opt.DEVICE = "auto",
    dtype: opt.DTYPE = "auto",
    loading: opt.LOAD = None,
    temperature: opt.TEMPERATURE = 0.0,
    nodes: Annotated[
        int,
        typer.Option(
            min=2, max=MOST, help="Number of nodes of the largest tree, its root included."
        ),
    ] = 32,
    prompts: Annotated[
        str,
        typer.Option(
            help="Prompt set or .jsonl file, as for specwb compare; a third of it is for "
            "calibration."
        ),
    ] = "lab",
    max_new_tokens: opt.MAX_NEW_TOKENS = 64,
    seconds: Annotated[
        float,
        typer.Option(
            min=0,
            help="Time to measure, approximately, after minutes of calibration; 0 measures all "
            "prompts.",
        ),
    ] = 150.0,
    seed: opt.SEED = 0,
    batch: Annotated[
        str | None,
        typer.Option(
            help="Numbers of prompts decoded together, such as 1,4,16: compare plain decoding, the "
            "fastest fixed setting and verify=auto at each, instead of choosing trees."
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="File for the result; default build/tune/TARGET-DEVICE-TTEMPERATURE.json."
        ),
        TUNED,
    ] = None,
) -> None:
    """Measure costs and acceptance, choose trees by them, and find the fastest method.

    Chains, trees and all other methods are measured side by side.
    """
    from specwb.core.options import parse_value
    from specwb.engine import machine
    from specwb.lab.bench import report
    from specwb.lab.cost import tune as tuning
    from specwb.models.questions import load_prompts

    questions, batches = load_prompts(prompts), []
    if batch is not None:
        refuse(ctx, "tune --batch", "nodes", "out")
        batches = tuning.checked_batches(map(parse_value, batch.split(",")), questions)
    model = loaded(target, device, dtype, loading, stored=True)
    if batch is not None:
        with progress("tuning", lasting=True) as moved:
            found = tuning.by_batch(
                model,
                questions,
                batches,
                draft=draft,
                temperature=temperature,
                max_new_tokens=max_new_tokens,
                seconds=seconds or None,
                seed=seed,
                progress=moved,
            )
        screen, ways = wide(), ("plain", "fixed", "auto")
        lines = [
            {"batch": str(one["batch"])}
            | {f"{way} tokens/s": f"{one[way][1]:.1f}" if one[way] else "-" for way in ways}
            | {way: one[way][0] if one[way] else "-" for way in ways[1:]}
            for one in found
        ]
        screen.print(table(lines, ("batch", "fixed", "auto"), screen))
        return
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", model.name).strip("-.")
    path = out or Path(f"build/tune/{name}-{model.device.type}-T{temperature:g}.json")
    with progress("tuning", lasting=True) as moved:
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
            progress=moved,
            command=command_line(),
        )
    rows = [
        {"setting": row["method"], **{name: _cell(row, key) for name, key in COLUMNS.items()}}
        for row in result["rows"]
    ]
    screen = wide()
    screen.print(table(rows, ("setting",), screen))
    arguments, counts, best = result["arguments"], result["prompts"], result["best"]
    notes = [
        f"{arguments['device']}; target {arguments['target']}; "
        f"draft {arguments['draft'] or 'none'}; {arguments['dtype']}, temperature {temperature:g}",
        f"calibrated on {counts['calibrated']} prompts, measured on {counts['measured']} of the "
        f"others, {max_new_tokens} new tokens",
        *report.left_out(result["left_out"]),
    ]
    if "reference" in result:
        notes += [*machine.notes(result["machine"]), report.over(result)]
        over = result["reference"]["method"]
        notes.append(f"fastest: {best['method']}, {best['speedup']:.2f}x over {over}")
    for note in notes:
        tell(screen, note)
    command = ["specwb", "compare", "--methods", best["method"], "--target", target]
    command += ["--prompts", prompts, "--temperature", f"{temperature:g}"]
    if draft is not None:
        command += ["--draft", draft]
    whole(screen, shlex.join(command))
    whole(screen, f"kept in {path}")
    if result["interrupted"]:
        raise typer.Exit(130)


def _cell(row: dict[str, Any], key: str) -> str:
    return f"{row[key]:.2f}" if key in row else "-"
