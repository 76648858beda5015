"""The command that lists the methods, or says all about one."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.console import Console

from specwb.cli.shared import table, tell, whole, wide
from specwb.core.files import data_dir, from_json


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
    # what specwb.cli.describe wrote: the methods themselves take seconds to import
    catalogue = from_json((data_dir() / "methods.json").read_text("utf-8"))
    if name is None:
        list_all(wide(), catalogue)
    else:
        describe(wide(), catalogue["methods"], name)


def list_all(screen: Console, catalogue: dict[str, Any]) -> None:
    """One row a method, and the options that they have in common."""
    rows = []
    for key, entry in catalogue["methods"].items():
        options = [
            option["option"] + (f"={option['default']}" if option["default"] else "")
            for option in entry["options"]
            if option["option"] not in ("draft", "head", "rule")
        ]
        label = key + " (LOSSY)" * (entry["exact"] == "LOSSY")
        row = {"method": label, "needs": entry["needs"], "options": ", ".join(options)}
        rows.append({**row, "paper": entry["paper"]})
    screen.print(table(rows, tuple(rows[0]), screen))
    tell(
        screen,
        f"every method takes rule=, one of {', '.join(catalogue['rules'])}; mcsd and eagle take "
        f"draw=, one of {', '.join(catalogue['draws'])}; methods with heads take head=",
    )


def describe(screen: Console, methods: dict[str, Any], name: str) -> None:
    """What a method is, what it needs, its options one a row, and its citation."""
    key, colon, _ = name.partition(":")
    if key not in methods:
        raise ValueError(f"unknown method {key!r}; known: {', '.join(methods)}")
    entry, written = methods[key], ""
    if colon:
        from specwb.core.options import spell
        from specwb.engine.methods import read_spec

        _, rule, given = read_spec(name, None, {})
        values = given if rule is None else {**given, "rule": rule.name}
        written = ",".join(f"{option}={spell(value)}" for option, value in values.items())
    for paragraph in entry["about"].split("\n\n"):
        tell(screen, " ".join(paragraph.replace("``", "").split()))
    facts = f"needs: {entry['needs']}; exactness: {entry['exact']}; source: {entry['paper']}"
    tell(screen, facts)
    options = entry["options"]
    screen.print(table(options, tuple(options[0]), screen))
    for preset in entry["presets"]:
        tell(screen, preset)
    if colon:
        tell(screen, f"{name} sets: {written or 'nothing'}")
    if entry["bibtex"]:
        whole(screen, entry["bibtex"])
