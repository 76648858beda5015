"""What an exercise is, and how a solution of it is graded."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from specwb.core.errors import SpecwbError

CLOSE = 1e-9


class ExerciseError(SpecwbError, ValueError):
    """There is no such exercise, or what was handed in is no function."""


@dataclass(frozen=True)
class Exercise:
    """Something to write, in one of :data:`specwb.show.course.LESSONS`."""

    lesson: str
    task: str  # what is to be returned, beginning with the function: ``name(arguments): ..``
    problems: Callable[[], Iterable[dict[str, Any]]]  # the arguments by name, the smallest first
    answer: Callable[..., Any]  # called with the same arguments
    # what is wrong with (arguments, what was returned), or None; default: other than ``answer``'s
    judge: Callable[[dict[str, Any], Any], str | None] | None = None

    @property
    def name(self) -> str:
        """What :func:`specwb.show.course.grade` calls it."""
        return self.task.partition("(")[0]

    def fault(self, problem: dict[str, Any], given: Any) -> str | None:
        """What is wrong with an answer, or None."""
        if self.judge is not None:
            return self.judge(problem, given)
        wanted = self.answer(**problem)
        return None if same(given, wanted) else f"you say {shown(given)}, it is {shown(wanted)}"


@dataclass(frozen=True)
class Grade:
    """What became of a solution."""

    exercise: str
    right: bool  # no problem was found that it gets wrong
    tried: int  # problems
    problem: dict[str, Any] | None = None  # the smallest one that it gets wrong
    fault: str = ""  # what is wrong there

    def __str__(self) -> str:
        if self.right:
            return f"{self.exercise}: right, on all {self.tried} problems"
        assert self.problem is not None
        where = ", ".join(f"{name} = {shown(value)}" for name, value in self.problem.items())
        return f"{self.exercise}: not yet. {where}: {self.fault}"

    __repr__ = __str__


def run(exercise: Exercise, solution: Callable[..., Any]) -> Grade:
    """Run a solution on an exercise's problems, up to the first that it gets wrong."""
    tried = 0
    for problem in exercise.problems():
        tried += 1
        try:
            given = solution(*deepcopy(list(problem.values())))  # it may change its arguments
            fault = exercise.fault(problem, given)
        except (Exception, SystemExit) as error:  # whatever a student's function does
            fault = f"it raises {type(error).__name__}: {error}"
        if fault:
            return Grade(exercise.name, False, tried, problem, fault)
    return Grade(exercise.name, True, tried)


def same(given: Any, wanted: Any) -> bool:
    """Whether an answer is the right one; floats to 1e-9."""
    if isinstance(wanted, list | tuple):
        if not hasattr(given, "__len__") or isinstance(given, str | dict):
            return False
        return len(given) == len(wanted) and all(
            same(a, b) for a, b in zip(given, wanted, strict=True)
        )
    if isinstance(wanted, bool) or wanted is None:
        return given is wanted or (wanted is not None and given == wanted)
    if isinstance(given, bool) or given is None or isinstance(given, str):
        return False
    return bool(abs(given - wanted) < CLOSE)


def shown(value: Any) -> str:
    """A value as one writes it by hand: ``(1/2, 1/2)``."""
    if isinstance(value, list | tuple):
        return f"({', '.join(map(shown, value))})"
    if isinstance(value, float):
        return f"{value:.4g}"
    return str(value)
