"""Imports point down: every module imports from its own floor or from lower ones, and no two files
need each other."""

from __future__ import annotations

import ast
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "specwb"
# docs/architecture.md draws them
FLOORS = (
    "core",
    "rules models",
    "theory",
    "drafters",
    "engine",
    "training",
    "lab certificate",
    "show",
    "cli __main__",
)
FLOOR = {room: i for i, rooms in enumerate(FLOORS) for room in rooms.split()}
FILES = {
    ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__"): path
    for path in PACKAGE.rglob("*.py")
}


class Imports(ast.NodeVisitor):
    """Modules of the package that a file imports, anywhere in it; those for annotations only are
    left out."""

    def __init__(self) -> None:
        self.modules: set[str] = set()

    def visit_If(self, node: ast.If) -> None:
        if ast.unparse(node.test) != "TYPE_CHECKING":
            self.generic_visit(node)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        for alias in node.names:
            self._add(f"{node.module}.{alias.name}" in FILES, f"{node.module}.{alias.name}", node)

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            self._add(True, alias.name, node)

    def _add(self, is_module: bool, name: str, node: ast.AST) -> None:
        module = name if is_module else name.rpartition(".")[0]
        if module.startswith("specwb."):
            self.modules.add(module)


def imports(path: Path) -> Imports:
    found = Imports()
    found.visit(ast.parse(path.read_text(encoding="utf-8")))
    return found


def room(module: str) -> str:
    """The part of the package that a module belongs to: its folder, or itself."""
    return module.split(".")[1]


def test_imports_point_down() -> None:
    upward = [
        f"{module} imports {other}"
        for module, path in FILES.items()
        if module != "specwb"
        for other in imports(path).modules
        if FLOOR[room(other)] > FLOOR[room(module)]
    ]
    assert not upward


def test_no_two_files_need_each_other() -> None:
    graph = {module: imports(path).modules for module, path in FILES.items()}
    for package in [module for module in graph if FILES[module].name == "__init__.py"]:
        # a package's own names come from its modules
        graph[package] = {other for other in graph[package] if not other.startswith(package)}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        raise AssertionError(" -> ".join(error.args[1])) from None
