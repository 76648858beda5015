"""A method's options: described, checked, read as they are typed, and written so."""

from __future__ import annotations

import dataclasses
import inspect
import typing
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import accumulate
from operator import mul
from types import NoneType, UnionType
from typing import Annotated, Any

from specwb.core.errors import SpecwbError
from specwb.core.inputs import integer, real
from specwb.core.tree import MOST, Tree


class MethodError(SpecwbError, ValueError):
    """Unknown method, rule or option, or a value that cannot be used."""


REQUIRED: Any = inspect.Parameter.empty
"""The default of an option that must be given."""


@dataclass(frozen=True)
class Option:
    """What one option of a method may be, and what it does.

    It stands in the annotation of a field of the method's options, which are a frozen dataclass::

        gamma: Annotated[int, Option("draft tokens per step", low=1)] = 4

    The field's type says what it may be: an int, a float, a bool, a :class:`Tree` (or anything
    that :func:`shape` makes one of), one of the choices, None, or else an instance of the type as
    it is. Where the type is Any, the method itself checks the value.

    Args:
        help: one line that says what the option does.
        low: the least integer.
        high: the largest integer.
        within: the interval of a number, such as ``[0, 1)``.
        choices: the words it may be.
        kind: what it must be, in words; made of the type and the other arguments if left out.
        name: the field's name, filled in by :func:`options_of`.
        default: the field's default, ``REQUIRED`` where there is none; filled in likewise.
        types: the types that the field allows, filled in likewise.
    """

    help: str = ""
    low: int | None = None
    high: int | None = None
    within: str = ""
    choices: tuple[str, ...] = ()
    kind: str = ""
    name: str = ""
    default: Any = REQUIRED
    types: tuple[Any, ...] = (Any,)

    @property
    def expected(self) -> str:
        """What it must be, in words, such as ``an integer >= 1``."""
        if self.kind:
            return self.kind
        words = ["true or false"] if bool in self.types else []
        if len(self.choices) > 2:
            words.append(f"one of {', '.join(self.choices)}")
        elif self.choices:
            words.append(" or ".join(self.choices))
        if int in self.types:
            bounds = f">= {self.low}" if self.high is None else f"in {self.low}..{self.high}"
            words.append(f"an integer {bounds}")
        if float in self.types:
            words.append(f"a number in {self.within}")
        if Tree in self.types:
            words.append("a tree")
        return ", or ".join(words)

    def check(self, key: str, value: Any) -> Any:
        """The value as the method ``key`` gets it: numbers as int and float, trees as trees."""
        if Any in self.types or (value is None and NoneType in self.types):
            return value
        if isinstance(value, bool):
            if bool in self.types:
                return value
        elif isinstance(value, str) and value in self.choices:
            return value
        elif int in self.types:
            with suppress(ValueError):
                return integer(self.name, value, self.low, self.high)
        elif float in self.types:
            with suppress(ValueError):
                number = real(self.name, value)
                if _inside(self.within, number):
                    return number
        elif Tree in self.types:
            return shape(key, value)
        elif not self.choices and isinstance(value, self.types):
            return value
        raise MethodError(f"{key}: {self.name} must be {self.expected}, got {value!r}")


def _inside(interval: str, number: float) -> bool:
    low, high = map(float, interval[1:-1].split(","))
    above = number >= low if interval[0] == "[" else number > low
    return above and (number <= high if interval[-1] == "]" else number < high)


def options_of(build: Callable[..., Any], settings: type | None = None) -> dict[str, Option]:
    """The options of a method by their names: the fields of the dataclass ``settings``, each
    annotated with an :class:`Option`; without it the keywords of ``build``, whose values are not
    checked."""
    if settings is None:
        keywords = list(inspect.signature(build).parameters.values())[1:]
        return {
            parameter.name: Option(name=parameter.name, default=parameter.default)
            for parameter in keywords
        }
    hints = typing.get_type_hints(settings, include_extras=True)
    options = {}
    for field in dataclasses.fields(settings):
        kind, option = typing.get_args(hints[field.name])
        union = typing.get_origin(kind) in (typing.Union, UnionType)
        options[field.name] = dataclasses.replace(
            option,
            name=field.name,
            default=REQUIRED if field.default is dataclasses.MISSING else field.default,
            types=typing.get_args(kind) if union else (kind,),
        )
    return options


# what several methods have
DraftModel = Annotated[
    Any, Option("the draft model; default the target's own", kind="a folder, hub id or model")
]
TrainedHead = Annotated[
    Any, Option("the trained head; default the target's own", kind="a folder, hub id or head")
]
Copy = Annotated[
    int | None,
    Option(
        "copy what followed earlier in the text where at least so many of the last tokens occur "
        "there, and draft elsewhere; default: never copy",
        low=1,
        high=10,
    ),
]
Verify = Annotated[
    str | None,
    Option(
        "auto: verify the nodes that are worth their time on this machine, and decode plainly "
        "where none are; default: the whole draft",
        choices=("auto",),
    ),
]
NodeCount = Annotated[int, Option("nodes of the tree, root included", low=2, high=MOST)]


def specs(text: str) -> list[str]:
    """The methods of a list such as ``"sps:gamma=3 medusa,eagle:nodes=8,draw=top"``.

    Between methods there are spaces or commas; a comma before ``name=value`` belongs to the options
    of the method before it.
    """
    methods: list[str] = []
    for word in text.split():
        first = True
        for part in word.split(","):
            name, equals, _ = part.partition("=")
            if first or not equals or ":" in name:
                methods.append(part)
            else:
                methods[-1] += f",{part}"
            first = False
    return [spec for spec in methods if spec]


def spell(value: object) -> str:
    """A value as it is written in a spec: 4-2-2, true, 0.5.

    A tree that is not the same at all nodes of a level is written as the parents of its nodes
    1, 2, ..: 0.0.1.1.2.
    """
    if isinstance(value, bool):
        return str(value).lower()
    if (
        isinstance(value, tuple | list)
        and value
        and all(isinstance(part, tuple | list) for part in value)
    ):
        return ".".join(f"{part[0]}-{part[-1]}" for part in value)
    if isinstance(value, tuple | list):
        return "-".join(map(str, value))
    if isinstance(value, Tree) and value.R == 1:
        # children per node by level make a tree of so many nodes, which may be too many for a tree
        full = sum(accumulate(value.widths, mul, initial=1))
        same = value.in_level_order and full == value.n
        same = same and Tree.branching(*value.widths).host == value.host
        return spell(value.widths) if same else ".".join(map(str, value.host[0][1:]))
    return str(value).replace(" ", "").replace(",", ";")


def parse_value(text: str) -> Any:
    """The value that is written so: true or false, a number, children per node by level (4-2-2) as
    a tuple, and anything else as it is."""
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


def ranges(name: str, value: object) -> list[list[int]]:
    """Lists of whole numbers, given so or written ``1-3.4-6``."""
    if isinstance(value, tuple) and len(value) == 2 and all(isinstance(i, int) for i in value):
        value = spell(value)  # one range is read as a tree's widths are
    if isinstance(value, str):
        pairs = [part.split("-") for part in value.split(".")]
        if all(_is_range(pair) for pair in pairs):
            return [list(range(int(low), int(high) + 1)) for low, high in pairs]
    elif isinstance(value, list | tuple) and all(
        isinstance(x, list | tuple | range) for x in value
    ):
        return [list(part) for part in value]
    examples = "ranges such as 1-3.4-6, or lists of whole numbers"
    raise MethodError(f"{name} must be {examples}, got {value!r}")


def _is_range(ends: list[str]) -> bool:
    digits = all(end.isdecimal() and len(end) < 5 for end in ends)
    return digits and len(ends) == 2 and int(ends[0]) <= int(ends[1])


def shape(name: str, tree: object) -> Tree:
    """A tree from what an option can be: a :class:`Tree`, children per node by level (4-2-2), or
    the parents of the nodes 1, 2, .. (0.0.1.1.2)."""
    if isinstance(tree, Tree):
        return tree
    try:
        if isinstance(tree, str) and all(part.isdecimal() for part in tree.split(".")):
            return Tree.parents([-1, *map(int, tree.split("."))])
        if isinstance(tree, int):
            return Tree.branching(tree)
        if isinstance(tree, Iterable) and not isinstance(tree, str | Mapping):
            return Tree.branching(*tree)
    except (ValueError, TypeError) as error:
        raise MethodError(f"{name}: {error}") from error
    forms = "children per node by level, such as 4-2-2, or parents, such as 0.0.1.1.2"
    raise MethodError(f"{name}: tree must be {forms}, got {tree!r}")
