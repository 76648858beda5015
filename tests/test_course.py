"""The exercises: a right solution passes, wrong ones are answered by the smallest problem that they
get wrong."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from itertools import accumulate, product
from statistics import mean, median

import pytest

from specwb import course

half = Fraction(1, 2)


def normal(weights):
    total = sum(weights)
    return [w / total for w in weights]


def step_time(n, read, compute):
    return max(read, compute * n)


def accept(p, q, x):
    return min(1, p[x] / q[x])


def residual(p, q):
    left = [max(a - b, 0) for a, b in zip(p, q)]
    return normal(left) if sum(left) else p


def acceptance(p, q):
    return 1 - sum(abs(a - b) for a, b in zip(p, q)) / 2


def rejection(p, q):
    return lambda tokens: ([accept(p, q, tokens[0])], residual(p, q))


def without(q, tokens):
    return normal([0 if x in tokens else share for x, share in enumerate(q)])


def rrs(p, q):
    def rule(tokens):
        left = residual(p, q)
        first = accept(p, q, tokens[0])
        second = accept(left, q, tokens[1])
        return [first, (1 - first) * second], residual(left, q)

    return rule


def most(p, q):
    best = 1
    for chosen in product((0, 1), repeat=len(p)):
        inside = [sum(a for a, c in zip(law, chosen) if c) for law in (p, q)]
        best = min(best, inside[0] + 1 - inside[1] ** 2)
    return best


def mask(parents):
    rows = []
    for node, parent in enumerate(parents):
        row = list(rows[parent]) if parent >= 0 else [False] * len(parents)
        row[node] = True
        rows.append(row)
    return rows


def expected(parents, rates):
    total, chance = 0, [1]
    for parent, rate in zip(parents[1:], rates[1:]):
        chance.append(chance[parent] * rate)
        total += chance[-1]
    return total


def longest(parents, tokens, best):
    node, accepted = 0, 0
    reached = {0: 0}
    for node in range(1, len(parents)):
        above = parents[node]
        if above in reached and tokens[node] == best[above]:
            reached[node] = reached[above] + 1
            accepted = max(accepted, reached[node])
    return accepted


def lookup(text, n, k):
    places = [i for i in range(len(text) - n) if text[i : i + n] == text[-n:]]
    return text[places[-1] + n : places[-1] + n + k] if places else []


def unseen(joint):
    (a, b), (c, d) = joint
    return max(a + c, b + d)


def ctar(accepted, w):
    return mean(a >= w for a in accepted)


def kept(joint, path):
    return sum(joint[path[0]]) + sum(joint[path[0]][x] for x in path[1:])


def comes_out(rule, p, q):
    out = [0] * len(p)
    for x, y in product(range(len(p)), repeat=2):
        accept, left = rule([x, y])
        refused = 1 - sum(accept)
        for token, chance in zip((x, y), accept):
            out[token] += q[x] * q[y] * chance
        for token, share in enumerate(left or []):
            out[token] += q[x] * q[y] * refused * share
    return out


def biased(p, q, rules):
    return "ABC"[[comes_out(rule, p, q) == p for rule in rules].index(False)]


def tau(accepted):
    return mean(Fraction(a + 1) for a in accepted)


def by_depth(accepted, tested):
    return [
        Fraction(sum(a >= d for a in accepted), sum(t >= d for t in tested))
        for d in range(1, max(tested) + 1)
    ]


def speedup(alpha, gamma, c):
    tokens = gamma + 1 if alpha == 1 else (1 - alpha ** (gamma + 1)) / (1 - alpha)
    return tokens / (gamma * c + 1)


def paired(plain, method):
    return median(a / b for a, b in zip(plain, method))


def several(p, q, k):
    none, left = 1, p
    for _ in range(k):
        none, left = none * (1 - acceptance(left, q)), residual(left, q)
    return 1 - none


def margin(joint):
    return [sum(column) for column in zip(*joint)]


def second(joint):
    rows = [(sum(row), row) for row in joint if sum(row)]
    return sum(share * acceptance(normal(row), margin(joint)) for share, row in rows)


def cheapest(first, steps):
    """By listing all paths."""
    paths = product(*(range(len(layer)) for layer in [first, *(step[0] for step in steps)]))
    return min(
        first[path[0]] + sum(step[a][b] for step, a, b in zip(steps, path, path[1:]))
        for path in paths
    )


RIGHT = (step_time, tau, speedup, accept, residual, rejection, without, rrs, most, mask, expected,
         longest, lookup, unseen, kept, ctar, by_depth, paired, biased, several, second,
         cheapest)  # fmt: skip


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
        lambda text, n, k: next((text[i + n : i + n + k] for i in range(len(text) - n)
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
    names = [solution.__name__ for solution in RIGHT]
    assert names == list(course.EXERCISES) == list(WRONG)
    lessons = [exercise.lesson for exercise in course.EXERCISES.values()]
    assert lessons == sorted(lessons, key=course.LESSONS.index)
    assert all(lessons.count(lesson) >= 2 for lesson in course.LESSONS[:-3])
    assert all(lessons.count(lesson) == 1 for lesson in course.LESSONS[-3:])  # of the walks
    assert all(course.task(name).split(": ")[1].startswith(f"{name}(") for name in names)


@pytest.mark.parametrize("solution", RIGHT, ids=lambda solution: solution.__name__)
def test_a_right_solution_passes(solution):
    name = solution.__name__
    found = course.grade(name, solution)
    assert found.right, str(found)
    assert found.tried >= 30
    assert str(found) == f"{name}: right, on all {found.tried} problems"
    assert course.grade(name, course.EXERCISES[name].answer).right


@pytest.mark.parametrize(
    ("name", "which"), [(name, i) for name, several in WRONG.items() for i in range(len(several))]
)
def test_a_wrong_solution_is_answered_by_a_problem(name, which):
    """And on that problem the right solution is right."""
    assert len(WRONG[name]) == 3
    found = course.grade(name, WRONG[name][which])
    assert not found.right
    assert found.fault
    exercise = course.EXERCISES[name]
    right = next(one for one in RIGHT if one.__name__ == name)
    assert exercise.fault(found.problem, right(*found.problem.values())) is None


def beyond(limit: dict[str, int], answer: Callable) -> Callable:
    """The right answer with the named arguments cut to a size: right for all that are no larger."""

    def written_out(*arguments):
        names = next(iter(course.EXERCISES[answer.__name__].problems()))
        cut = dict(zip(names, arguments))
        for name, most in limit.items():
            cut[name] = min(cut[name], most) if isinstance(cut[name], int) else cut[name][:most]
        return answer(*cut.values())

    return written_out


@pytest.mark.parametrize(
    ("solution", "limit"),
    [
        (step_time, {"n": 99}),
        (step_time, {"n": 999}),
        (tau, {"accepted": 4}),
        (speedup, {"gamma": 3}),
        (most, {"p": 3, "q": 3}),
        (without, {"tokens": 2}),
        (expected, {"parents": 4, "rates": 4}),
        (longest, {"parents": 4, "tokens": 4, "best": 4}),
        (lookup, {"k": 2}),
        (lookup, {"n": 2}),
        (by_depth, {"accepted": 3, "tested": 3}),
        (paired, {"plain": 3, "method": 3}),
    ],
    ids=lambda value: getattr(value, "__name__", None) or "-".join(value),
)
def test_a_solution_that_stops_at_small_problems_is_seen(solution, limit):
    """It is right on what anyone lists by hand, and wrong from there on."""
    found = course.grade(solution.__name__, beyond(limit, solution))
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
