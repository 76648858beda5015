"""The notebooks, and their cells."""

from __future__ import annotations

from pathlib import Path

import nbformat

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
LESSONS = sorted(
    (ROOT / "notebooks" / "lessons").glob("*.ipynb"), key=lambda path: int(path.stem.split("_")[0])
)
PAPERS = sorted((ROOT / "notebooks" / "papers").glob("*.ipynb"))


def cells(path: Path, kind: str = "") -> list[nbformat.NotebookNode]:
    """All cells, or those of a kind: ``code`` or ``markdown``."""
    return [cell for cell in nbformat.read(path, 4).cells if kind in ("", cell.cell_type)]


def code(path: Path) -> str:
    return "\n\n".join(cell.source for cell in cells(path, "code"))


def prose(path: Path) -> str:
    return "\n\n".join(cell.source for cell in cells(path, "markdown"))
