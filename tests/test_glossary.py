"""What the glossary calls ours is there under that name, and its words are in order."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

import specwb

PAGE = (Path(__file__).parents[1] / "docs/glossary.md").read_text()
PLACES = (
    "specwb",
    "specwb.core.flow",
    "specwb.core.tree",
    "specwb.engine.decoding",
    "specwb.drafters.base",
    "specwb.rules.rule",
)


def has(owner: object, name: str) -> bool:
    """An attribute, or a field of a dataclass, or an attribute that a class declares."""
    declared = [vars(base).get("__annotations__", {}) for base in getattr(owner, "__mro__", ())]
    return hasattr(owner, name) or any(name in names for names in declared)


def exists(span: str) -> bool:
    """Is there a module, a name of it, or an attribute of a class of that name?"""
    span = span.partition("(")[0]
    if span in specwb.rules.RULES:
        return True
    for place in PLACES:
        module, _, name = span.rpartition(".") if span.startswith("specwb") else (place, "", span)
        try:
            owner = importlib.import_module(module or span)
        except ModuleNotFoundError:
            continue
        for part in name.split(".")[:-1]:
            owner = getattr(owner, part, None)
        if has(owner, name.split(".")[-1]):
            return True
        try:
            importlib.import_module(span)
        except ModuleNotFoundError:
            continue
        return True
    return False


@pytest.mark.parametrize("span", sorted(set(re.findall(r"`([^`]+)`", PAGE)) - {"this type"}))
def test_what_is_named_is_there(span):
    assert exists(span)


def test_words_are_in_the_order_of_the_alphabet():
    rows = re.findall(r"^\| \*\*(.+?)\*\*", PAGE, re.MULTILINE)
    assert len(rows) > 30
    spelled = [row.replace("τ", "tau").lower() for row in rows]
    assert spelled == sorted(spelled)
