"""``specwb verify``: every rule keeps the target's distribution, and wrong ones are found."""

from __future__ import annotations

from typing import Annotated

import typer

from specwb.commands.shared import own_rule, table, whole, wide
from specwb.progress import progress


def verify(
    full: Annotated[
        bool,
        typer.Option(
            "--full",
            help="Check all ordered trees of up to 6 nodes besides the root instead of 5: minutes.",
        ),
    ] = False,
    rule: Annotated[
        list[str] | None,
        typer.Option(
            help="Rule to check: a name, or package.module:Rule for your own; may be repeated."
        ),
    ] = None,
    exact: Annotated[bool, typer.Option("--exact", hidden=True, help="It is always done.")] = False,
) -> None:
    """Check that every rule keeps the target's distribution, and that wrong rules are found.

    Rules are checked over fractions and as they decode.
    """
    from specwb.verify import suite

    rules = [own_rule(name) if ":" in name else name for name in rule] if rule else None
    with progress("verifying") as moved:
        report = suite.run(full, moved, rules)
    screen = wide()
    if rows := suite.cells(report):
        screen.print(table(rows, ("rule", "sampling schemes", "verdict"), screen))
    if rows := suite.wrong_cells(report):
        screen.print(table(rows, ("wrong rule", "of", "what is wrong"), screen))
    for note in suite.notes(report):
        whole(screen, note)
    if report.interrupted:
        raise typer.Exit(130)
    if not report.right:
        raise typer.Exit(1)
