"""specwb parallel: EasySpec with its attentions on several processes."""

from __future__ import annotations

import os
from typing import Annotated, Any

import typer

from specwb.commands import options as opt
from specwb.commands.shared import table, whole, wide

PROMPT = (
    "Question: Tom has three boxes with 12 apples each. He gives away 8 apples. "
    "How many are left?\nAnswer:"
)


def parallel(
    prompt: Annotated[str, typer.Argument(help="Text to continue.")] = PROMPT,
    n: Annotated[int, typer.Option("-n", "--n", help="Attentions side by side.")] = 4,
    groups: Annotated[
        str | None,
        typer.Option(help="Groups of layers other than the paper's, such as 1-3.4-7."),
    ] = None,
    gamma: Annotated[int, typer.Option(min=1, help="Levels of draft tokens.")] = 5,
    width: Annotated[int, typer.Option(min=1, help="Nodes a level.")] = 1,
    max_new_tokens: Annotated[int, typer.Option(min=1)] = 48,
    temperature: opt.TEMPERATURE = 0.0,
    seed: opt.SEED = 0,
    target: opt.TARGET = "lab",
    draft: opt.DRAFT = None,
    device: opt.DEVICE = "auto",
    dtype: opt.DTYPE = "auto",
    ranks: Annotated[
        int | None,
        typer.Option("--ranks", min=1, help="How many processes there must be; default any."),
    ] = None,
    timeout: Annotated[
        float,
        typer.Option(min=1, help="Seconds after which a rank that does not answer ends the run."),
    ] = 60.0,
) -> None:
    """Draft with a group's attentions on several processes, and show drafts and times.

    Several processes are started by torchrun --nproc_per_node 2 -m specwb parallel; otherwise this
    one drafts alone.
    """
    from contextlib import nullcontext

    from specwb import load
    from specwb.evaluation import ranked
    from specwb.models import ranks as processes
    from specwb.models.load import LoadError
    from specwb.models.prompts import token_rows

    by_torchrun = "RANK" in os.environ
    here = processes.join(device, timeout) if by_torchrun or (ranks or 1) > 1 else None
    try:
        if ranks is not None and here is not None and here.size != ranks:
            raise ValueError(f"--ranks {ranks}, but torchrun started {here.size} process(es)")
        with nullcontext() if here is None else here.answered():
            model = load(target, device=device, dtype=dtype, ranks=here)
            (ids,) = token_rows(model, [prompt])
            options: dict[str, Any] = {"gamma": gamma, "width": width}
            if groups is None or n != 4:  # --groups takes the place of the default of -n
                options["n"] = n
            if groups is not None:
                options["groups"] = groups
            if draft is not None:
                options["draft"] = draft
            settings: dict[str, Any] = {
                "max_new_tokens": max_new_tokens,
                "temperature": temperature,
                "seed": seed,
            }
            result = ranked.measure(model, ids, here, options, settings)
    except LoadError as error:
        # the cause may be on this rank's machine only, so every rank reports its own
        raise LoadError(str(error) if here is None else f"rank {here.rank}: {error}") from error
    except ValueError:
        if here is not None and here.rank:
            # what is typed is typed for all ranks; the first one reports the error
            raise typer.Exit(2) from None
        raise
    finally:
        processes.leave()
    if here is not None and here.rank:
        return
    screen = wide()

    if here is not None:
        whole(screen, _distribution(result, here.size, here.device.type))
    for number, step in enumerate(result["rounds"], 1):
        text = model.tokenizer.decode([step["bonus"]])
        whole(
            screen,
            f"step {number}: drafted {' '.join(map(str, step['draft']))}; "
            f"{step['accepted']} accepted, then {step['bonus']} {text!r}",
        )
    screen.print(table(ranked.cells(result), ("rank",)))
    for line in ranked.notes(result):
        whole(screen, line)


def _distribution(result: dict[str, Any], size: int, device: str) -> str:
    """The line that says how draft and target are distributed over several ranks."""
    largest = max(map(len, result["groups"]))
    used = -(-largest // -(-largest // size))  # ranks that the largest group takes
    idle = f", of which only {used} have any (no group is larger than {largest})"
    return (
        f"{size} ranks ({device}): the draft's attentions are spread over them"
        f"{idle if used < size else ''}; the target is parted over {result['parted']}"
    )
