"""The instructor's edition of the lessons, from the same notebooks: answers open, minutes on the
headings, and slides.

    python notebooks/instructor.py [LESSON ..] [--out build/instructor] [--reveal FOLDER]

Of every lesson NAME: NAME.html, all of it with every answer open; NAME.slides.html, a slide for
every heading and every output; and minutes.md, the plan of all lessons. Slides ask the page's
reveal.js from the network unless ``--reveal`` names a copy of it.

What a cell is for is said by its tags: ``minutes-N`` on a heading is how long its section takes in
class, ``answer`` is a cell with solutions in ``<details>``.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

import nbformat
from nbconvert import HTMLExporter, SlidesExporter
from nbformat import NotebookNode

LESSONS = Path(__file__).parent / "lessons"
FOLDED = re.compile(r"<details>")


def minutes(cell: NotebookNode) -> int:
    """How long the section takes that begins here, 0 where none does."""
    found = [re.fullmatch(r"minutes-(\d+)", tag) for tag in cell.metadata.get("tags", ())]
    return sum(int(one.group(1)) for one in found if one)


def edition(notebook: NotebookNode) -> NotebookNode:
    """A copy with answers open and minutes on the headings, cut into slides."""
    made = nbformat.from_dict(notebook)
    for cell in made.cells:
        code = cell.cell_type == "code"
        heading = not code and cell.source.startswith("#")
        slide = "slide" if heading else "subslide" if code and cell.outputs else "-"
        cell.metadata["slideshow"] = {"slide_type": slide}
        if code:
            for output in cell.outputs:
                data = output.get("data", {})
                if "text/html" in data:
                    data["text/html"] = FOLDED.sub("<details open>", data["text/html"])
                    # the question itself, and not the buttons that need a kernel
                    data.pop("application/vnd.jupyter.widget-view+json", None)
        else:
            cell.source = FOLDED.sub("<details open>", cell.source)
            if time := minutes(cell):
                first, _, rest = cell.source.partition("\n")
                cell.source = f"{first} *({time} min)*\n{rest}"
    return made


def plan(notebooks: dict[str, NotebookNode]) -> str:
    """The minutes of all sections, as Markdown."""
    lines = ["# Minutes"]
    for name, notebook in notebooks.items():
        timed = [(minutes(cell), cell.source) for cell in notebook.cells]
        lines += ["", f"## {name}: {sum(time for time, _ in timed)} minutes", ""]
        for time, source in timed:
            if time:
                lines.append(f"- {time} min: {source.splitlines()[0].lstrip('# ')}")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description="The instructor's edition of the lessons.")
    parser.add_argument("lessons", nargs="*", help="names of lessons; default: all")
    parser.add_argument("--out", type=Path, default=Path("build/instructor"))
    parser.add_argument("--reveal", help="folder of a copy of reveal.js")
    given = parser.parse_args()
    paths = [LESSONS / f"{Path(name).stem}.ipynb" for name in given.lessons]
    paths = paths or sorted(LESSONS.glob("*.ipynb"))
    if missing := [str(path) for path in paths if not path.is_file()]:
        parser.error(f"no such lesson: {', '.join(missing)}")
    given.out.mkdir(parents=True, exist_ok=True)
    notebooks = {path.stem: nbformat.read(path, 4) for path in paths}
    slides = SlidesExporter()
    if given.reveal:
        slides.reveal_url_prefix = given.reveal
    for name, notebook in notebooks.items():
        made = edition(notebook)
        for exporter, ending in ((HTMLExporter(), "html"), (slides, "slides.html")):
            page, _ = exporter.from_notebook_node(made, {"metadata": {"name": name}})
            (given.out / f"{name}.{ending}").write_text(page, "utf-8")
        print(f"{given.out / name}.html, .slides.html")
    (given.out / "minutes.md").write_text(plan(notebooks), "utf-8")


if __name__ == "__main__":
    main()
