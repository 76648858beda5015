"""specwb parallel: EasySpec with its attentions on several processes."""

from __future__ import annotations

import os
from typing import Annotated, Any

import typer

from specwb.commands.shared import DEVICE, DRAFT, DTYPE, SEED, TARGET, table, wide

PROMPT = "Question: Tom has three boxes with 12 apples each. He gives away 8 apples. How many are left?\nAnswer:"


def parallel(
    prompt: Annotated[str, typer.Argument(help="Text to continue.")] = PROMPT,
    n: Annotated[int, typer.Option("-n", "--n", help="Attentions side by side.")] = 4,
    groups: Annotated[str | None, typer.Option(help="Other groups than the paper's, such as 1-3.4-7.")] = None,
    gamma: Annotated[int, typer.Option(min=1, help="Tokens, or levels, drafted.")] = 5,
    width: Annotated[int, typer.Option(min=1, help="Nodes a level.")] = 1,
    max_new_tokens: Annotated[int, typer.Option(min=1)] = 48,
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 0.0,
    seed: SEED = 0,
    target: TARGET = "lab",
    draft: DRAFT = None,
    device: DEVICE = "auto",
    dtype: DTYPE = "auto",
    ranks: Annotated[int | None, typer.Option("--ranks", min=1, help="How many processes there must be; default any.")] = None,
    timeout: Annotated[float, typer.Option(min=1, help="Seconds after which a rank that does not answer ends the run.")] = 60.0,
) -> None:
    """Draft with a group's attentions on several processes (torchrun --nproc_per_node 2 -m specwb parallel), or in this one; show drafts, times."""
    from contextlib import nullcontext

    from specwb import load
    from specwb.engine import token_rows
    from specwb.evaluation import ranked
    from specwb.models import ranks as several
    from specwb.models.load import LoadError

    started = "RANK" in os.environ
    here = several.join(device, timeout) if started or (ranks or 1) > 1 else None
    try:
        if ranks is not None and here is not None and here.size != ranks:
            raise ValueError(f"--ranks {ranks}, but torchrun started {here.size} process(es)")
        with nullcontext() if here is None else here.answered():
            model = load(target, device=device, dtype=dtype, ranks=here)
            (ids,) = token_rows(model, [prompt])
            given = {"n": None if groups is not None and n == 4 else n, "groups": groups, "draft": draft}
            options = {"gamma": gamma, "width": width, **{name: value for name, value in given.items() if value is not None}}
            settings: dict[str, Any] = {"max_new_tokens": max_new_tokens, "temperature": temperature, "seed": seed}
            found = ranked.measured(model, ids, here, options, settings)
    except LoadError as error:
        raise LoadError(str(error) if here is None else f"rank {here.rank}: {error}") from error  # it may be this rank's machine alone
    except ValueError:
        if here is not None and here.rank:  # what is typed is typed for all of them; the first one says it
            raise typer.Exit(2) from None
        raise
    finally:
        several.leave()
    if here is not None and here.rank:
        return
    out = wide()

    def say(line: str) -> None:
        out.print(line, highlight=False, markup=False, soft_wrap=True)

    if here is not None:
        most = max(map(len, found["groups"]))
        used = -(-most // -(-most // here.size))  # ranks that the largest group takes
        idle = f", of which only {used} have any (no group is larger than {most})" if used < here.size else ""
        say(f"{here.size} ranks ({here.device.type}): the draft's attentions are spread over them{idle}; the target is parted over {found['parted']}")
    for i, one in enumerate(found["rounds"]):
        closing = model.tokenizer.decode([one["closing"]])
        say(f"round {i + 1}: drafted {' '.join(map(str, one['drafted']))}; {one['accepted']} accepted, then {one['closing']} {closing!r}")
    out.print(table(ranked.cells(found), ("rank",)))
    for line in ranked.notes(found):
        say(line)
