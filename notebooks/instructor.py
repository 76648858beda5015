"""The lecturer's edition of the lessons, from the same notebooks: slides, a page with every answer
open, and the minutes.

    python notebooks/instructor.py [LESSON ..] [--out build/instructor]

Of every lesson NAME: NAME.slides.html, slides without code, on which a question is followed by its
answer at the first click and by the reason at the second (the key S opens the notes: minutes, the
wrong answers and what is wrong with each, solutions of exercises); NAME.html, all of the lesson,
with every answer open; and minutes.md, the plan of all lessons. They need no network: MathJax and
reveal.js lie beside them.

Tags say what a cell is for: ``minutes-N`` on a heading is how long its section takes in class,
``answer`` is a cell with solutions in ``<details>``. Slides end before the homework.
"""

from __future__ import annotations

import argparse
import re
import sys
import zlib
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

import nbformat
from nbconvert.filters.markdown import markdown2html
from nbformat import NotebookNode

from specwb.show.course import ask
from specwb.show.scope.pages import PACKED, section, unpacked

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "docs" / "site"))
import libraries  # noqa: E402, it is the site's

LESSONS = HERE / "lessons"
QUESTION = re.compile(r'course\.ask\("([^"]+)"((?:, \w+=\w+)*)\)')
LINK = re.compile(r"\[([^\]]*)\]\((?![a-z]+:)[^)]*\)")
PICTURE = re.compile(r"<img [^>]*>|<svg.*?</svg>", re.DOTALL)


def minutes(cell: NotebookNode) -> int:
    """How long the section takes that begins here, 0 where none does."""
    found = [re.fullmatch(r"minutes-(\d+)", tag) for tag in cell.metadata.get("tags", ())]
    return sum(int(one.group(1)) for one in found if one)


def heading(cell: NotebookNode) -> str:
    """The heading that a cell begins with, "" without one."""
    first = cell.source.partition("\n")[0]
    return first.lstrip("# ") if cell.cell_type == "markdown" and first.startswith("#") else ""


@dataclass
class Slide:
    """One slide: its body as HTML, and notes as HTML that only the lecturer sees."""

    section: str
    body: str
    notes: list[str] = field(default_factory=list)


def slides(notebook: NotebookNode) -> list[Slide]:
    """A lesson as slides: text, pictures and questions, without code, up to the homework."""
    made: list[Slide] = []
    section = ""
    for cell in notebook.cells:
        title = heading(cell)
        if title.startswith("Homework"):
            break
        if "answer" in cell.metadata.get("tags", ()):
            made[-1].notes.append(_text(cell.source))
        elif cell.cell_type == "markdown":
            section = title or section
            made.append(Slide(section, _text(cell.source)))
            if time := minutes(cell):
                made[-1].notes.append(f"<p><b>{time} minutes</b> for this section.</p>")
        elif asked := QUESTION.fullmatch(cell.source.strip()):
            made.append(_question(section, asked, cell.outputs))
        elif "course.grade(" not in cell.source and "course.score(" not in cell.source:
            for shown in filter(None, map(_output, cell.outputs)):
                # lines go with the text that announces them, if it is no question
                if shown.startswith("<pre>") and made and "fragment" not in made[-1].body:
                    made[-1].body += shown
                else:
                    made.append(Slide(section, shown))
    return made


def _question(section: str, asked: re.Match[str], outputs: list[Any]) -> Slide:
    """Question, choices; at the first click the right one, at the second the reason."""
    key, given = asked.groups()
    one = ask(key, **{name: int(value) for name, value in re.findall(r"(\w+)=(\d+)", given)})
    choices = "".join(
        f"<li>{escape(choice)}</li>"
        if why
        else f'<li class="fragment highlight-green" data-fragment-index="0">{escape(choice)}'
        ' <span class="fragment" data-fragment-index="0">✓</span></li>'
        for choice, why in one.choices.items()
    )
    stored = "".join("".join(o.get("data", {}).get("text/html", "")) for o in outputs)
    pictures = "".join(PICTURE.findall(stored))
    wrong = "".join(
        f"<li><i>{escape(choice)}</i>: {escape(why)}</li>"
        for choice, why in one.choices.items()
        if why
    )
    return Slide(
        section,
        f'<h3>Question</h3><p>{escape(one.question)}</p><ul class="choices">{choices}</ul>'
        f'<div class="fragment" data-fragment-index="1"><p>{escape(one.because)}</p>{pictures}'
        "</div>",
        [f"<p>Usual wrong answers, and what to say:</p><ul>{wrong}</ul>"],
    )


def _text(source: str) -> str:
    """A text as HTML, with answers open and without links that lead nowhere from here."""
    html = markdown2html(LINK.sub(r"\1", source))
    return re.sub(r"<a class=.anchor-link.*?</a>", "", html.replace("<details>", "<details open>"))


def _output(output: Any, summary: bool = False) -> str:
    """A picture or printed lines; what only a program reads is left out."""
    data = output.get("data", {})
    if PACKED in data:
        traces = unpacked(data[PACKED])
        return section(traces, f"m{zlib.crc32(data[PACKED].encode())}")
    if output.output_type == "stream":
        return f"<pre>{escape(''.join(output.text))}</pre>"
    if "image/svg+xml" in data:
        return "".join(data["image/svg+xml"])
    if "image/png" in data:
        caption = escape("".join(data.get("text/plain", "")))
        source = "".join(data["image/png"]).strip()
        return (
            f'<figure><img alt="{caption}" src="data:image/png;base64,{source}">'
            f"<figcaption>{caption}</figcaption></figure>"
        )
    if "text/html" in data:
        return "".join(data["text/html"]).replace("<details>", "<details open>")
    return f"<pre>{escape(''.join(data['text/plain']))}</pre>" if summary and data else ""


def page(name: str, notebook: NotebookNode) -> str:
    """A lesson on one page: all of it, with code, every answer open, minutes on the headings."""
    parts = []
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            source = cell.source
            if time := minutes(cell):
                first, _, rest = source.partition("\n")
                source = f"{first} *({time} min)*\n{rest}"
            parts.append(_text(source))
            continue
        parts.append(f'<pre class="code">{escape(cell.source)}</pre>')
        parts += [_output(output, summary=True) for output in cell.outputs]
    return _document(name, "<main>\n" + "\n".join(parts) + "\n</main>", PAGE)


def deck(name: str, notebook: NotebookNode) -> str:
    """A lesson's slides as a page."""
    parts = [
        f'<section><header>{escape(one.section)}</header><div class="body">{one.body}</div>'
        f'<aside class="notes">{"".join(one.notes)}</aside></section>'
        for one in slides(notebook)
    ]
    body = '<div class="reveal"><div class="slides">\n' + "\n".join(parts) + "\n</div></div>"
    scripts = (
        '<script src="reveal/reveal.js"></script><script src="reveal/notes.js"></script>\n'
        "<script>Reveal.initialize({ hash: true, width: 1200, height: 720, margin: 0.04,"
        ' center: false, slideNumber: true, transition: "none", plugins: [RevealNotes] });'
        "</script>"
    )
    style = f'<link rel="stylesheet" href="reveal/reveal.css">\n<style>{SLIDES}</style>'
    return _document(name, f"{body}\n{scripts}", "", style)


def _document(title: str, body: str, style: str, head: str = "") -> str:
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{style}</style>\n{head}\n"
        '<script>window.MathJax = { tex: { inlineMath: [["$", "$"]] } };</script>\n'
        '<script defer src="mathjax/tex-chtml.js"></script>\n'
        f"</head><body>\n{body}\n</body></html>\n"
    )


PAGE = """
:root { color-scheme: light dark; }
main { font: 16px/1.5 system-ui, sans-serif; max-width: 820px; margin: 1em auto; padding: 0 1em; }
pre { white-space: pre-wrap; overflow-wrap: anywhere; font-size: 13px; }
pre.code { border-left: 3px solid #8c8c8c; padding-left: .8em; }
img, svg { max-width: 100%; height: auto; background: #fff; }
figcaption { font-size: 13px; opacity: .8; }
table { border-collapse: collapse; } td, th { padding: 2px 10px; text-align: left; }
"""
SLIDES = """
html, body { margin: 0; height: 100%; background: #fff; color: #1f2328; }
.reveal { font: 27px/1.45 system-ui, sans-serif; }
.reveal .slides { text-align: left; }
.reveal .slides section { height: 100%; overflow-y: auto; }
.reveal header { font-size: 17px; color: #59636e; border-bottom: 1px solid #d1d9e0; }
.reveal h1 { font-size: 1.6em; } .reveal h2 { font-size: 1.4em; } .reveal h3 { font-size: 1.1em; }
.reveal pre { font-size: 20px; white-space: pre-wrap; }
.reveal img, .reveal svg { max-width: 100%; max-height: 560px; width: auto; display: block;
  margin: 0 auto; }
.reveal figcaption { font-size: 17px; color: #59636e; }
.reveal .body > svg { width: 94%; height: auto; }
.reveal .choices li { margin: .25em 0; }
.reveal table { border-collapse: collapse; font-size: .85em; }
.reveal td, .reveal th { padding: 3px 14px; text-align: left; }
.reveal a { color: inherit; }
.reveal .slides section .fragment.highlight-green.visible { color: #00704f; font-weight: 700; }
"""


def plan(notebooks: dict[str, NotebookNode]) -> str:
    """The minutes of all sections, as Markdown."""
    lines = ["# Minutes"]
    for name, notebook in notebooks.items():
        lines += ["", f"## {name}: {sum(map(minutes, notebook.cells))} minutes", ""]
        title = ""
        for cell in notebook.cells:
            title = heading(cell) or title
            if time := minutes(cell):
                lines.append(f"- {time} min: {title}")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description="The lecturer's edition of the lessons.")
    parser.add_argument("lessons", nargs="*", help="names of lessons; default: all")
    parser.add_argument("--out", type=Path, default=Path("build/instructor"))
    given = parser.parse_args()
    paths = [LESSONS / f"{Path(name).stem}.ipynb" for name in given.lessons]
    paths = paths or sorted(LESSONS.glob("*.ipynb"), key=lambda x: int(x.stem.partition("_")[0]))
    if missing := [str(path) for path in paths if not path.is_file()]:
        parser.error(f"no such lesson: {', '.join(missing)}")
    given.out.mkdir(parents=True, exist_ok=True)
    libraries.mathjax(given.out)
    libraries.reveal(given.out)
    notebooks = {path.stem: nbformat.read(path, 4) for path in paths}
    for name, notebook in notebooks.items():
        (given.out / f"{name}.html").write_text(page(name, notebook), "utf-8")
        (given.out / f"{name}.slides.html").write_text(deck(name, notebook), "utf-8")
        print(f"{given.out / name}.slides.html, .html")
    (given.out / "minutes.md").write_text(plan(notebooks), "utf-8")


if __name__ == "__main__":
    main()
