"""What a docstring is made into before Sphinx reads it as reStructuredText.

Docstrings are read in editors and by ``help`` first, so they name a theorem as "theorem 8.3" and a
page as "theory/08_what_breaks.md". In the reference both are links, a fenced block is a code block,
and what follows "Source:" is one paragraph. The text within ``..`` stays as it is.
"""

from __future__ import annotations

import re
from collections.abc import Collection

LITERAL = re.compile(r"``.*?``|`[^`]*`_{0,2}", re.DOTALL)
# not another paper's: "Leviathan et al. 2023, theorem 3.5"
THEOREMS = re.compile(
    r"(?<!\d{4}, )\b([Tt]heorems?)(\s+)(\d+\.\d+(?:(?:,|\s+and|\s+or|\s+to)\s+\d+\.\d+)*)"
)
PAGE = re.compile(r"\b((?:theory|docs)/\w+)\.md\b")
PARAGRAPH = re.compile(r"(Source|Differs from [^:]{1,30}):")


def rewritten(lines: list[str], theorems: Collection[str], pages: Collection[str]) -> list[str]:
    """The lines of a docstring with links.

    Args:
        lines: of the docstring, without the indentation that all of them share.
        theorems: numbers of those that there are.
        pages: names that can be linked, without their suffix, such as "theory/01_single_draft".
    """
    text = "\n".join(_paragraphs(_fences(lines)))
    parts, at = [], 0
    for literal in LITERAL.finditer(text):
        parts += [_links(text[at : literal.start()], theorems, pages), literal.group()]
        at = literal.end()
    return "".join([*parts, _links(text[at:], theorems, pages)]).split("\n")


def _links(text: str, theorems: Collection[str], pages: Collection[str]) -> str:
    def numbers(match: re.Match[str]) -> str:
        word, space, several = match.groups()
        if several in theorems and space == " ":
            return f":ref:`{word} {several} <theorem-{several}>`"
        return word + space + re.sub(r"\d+\.\d+", one, several)

    def one(match: re.Match[str]) -> str:
        number = match.group()
        return f":ref:`{number} <theorem-{number}>`" if number in theorems else number

    def page(match: re.Match[str]) -> str:
        name = match.group(1)
        return f":doc:`{name}.md </{name}>`" if name in pages else match.group()

    return PAGE.sub(page, THEOREMS.sub(numbers, text))


def _fences(lines: list[str]) -> list[str]:
    """A block between three backticks as a code block."""
    found, inside = [], False
    for line in lines:
        fence = re.match(r"(\s*)```(\w*)$", line)
        if fence is None:
            found.append(f"   {line}" if inside and line else line)
        elif inside:
            found.append("")
            inside = False
        else:
            found += ["", f"{fence.group(1)}.. code-block:: {fence.group(2) or 'text'}", ""]
            inside = True
    return found


def _paragraphs(lines: list[str]) -> list[str]:
    """A source whose further lines are indented as a paragraph of its own."""
    found, inside = [], False
    for line in lines:
        if PARAGRAPH.match(line):
            found += ["", line]
            inside = True
        elif inside and line.startswith(" "):
            found.append(line.strip())
        else:
            inside = False
            found.append(line)
    return found
