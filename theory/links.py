"""The checks of every theorem as links: its function, its test, its cell, its proof in Coq.

    python theory/links.py

writes the lines "Function: .. · Test: .. · Cell: .. · Coq: .." of all pages anew, from the names in
them; run it when a name, a test or a notebook has moved. ``tests/test_theory.py`` holds the pages
to it.
"""

from __future__ import annotations

import importlib
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted((ROOT / "theory").glob("[0-9]*.md"))
CHECKS = re.compile(r"^Function: .*?(?=\n\n|\n?\Z)", re.MULTILINE | re.DOTALL)
NAME = re.compile(r"`([^`]+)`")


def address(name: str) -> str:
    """Where a name leads, seen from ``theory/``: a module's file, a test's, or a notebook's cell.

    Args:
        name: ``module.name``, ``path::test``, ``path::statement`` or ``notebook#cell-id``.
    Raises:
        ValueError: the module is none of the repository's.
    """
    path, colons, _ = name.partition("::")
    if colons:
        return f"../{path}"
    path, hash_, cell = name.partition("#")
    if hash_:  # the fragment that JupyterLab scrolls to
        return f"../{path}#cell-id={cell}"
    module, _, attribute = name.rpartition(".")
    thing = getattr(importlib.import_module(module), attribute)
    place = importlib.import_module(getattr(thing, "__module__", module)).__file__
    if place is None or not Path(place).is_relative_to(ROOT):
        raise ValueError(f"{name} is not of this repository")
    return f"../{Path(place).relative_to(ROOT).as_posix()}"


def linked(page: str) -> str:
    """The page with its checks as links, one per line; what is linked already is linked anew."""

    def checks(match: re.Match[str]) -> str:
        lines = []
        for part in re.split(r"\s*·\s*", match.group()):
            kind, names = part.split(":", 1)
            links = [f"[`{name}`]({address(name)})" for name in NAME.findall(names)]
            lines.append(f"{kind}: " + ",\n".join(links))
        return " ·\n".join(lines)

    return CHECKS.sub(checks, page)


if __name__ == "__main__":
    for page in PAGES:
        text = page.read_text("utf-8")
        if (new := linked(text)) != text:
            page.write_text(new, "utf-8")
            print(page.relative_to(ROOT))
