"""Every theorem names what checks it, and what it names exists."""

from __future__ import annotations

import importlib
import json
import re
import runpy
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = sorted((ROOT / "theory").glob("[0-9]*.md"))


def exists(reference: str) -> bool:
    if "::" in reference:
        path, name = reference.split("::")
        stated = rf"^(def {name}\(|(Theorem|Lemma) {name}\b)"
        return (ROOT / path).is_file() and re.search(
            stated, (ROOT / path).read_text(), re.MULTILINE
        ) is not None
    if "#" in reference:
        path, cell = reference.split("#")
        return (ROOT / path).is_file() and any(
            c.get("id") == cell for c in json.loads((ROOT / path).read_text())["cells"]
        )
    module, _, name = reference.rpartition(".")
    return hasattr(importlib.import_module(module), name)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.stem)
def test_theorems_name_existing_checks(page):
    theorems = re.split(r"^## (?=Theorem)", page.read_text(), flags=re.MULTILINE)[1:]
    assert theorems
    for theorem in theorems:
        title = theorem.splitlines()[0]
        assert "*Proof" in theorem, title
        line = re.search(r"^Function: .*?(?=\n\n|\Z)", theorem, re.MULTILINE | re.DOTALL)
        assert line, f"{title}: no Function line"
        assert "Test:" in line.group(), title
        for reference in re.findall(r"`([^`]+)`", line.group()):
            assert exists(reference), f"{title}: {reference} does not exist"


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.stem)
def test_checks_are_links(page):
    """As `python theory/links.py` writes them."""
    script = runpy.run_path(str(ROOT / "theory" / "links.py"))
    assert script["linked"](page.read_text()) == page.read_text()


def test_the_lists_of_machine_checked_statements_are_those_of_the_pages():
    """Which statements are checked, and of which theorems they are the whole or a part: the two
    tables of ``theory/coq`` agree with the pages' lines "Coq:" and "Coq (which part):"."""
    readme = (ROOT / "theory" / "coq" / "README.md").read_text()
    listed, extent = set(), {}
    row = r"^\| \[([\d., ]+)\]\(\.\./(\w+)\.md\) \| (.*) \| (\w+)\.v: (\w+) \|$"
    for numbers, page, statement, file, name in re.findall(row, readme, re.MULTILINE):
        for number in numbers.split(", "):
            theorem = ".".join(number.split(".")[:2])
            listed.add((page, theorem, f"theory/coq/{file}.v::{name}"))
            column = "in part" if statement.startswith("*in part:* ") else "whole"
            assert extent.setdefault(theorem, column) == column, theorem
    linked, columns = set(), {}
    row = r"^\| \[\d+\]\(\.\./(\w+)\.md\) \|([^|]*)\|([^|]*)\|([^|]*)\|$"
    table = {page: cells for page, *cells in re.findall(row, readme, re.MULTILINE)}
    for page in PAGES:
        cells = dict(zip(("whole", "in part", "not"), table.pop(page.stem), strict=True))
        numbers = []
        for theorem in re.split(r"^## (?=Theorem)", page.read_text(), flags=re.MULTILINE)[1:]:
            numbers.append(re.match(r"Theorem ([\d.]+)", theorem).group(1))
            references = re.findall(r"`(theory/coq/[^`]+)`", theorem)
            linked |= {(page.stem, numbers[-1], reference) for reference in references}
            columns[numbers[-1]] = "not"
            if references:
                columns[numbers[-1]] = "in part" if "\nCoq (" in theorem else "whole"
        for column, cell in cells.items():
            there = [number for number in numbers if columns[number] == column]
            assert cell.strip() == ", ".join(there), (page.stem, column)
    assert not table
    assert listed == linked
    assert {number: column for number, column in columns.items() if column != "not"} == extent
    assert len(listed) > 20


def test_every_picture_is_drawn_by_the_script_and_shown():
    """By the names of its functions; drawing them all is left to the slow test."""
    scripts = "".join(
        (ROOT / "theory" / f"{n}.py").read_text() for n in ("pictures", "pictures_methods")
    )
    drawn = set(re.findall(r"^def (\w+)\(\) -> Figure:", scripts, re.MULTILINE))
    stored = {path.stem for path in (ROOT / "theory" / "pictures").glob("*.svg")}
    shown = re.findall(
        r"!\[[^\]]{20,}\]\(pictures/(\w+)\.svg\)", "".join(p.read_text() for p in PAGES)
    )
    assert drawn == stored == set(shown)


@pytest.mark.slow
def test_pictures_can_be_drawn(tmp_path, monkeypatch):
    """What they show is asserted in them, against the closed forms of the theorems."""
    pytest.importorskip("matplotlib")
    program = str(ROOT / "theory" / "pictures.py")
    monkeypatch.syspath_prepend(str(ROOT / "theory"))
    monkeypatch.setattr(sys, "argv", [program, str(tmp_path)])
    runpy.run_path(program, run_name="__main__")
    stored = {path.name for path in (ROOT / "theory" / "pictures").glob("*.svg")}
    assert {path.name for path in tmp_path.glob("*.svg")} == stored


# ---------------------------------------------------------------------------------------- formulas


def formulas(page: str) -> list[str]:
    """What stands between dollars, code spans left out."""
    text = re.sub(r"^ {4,}(?!\$).*$|`[^`]*`", "", page, flags=re.MULTILINE)
    found = re.findall(r"^\$\$\n(.+?)\n\$\$$|\$([^$]*)\$", text, re.MULTILINE | re.DOTALL)
    return [display or inline for display, inline in found]


def trouble(formula: str) -> str:
    """What keeps a formula from being shown in every place that shows a page, or nothing.

    JupyterLab takes formulas out of a page before it reads the rest as Markdown; GitHub reads
    them as Markdown first. So nothing in a formula may mean something there: an underscore that
    can begin emphasis, a backslash before punctuation, a link, HTML, a line that begins a list.
    """
    if formula.count("{") != formula.count("}"):
        return "braces do not match"
    if formula != formula.strip() or not formula:
        return "blanks at the ends"
    patterns = {
        r"(?<![A-Za-z0-9])_": "an underscore that is not behind a letter or digit",
        r"\\[^A-Za-z]": "a backslash before what is no letter",
        r"\]\(": "a link",
        r"[<>`*#%|]|[^\x00-\x7f]": "a character that has a command of its own",
        r"\n *[-+]+ ": "a line that begins a list",
        r"\\operatorname": "a command that GitHub refuses",
    }
    return next((why for pattern, why in patterns.items() if re.search(pattern, formula)), "")


@pytest.mark.parametrize("page", sorted((ROOT / "theory").glob("*.md")), ids=lambda p: p.stem)
def test_formulas_are_shown_everywhere(page):
    text = page.read_text()
    assert {formula: why for formula in formulas(text) if (why := trouble(formula))} == {}
    without = re.sub(r"^\$\$\n.+?\n\$\$$", "", text, flags=re.MULTILINE | re.DOTALL)
    without = re.sub(r"^ {4,}(?!\$).*$|`[^`\n]*`", "code", without, flags=re.MULTILINE)
    for line in without.splitlines():
        assert line.count("$") % 2 == 0, f"an inline formula must end on its line: {line}"
        for inline in re.finditer(r"(.?)\$[^$]+\$(.?)", line):
            before, after = inline.groups()
            assert before in ' ("[', f"GitHub shows no formula right behind {before!r}: {line}"
            assert after in ' .,;:)]?!"', f"GitHub may show no formula before {after!r}: {line}"
