"""What the commands share: where they print, tables, options named once."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

errors = Console(stderr=True)

# options that several commands share
TARGET = Annotated[str, typer.Option(help="lab, a folder or a hub id.")]
DRAFT = Annotated[str | None, typer.Option(help="Draft model; default the target's own.")]
DEVICE = Annotated[str, typer.Option(help="auto, cpu, cuda.")]
DTYPE = Annotated[str, typer.Option(help="auto, float32, bfloat16, float16.")]
BUDGET = Annotated[str, typer.Option(help="cpu, gpu or smoke; steps and batch are in data/lab/recipe.toml.")]
LIKE_COMPARE = Annotated[str, typer.Option(help="As for compare.")]
SEED = Annotated[int, typer.Option(min=0, max=2**62)]
RESULTS = Annotated[Path, typer.Option(help="Results; a run with the same arguments goes on from them.")]
RESTART = Annotated[bool, typer.Option("--restart", help="Replace the results that are there.")]


def table(rows: list[dict[str, str]], words: tuple[str, ...]) -> Table:
    """Columns named in ``words`` are text, the others numbers."""
    table = Table(header_style="bold")
    for name in rows[0]:
        table.add_column(name, justify="left" if name in words else "right", overflow="fold")
    for row in rows:
        table.add_row(*map(escape, row.values()))  # [csgd] is a name, no markup
    return table


def wide() -> Console:
    """Standard output; where it is no terminal, wide enough for the tables."""
    return Console(width=None if sys.stdout.isatty() else 140)
