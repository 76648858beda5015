"""The site: README, course, theory, reference, ledger and a gallery of microscopes as static pages.

    python docs/site/make.py [FOLDER] [--pages]

writes them to ``build/site`` or the folder named; they are read from there without a server,
without Python and without a network; with ``--pages`` without the reference and the frames of the
notebooks' explorers, which take most of the time. No notebook is executed: questions are those that
they stored, and the first page and the gallery play what ``docs/site/record.py`` recorded.

Pages stay where they are in the repository. They are staged in ``FOLDER/.source`` with what only
the site can have: a theorem that is named is a link to it, a function to the reference, a test to
its source, a notebook's cell to the cell.
"""

from __future__ import annotations

import ast
import importlib
import json
import pkgutil
import re
import shutil
import sys
from html import escape
from pathlib import Path
from typing import Any

import specwb
from specwb.engine.methods import METHODS
from specwb.show.course.question import ask, lessons
from specwb.show.scope.pages import PACKED, section, unpacked

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import front  # noqa: E402, it lies next to this file
from player import films, player  # noqa: E402

ROOT = HERE.parents[1]
RECORDINGS = ROOT / "data" / "recordings"
PAGES = (
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "docs/*.md",
    "theory/*.md",
    "theory/*/README.md",
    "notebooks/*.ipynb",
    "notebooks/lessons/*.ipynb",
    "notebooks/papers/*.ipynb",
    "data/*/README.md",
)
"""What is a page; what does not exist is left out."""

# code blocks, code spans, formulas, links, HTML tags and headings, in which no theorem is linked
OPAQUE = re.compile(
    r"^```.*?^```|^ {4}.*?$|`[^`]*`|\$\$.*?\$\$|\$[^$]*\$"
    r"|!?\[[^\]]*\]\([^)]*\)|</?[a-zA-Z][^>]*>|^#.*?$",
    re.DOTALL | re.MULTILINE,
)
THEOREM = re.compile(r"([Tt]heorem\s)(\d+\.\d+)")
WIDGET = "application/vnd.jupyter.widget-view+json"
STILL = "<i>A picture: its controls need a running kernel, as in <code>make lab</code>.</i>"
CHANGED = "To change this cell, open the notebook in JupyterLab: <code>make lab</code>."
RECORDED = "To record another text, open the notebook in JupyterLab: <code>make lab</code>."
ALIVE = "<i>A picture: its controls need JavaScript.</i>"
ASKED = re.compile(r'course\.(?:ask\("([\w.-]+)".*|score\(\))\)?$')
LINK = re.compile(r"\[(`?)([^\]]*?)`?\]\(([^)\s]+)\)")


def pages() -> list[Path]:
    return sorted(page for pattern in PAGES for page in ROOT.glob(pattern))


def theorems() -> set[str]:
    """Numbers of all theorems that there are."""
    found = (re.findall(r"^## Theorem (\S+)", p.read_text("utf-8"), re.M) for p in pages())
    return {number for numbers in found for number in numbers}


class Staging:
    """The source that Sphinx reads, made from the repository's pages.

    Attributes:
        folder: where it lies.
        files: the repository's files, none of them pages, that pages link to.
    """

    def __init__(self, folder: Path, whole: bool = True) -> None:
        self.folder = folder
        self.pages = set(pages())
        self.theorems = theorems()
        self.whole = whole
        self.modules = module_names() if whole else []
        self.files: set[Path] = set()

    def write(self, name: str | Path, text: str) -> None:
        """A page that has not changed keeps its time, so that Sphinx does not read it again."""
        place = self.folder / name
        place.parent.mkdir(parents=True, exist_ok=True)
        if not place.exists() or place.read_text("utf-8") != text:
            place.write_text(text, "utf-8")

    def markdown(self, text: str, page: Path) -> str:
        """The text of a page or cell with the site's links."""
        text = re.sub(r"^## Theorem (\d+\.\d+)", r"(theorem-\1)=\n\n\g<0>", text, flags=re.M)
        parts, at = [], 0
        for match in OPAQUE.finditer(text):
            parts += [self._theorems(text[at : match.start()]), match.group()]
            at = match.end()
        text = "".join([*parts, self._theorems(text[at:])])
        return LINK.sub(lambda match: self._link(match, page), text)

    def _theorems(self, text: str) -> str:
        def link(match: re.Match[str]) -> str:
            name, number = " ".join(match.groups()).split()
            known = number in self.theorems
            return f"[{name} {number}](#theorem-{number})" if known else match.group()

        return THEOREM.sub(link, text)

    def _link(self, match: re.Match[str], page: Path) -> str:
        tick, text, address = match.groups()
        if re.match(r"[a-z]+:|#(?!cell-id=)", address):
            return match.group()
        name, _, fragment = address.partition("#")
        target = (page.parent / (name or page.name)).resolve()
        if fragment.startswith("cell-id="):
            return f"[{tick}{text}{tick}](#{cell_label(target, fragment.removeprefix('cell-id='))})"
        if target.is_dir():
            readme = next((target / n for n in ("README.md",) if target / n in self.pages), None)
            if readme is None:
                return f"{tick}{text}{tick}"
            return f"[{tick}{text}{tick}]({address.rstrip('/')}/README.md)"
        if target in self.pages or target.suffix in (".svg", ".png"):
            return match.group()
        if target.suffix == ".py" and target.is_relative_to(ROOT / "specwb"):
            if not self.modules:
                return f"{tick}{text}{tick}"
            module = ".".join(target.relative_to(ROOT).with_suffix("").parts)
            module = module.removesuffix(".__init__")
            if text.rpartition(".")[0] in self.modules:  # a name, where its module documents it
                return f"{{py:obj}}`{text} <{module}.{text.rpartition('.')[2]}>`"
            return f"{{py:mod}}`{text} <{module}>`"
        self.files.add(target)
        if target.suffix == ".py":
            test = text.partition("::")[2]
            label = file_label(target) + (f"-{test}" if test else "")
            return f"[{tick}{text}{tick}](#{label})"
        return match.group()

    def notebook(self, path: Path) -> str:
        """A notebook with a label before each cell, and its figures as HTML."""
        book = json.loads(path.read_text("utf-8"))
        cells = []
        for cell in book["cells"]:
            if cell["cell_type"] == "markdown":
                source = self.markdown("".join(cell["source"]), path)
                cells.append({**cell, "source": source})
                continue
            label = f"({cell_label(path, cell.get('id', ''))})="
            cells.append({"cell_type": "markdown", "metadata": {}, "source": label})
            if asked := ASKED.match("".join(cell["source"])):
                anchor = re.sub(r"\W|_", "-", cell_label(path, cell.get("id", "")))
                html = f'<div id="{anchor}">{question(cell, *asked.groups())}</div>'
                source = f"```{{raw}} html\n{html}\n```"  # which cannot carry the label's id
                cells.append({"cell_type": "markdown", "metadata": {}, "source": source})
                continue
            cells.append(drawn(cell, self.explorer(path.stem, cell)))
        for name, film in films().items():
            if film["lesson"] == path.stem:
                source = f"```{{raw}} html\n{iframe(name, film['title'])}\n```"
                cells.insert(1, {"cell_type": "markdown", "metadata": {}, "source": source})
        for i, cell in enumerate(cells):
            cell["id"] = f"cell-{i}"
        return json.dumps({**book, "cells": cells})

    def explorer(self, notebook: str, cell: dict[str, Any]) -> str:
        """What runs in the place of a widget's picture, "" where nothing does."""
        if (notebook, cell.get("id")) == ("1_one_speculative_step", "speed"):
            return front.explorer("mountSpeed", front.machines())
        data = [output.get("data", {}) for output in cell.get("outputs", [])]
        if not self.whole or not any(WIDGET in one for one in data):
            return ""
        import stored_explorers

        return stored_explorers.html(notebook, cell["id"], "".join(data[0]["text/plain"]))


def iframe(name: str, title: str) -> str:
    """A film, to be opened, on a lesson's page; it is loaded and plays once it is open."""
    return (
        f'<details class="specwb-film"><summary>A film of about a minute: {escape(title)}</summary>'
        f'<iframe src="../../microscope.html?film={name}" title="{escape(title)}" loading="lazy">'
        "</iframe></details>"
    )


def cell_label(path: Path, cell: str) -> str:
    return f"cell-{path.stem}-{cell}"


def file_label(path: Path) -> str:
    return "file-" + "-".join(path.relative_to(ROOT).with_suffix("").parts)


def drawn(cell: dict[str, Any], explorer: str = "") -> dict[str, Any]:
    """A code cell as a page can show it: a picture has its summary as its text, and below that of a
    widget stands what it is, and the explorer, HTML, if there is one that runs in the page. What
    only a kernel can do is said above."""
    source, summary = "".join(cell["source"]), ""
    notes = [CHANGED] * bool(re.search(r"\b[Yy]ours\b", source))
    notes += [RECORDED] * bool(re.search(r"microscope\(\w+, ", source))
    outputs = [html_output(f'<p class="specwb-still"><i>{note}</i></p>') for note in notes]
    for i, output in enumerate(cell.get("outputs", [])):
        data = output.get("data", {})
        if PACKED in data:  # a microscope plays without Python
            name = re.sub(r"\W", "_", f"scope_{cell.get('id', '')}_{i}")
            outputs.append(html_output(section(unpacked(data[PACKED]), name)))
            continue
        outputs.append(shown(output))
        if "image/png" in data or "image/svg+xml" in data:
            summary = "".join(data.get("text/plain", ""))
            if WIDGET in data:
                words = f"{escape(summary)} · {ALIVE if explorer else STILL}"
                outputs.append(html_output(f'<p class="specwb-still">{words}</p>{explorer}'))
    image = {"image": {"alt": " ".join(summary.split())}} if summary else {}
    return {**cell, "outputs": outputs, "metadata": {**cell["metadata"], "mystnb": image}}


def question(cell: dict[str, Any], key: str | None) -> str:
    """A question as its cell stored it, which site.js makes buttons of, with the figure behind the
    answer; without a key the place of the score.

    Raises:
        SystemExit: there is no such question, or the cell has other choices or no answer.
    """
    if key is None:
        return '<div class="specwb-score"></div>'
    stored = "".join(cell["outputs"][0]["data"]["text/html"]) if cell["outputs"] else ""
    lesson, _, name = key.partition(".")
    row = lessons().get(lesson, {}).get(name, {})
    choices = "".join(f"<li>{escape(choice)}</li>" for choice in row.get("choices", ()))
    if f"<ul>{choices}</ul><details>" not in stored or "The answer: <b>" not in stored:
        raise SystemExit(f"question {key} has changed or has no answer: execute its notebook")
    figure = ""
    if "show" in row:
        asked = ask(key)
        figure = f"<template>{plotly(asked.figure.to_json(), repr(asked))}</template>"
    return f'<div class="specwb-question" data-key="{key}">{stored}{figure}</div>'


def html_output(html: str) -> dict[str, Any]:
    return {"output_type": "display_data", "metadata": {}, "data": {"text/html": html}}


def shown(output: dict[str, Any]) -> dict[str, Any]:
    """An output without what only a running kernel can show, and a figure as what site.js draws."""
    data = dict(output.get("data", {}))
    if not data:
        return output
    data.pop(WIDGET, None)
    figure = data.pop("application/vnd.plotly.v1+json", None)
    if figure is not None:
        data = {"text/html": plotly(json.dumps(figure), "".join(data.get("text/plain", "")))}
    return {**output, "data": data}


def plotly(figure: str, summary: str) -> str:
    """A figure's JSON as what site.js draws."""
    text = figure.replace("<", "\\u003c")
    return (
        f'<div class="specwb-plotly" role="img" aria-label="{escape(summary, quote=True)}">'
        f'<script type="application/json">{text}</script></div>'
    )


def module_names() -> list[str]:
    """Names of all modules of the package."""
    walk = pkgutil.walk_packages(specwb.__path__, "specwb.")
    return ["specwb"] + [m.name for m in walk if not m.name.endswith("__main__")]


def reference(staging: Staging) -> None:
    """A page for every package of specwb, with its modules; their public names by autodoc."""
    packages = sorted({name.rpartition(".")[0] or name for name in staging.modules})
    for package in packages:
        own = [n for n in staging.modules if n.rpartition(".")[0] == package and n not in packages]
        lines = [f"# {package}\n"]
        for name in [package, *own]:
            importlib.import_module(name)
            title = "" if name == package else f"## {name.removeprefix(package)[1:]}\n\n"
            # a function called as its module is described there
            shadows = [n.rpartition(".")[2] for n in own] if name == package else []
            block = f".. automodule:: {name}\n   :members:\n"
            if shadows:
                block += f"   :exclude-members: {', '.join(shadows)}\n"
            lines.append(f"{title}```{{eval-rst}}\n{block}```\n")
        staging.write(f"reference/{package}.md", "\n".join(lines))
    listed = "\n".join(packages)
    staging.write(
        "reference/index.md",
        "# Reference\n\nEvery module and what is public in it, from the docstrings. Where to begin:"
        f" [Python](../docs/python.md).\n\n```{{toctree}}\n:maxdepth: 1\n\n{listed}\n```\n",
    )


def sources(staging: Staging) -> None:
    """The files that pages link to: of Python a page with a section for each test."""
    for path in sorted(staging.files):
        name = path.relative_to(ROOT)
        if path.suffix != ".py":
            (staging.folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, staging.folder / name)
            continue
        text = path.read_text("utf-8")
        lines, at = text.splitlines(), 0
        out = [f"---\norphan: true\n---\n\n({file_label(path)})=\n\n# {name}\n"]
        for node in ast.parse(text).body:
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                start = min([node.lineno, *(d.lineno for d in node.decorator_list)]) - 1
                out += [code(lines[at:start]), f"({file_label(path)}-{node.name})=\n"]
                out += [f"## {node.name}\n", code(lines[start : node.end_lineno])]
                at = node.end_lineno or start
        staging.write(f"{name.with_suffix('')}.md", "\n".join([*out, code(lines[at:])]))


def code(lines: list[str]) -> str:
    text = "\n".join(lines).strip("\n")
    return f"````python\n{text}\n````\n" if text else ""


def gallery(staging: Staging) -> None:
    """A page for each method that has a recording: a decoding that plays in the browser."""
    rows, names = [], [name for name in METHODS if (RECORDINGS / f"{name}.json").exists()]
    for name in names:  # in the order of docs/methods.md
        trace = json.loads((RECORDINGS / f"{name}.json").read_text("utf-8"))
        about = f"[What it is, its options](../docs/methods.md#{name})"
        paper = ROOT / "notebooks" / "papers" / f"{name}.ipynb"
        if paper in staging.pages:
            about += f" · [its paper's notebook](../notebooks/papers/{name}.ipynb)"
        staging.write(
            f"gallery/{name}.md",
            f"# {name}\n\n{METHODS[name].paper}. {about}.\n\nOne decoding, recorded; step through"
            " it with the arrow keys, with shift by whole steps, and play it with space."
            f"\n\n```{{raw}} html\n{section(trace, name)}\n<p><a"
            f' href="../microscope.html?recording={name}&amp;play">As a race</a>.</p>\n```\n',
        )
        rows.append(f"| [{name}]({name}.md) | {METHODS[name].needs} | {METHODS[name].paper} |")
    listed = "\n".join(names)
    staging.write(
        "gallery/index.md",
        "# Gallery\n\nMethods under the microscope: one recorded decoding each, which plays"
        " without Python. In a page of your own, next to this site's `microscope.html`:\n\n"
        "```html\n"
        '<iframe src="microscope.html?recording=mcsd&play" width="900" height="700"></iframe>\n'
        "```\n\nSome steps with captions, a minute each: "
        + ", ".join(
            f'<a href="../microscope.html?film={name}">{escape(film["title"])}</a>'
            for name, film in films().items()
        )
        + ".\n\n| method | needs | source |\n|---|---|---|\n"
        + "\n".join(rows)
        + f"\n\n```{{toctree}}\n:hidden:\n:maxdepth: 1\n\n{listed}\n```\n",
    )


def ledger(staging: Staging) -> None:
    """What the papers claim and what was measured here, as `specwb reproduce all --shipped`."""
    from specwb.show import ledger as book

    staging.write("ledger.md", book.markdown(book.sections(book.all_shipped())))


def index(staging: Staging) -> None:
    """The contents, as the list at the left of every page."""

    def named(*patterns: str) -> list[str]:
        found = [
            p for pattern in patterns for p in sorted(ROOT.glob(pattern)) if p in staging.pages
        ]
        return [str(p.relative_to(ROOT).with_suffix("")) for p in found]

    notebooks = reading_order()
    guide = named("docs/python.md", "docs/cli.md", "docs/methods.md", "docs/rules.md")
    last = named("docs/architecture.md", "CONTRIBUTING.md", "CHANGELOG.md")
    others = [name for name in named("docs/*.md") if name not in guide + last]
    groups = {
        "Course": [name for name in notebooks if "/papers/" not in name],
        "Papers": [*(name for name in notebooks if "/papers/" in name), "ledger"],
        "Look up": ["gallery/index", *["reference/index"] * bool(staging.modules), "theory/README"],
        "Guide": ["README", *guide, *others, *named("data/*/README.md")],
        "Project": last,
    }
    trees = [
        f"```{{toctree}}\n:hidden:\n:caption: {title}\n:maxdepth: 1\n\n"
        + "\n".join(names)
        + "\n```"
        for title, names in groups.items()
        if names
    ]
    staging.write("index.md", front.page() + "\n" + "\n\n".join(trees))
    page = ROOT / "theory" / "README.md"  # its pages fold below it
    names = named("theory/notation.md", "theory/[0-9]*.md", "theory/c*.md", "theory/*/README.md")
    listed = [name.removeprefix("theory/") for name in names]
    text = staging.markdown(page.read_text("utf-8"), page)
    tree = "\n".join(["```{toctree}", ":hidden:", ":maxdepth: 1", "", *listed, "```", ""])
    staging.write("theory/README.md", f"{text}\n{tree}")


def reading_order() -> list[str]:
    """The notebooks as their ``**Next:**`` leads through them from lesson 1, and what it leaves
    out."""
    rest = sorted((ROOT / "notebooks").rglob("[!.]*.ipynb"))
    rest = [path for path in rest if ".ipynb_checkpoints" not in path.parts]
    order, path = [], min((ROOT / "notebooks" / "lessons").glob("1_*.ipynb"))
    while path in rest:
        rest.remove(path)
        order.append(path)
        following = re.search(r"\*\*Next:\*\*[^(]*\((\S+?\.ipynb)\)", path.read_text("utf-8"))
        path = (path.parent / following.group(1)).resolve() if following else ROOT
    return [str(path.relative_to(ROOT).with_suffix("")) for path in [*order, *rest]]


def build(folder: Path, only_pages: bool = False) -> int:
    """Write the site into the folder and return Sphinx's exit status.

    Args:
        folder: of the site; ``index.html`` is its first page.
        only_pages: without the reference and the explorers, which take most of the time.
    """
    from sphinx.cmd.build import build_main

    staging = Staging(folder / ".source", whole=not only_pages)
    for page in sorted(staging.pages):
        name = page.relative_to(ROOT)
        if page.suffix == ".ipynb":
            staging.write(name, staging.notebook(page))
        elif page != ROOT / "theory" / "README.md":  # by index
            staging.write(name, staging.markdown(page.read_text("utf-8"), page))
    for picture in [*ROOT.glob("docs/*.svg"), *ROOT.glob("*/pictures/*.svg")]:
        staging.write(picture.relative_to(ROOT), picture.read_text("utf-8"))
    index(staging)
    ledger(staging)
    gallery(staging)
    if not only_pages:
        reference(staging)
    sources(staging)
    settings = ["-c", str(Path(__file__).parent), "-d", str(folder / ".doctrees")]
    status = build_main(["-q", "-b", "html", *settings, str(staging.folder), str(folder)])
    traces = {path.stem: json.loads(path.read_text("utf-8")) for path in RECORDINGS.glob("*.json")}
    (folder / "microscope.html").write_text(player(dict(sorted(traces.items()))), "utf-8")
    return status


if __name__ == "__main__":
    only_pages = "--pages" in sys.argv
    names = [name for name in sys.argv[1:] if name != "--pages"]
    place = Path(names[0]) if names else ROOT / "build" / "site"
    status = build(place.resolve(), only_pages)
    print(place / "index.html")
    sys.exit(status)
