"""The methods and their options, described from the registry: for the terminal and as a page."""

from __future__ import annotations

from textwrap import fill

from specwb.drafters.base import Entry, Preset
from specwb.flow import Exactness
from specwb.methods import METHODS
from specwb.options import REQUIRED, Option, spell
from specwb.verify import RULES

HEADER = ("option", "default", "must be", "what it does")
RULE = Option(
    "the verification rule; default the usual one for how the candidates are drawn",
    kind="a rule's key",
    name="rule",
    default=None,
)

INTRODUCTION = """\
# Methods

Every method, its options, its source. This page is what `specwb.describe.methods_markdown()`
returns, and a test holds the two equal; `specwb methods NAME` prints one of them.

A method is written as its key with its options, `mcsd:tree=4-2-2,draw=with`, or called with them,
`specwb.method("mcsd", target, tree=(4, 2, 2), draw="with")`. A default that is not shown is what
the option's line says.

A **tree** is written as the children of a node by level: `tree=4-2-2` has four nodes below the
root, two below each of them, and two below each of those. Any other tree is written as the parents
of its nodes 1, 2, ..: `tree=0.0.1.1.2` has two nodes below the root, two below node 1 and one below
node 2. In Python it may also be a `specwb.Tree`, its nodes in level order.

{rules}
"""


def option_rows(entry: Entry) -> list[tuple[str, str, str, str]]:
    """The options of a method as rows of a table with the columns of ``HEADER``."""
    return [
        (option.name, default_of(option), option.expected, option.help)
        for option in (*entry.options.values(), RULE)
    ]


def spelled(preset: Preset) -> str:
    """The options that a preset stands for, as they are typed."""
    return ",".join(f"{name}={spell(value)}" for name, value in preset.options.items())


def default_of(option: Option) -> str:
    """An option's default as it is typed, "" where it is None."""
    if option.default is REQUIRED:
        return "must be given"
    return "" if option.default is None else spell(option.default)


def methods_markdown() -> str:
    """All registered methods as a page of Markdown, which is ``docs/methods.md``."""
    names = [
        f"`{name}`{' (LOSSY)' if rule.exactness is Exactness.LOSSY else ''}"
        for name, rule in RULES.items()
    ]
    listed: list[tuple[str, ...]] = [("method", "needs", "exactness", "source")]
    listed += [
        (f"[{entry.key}](#{entry.key})", entry.needs, entry.exactness.value, entry.paper)
        for entry in METHODS.values()
    ]
    rules = (
        f"Every method takes **rule**, the verification rule: {', '.join(names)}. By default it is "
        "the usual one for how the candidates are drawn; a rule that would not be lossless for "
        "them is refused."
    )
    wrapped = fill(rules, 100, break_long_words=False, break_on_hyphens=False)
    parts = [INTRODUCTION.format(rules=wrapped), _table(listed)]
    return "\n".join([*parts, *map(_section, METHODS.values())])


def _section(entry: Entry) -> str:
    """One method."""
    about = entry.about.replace("``", "`")
    for name, preset in entry.presets.items():
        about += f"\n\n`preset={name}`: {spelled(preset)}; {preset.source}."
    options = [(f"`{name}`", *rest) for name, *rest in option_rows(entry) if name != "rule"]
    facts = f"Needs: {entry.needs}. Exactness: {entry.exactness.value}. Source: {entry.paper}.\n"
    parts = [f"## {entry.key}\n", f"{about}\n", facts]
    if options:
        parts.append(_table([HEADER, *options]))
    if entry.bibtex:
        parts.append(f"```bibtex\n{entry.bibtex}\n```\n")
    return "\n".join(parts)


def _table(rows: list[tuple[str, ...]]) -> str:
    header, *body = (" | ".join(cell.replace("|", "\\|") for cell in row) for row in rows)
    lines = [header, " | ".join("---" for _ in rows[0]), *body]
    return "\n".join(f"| {line} |" for line in lines) + "\n"
