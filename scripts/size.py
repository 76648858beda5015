"""The size of the package by room, in what a reader has to hold in mind.

    python scripts/size.py [FOLDER ..]

Without a folder, one row for each room of ``specwb`` (a folder or module directly below it) and
their sum:

- tokens: names, numbers, operators and strings; docstrings and comments do not count, so neither a
  longer line nor a shorter docstring changes it;
- lines, and the share of them that are docstrings;
- functions, methods among them;
- public: names on a module's top level without an underscore;
- arrows: other rooms that it imports, also inside functions and for annotations only, and how many
  of these lie above it in FLOORS of tests/test_layers.py.

Then the options of commands, methods and recipes of heads. With folders: one row for each.
"""

from __future__ import annotations

import ast
import io
import sys
import tokenize
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
COUNTED = (tokenize.NAME, tokenize.NUMBER, tokenize.OP, tokenize.STRING)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
DOCUMENTED = (ast.Module, ast.ClassDef, *FUNCTIONS)


class Size(NamedTuple):
    """Of one or several files."""

    tokens: int
    lines: int
    docstrings: int  # lines
    functions: int
    public: int


def size(text: str) -> Size:
    """The size of a file's text."""
    tree = ast.parse(text)
    docstrings = {line for node in ast.walk(tree) for line in docstring_lines(node)}
    tokens = [t for t in tokenize.generate_tokens(io.StringIO(text).readline) if t.type in COUNTED]
    return Size(
        tokens=sum(t.type != tokenize.STRING or t.start[0] not in docstrings for t in tokens),
        lines=text.count("\n"),
        docstrings=len(docstrings),
        functions=sum(isinstance(node, FUNCTIONS) for node in ast.walk(tree)),
        public=len({name for name in top_level(tree) if not name.startswith("_")}),
    )


def docstring_lines(node: ast.AST) -> range:
    """The lines of a module's, class's or function's docstring."""
    if not isinstance(node, DOCUMENTED) or ast.get_docstring(node) is None:
        return range(0)
    first = node.body[0]
    return range(first.lineno, (first.end_lineno or first.lineno) + 1)


def top_level(tree: ast.Module) -> Iterator[str]:
    """The names that a module defines; what it imports is another module's."""
    for node in tree.body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names = (name for target in targets for name in ast.walk(target))
            yield from (name.id for name in names if isinstance(name, ast.Name))


def total(paths: Iterable[Path]) -> Size:
    return Size(*map(sum, zip(*(size(path.read_text(encoding="utf-8")) for path in paths))))


def rooms() -> Iterator[tuple[str, list[Path], int, int]]:
    """The rooms, each with its files, the number of other rooms that it imports, and how many of
    these lie above it."""
    from test_layers import FILES, FLOOR, Imports, room

    class All(Imports):
        def visit_If(self, node: ast.If) -> None:  # imports for annotations too
            self.generic_visit(node)

    for name, floor in FLOOR.items():
        files = {m: path for m, path in FILES.items() if m != "specwb" and room(m) == name}
        found = All()
        for path in files.values():
            found.visit(ast.parse(path.read_text(encoding="utf-8")))
        others = {room(module) for module in found.modules} - {name}
        yield name, list(files.values()), len(others), sum(FLOOR[x] > floor for x in others)


def options() -> dict[str, int]:
    """How many commands and options the command line has, and options methods and recipes."""
    from typer.main import get_command

    from specwb.cli.main import app
    from specwb.engine.methods import METHODS
    from specwb.training.heads import RECIPES

    def commands(command: Any) -> Iterator[Any]:
        if not hasattr(command, "commands"):
            yield command
        for one in getattr(command, "commands", {}).values():
            yield from commands(one)

    every = list(commands(get_command(app)))
    params = [p for one in every for p in one.params if p.name != "help"]
    return {
        "commands": len(every),
        "options of commands": sum(p.param_type_name == "option" for p in params),
        "options of methods": sum(len(entry.options) for entry in METHODS.values()),
        "settings of recipes": sum(len(recipe.options) for recipe in RECIPES.values()),
    }


def row(name: str, of: Size, *more: object) -> str:
    share = f"{of.docstrings / max(of.lines, 1):.1%}"
    cells = [of.tokens, of.lines, share, of.functions, of.public, *more]
    texts = (f"{x:,}" if isinstance(x, int) else str(x) for x in cells)
    return f"{name:16}" + "".join(f"{text:>11}" for text in texts)


HEAD = ("tokens", "lines", "docstrings", "functions", "public", "arrows", "upward")


def main(folders: list[str]) -> None:
    if missing := [folder for folder in folders if not Path(folder).is_dir()]:
        sys.exit(f"usage: python scripts/size.py [FOLDER ..]; not a folder: {missing[0]}")
    print(" " * 16 + "".join(f"{name:>11}" for name in HEAD[: 5 if folders else 7]))
    for folder in folders:
        print(row(folder, total(Path(folder).rglob("*.py"))))
    if folders:
        return
    sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
    every = [(name, total(files), *pointing) for name, files, *pointing in rooms()]
    for one in sorted(every, key=lambda one: -one[1].tokens):
        print(row(*one))
    sums = (sum(numbers) for numbers in list(zip(*every))[2:])
    print(row(f"{len(every)} rooms", total((ROOT / "specwb").rglob("*.py")), *sums))
    print(", ".join(f"{count} {what}" for what, count in options().items()))


if __name__ == "__main__":
    main(sys.argv[1:])
