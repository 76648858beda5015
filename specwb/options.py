"""A method's options: read, checked, and written as they are typed."""

from __future__ import annotations

import typing

from specwb.errors import SpecwbError
from specwb.inputs import integer
from specwb.tree import Tree


class MethodError(SpecwbError, ValueError):
    """Unknown method, rule or option, or a value that cannot be used."""


def specs(text: str) -> list[str]:
    """``"sps:gamma=3 medusa,eagle:nodes=8,draw=top"`` -> specs. Between methods there are spaces or commas; a comma before ``name=value``
    belongs to the options of the method before it."""
    found: list[str] = []
    for word in text.split():
        first = True
        for part in word.split(","):
            name, equals, _ = part.partition("=")
            if first or not equals or ":" in name:
                found.append(part)
            else:
                found[-1] += f",{part}"
            first = False
    return [spec for spec in found if spec]


def spell(value: object) -> str:
    """A value as it is written in a spec: 4-2-2, true, 0.5, 0.0.1.1.2 (a tree that is not the same at all nodes of a level)."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple | list) and value and all(isinstance(part, tuple | list) for part in value):
        return ".".join(f"{part[0]}-{part[-1]}" for part in value)
    if isinstance(value, tuple | list):
        return "-".join(map(str, value))
    if isinstance(value, Tree) and value.R == 1:
        same = value.in_level_order and Tree.branching(*value.widths).host == value.host
        return spell(value.widths) if same else ".".join(map(str, value.host[0][1:]))
    return str(value).replace(" ", "").replace(",", ";")


def parse_value(text: str) -> typing.Any:
    if text in ("true", "false"):
        return text == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    parts = text.split("-")
    if len(parts) > 1 and all(p.isdigit() for p in parts):
        return tuple(map(int, parts))
    return text


def whole(name: str, value: object, low: int = 1) -> int:
    return integer(name, value, low, kind=MethodError)


def share(name: str, value: object) -> float:
    """A number in [0, 1], such as a threshold for probabilities."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise MethodError(f"{name} must be in [0, 1], got {value!r}")
    return float(value)


def ranges(name: str, value: object) -> list[list[int]]:
    """Lists of whole numbers, given so or written ``1-3.4-6``.

    Raises:
        MethodError: neither.
    """
    if isinstance(value, tuple) and len(value) == 2 and all(isinstance(i, int) for i in value):
        value = spell(value)  # one range is read as a tree's widths are
    if isinstance(value, str):
        ends = [part.split("-") for part in value.split(".")]
        if all(len(pair) == 2 and all(end.isdecimal() and len(end) < 5 for end in pair) and int(pair[0]) <= int(pair[1]) for pair in ends):
            return [list(range(int(low), int(high) + 1)) for low, high in ends]
    elif isinstance(value, list | tuple) and all(isinstance(part, list | tuple | range) for part in value):
        return [list(part) for part in value]
    raise MethodError(f"{name} must be ranges such as 1-3.4-6, or lists of whole numbers, got {value!r}")


def shape(name: str, tree: object) -> Tree:
    """A tree from what an option can be: a :class:`Tree`, children a node by level (4-2-2), or the parents of nodes 1, 2, .. (0.0.1.1.2).

    Raises:
        MethodError: none of these.
    """
    if isinstance(tree, Tree):
        return tree
    try:
        if isinstance(tree, str | float):
            if isinstance(tree, float) or not all(part.isdecimal() for part in tree.split(".")):
                raise ValueError(f"tree must be children a node by level, such as 4-2-2, or parents, such as 0.0.1.1.2, got {tree!r}")
            return Tree.parents([-1, *map(int, tree.split("."))])
        return Tree.branching(*((tree,) if isinstance(tree, int) else typing.cast(typing.Any, tree)))
    except (ValueError, TypeError) as error:
        raise MethodError(f"{name}: {error}") from error
