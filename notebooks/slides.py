"""Slides of the lessons, without code: a question shows its choices, and its answer when clicked.

    python notebooks/slides.py [LESSON ..]

writes ``build/slides/LESSON.slides.html``; reveal.js and MathJax come from the network. Every
heading, question and picture begins a slide, and the homework has none.
"""

from __future__ import annotations

import sys
from pathlib import Path

import nbformat
from nbconvert import SlidesExporter

FOLDER = Path(__file__).parent / "lessons"
OUT = Path(__file__).parents[1] / "build" / "slides"


def slides(notebook: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """Mark where slides begin, up to the homework; of widgets keep the picture."""
    kind = "slide"
    for cell in notebook.cells:
        if cell.source.startswith("## Homework"):
            kind = "skip"
        shown = cell.cell_type == "markdown" or cell.outputs
        cell.metadata["slideshow"] = {"slide_type": kind if shown else "skip"}
        for output in cell.get("outputs", ()):
            data = output.get("data", {})
            for mime in [mime for mime in data if mime.startswith("application/")]:
                del data[mime]
    return notebook


if __name__ == "__main__":
    OUT.mkdir(parents=True, exist_ok=True)
    exporter = SlidesExporter(exclude_input=True, exclude_output_prompt=True, embed_images=True)
    exporter.reveal_scroll = True  # long slides
    for name in sys.argv[1:] or sorted(path.stem for path in FOLDER.glob("*.ipynb")):
        notebook = slides(nbformat.read(FOLDER / f"{name}.ipynb", 4))
        page, _ = exporter.from_notebook_node(notebook, {"metadata": {"path": str(FOLDER)}})
        (OUT / f"{name}.slides.html").write_text(page, "utf-8")
        print(OUT / f"{name}.slides.html")
