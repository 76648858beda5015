"""Every relative link of the pages and notebooks leads to a file, and its #anchor to a heading."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = sorted(
    page
    for pattern in (
        "*.md",
        "docs/*.md",
        "theory/*.md",
        "theory/coq/*.md",
        "data/*/README.md",
        "notebooks/**/*.ipynb",
    )
    for page in ROOT.glob(pattern)
    if ".ipynb_checkpoints" not in page.parts
)
FENCED = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
NO_LINKS = re.compile(r"`[^`\n]*`|\$\$.*?\$\$|\$[^$\n]+\$", re.DOTALL)  # code and formulas
LINK = re.compile(r"\]\(\s*<?([^)\s>]+)[^)]*\)|(?:href|src)=\"([^\"]+)\"")
# not another paper's: "Leviathan et al. 2023, theorem 3.8"
THEOREMS = re.compile(
    r"(?<!\d{4}, )(?<!their )\b[Tt]heorems?\s(\d+\.\d+(?:(?:,|\s+and|\s+or|\s+to)\s\d+\.\d+)*)"
)
HEADING = re.compile(r"^#{1,6}\s+(.+?)\s*#*$", re.MULTILINE)


def prose(path: Path) -> str:
    """The Markdown of a page, or of a notebook's text cells, without blocks of code."""
    text = path.read_text("utf-8")
    if path.suffix == ".ipynb":
        cells = [c for c in json.loads(text)["cells"] if c["cell_type"] == "markdown"]
        text = "\n\n".join("".join(cell["source"]) for cell in cells)
    return FENCED.sub("", text)


def links(path: Path) -> list[str]:
    found = LINK.findall(NO_LINKS.sub("", prose(path)))
    return [address or attribute for address, attribute in found]


def anchors(path: Path) -> set[str]:
    """What a #fragment may be: GitHub's name of a heading, or JupyterLab's, or an explicit id."""
    text = prose(path)
    names = set(re.findall(r"<[^>]+\b(?:id|name)=\"([^\"]+)\"", text))
    if path.suffix == ".ipynb":  # JupyterLab's address of a cell
        names |= {f"cell-id={cell.get('id')}" for cell in json.loads(path.read_text())["cells"]}
    seen: dict[str, int] = {}
    for heading in HEADING.findall(text):
        heading = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        heading = re.sub(r"[`*$]", "", heading)
        names.add(heading.replace(" ", "-"))
        name = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        names.add(f"{name}-{seen[name]}" if name in seen else name)
        seen[name] = seen.get(name, 0) + 1
    return names


def broken(path: Path) -> list[str]:
    """The links of a page that lead nowhere, or out of the repository, which JupyterLab serves."""
    found = []
    for link in links(path):
        if re.match(r"[a-z]+:", link):
            continue
        name, _, anchor = link.partition("#")
        target = (path.parent / name).resolve() if name else path
        named = anchor and target.is_file() and target.suffix in (".md", ".ipynb")
        there = target.is_relative_to(ROOT) and target.exists()
        if not there or (named and anchor not in anchors(target)):
            found.append(link)
    return found


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(path):
    assert broken(path) == []


def theorems() -> set[str]:
    """The numbers of all theorems."""
    pages = (page.read_text("utf-8") for page in ROOT.glob("theory/*.md"))
    return {n for page in pages for n in re.findall(r"^## Theorem (\d+\.\d+)", page, re.MULTILINE)}


def named(text: str) -> set[str]:
    """The numbers of theorems that a text names."""
    return {n for listed in THEOREMS.findall(text) for n in re.findall(r"\d+\.\d+", listed)}


def test_every_theorem_that_is_named_exists():
    known, wrong = theorems(), {}
    sources = [*ROOT.glob("specwb/**/*.py"), *ROOT.glob("tests/**/*.py")]
    for path in [*PAGES, *sources]:
        text = prose(path) if path.suffix == ".ipynb" else path.read_text("utf-8")
        if path.parent.name != "site" and path.name not in ("test_links.py", "test_site.py"):
            wrong[path] = named(text) - known
    assert {str(path): names for path, names in wrong.items() if names} == {}
    assert named("By theorems 1.1, 2.2 and 3.3 (Chen et al. 2023, theorem 4.4)") == {
        "1.1",
        "2.2",
        "3.3",
    }
