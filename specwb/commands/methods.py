"""The command that lists the methods, or says all about one."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from specwb.commands.shared import tell, whole, wide


def list_methods(
    name: Annotated[
        str | None,
        typer.Argument(
            help="One method: all about its options. With some of them, such as "
            "eagle:preset=published, also what they set."
        ),
    ] = None,
) -> None:
    """List the registered methods with their options, paper and exactness, or describe one."""
    if name is None:
        list_all(wide())
    else:
        describe(wide(), name)


def list_all(screen: Console) -> None:
    """One line a method, and what their common options are."""
    from specwb.describe import default_of
    from specwb.drafters.level import DRAWS
    from specwb.flow import Exactness
    from specwb.methods import METHODS
    from specwb.verify import RULES

    table = Table(header_style="bold")
    for column in ("method", "exact", "needs", "options", "paper"):
        table.add_column(column, overflow="fold", no_wrap=column == "method")
    for entry in METHODS.values():
        options = [
            option for name, option in entry.options.items() if name not in ("draft", "head")
        ]
        written = [x.name if x.default is None else f"{x.name}={default_of(x)}" for x in options]
        cells = (entry.key, entry.exactness.value, entry.needs, ", ".join(written), entry.paper)
        table.add_row(*cells)
    screen.print(table)
    rules = [
        name + (" (LOSSY)" if rule.exactness is Exactness.LOSSY else "")
        for name, rule in RULES.items()
    ]
    screen.print(
        f"every method takes rule=, one of {', '.join(rules)}; mcsd and eagle take draw=, "
        f"one of {', '.join(DRAWS)}; methods with heads take head=",
        highlight=False,
    )


def describe(screen: Console, name: str) -> None:
    """What a method is, what it needs, its options one a row, and its citation."""
    from specwb.describe import HEADER, option_rows, spelled
    from specwb.methods import METHODS, read_spec
    from specwb.options import MethodError, spell

    key, colon, _ = name.partition(":")
    if key not in METHODS:
        raise MethodError(f"unknown method {key!r}; known: {', '.join(METHODS)}")
    entry, written = METHODS[key], ""
    if colon:
        _, rule, given = read_spec(name, None, {})
        values = given if rule is None else {**given, "rule": rule.name}
        written = ",".join(f"{option}={spell(value)}" for option, value in values.items())
    for paragraph in entry.about.split("\n\n"):
        tell(screen, " ".join(paragraph.replace("``", "").split()))
    facts = f"needs: {entry.needs}; exactness: {entry.exactness.value}; source: {entry.paper}"
    tell(screen, facts)
    table = Table(header_style="bold")
    for column in HEADER:
        table.add_column(column, overflow="fold", no_wrap=column == "option")
    for row in option_rows(entry):
        table.add_row(*map(escape, row))
    screen.print(table)
    for key, preset in entry.presets.items():
        tell(screen, f"preset={key}: {spelled(preset)}; {preset.source}")
    if colon:
        tell(screen, f"{name} sets: {written or 'nothing'}")
    if entry.bibtex:
        whole(screen, entry.bibtex)
