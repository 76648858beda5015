"""What a mutant is: one mistake, put into the code in memory, and the tests that must see it."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FunctionType
from typing import Any


class Stale(Exception):
    """A mutant is about code that is not there any more: it must be written again."""


class Patch:
    """Changes of the code in memory that can be taken back."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], None]] = []

    def edit(self, function: Callable, old: str, new: str) -> None:
        """``function`` with the one ``old`` in its source replaced by ``new``, wherever it was
        imported to.

        Raises:
            Stale: ``old`` does not occur exactly once.
        """
        target = inspect.unwrap(function)
        assert isinstance(target, FunctionType)
        source = textwrap.dedent(inspect.getsource(target))
        if source.count(old) != 1:
            times = source.count(old)
            raise Stale(f"{target.__qualname__} has {old!r} {times} times, not once")
        source = source[source.index(f"def {target.__name__}") :].replace(old, new)
        # as an inner function, so that super() and whatever else it closes over stay what they are
        around = f"def around({', '.join(target.__code__.co_freevars)}):\n"
        text = f"{around}{textwrap.indent(source, '    ')}\n    return {target.__name__}"
        made: dict[str, Any] = {}
        exec(compile(text, f"<mutant of {target.__qualname__}>", "exec"), target.__globals__, made)
        free = (None,) * len(target.__code__.co_freevars)
        self._set(target, "__code__", made["around"](*free).__code__)

    def method(self, owner: type, name: str) -> Callable[[Callable], None]:
        """Decorator: the method of ``owner`` is called through ``wrong(real, self, ...)``.

        Raises:
            Stale: ``owner`` has no such method.
        """
        real = getattr(owner, name, None)
        if real is None:
            raise Stale(f"{owner.__name__} has no {name}")

        def decorate(wrong: Callable) -> None:
            def method(self, *args, **kwargs):
                return wrong(real, self, *args, **kwargs)

            self._set(owner, name, method)

        return decorate

    def value(self, owner: type, name: str, value: object) -> None:
        """A class attribute.

        Raises:
            Stale: there is none, or it has that value already.
        """
        if getattr(owner, name, value) == value:
            raise Stale(f"{owner.__name__}.{name} is not there or already {value!r}")
        self._set(owner, name, value)

    def _set(self, owner: Any, name: str, value: object) -> None:
        own = name in vars(owner) or isinstance(owner, FunctionType)
        old = getattr(owner, name)
        setattr(owner, name, value)
        self._undo.append(lambda: setattr(owner, name, old) if own else delattr(owner, name))

    def undo(self) -> None:
        while self._undo:
            self._undo.pop()()


@dataclass(frozen=True)
class Mutant:
    """A mistake. ``tests``: "file.py: words" selects the tests of that file with all these words
    in their names; one of them must fail."""

    name: str
    apply: Callable[[Patch], None]
    tests: tuple[str, ...]

    @contextmanager
    def applied(self) -> Iterator[None]:
        patch = Patch()
        try:
            self.apply(patch)
            yield
        finally:
            patch.undo()


MUTANTS: dict[str, Mutant] = {}


def killed_by(*tests: str) -> Callable[[Callable[[Patch], None]], Callable[[Patch], None]]:
    def register(apply: Callable[[Patch], None]) -> Callable[[Patch], None]:
        name = apply.__name__
        assert name not in MUTANTS, f"two mutants are called {name}"
        MUTANTS[name] = Mutant(name, apply, tests)
        return apply

    return register
