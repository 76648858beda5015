"""The exercises of the lessons, with what is right.

One is added as a function of its answer and an entry of :data:`EXERCISES`, in the order of the
lessons; its problems come from ``problems.py``, and ``tests/test_course.py`` has a right solution
of it and three wrong ones.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from itertools import combinations
from statistics import median
from typing import Any

from specwb.course.drafting import DRAFTERS, MEASURING
from specwb.course.grading import CLOSE, Exercise, ExerciseError, Grade, run, same, shown
from specwb.course.problems import (
    costs,
    drawn,
    forests,
    levels,
    machines,
    pairs,
    rated,
    rejected,
    rounds,
    seconds,
    walks,
)
from specwb.course.walks import WALKS
from specwb.verify import exact

LESSONS = (
    *("step", "rejection", "candidates", "trees", "drafters", "blocks", "measuring"),
    *("residuals", "dependence", "paths"),
)
"""What the lessons' exercises go by, in their order."""


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


def _most(p: list[Fraction], q: list[Fraction]) -> Fraction:
    tokens = range(len(p))
    sets = [s for size in range(len(p) + 1) for s in combinations(tokens, size)]
    return min(
        sum((p[x] for x in s), Fraction(1)) - sum((q[x] for x in s), Fraction(0)) ** 2 for s in sets
    )


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
    depths = range(1, max(tested) + 1)
    return [Fraction(sum(a >= d for a in accepted), sum(t >= d for t in tested)) for d in depths]


EXERCISES: dict[str, Exercise] = {
    exercise.name: exercise
    for exercise in (
        Exercise(
            "step_time",
            "step",
            "step_time(n, read, compute): the time of one forward pass over n tokens, on a machine"
            " that needs `read` to read the weights once and `compute` for the arithmetic of one"
            " token, and does both at the same time.",
            machines,
            lambda n, read, compute: max(read, n * compute),
        ),
        Exercise(
            "tau",
            "step",
            "tau(accepted): tokens per step, the bonus token counted, from the accepted draft"
            " tokens of every step.",
            rounds,
            lambda accepted: Fraction(sum(accepted) + len(accepted), len(accepted)),
        ),
        Exercise(
            "speedup",
            "step",
            "speedup(alpha, gamma, c): over plain decoding, of chains of gamma draft tokens that"
            " are each accepted with probability alpha, where a draft step costs c steps of the"
            " target and verifying costs one.",
            costs,
            lambda alpha, gamma, c: _tokens(alpha, gamma) / (gamma * c + 1),
        ),
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
            "rejection",
            "rejection",
            "rejection(p, q): the whole rule, as a function of [x], x drawn from q, that returns"
            " ([probability that x is accepted], residual). Any rule whose output has distribution"
            " p is right.",
            pairs,
            lambda p, q: lambda tokens: exact.rejection(p, q, tuple(tokens)),
            _lossless(1, exact.iid),
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
            "rrs",
            "candidates",
            "rrs(p, q): the whole rule for two candidates, as a function of [x1, x2], drawn from q"
            " independently, that returns ([probability that x1, that x2 is the accepted one],"
            " residual). Any rule whose output has distribution p is right.",
            lambda: pairs(parts=3),
            lambda p, q: lambda tokens: exact.rrs(p, q, tuple(tokens)),
            _lossless(2, exact.iid),
        ),
        Exercise(
            "most",
            "candidates",
            "most(p, q): the most that any rule can accept with two independent draws from q: the"
            " smallest p(S) + 1 - q(S)**2 over all sets S of tokens, the empty one included.",
            pairs,
            _most,
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
        *DRAFTERS,
        Exercise(
            "by_depth",
            "measuring",
            "by_depth(accepted, tested): for every depth from 1 on, of the steps that tested a"
            " candidate there the share that accepted one.",
            levels,
            _by_depth,
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
        *MEASURING,
        *WALKS,
    )
}
"""Name -> exercise, in the order of the lessons."""
GRADES: dict[str, Grade] = {}
"""Name -> the grade of the last solution that was handed in."""


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
    GRADES[name] = run(exercise, solution)
    return GRADES[name]


def task(name: str) -> str:
    """What an exercise asks for.

    Raises:
        ExerciseError: there is no such exercise.
    """
    exercise = _exercise(name)
    return f"{name} ({exercise.lesson}): {exercise.task}"


def _exercise(name: str) -> Exercise:
    if not isinstance(name, str) or name not in EXERCISES:
        raise ExerciseError(f"no exercise {name!r}; there are {', '.join(EXERCISES)}")
    return EXERCISES[name]
