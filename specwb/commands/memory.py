"""``specwb memory``: what a model takes, before it is loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from specwb.commands import options as opt


def memory(
    target: opt.TARGET = "lab",
    rows: Annotated[int, typer.Option(min=1, help="Texts that are decoded together.")] = 1,
    tokens: Annotated[
        int | None, typer.Option(min=1, help="Of each, prompt and new; default the whole context.")
    ] = None,
    device: opt.DEVICE = "auto",
    dtype: opt.DTYPE = "auto",
    revision: Annotated[str | None, typer.Option(help="Of a hub id.")] = None,
    cache_dir: Annotated[
        Path | None, typer.Option(help="Where the hub's files are kept.", writable=True)
    ] = None,
) -> None:
    """Say what weights and cache take, by config and file headers; exit code 1: they do not fit."""
    from specwb.models.load import memory as estimate

    hub: dict[str, Any] = {"revision": revision, "cache_dir": cache_dir}
    found = estimate(target, rows=rows, tokens=tokens, dtype=dtype, device=device, **hub)
    typer.echo(str(found))
    if not found.fits:
        raise typer.Exit(1)
