"""The command that lists the methods, or describes one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from specwb.cli.shared import table, tell, whole, wide

if TYPE_CHECKING:
    from specwb.core.options import Option
    from specwb.drafters.base import Entry, Preset

HEADER = ("option", "default", "must be", "what it does")


def list_methods(
    name: Annotated[
        str | None,
        typer.Argument(
            help="The method whose options are explained. With options of its own, such as "
            "eagle:preset=published, what they set is printed too."
        ),
    ] = None,
) -> None:
    """List the methods with their options, paper and exactness, or describe one."""
    if name is None:
        list_all(wide())
    else:
        describe(wide(), name)


def list_all(screen: Console) -> None:
    """One row a method, and the options that they have in common."""
    from specwb.core.flow import Exactness
    from specwb.drafters.level import DRAWS
    from specwb.engine.methods import METHODS
    from specwb.rules import RULES

    def label(key: str, exactness: Exactness) -> str:
        return f"{key} (LOSSY)" if exactness is Exactness.LOSSY else key

    rows = []
    for key, entry in METHODS.items():
        options = [
            f"{option.name}={default}" if (default := default_of(option)) else option.name
            for option in entry.options.values()
            if option.name not in ("draft", "head")
        ]
        rows.append(
            {
                "method": label(key, entry.exactness),
                "needs": entry.needs,
                "options": ", ".join(options),
                "paper": entry.paper,
            }
        )
    screen.print(table(rows, tuple(rows[0]), screen))
    rules = ", ".join(label(name, rule.exactness) for name, rule in RULES.items())
    tell(
        screen,
        f"every method takes rule=, one of {rules}; mcsd and eagle take draw=, one of "
        f"{', '.join(DRAWS)}; methods with heads take head=",
    )


def describe(screen: Console, name: str) -> None:
    """What a method is, what it needs, its options one per row, and its citation."""
    from specwb.core.options import spell
    from specwb.engine.methods import METHODS, read_spec

    key, colon, _ = name.partition(":")
    if key not in METHODS:
        raise ValueError(f"unknown method {key!r}; known: {', '.join(METHODS)}")
    entry, written = METHODS[key], ""
    if colon:
        _, rule, values = read_spec(name, None, {})
        if rule is not None:
            values["rule"] = rule.name
        written = ",".join(f"{option}={spell(value)}" for option, value in values.items())
    for paragraph in entry.about.split("\n\n"):
        tell(screen, " ".join(paragraph.replace("``", "").split()))
    tell(
        screen,
        f"needs: {entry.needs}; exactness: {entry.exactness.value}; source: {entry.paper}",
    )
    options = [dict(zip(HEADER, row, strict=True)) for row in option_rows(entry)]
    screen.print(table(options, HEADER, screen))
    for preset, values_of_preset in entry.presets.items():
        tell(screen, f"preset={preset}: {described(values_of_preset)}")
    if colon:
        tell(screen, f"{name} sets: {written or 'nothing'}")
    if entry.bibtex:
        whole(screen, entry.bibtex)


def option_rows(entry: Entry) -> list[tuple[str, str, str, str]]:
    """The options of a method, the rule last, as rows of a table with the columns of ``HEADER``."""
    rows = [
        (option.name, default_of(option), option.expected, option.help)
        for option in entry.options.values()
    ]
    rule = "the verification rule; default the one for the way the candidates are drawn"
    return [*rows, ("rule", "", "a rule's key", rule)]


def default_of(option: Option) -> str:
    """An option's default as it is typed, "" where it is None."""
    from specwb.core.options import REQUIRED, spell

    if option.default is REQUIRED:
        return "must be given"
    return "" if option.default is None else spell(option.default)


def described(preset: Preset) -> str:
    """The options that a preset stands for, as they are typed, and its source."""
    from specwb.core.options import spell

    options = ",".join(f"{name}={spell(value)}" for name, value in preset.options.items())
    return f"{options}; {preset.source}"
