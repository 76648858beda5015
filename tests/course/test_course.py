"""The exercises: a right solution passes, wrong ones are answered by the smallest problem that they
get wrong."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from itertools import accumulate, product
from statistics import mean, median

import pytest

from specwb.show import course

half = Fraction(1, 2)
# right solutions by hand are the folded answers of the lessons, which test_lessons.py grades
ANSWERS = {name: exercise.answer for name, exercise in course.EXERCISES.items()}
accept, residual, speedup = (ANSWERS[name] for name in ("accept", "residual", "speedup"))
mask, expected, longest = (ANSWERS[name] for name in ("mask", "expected", "longest"))
lookup, cheapest = ANSWERS["lookup"], ANSWERS["cheapest"]


def normal(weights):
    return [w / sum(weights) for w in weights]


def acceptance(p, q):
    return sum(map(min, p, q))


def margin(joint):
    return [sum(column) for column in zip(*joint)]


def first_only(tokens, p, q):
    return [accept(p, q, tokens[0]), 0], residual(p, q)


WRONG: dict[str, tuple[Callable, ...]] = {
    "step_time": (
        lambda n, read, compute: read + n * compute,
        lambda n, read, compute: n * max(read, compute),
        lambda n, read, compute: max(read, compute),
    ),
    "tau": (
        lambda accepted: mean(Fraction(a) for a in accepted),
        lambda accepted: sum(accepted) + 1,
        lambda accepted: median(a + 1 for a in accepted),
    ),
    "speedup": (
        lambda alpha, gamma, c: (1 - alpha ** (gamma + 1)) / (1 - alpha) / (gamma * c + 1),
        lambda alpha, gamma, c: (1 + alpha * gamma) / (gamma * c + 1),
        lambda alpha, gamma, c: speedup(alpha, gamma, 0),
    ),
    "accept": (
        lambda p, q, x: p[x],
        lambda p, q, x: p[x] / q[x],
        lambda p, q, x: min(1, q[x] / p[x]),
    ),
    "residual": (
        lambda p, q: p,
        lambda p, q: [max(a - b, 0) for a, b in zip(p, q)],
        lambda p, q: normal([max(a - b, 0) for a, b in zip(p, q)]),
    ),
    "rejection": (
        lambda p, q: lambda tokens: ([accept(p, q, tokens[0])], p),
        lambda p, q: lambda tokens: ([1], None),
        lambda p, q: lambda tokens: ([p[tokens[0]]], residual(p, q)),
    ),
    "without": (
        lambda q, tokens: q,
        lambda q, tokens: [0 if x in tokens else share for x, share in enumerate(q)],
        lambda q, tokens: normal([0 if x in tokens[:1] else s for x, s in enumerate(q)]),
    ),
    "rrs": (
        lambda p, q: lambda tokens: (first_only(tokens, p, q)[0], p),
        lambda p, q: lambda tokens: ([accept(p, q, tokens[0]), (1 - accept(p, q, tokens[0]))
                                      * accept(p, q, tokens[1])], residual(p, q)),
        lambda p, q: lambda tokens: ([accept(p, q, x) for x in tokens], residual(p, q)),
    ),
    "most": (
        lambda p, q: sum(min(a, b) for a, b in zip(p, q)),
        lambda p, q: min(a + 1 - b**2 for a, b in zip(p, q)),
        lambda p, q: min(1, *(sum(p[:i]) + 1 - sum(q[:i]) ** 2 for i in range(len(p)))),
    ),
    "mask": (
        lambda parents: [[j <= i for j in range(len(parents))] for i in range(len(parents))],
        lambda parents: [[j in (i, parents[i]) for j in range(len(parents))]
                         for i in range(len(parents))],
        lambda parents: [list(row) for row in zip(*mask(parents))],
    ),
    "expected": (
        lambda parents, rates: sum(rates[1:]),
        lambda parents, rates: expected(parents, rates) + 1,
        lambda parents, rates: sum(accumulate(rates[1:], lambda a, b: a * b)),
    ),
    "longest": (
        lambda parents, tokens, best: sum(
            tokens[i] == best[parents[i]] for i in range(1, len(parents))),
        lambda parents, tokens, best: len(parents) - 1,
        lambda parents, tokens, best: longest(parents, tokens, best) + 1,
    ),
    "lookup": (
        lambda text, n, k: next((text[i + n : i + n + k] for i in range(len(text) - n - 1, -1, -1)
                                 if text[i : i + n] == text[-n:]), []),
        lambda text, n, k: lookup(text, 1, k),
        lambda text, n, k: lookup(text, n, k + 1),
    ),
    "unseen": (
        lambda joint: sum(map(max, joint)),
        lambda joint: max(map(max, joint)),
        lambda joint: max(map(sum, joint)),
    ),
    "kept": (
        lambda joint, path: sum(joint[path[0]]),
        lambda joint, path: len(path) * (joint[path[0]][path[1]] if path[1:] else
                                         sum(joint[path[0]])),
        lambda joint, path: sum(joint[path[0]]) + sum(sum(row[x] for row in joint)
                                                      for x in path[1:]),
    ),
    "ctar": (
        lambda accepted, w: Fraction(sum(a > w for a in accepted), len(accepted)),
        lambda accepted, w: Fraction(sum(a == w for a in accepted), len(accepted)),
        lambda accepted, w: sum(a >= w for a in accepted),
    ),
    "by_depth": (
        lambda accepted, tested: [Fraction(sum(a >= d for a in accepted), len(accepted))
                                  for d in range(1, max(tested) + 1)],
        lambda accepted, tested: [Fraction(sum(accepted), max(1, sum(tested)))],
        lambda accepted, tested: [1] * max(tested),
    ),
    "paired": (
        lambda plain, method: Fraction(sum(plain), sum(method)),
        lambda plain, method: mean(Fraction(a, b) for a, b in zip(plain, method)),
        lambda plain, method: median(method) / median(plain),
    ),
    "biased": (
        lambda p, q, rules: max("ABC", key=lambda name: sum(sum(rules["ABC".index(name)]([x, y])[0])
                                for x, y in product(range(len(p)), repeat=2))),
        lambda p, q, rules: max("ABC", key=lambda name: sum(
            abs(sum(rules["ABC".index(name)]([x, x])[0]) - p[x]) for x in range(len(p)))),
        lambda p, q, rules: rules[0].name,
    ),
    "several": (
        lambda p, q, k: 1 - (1 - acceptance(p, q)) ** k,
        lambda p, q, k: sum(min(a, k * b) for a, b in zip(p, q)),
        lambda p, q, k: sum(a * (1 - (1 - b) ** k) for a, b in zip(p, q)),
    ),
    "second": (
        lambda joint: sum(max(row) for row in joint),
        lambda joint: mean(acceptance(normal(row), margin(joint)) for row in joint if sum(row)),
        lambda joint: sum(x * x for x in margin(joint)),
    ),
    "cheapest": (
        lambda first, steps: min(first) + sum(min(map(min, step)) for step in steps),
        lambda first, steps: cheapest([0] * len(first), steps),
        lambda first, steps: cheapest(first, steps[:1]),
    ),
}  # fmt: skip


def test_every_exercise_is_here_two_a_lesson_and_more():
    names = list(course.EXERCISES)
    assert names == list(WRONG)
    lessons = [exercise.lesson for exercise in course.EXERCISES.values()]
    assert lessons == sorted(lessons, key=course.LESSONS.index)
    assert all(lessons.count(lesson) >= 2 for lesson in course.LESSONS[:-3])
    assert all(lessons.count(lesson) == 1 for lesson in course.LESSONS[-3:])  # of the walks
    assert all(course.task(name).split(": ")[1].startswith(f"{name}(") for name in names)


@pytest.mark.parametrize("name", WRONG)
def test_a_right_solution_passes_and_a_wrong_one_is_answered_by_a_problem(name):
    exercise = course.EXERCISES[name]
    found = course.grade(name, exercise.answer)
    assert str(found) == f"{name}: right, on all {found.tried} problems"
    assert found.tried >= 30
    assert len(WRONG[name]) == 3
    for wrong in WRONG[name]:
        found = course.grade(name, wrong)
        assert not found.right
        assert found.fault
        assert exercise.fault(found.problem, exercise.answer(**found.problem)) is None


@pytest.mark.parametrize(
    ("name", "limit"),
    [
        ("step_time", {"n": 99}),
        ("step_time", {"n": 999}),
        ("tau", {"accepted": 4}),
        ("speedup", {"gamma": 3}),
        ("most", {"p": 3, "q": 3}),
        ("without", {"tokens": 2}),
        ("expected", {"parents": 4, "rates": 4}),
        ("longest", {"parents": 4, "tokens": 4, "best": 4}),
        ("lookup", {"k": 2}),
        ("lookup", {"n": 2}),
        ("by_depth", {"accepted": 3, "tested": 3}),
        ("paired", {"plain": 3, "method": 3}),
    ],
)
def test_a_solution_that_stops_at_small_problems_is_seen(name, limit):
    """The right answer with the named arguments cut to a size: right on what anyone lists by hand,
    and wrong from there on."""
    exercise = course.EXERCISES[name]
    names = next(iter(exercise.problems()))

    def written_out(*arguments):
        cut = dict(zip(names, arguments))
        for key, most in limit.items():
            cut[key] = min(cut[key], most) if isinstance(cut[key], int) else cut[key][:most]
        return exercise.answer(**cut)

    found = course.grade(name, written_out)
    assert not found.right
    assert found.tried > 30


def test_the_smallest_problem_by_hand():
    """Drawing from p again after a rejection: with p = (0, 1), q = (1, 0) nothing is seen, since p
    is what is left; halves show it."""
    found = course.grade("rejection", WRONG["rejection"][0])
    assert found.problem == {"p": [half, half], "q": [1, 0]}
    assert str(found) == (
        "rejection: not yet. p = (1/2, 1/2), q = (1, 0): token 0 comes out with 3/4, the target"
        " says 1/2"
    )
    found = course.grade("residual", WRONG["residual"][2])
    assert found.problem == {"p": [1, 0], "q": [1, 0]}
    assert found.fault.startswith("it raises ZeroDivisionError")
    assert course.grade("mask", WRONG["mask"][1]).problem == {"parents": [-1, 0, 1]}


def test_what_is_handed_in_may_be_anything():
    with pytest.raises(course.ExerciseError, match="no exercise 'acept'; there are step_time, "):
        course.grade("acept", accept)
    with pytest.raises(course.ExerciseError, match="hand in a function, got 3"):
        course.grade("accept", 3)
    for answer in (None, "1/2", [], True, {"a": 1}):
        assert not course.grade("accept", lambda p, q, x, answer=answer: answer).right
        assert not course.grade("residual", lambda p, q, answer=answer: answer).right
    # what it does to its arguments is its own affair
    assert course.grade("accept", lambda p, q, x: (accept(p, q, x), p.clear(), q.clear())[0]).right


def test_the_lineups_have_one_biased_verifier_each_in_every_place():
    problems = list(course.EXERCISES["biased"].problems())
    names = [[rule.name for rule in one["rules"] if rule.biased] for one in problems]
    assert all(len(one) == 1 for one in names)
    assert {name for (name,) in names} == {"A", "B", "C"}
    assert [str(rule) for rule in problems[0]["rules"]] == [f"verifier {x}" for x in "ABC"]
    found = course.grade("biased", lambda p, q, rules: None)
    assert found.fault == "return A, B or C, got None"
