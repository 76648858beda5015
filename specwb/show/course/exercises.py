"""The exercises of the lessons, with what is right.

One is added as a function of its answer and an entry of :data:`EXERCISES`, in the order of the
lessons; its problems come from ``problems.py``. A lesson's folded answer is a right solution of it,
and ``tests/course/test_course.py`` has three wrong ones.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from itertools import combinations, product
from statistics import median
from typing import Any

from specwb.show.course import problems
from specwb.show.course.grading import CLOSE, Exercise, ExerciseError, Grade, run, same, shown
from specwb.theory import exact


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


def _lookup(text: list[int], n: int, k: int) -> list[int]:
    for m in range(n, 0, -1):
        for start in range(len(text) - m - 1, -1, -1):
            if text[start : start + m] == text[-m:]:
                return text[start + m : start + m + k]
    return []


def _unseen(joint: list[list[Fraction]]) -> Fraction:
    return max(sum(column, Fraction(0)) for column in zip(*joint, strict=True))


def _kept(joint: list[list[Fraction]], path: list[int]) -> Fraction:
    first = sum(joint[path[0]], Fraction(0))
    return first + (joint[path[0]][path[1]] if len(path) > 1 else 0)


def _named(problem: dict[str, Any], given: Any) -> str | None:
    (right,) = (rule.name for rule in problem["rules"] if rule.biased)
    if given not in ("A", "B", "C"):
        return f"return A, B or C, got {given!r}"
    return None if given == right else f"you say {given}, it is {right}"


def _second(joint: list[list[Fraction]]) -> Fraction:
    rows, columns = [sum(row) for row in joint], [sum(column) for column in zip(*joint)]
    cells = product(enumerate(rows), enumerate(columns))
    return sum((min(joint[x][y], a * b) for (x, a), (y, b) in cells), Fraction(0))


def _cheapest(first: list[int], steps: list[list[list[int]]]) -> int:
    costs = first
    for step in steps:
        costs = [min(c + row[b] for c, row in zip(costs, step)) for b in range(len(step[0]))]
    return min(costs)


_LESSONS: dict[str, tuple[tuple[Any, ...], ...]] = {
    "step": (
        (
            "step_time(n, read, compute): the time of one forward pass over n tokens, on a"
            " machine that needs `read` to read the weights once and `compute` for the arithmetic"
            " of one token, and does both at the same time.",
            problems.machines,
            lambda n, read, compute: max(read, n * compute),
        ),
        (
            "tau(accepted): tokens per step, the bonus token counted, from the accepted draft"
            " tokens of every step.",
            problems.rounds,
            lambda accepted: Fraction(sum(accepted) + len(accepted), len(accepted)),
        ),
        (
            "speedup(alpha, gamma, c): over plain decoding, of chains of gamma draft tokens that"
            " are each accepted with probability alpha, where a draft step costs c steps of the"
            " target and verifying costs one.",
            problems.costs,
            lambda alpha, gamma, c: _tokens(alpha, gamma) / (gamma * c + 1),
        ),
    ),
    "rejection": (
        (
            "accept(p, q, x): the probability that draft token x, drawn from q, is accepted.",
            problems.drawn,
            lambda p, q, x: min(Fraction(1), p[x] / q[x]),
        ),
        (
            "residual(p, q): the distribution of the bonus token after a rejection. Where nothing"
            " is left of p - q, return p.",
            problems.pairs,
            _residual,
        ),
        (
            "rejection(p, q): the whole rule, as a function of [x], x drawn from q, that returns"
            " ([probability that x is accepted], residual). Any rule whose output has distribution"
            " p is right.",
            problems.pairs,
            lambda p, q: lambda tokens: exact.rejection(p, q, tuple(tokens)),
            _lossless(1, exact.iid),
        ),
    ),
    "candidates": (
        (
            "without(q, tokens): the draft's distribution once these tokens were drawn and"
            " rejected, for draws without replacement.",
            problems.rejected,
            lambda q, tokens: exact.norm(exact.without(q, tuple(tokens))),
        ),
        (
            "rrs(p, q): the whole rule for two candidates, as a function of [x1, x2], drawn from"
            " q independently, that returns ([probability that x1, that x2 is the accepted one],"
            " residual). Any rule whose output has distribution p is right.",
            lambda: problems.pairs(parts=3),
            lambda p, q: lambda tokens: exact.rrs(p, q, tuple(tokens)),
            _lossless(2, exact.iid),
        ),
        (
            "most(p, q): the most that any rule can accept with two independent draws from q: the"
            " smallest p(S) + 1 - q(S)**2 over all sets S of tokens, the empty one included.",
            problems.pairs,
            _most,
        ),
    ),
    "trees": (
        (
            "mask(parents): a list of rows; row i has True at the nodes that node i sees: itself"
            " and its ancestors. The root has parent -1.",
            problems.forests,
            _mask,
        ),
        (
            "expected(parents, rates): how many draft tokens are accepted on average. rates[i] is"
            " the probability that node i is accepted if its parent is; the root's is 1 and is not"
            " counted.",
            problems.rated,
            _expected,
        ),
        (
            "longest(parents, tokens, best): how many draft tokens greedy verification accepts."
            " best[i] is the target's most probable token after node i.",
            problems.walks,
            _longest,
        ),
    ),
    "drafters": (
        (
            "lookup(text, n, k): up to k tokens that followed the last n tokens of the text at"
            " the latest earlier place where these stood; if there is none, the same of the last"
            " n - 1, and so on down to 1; [] if the last token is new.",
            problems.texts,
            _lookup,
        ),
        (
            "unseen(joint): how often the best guess at the second token is right if the first is"
            " not seen. joint[a][b] is the probability that the tokens are a, then b.",
            problems.joints,
            _unseen,
        ),
    ),
    "blocks": (
        (
            "kept(joint, path): how many tokens of a drafted path of one or two are accepted on"
            " average, if a token is accepted when it is what the target draws. joint[a][b] is the"
            " target's probability of a, then b.",
            problems.drafted,
            _kept,
        ),
        (
            "ctar(accepted, w): the share of the steps that keep at least w draft tokens, from"
            " the accepted draft tokens of every step.",
            lambda: ({**steps, "w": w} for steps in problems.rounds() for w in (1, 2, 3)),
            lambda accepted, w: Fraction(sum(a >= w for a in accepted), len(accepted)),
        ),
    ),
    "measuring": (
        (
            "by_depth(accepted, tested): for every depth from 1 on, of the steps that tested a"
            " candidate there the share that accepted one.",
            problems.levels,
            _by_depth,
        ),
        (
            "paired(plain, method): the median of the speedups of paired runs, from their seconds.",
            problems.seconds,
            lambda plain, method: median(
                Fraction(a, b) for a, b in zip(plain, method, strict=True)
            ),
        ),
        (
            "biased(p, q, rules): which of three verifiers does not output p: 'A', 'B' or 'C'."
            " rules[i]([x1, x2]), with x1 and x2 drawn from q independently, returns ([probability"
            " that x1, that x2 is the accepted one], residual); the residual may be None where it"
            " is not needed.",
            problems.lineups,
            lambda p, q, rules: next(rule.name for rule in rules if rule.biased),
            _named,
        ),
    ),
    "residuals": (
        (
            "several(p, q, k): the probability that recursive rejection accepts one of k"
            " candidates, which are drawn from q independently.",
            problems.candidates,
            exact.rrs_acceptance_scalar,
        ),
    ),
    "dependence": (
        (
            "second(joint): how often the second token of a block is kept, if the first is the"
            " target's own and the block draws the second from its margin. joint[a][b] is the"
            " probability that the target's tokens are a, then b.",
            problems.joints,
            _second,
        ),
    ),
    "paths": (
        (
            "cheapest(first, steps): the cost of the cheapest path through a lattice. Its first"
            " token a costs first[a]; steps[i][a][b] is the cost of token b at place i + 1 if"
            " token a is at place i, counted from 0.",
            problems.searches,
            _cheapest,
        ),
    ),
}
"""Lesson -> its exercises: task, problems, answer, and a judge where several answers are right."""
LESSONS = tuple(_LESSONS)
"""What the lessons' exercises go by, in their order."""
EXERCISES = {
    exercise.name: exercise
    for lesson, rows in _LESSONS.items()
    for exercise in (Exercise(lesson, *row) for row in rows)
}
"""Name -> exercise, in the order of the lessons."""


def grade(name: str, solution: Callable[..., Any]) -> Grade:
    """Run a solution on the small problems of an exercise, the smallest first, up to the first that
    it gets wrong; what it raises counts as wrong. ``print(specwb.show.course.task(name))`` says
    what is asked.

    Raises:
        ExerciseError: no such exercise, or no function.
    """
    exercise = _exercise(name)
    if not callable(solution):
        raise ExerciseError(f"{name}: hand in a function, got {solution!r}")
    return run(exercise, solution)


def task(name: str) -> str:
    """Return what an exercise asks for."""
    exercise = _exercise(name)
    return f"{name} ({exercise.lesson}): {exercise.task}"


def _exercise(name: str) -> Exercise:
    if not isinstance(name, str) or name not in EXERCISES:
        raise ExerciseError(f"no exercise {name!r}; there are {', '.join(EXERCISES)}")
    return EXERCISES[name]
