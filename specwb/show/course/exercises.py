"""Exercises that mark themselves.

They stand in the same file as the questions of a lesson (:mod:`specwb.show.course.question`):

```toml
[exercises.tau]
task = "tau(accepted): tokens per step, from the accepted draft tokens of every step."
problems = "([*row] for n in range(1, 4) for row in product(range(4), repeat=n))"
answer = "Fraction(sum(accepted) + len(accepted), len(accepted))"
```

- ``task`` begins with the function that is to be written, and its arguments.
- ``problems``, an expression, lists the arguments to try, the smallest first: of several arguments
  tuples. Let a few be larger than anyone writes out by hand.
- ``answer``, an expression, is the right result for the arguments, which it knows by their names.
- ``output``, where the function returns a verification rule, is the number of candidates of the
  rule: the distribution of its output is compared, so every lossless rule is right.
- ``facts``, Python that runs before the expressions. They know :class:`fractions.Fraction`, ``F``,
  :mod:`itertools`' ``product`` and ``combinations``, :mod:`specwb.theory.exact`, :func:`pairs` and
  :func:`trees`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass
from fractions import Fraction
from itertools import combinations, product
from textwrap import fill
from typing import Any

from specwb.core.errors import SpecwbError
from specwb.show.course.question import lessons
from specwb.theory import exact

CLOSE = 1e-9  # of floats to the exact answer


class ExerciseError(SpecwbError, ValueError):
    """There is no such exercise, or what was handed in is no function."""


@dataclass(frozen=True)
class Grade:
    """The result of marking a solution.

    Attributes:
        exercise: its name.
        tried: number of problems tried.
        fault: the smallest problem that the solution gets wrong and how; empty if it is right.
    """

    exercise: str
    tried: int
    fault: str = ""

    @property
    def right(self) -> bool:
        """Whether no problem was got wrong."""
        return not self.fault

    def __repr__(self) -> str:
        if self.right:
            return f"{self.exercise}: right, on all {self.tried} problems"
        return f"{self.exercise}: not yet. {self.fault}"


def pairs(parts: int = 4) -> Iterator[tuple[list[Fraction], list[Fraction]]]:
    """List pairs p, q over 2 and 3 tokens whose probabilities are multiples of 1, 1/2, .., 1/parts,
    and one over 5 tokens."""
    for tokens, size in product((2, 3), range(1, parts + 1)):
        counts = [c for c in product(range(size, -1, -1), repeat=tokens) if sum(c) == size]
        for p, q in product(counts, repeat=2):
            yield [Fraction(n, size) for n in p], [Fraction(n, size) for n in q]
    yield exact.norm([4, 0, 2, 0, 1]), exact.norm([1, 2, 0, 1, 3])


def trees(nodes: int) -> Iterator[list[int]]:
    """List the parents of all trees of up to so many nodes, the root's being -1, and one of 12."""
    for n in range(1, nodes + 1):
        for above in product(*(range(node) for node in range(1, n))):
            yield [-1, *above]
    yield [-1, 0, 0, 0, 1, 1, 2, 4, 4, 5, 7, 10]


def output(rule: Callable[..., Any], p: list[Fraction], q: list[Fraction], k: int) -> list[Any]:
    """Compute the distribution of a rule's output over all k candidates drawn from q independently.

    Args:
        rule: list of k tokens -> (probability that each is the accepted one, residual).
        p, q: target and draft, ``[V]``.
    Raises:
        ExerciseError: acceptance probabilities below 0 or with a sum above 1.
    """
    out: list[Any] = [Fraction(0)] * len(p)
    for tokens, chance in exact.iid(q, k):
        accept, residual = rule(list(tokens))
        rejected = 1 - sum(accept)
        if min(accept) < 0 or rejected < -CLOSE:
            raise ExerciseError(f"candidates {shown(tokens)} are accepted with {shown(accept)}")
        for token, share in zip(tokens, accept, strict=True):
            out[token] += chance * share
        if rejected > CLOSE:
            for token, share in enumerate(residual):
                out[token] += chance * rejected * share
    return out


def exercises() -> dict[str, dict[str, Any]]:
    """Return all exercises as they stand in the lessons' files, by name."""
    return {
        name: row for rows in lessons().values() for name, row in rows.get("exercises", {}).items()
    }


def task(name: str) -> str:
    """Return what an exercise asks for, in lines of at most 80 columns.

    Raises:
        ExerciseError: no such exercise.
    """
    rows = exercises()
    if not isinstance(name, str) or name not in rows:
        raise ExerciseError(f"no exercise {name!r}; there are {', '.join(rows)}")
    return fill(rows[name]["task"], 80)  # JupyterLab would break long lines inside words


def grade(name: str, solution: Callable[..., Any]) -> Grade:
    """Run a solution on the problems of an exercise, the smallest first, up to the first that it
    gets wrong; an exception counts as wrong. ``print(specwb.show.course.task(name))`` prints the
    task.

    Numbers are compared exactly, floats to 1e-9.

    Raises:
        ExerciseError: no such exercise, or no function.
    """
    arguments = re.findall(r"\w+", task(name).partition(")")[0])[1:]
    if not callable(solution):
        raise ExerciseError(f"{name}: hand in a function, got {solution!r}")
    row = exercises()[name]
    facts: dict[str, Any] = {"Fraction": Fraction, "F": Fraction, "exact": exact}
    facts |= {"product": product, "combinations": combinations, "pairs": pairs, "trees": trees}
    exec(row.get("facts", ""), facts)
    problems = list(eval(row["problems"], facts))
    for tried, problem in enumerate(problems, 1):
        values = problem if isinstance(problem, tuple) else (problem,)
        known = dict(zip(arguments, values, strict=True))
        right = eval(row["answer"], {**facts, **known})
        where = ", ".join(f"{argument} = {shown(value)}" for argument, value in known.items())
        try:
            result = solution(*deepcopy(values))  # it may change its arguments
            if "output" in row:
                result = output(result, known["p"], known["q"], row["output"])
        except (Exception, SystemExit) as error:  # whatever a student's function does
            return Grade(name, tried, f"{where}: it raises {type(error).__name__}: {error}")
        if not same(result, right):
            verb = "its output is" if "output" in row else "you get"
            wrong = f"{where}: {verb} {shown(result)}, right is {shown(right)}"
            return Grade(name, tried, wrong)
    return Grade(name, len(problems))


def same(given: Any, right: Any) -> bool:
    """Compare a result with the right one: lists by their elements, numbers to 1e-9."""
    if isinstance(right, list | tuple):
        listed = hasattr(given, "__len__") and not isinstance(given, str | dict)
        return listed and len(given) == len(right) and all(map(same, given, right))
    try:
        return bool(abs(given - right) < CLOSE)
    except TypeError:
        return False


def shown(value: Any) -> str:
    """Write a value as one does by hand: ``(1/2, 1/2)``."""
    if isinstance(value, list | tuple):
        return f"({', '.join(map(shown, value))})"
    if isinstance(value, float):
        return f"{value:.4g}"
    return str(value)
