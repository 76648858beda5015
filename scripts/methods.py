"""Write the pages that list the methods, from the registry: docs/methods.md and the table of
README.md.

    python scripts/methods.py

tests/test_front_door.py compares the pages with what this writes.
"""

from __future__ import annotations

import re
from pathlib import Path
from textwrap import fill

from specwb.cli.methods import described, option_rows
from specwb.drafters.base import Entry
from specwb.engine.methods import METHODS

ROOT = Path(__file__).resolve().parents[1]
README, PAGE = ROOT / "README.md", ROOT / "docs" / "methods.md"
INTRODUCTION = """\
# Methods

All methods with their options and sources. This page is written by `python scripts/methods.py`;
`specwb methods NAME` prints one method with its BibTeX entry.

A method is written as its key with options, `mcsd:tree=4-2-2,draw=with`; in Python options can also
be arguments, `specwb.method("mcsd", target, tree=(4, 2, 2), draw="with")`. Each option stands here
with its default, where it is a value.

A **tree** is written as the number of children per node, level by level: `tree=4-2-2` has four
nodes below the root, and two below each node of the next two levels. Any other tree is written as
the parents of its nodes 1, 2, ..: `tree=0.0.1.1.2` has two nodes below the root, two below node 1
and one below node 2. In Python it may also be a `specwb.Tree` with nodes in level order.

Every method takes **rule**, a [verification rule](rules.md), which fits the way the candidates are
drawn. Methods with a draft model take **draft**, those with a trained head or model **head**: a
folder, hub id or loaded one, by default the target's own. Nearly all of these take **copy**:
with `copy=2` a row whose last two tokens (or more) occur earlier in its text drafts the ten tokens
that followed there, and only elsewhere does its head or draft model draft.

The same methods take **verify**: with `verify=auto` a step verifies, of the drafts of all rows
together, the nodes that are worth their time on this machine, drafts as many levels as have paid,
and decodes plainly where none do. How likely a node is accepted follows from the draft's
confidences and from what earlier steps accepted; what a forward pass of so many tokens takes is
measured when a method first decodes so many rows. It is lossless, but which nodes are verified
depends on measured times and on the other rows, so a sampled text is not the same in every run
(with `exact_text` it is). With `copy` too, copied tokens are ranked with the others, by what
tokens with as long a match did. Not where a rule or the way of drawing needs drafts of a fixed
shape. Its steps are never recorded as CUDA graphs (`graphs=True` is refused), so on CUDA it
competes with eager steps.
"""


def pages() -> dict[Path, str]:
    """The text of each page."""
    readme = [("key", "method", "needs")]
    for key, entry in METHODS.items():
        what = re.split(r"[:.]", " ".join(entry.about.replace("``", "").split()))[0]
        source = f" ({entry.paper.partition(', arXiv')[0]})" if entry.bibtex else ""
        readme.append((f"`{key}`", f"{what}{source}", entry.needs))
    before, rest = README.read_text("utf-8").split("| key |", 1)
    after = rest.split("\n\n", 1)[1]
    return {
        README: f"{before}{table(readme)}\n{after}",
        PAGE: "\n".join([INTRODUCTION, *map(section, METHODS.values())]),
    }


def section(entry: Entry) -> str:
    """One method on the page of methods."""
    source = f"Needs {entry.needs}; {entry.exactness.value}; {entry.paper}."
    parts = [f"## {entry.key}\n", entry.about.replace("``", "`") + "\n", f"{source}\n"]
    presets = [f"`preset={name}`: {described(it)}." for name, it in entry.presets.items()]
    options = [
        f"`{name}{'=' * bool(default)}{default}` ({expected}): {what}."
        for name, default, expected, what in option_rows(entry)
        if name not in ("rule", "draft", "head", "copy", "verify")
    ]
    parts += [
        fill(f"- {line}", 100, subsequent_indent="  ", break_on_hyphens=False)
        for line in options + presets
    ]
    return "\n".join(parts).rstrip() + "\n"


def table(rows: list[tuple[str, ...]]) -> str:
    """A Markdown table whose first row is its header."""
    header, *body = (" | ".join(cell.replace("|", "\\|") for cell in row) for row in rows)
    lines = [header, " | ".join("---" for _ in rows[0]), *body]
    return "\n".join(f"| {line} |" for line in lines) + "\n"


if __name__ == "__main__":
    for path, text in pages().items():
        path.write_text(text, encoding="utf-8")
