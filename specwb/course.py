"""Exercises that mark themselves: a solution is run on all small problems in exact fractions, and
the answer to a wrong one is the smallest problem that it gets wrong.

```python
def residual(p, q):
    left = [max(x - y, 0) for x, y in zip(p, q)]
    return [x / sum(left) for x in left]


specwb.course.grade("residual", residual)  # p = (1, 0), q = (1, 0): .. ZeroDivisionError
```

Distributions are lists of fractions; a solution may return floats, which are compared to 1e-9. No
model takes part. Every exercise belongs to one of four lessons: the rejection rule, several
candidates, trees, measuring.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass
from fractions import Fraction
from itertools import product
from statistics import median
from typing import Any

from specwb.errors import SpecwbError
from specwb.verify import exact

CLOSE = 1e-9


class ExerciseError(SpecwbError, ValueError):
    """There is no such exercise, or what was handed in is no function."""


@dataclass(frozen=True)
class Exercise:
    """Something to write.

    Attributes:
        name: what :func:`grade` calls it.
        lesson: rejection, candidates, trees or measuring.
        task: what is to be returned, beginning with the function's arguments.
        problems: name -> value of every argument, the smallest problem first.
        answer: what is right, called with the same arguments.
        judge: says what is wrong with (arguments, what was returned), or None. Default: it is
            compared with ``answer``.
    """

    name: str
    lesson: str
    task: str
    problems: Callable[[], Iterable[dict[str, Any]]]
    answer: Callable[..., Any]
    judge: Callable[[dict[str, Any], Any], str | None] | None = None

    def fault(self, problem: dict[str, Any], given: Any) -> str | None:
        """What is wrong with an answer, or None."""
        if self.judge is not None:
            return self.judge(problem, given)
        wanted = self.answer(**problem)
        return None if same(given, wanted) else f"you say {shown(given)}, it is {shown(wanted)}"


@dataclass(frozen=True)
class Grade:
    """What became of a solution.

    Attributes:
        exercise: its name.
        right: whether no problem was found that it gets wrong.
        tried: how many problems it was run on.
        problem: the smallest one that it gets wrong, or None.
        fault: what is wrong there.
    """

    exercise: str
    right: bool
    tried: int
    problem: dict[str, Any] | None = None
    fault: str = ""

    def __str__(self) -> str:
        if self.right:
            return f"{self.exercise}: right, on all {self.tried} small problems"
        assert self.problem is not None
        where = ", ".join(f"{name} = {shown(value)}" for name, value in self.problem.items())
        return f"{self.exercise}: not yet. {where}: {self.fault}"

    __repr__ = __str__


def grade(name: str, solution: Callable[..., Any]) -> Grade:
    """Run a solution on the small problems of an exercise, the smallest first, up to the first that
    it gets wrong.

    Args:
        name: one of :data:`EXERCISES`; ``print(specwb.course.task(name))`` says what is asked.
        solution: the function; what it raises counts as wrong.
    Raises:
        ExerciseError: no such exercise, or no function.
    """
    exercise = _exercise(name)
    if not callable(solution):
        raise ExerciseError(f"{name}: hand in a function, got {solution!r}")
    tried = 0
    for problem in exercise.problems():
        tried += 1
        try:
            given = solution(*deepcopy(list(problem.values())))  # it may change its arguments
            fault = exercise.fault(problem, given)
        except Exception as error:  # whatever a student's function does
            fault = f"it raises {type(error).__name__}: {error}"
        if fault:
            return Grade(name, False, tried, problem, fault)
    return Grade(name, True, tried)


def task(name: str) -> str:
    """What an exercise asks for.

    Raises:
        ExerciseError: there is no such exercise.
    """
    exercise = _exercise(name)
    return f"{name} ({exercise.lesson}): {exercise.task}"


def _exercise(name: str) -> Exercise:
    if name not in EXERCISES:
        raise ExerciseError(f"no exercise {name!r}; there are {', '.join(EXERCISES)}")
    return EXERCISES[name]


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


# ------------------------------------------------------------------------------------- problems


def distributions(tokens: int, parts: int) -> Iterator[list[Fraction]]:
    """All distributions over so many tokens whose probabilities are multiples of 1 / parts."""
    for counts in product(range(parts, -1, -1), repeat=tokens):
        if sum(counts) == parts:
            yield [Fraction(n, parts) for n in counts]


def pairs(tokens: Sequence[int] = (2, 3), parts: int = 4) -> Iterator[dict[str, Any]]:
    """All pairs p, q: fewer tokens first, then smaller denominators."""
    for n in tokens:
        seen = set()
        for size in range(1, parts + 1):
            for p, q in product(distributions(n, size), repeat=2):
                if (key := (tuple(p), tuple(q))) not in seen:
                    seen.add(key)
                    yield {"p": p, "q": q}


def drawn() -> Iterator[dict[str, Any]]:
    """p, q and a token that q can draw."""
    for pair in pairs():
        for x, chance in enumerate(pair["q"]):
            if chance:
                yield {**pair, "x": x}


def rejected() -> Iterator[dict[str, Any]]:
    """A draft's distribution and tokens that were rejected, of which others are left."""
    for n in (2, 3):
        for size in range(1, 5):
            for q in distributions(n, size):
                for tokens in ([], *([x] for x in range(n)), *([0, x] for x in range(1, n))):
                    if sum(q[x] for x in range(n) if x not in tokens):
                        yield {"q": q, "tokens": tokens}


def forests(most: int = 5) -> Iterator[dict[str, Any]]:
    """All trees of up to so many nodes, as parents; node 0 is the root and has -1."""
    for n in range(1, most + 1):
        for above in product(*(range(i) for i in range(1, n))):
            yield {"parents": [-1, *above]}


def rated() -> Iterator[dict[str, Any]]:
    """Trees with, for every node, the probability that it is accepted given its parent is; those of
    siblings sum to at most 1."""
    for tree in forests(4):
        parents = tree["parents"]
        for rates in product(
            (Fraction(1, 2), Fraction(1, 3), Fraction(0)), repeat=len(parents) - 1
        ):
            yield {"parents": parents, "rates": [Fraction(1), *rates]}


def walks() -> Iterator[dict[str, Any]]:
    """Trees with a token at every node, and the target's most probable token after each."""
    for tree in forests(4):
        n = len(tree["parents"])
        for tokens in product((0, 1), repeat=n - 1):
            for best in product((0, 1), repeat=n):
                yield {**tree, "tokens": [0, *tokens], "best": list(best)}


def rounds() -> Iterator[dict[str, Any]]:
    """Accepted draft tokens by round."""
    for n in range(1, 5):
        for accepted in product(range(4), repeat=n):
            yield {"accepted": list(accepted)}


def levels() -> Iterator[dict[str, Any]]:
    """Accepted and tested depths by round: what was tested is what was accepted, and where a
    candidate was rejected one more."""
    for n in range(1, 4):
        for several in product([(0, 1), (1, 1), (1, 2), (2, 2), (0, 0)], repeat=n):
            yield {"accepted": [a for a, _ in several], "tested": [t for _, t in several]}


def costs() -> Iterator[dict[str, Any]]:
    """Acceptance rate, draft length, cost of a draft step in steps of the target."""
    rates = (Fraction(0), Fraction(1), Fraction(1, 2), Fraction(2, 3))
    for gamma in range(4):
        for alpha, c in product(rates, (Fraction(0), Fraction(1, 10), Fraction(1, 4))):
            yield {"alpha": alpha, "gamma": gamma, "c": c}


def seconds() -> Iterator[dict[str, Any]]:
    """Paired runs: seconds of plain decoding and of a method."""
    for n in range(1, 4):
        for several in product([(1, 1), (2, 1), (4, 1), (1, 2)], repeat=n):
            yield {"plain": [a for a, _ in several], "method": [b for _, b in several]}


# -------------------------------------------------------------------------------------- answers


def _residual(p: list[Fraction], q: list[Fraction]) -> list[Fraction]:
    left = exact.minus(p, q)
    return exact.norm(left) if sum(left) else list(p)


def _lossless(k: int, scheme: Callable) -> Callable[[dict[str, Any], Any], str | None]:
    """A judge of rules: the token that comes out must have the target's distribution."""

    def judge(problem: dict[str, Any], given: Any) -> str | None:
        rule, p, q = given, problem["p"], problem["q"]
        if not callable(rule):
            return f"return a function of a list of {k} tokens, got {shown(rule)}"
        out = [Fraction(0)] * len(p)
        for tokens, chance in scheme(q, k):
            accept, left = rule(list(tokens))
            rest = 1 - sum(accept)
            if len(accept) != len(tokens) or min(accept) < 0 or rest < -CLOSE:
                return f"for tokens {shown(tokens)} you accept with {shown(accept)}"
            for x, a in zip(tokens, accept, strict=True):
                out[x] += chance * a
            if rest > CLOSE:
                if left is None or len(left) != len(p):
                    return f"for tokens {shown(tokens)} there is no residual of {len(p)} tokens"
                for x, share in enumerate(left):
                    out[x] += chance * rest * share
        for x, (a, b) in enumerate(zip(out, p, strict=True)):
            if not same(a, b):
                return f"token {x} comes out with {shown(a)}, the target says {shown(b)}"
        return None

    return judge


def _rejection(p: list[Fraction], q: list[Fraction]) -> Callable:
    return lambda tokens: exact.rejection(p, q, tuple(tokens))


def _rrs(p: list[Fraction], q: list[Fraction]) -> Callable:
    return lambda tokens: exact.rrs(p, q, tuple(tokens))


def _mask(parents: list[int]) -> list[list[bool]]:
    rows = []
    for node in range(len(parents)):
        seen, at = [False] * len(parents), node
        while at >= 0:
            seen[at], at = True, parents[at]
        rows.append(seen)
    return rows


def _expected(parents: list[int], rates: list[Fraction]) -> Fraction:
    chance: list[Fraction] = []
    for node, parent in enumerate(parents):
        chance.append(rates[node] if parent < 0 else rates[node] * chance[parent])
    return sum(chance[1:], Fraction(0))


def _longest(parents: list[int], tokens: list[int], best: list[int]) -> int:
    depth = [0]
    for node in range(1, len(parents)):
        above = parents[node]
        good = depth[above] >= 0 and tokens[node] == best[above]
        depth.append(depth[above] + 1 if good else -1)
    return max(depth)


def _tokens(alpha: Fraction, gamma: int) -> Fraction:
    return sum((alpha**i for i in range(gamma + 1)), Fraction(0))


def _by_depth(accepted: list[int], tested: list[int]) -> list[Fraction]:
    deepest = max(tested)
    return [
        Fraction(sum(a >= d for a in accepted), sum(t >= d for t in tested))
        for d in range(1, deepest + 1)
    ]


EXERCISES: dict[str, Exercise] = {
    exercise.name: exercise
    for exercise in (
        Exercise(
            "accept",
            "rejection",
            "accept(p, q, x): the probability that draft token x, drawn from q, is accepted.",
            drawn,
            lambda p, q, x: min(Fraction(1), p[x] / q[x]),
        ),
        Exercise(
            "residual",
            "rejection",
            "residual(p, q): the distribution of the bonus token after a rejection. Where nothing"
            " is left of p - q, return p.",
            pairs,
            _residual,
        ),
        Exercise(
            "acceptance",
            "rejection",
            "acceptance(p, q): how often a token drawn from q is accepted.",
            pairs,
            lambda p, q: exact.overlap(p, q),
        ),
        Exercise(
            "rejection",
            "rejection",
            "rejection(p, q): the whole rule, as a function of [x], x drawn from q, that returns"
            " ([probability that x is accepted], residual). Any rule whose output has distribution"
            " p is right.",
            pairs,
            _rejection,
            _lossless(1, exact.iid),
        ),
        Exercise(
            "two_tries",
            "candidates",
            "two_tries(p, q): how often one of two tokens drawn from q independently is accepted,"
            " if the second is tested against what the first has left.",
            pairs,
            lambda p, q: exact.rrs_acceptance(p, q, 2),
        ),
        Exercise(
            "without",
            "candidates",
            "without(q, tokens): the draft's distribution once these tokens were drawn and"
            " rejected, for draws without replacement.",
            rejected,
            lambda q, tokens: exact.norm(exact.without(q, tuple(tokens))),
        ),
        Exercise(
            "naive",
            "candidates",
            "naive(p, q): how often a draw from p is among two independent draws from q.",
            pairs,
            lambda p, q: exact.naive_acceptance(p, q, 2),
        ),
        Exercise(
            "rrs",
            "candidates",
            "rrs(p, q): the whole rule for two candidates, as a function of [x1, x2], drawn from q"
            " independently, that returns ([probability that x1, that x2 is the accepted one],"
            " residual). Any rule whose output has distribution p is right.",
            lambda: pairs(parts=3),
            _rrs,
            _lossless(2, exact.iid),
        ),
        Exercise(
            "mask",
            "trees",
            "mask(parents): a list of rows; row i has True at the nodes that node i sees: itself"
            " and its ancestors. The root has parent -1.",
            forests,
            _mask,
        ),
        Exercise(
            "expected",
            "trees",
            "expected(parents, rates): how many draft tokens are accepted on average. rates[i] is"
            " the probability that node i is accepted if its parent is; the root's is 1 and is not"
            " counted.",
            rated,
            _expected,
        ),
        Exercise(
            "longest",
            "trees",
            "longest(parents, tokens, best): how many draft tokens greedy verification accepts."
            " best[i] is the target's most probable token after node i.",
            walks,
            _longest,
        ),
        Exercise(
            "tau",
            "measuring",
            "tau(accepted): tokens a step, the bonus token counted, from the accepted draft tokens"
            " of every step.",
            rounds,
            lambda accepted: Fraction(sum(accepted) + len(accepted), len(accepted)),
        ),
        Exercise(
            "by_depth",
            "measuring",
            "by_depth(accepted, tested): for every depth from 1 on, of the steps that tested a"
            " candidate there the share that accepted one.",
            levels,
            _by_depth,
        ),
        Exercise(
            "speedup",
            "measuring",
            "speedup(alpha, gamma, c): over plain decoding, of chains of gamma draft tokens that"
            " are each accepted with probability alpha, where a draft step costs c steps of the"
            " target and verifying costs one.",
            costs,
            lambda alpha, gamma, c: _tokens(alpha, gamma) / (gamma * c + 1),
        ),
        Exercise(
            "paired",
            "measuring",
            "paired(plain, method): the median of the speedups of paired runs, from their seconds.",
            seconds,
            lambda plain, method: median(
                Fraction(a, b) for a, b in zip(plain, method, strict=True)
            ),
        ),
    )
}
"""Name -> exercise, in the order of the lessons."""
