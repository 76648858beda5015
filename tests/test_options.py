"""Options as they are typed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pytest
import tiny

import specwb
from specwb.core.options import MethodError, Option, parse_value, shape, specs, spell
from specwb.core.tree import Tree
from specwb.drafters.base import Entry
from specwb.drafters.medusa import MEDUSA_TREE


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("medusa,eagle", ["medusa", "eagle"]),
        ("mcsd:draw=top,tree=4-1 sps", ["mcsd:draw=top,tree=4-1", "sps"]),
        (
            "medusa,eagle:nodes=4,draw=top,sps:gamma=3 pld",
            ["medusa", "eagle:nodes=4,draw=top", "sps:gamma=3", "pld"],
        ),
        (" a,  b ", ["a", "b"]),
        ("", []),
    ],
)
def test_methods_are_parted_by_spaces_and_commas(text, found):
    assert specs(text) == found


@pytest.mark.parametrize(
    "tree",
    [Tree.chain(4), Tree.branching(4, 2, 2), Tree.parents([-1, 0, 0, 1, 1, 2]), MEDUSA_TREE],
    ids=str,
)
def test_a_tree_is_what_its_spelling_says(tree):
    assert shape("x", parse_value(spell(tree))).host == tree.host


@pytest.mark.parametrize("tree", ["4-x", 0.5, (0,), "0.7"])
def test_what_is_no_tree_is_refused(tree):
    with pytest.raises(MethodError, match=r"^x: "):
        shape("x", tree)


# ------------------------------------------------------------------------------- described options


@dataclass(frozen=True)
class Options:
    """One option of every kind."""

    count: Annotated[int, Option("an integer", low=2, high=9)] = 4
    least: Annotated[int | None, Option("one without an end", low=0)] = None
    share: Annotated[float, Option("a number", within="(0, 1]")] = 0.5
    below: Annotated[float, Option("another", within="[0, 1)")] = 0
    flag: Annotated[bool, Option("a switch")] = False
    draw: Annotated[str, Option("one of two", choices=("with", "without"))] = "with"
    stop: Annotated[str, Option("one of three", choices=("a", "b", "c"))] = "a"
    tree: Annotated[Tree | str | None, Option("a tree", choices=("published",))] = None
    grown: Annotated[Tree | bool, Option("a tree or not")] = False
    place: Annotated[str | Path, Option("a file", kind="a file's name")] = "here"
    model: Annotated[Any, Option("anything")] = None


def build(target: specwb.Target, options: Options) -> specwb.Drafter:
    """Checks nothing itself."""
    drafter = specwb.Drafter()
    drafter.tree, drafter.options = Tree.chain(options.count), options
    return drafter


ENTRY = Entry("every", build, Options)


@pytest.mark.parametrize(
    ("name", "value", "result"),
    [
        ("count", np.int64(9), 9),
        ("least", None, None),
        ("share", 1, 1.0),
        ("share", np.float64(0.25), 0.25),
        ("below", 0, 0.0),
        ("tree", "published", "published"),
        ("grown", True, True),
        ("place", Path("x"), Path("x")),
    ],
)
def test_values_that_can_be_used(name, value, result):
    checked = ENTRY.check({name: value})[name]
    assert (type(checked), checked) == (type(result), result)


@pytest.mark.parametrize("name", ["tree", "grown"])
@pytest.mark.parametrize("value", [(2, 1), "0.0.1.2", Tree.branching(2, 1)], ids=str)
def test_trees_in_every_spelling(name, value):
    assert ENTRY.check({name: value})[name].host == Tree.branching(2, 1).host


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("count", 1, "every: count must be an integer in 2..9, got 1"),
        ("count", 10, "every: count must be an integer in 2..9, got 10"),
        ("count", 4.0, "every: count must be an integer in 2..9, got 4.0"),
        ("count", True, "every: count must be an integer in 2..9, got True"),
        ("least", -1, "every: least must be an integer >= 0, got -1"),
        ("share", 0, "every: share must be a number in (0, 1], got 0"),
        ("share", float("nan"), "every: share must be a number in (0, 1], got nan"),
        ("share", "half", "every: share must be a number in (0, 1], got 'half'"),
        ("below", 1, "every: below must be a number in [0, 1), got 1"),
        ("flag", "yes", "every: flag must be true or false, got 'yes'"),
        ("draw", None, "every: draw must be with or without, got None"),
        ("stop", 3, "every: stop must be one of a, b, c, got 3"),
        ("tree", True, "every: tree must be published, or a tree, got True"),
        ("tree", "x", "every: tree must be children per node by level, such as 4-2-2"),
        ("grown", None, "every: tree must be children per node by level"),
        ("place", 3, "every: place must be a file's name, got 3"),
    ],
)
def test_values_that_cannot_be_used(name, value, message):
    with pytest.raises(MethodError) as caught:
        ENTRY.check({name: value})
    assert str(caught.value).startswith(message)


def test_a_drafter_of_ones_own_with_described_options():
    specwb.register("every", build, options=Options)
    try:
        made = specwb.method("every:count=3,tree=2-1", tiny.target(), share=1)
        assert made.drafter.options == Options(3, share=1.0, tree=made.drafter.options.tree)
        assert made.drafter.options.tree.host == Tree.branching(2, 1).host
        assert made.key == "every:share=1,count=3,tree=2-1"
        with pytest.raises(MethodError, match=r"every: count must be an integer in 2\.\.9"):
            specwb.hf("every:count=1")
    finally:
        specwb.unregister("every")


@pytest.mark.parametrize("key", specwb.METHODS)
def test_every_default_is_a_value_that_can_be_used(key):
    entry = specwb.METHODS[key]
    entry.check({})
    for option in entry.options.values():
        assert option.help
        assert option.expected
