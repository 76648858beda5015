"""Questions, exercises and the answers to questions about measured numbers."""

from __future__ import annotations

from fractions import Fraction as F

import pytest

from specwb.core.errors import ArgumentError
from specwb.show import course
from specwb.show.course.question import _ASKED

FILE = """
facts = "two = 2"

[which]
question = "Is {two} < 3?"
choices = ["<yes>", "no", "both"]
answer = "'<yes>' if two < 3 else 'no'"
because = "{half:.1f} is less."
facts = "half = two / 4"
wrong."no" = "It is {two}."
wrong."both" = "It cannot be."

[seeded]
question = "What is {seed}?"
choices = { one = 1, two = 2, three = 3 }
given = { seed = 1 }
answer = "course.nearest(choices, *ends)"
facts = "from specwb.show import course; ends = (seed, seed + 0.6)"
because = "So it is."
show = "__import__('plotly').graph_objects.Figure()"
wrong = { one = "not {seed}", two = "not {seed}", three = "not {seed}" }
"""


@pytest.fixture
def file(tmp_path, monkeypatch):
    """Writes the questions of a lesson 9, of which none has been asked."""
    monkeypatch.setattr("specwb.show.course.question.FOLDER", tmp_path)
    before = dict(_ASKED)
    _ASKED.clear()
    path = tmp_path / "9.toml"
    path.write_text(FILE, "utf-8")
    yield path
    _ASKED.clear()
    _ASKED.update(before)


def displayed(question, monkeypatch) -> dict:
    """The mime bundle that a notebook gets."""
    pytest.importorskip("ipywidgets")
    pytest.importorskip("anywidget")
    bundles: list[dict] = []
    monkeypatch.setattr("IPython.display.display", lambda bundle, raw: bundles.append(bundle))
    question._ipython_display_()
    return bundles[0]


def test_the_first_guess_counts(file, capsys):
    asked = course.ask("9.which")
    course.score()
    assert not asked.guess("no")
    assert not asked.guess("<yes>")  # too late
    assert course.ask("9.which").guess("<yes>")  # the cell is run again
    course.ask("9.seeded").guess("one")
    course.score()
    first, second = capsys.readouterr().out.splitlines()
    assert first == "Questions: 1 asked, 0 answered, 0 right"
    assert second == "Questions: 2 asked, 2 answered, 1 right"
    with pytest.raises(course.QuestionError, match="'maybe' is none of '<yes>', 'no', 'both'"):
        asked.guess("maybe")


def test_the_answer_is_folded_until_one_has_guessed(file, monkeypatch):
    asked = course.ask("9.which")
    bundle = displayed(asked, monkeypatch)
    assert bundle["text/plain"] == "Question 9.which: Is 2 < 3? [<yes> / no / both]"
    before, folded = bundle["text/html"].split("<details>")
    assert "<li>&lt;yes&gt;</li>" in before
    assert "0.5 is less." in folded
    assert "<li><i>no</i>: It is 2.</li><li><i>both</i>: It cannot be.</li>" in folded
    assert "half = two / 4" in folded
    buttons = asked._buttons
    assert (buttons.page, buttons.given) == (bundle["text/html"], None)
    buttons.given = "no"  # as a click does
    assert asked.given == "no"
    buttons.given = "both"  # too late
    assert asked.right is False


def test_the_answer_varies_with_what_is_given(file, monkeypatch):
    """Several may be right; then each is."""
    assert course.ask("9.seeded").answer == ["one", "two"]
    asked = course.ask("9.seeded", seed=2)
    assert asked.choices == {"one": "not 2", "two": "", "three": ""}
    assert "<b>two</b> or <b>three</b>" in displayed(asked, monkeypatch)["text/html"]
    assert asked.guess("three")
    assert asked._buttons.given == "three"
    assert len(asked._box.children) == 2  # with the figure
    with pytest.raises(course.QuestionError, match="has no sed"):
        course.ask("9.seeded", sed=2)


@pytest.mark.parametrize(
    ("before", "after", "fault"),
    [
        ("two < 3 else", "two < 2 else", r"the answer is \['no'\], `wrong` has \['no', 'both'\]"),
        ("'<yes>' if", "'yes' if", r"\['yes'\] is none, or all, of"),
        ("'<yes>' if", "choices if", "is none, or all, of"),
        ("[which]", "[what]", "no question '9.which'; there are 9.what, 9.seeded"),
    ],
)
def test_what_cannot_be_asked(file, before, after, fault):
    file.write_text(FILE.replace(before, after), "utf-8")
    with pytest.raises(course.QuestionError, match=fault):
        course.ask("9.which")


def test_the_best_and_what_cannot_be_told_from_it():
    """By hand: differences of 1 in every pair are certain, whatever the prompts' own spread; those
    of mean 1 and standard error 3 are not."""
    spread = [0.0, 100.0, 20.0, 60.0] * 4
    steady = [x - 1 for x in spread]
    assert course.best({"a": spread, "b": steady}) == ["a"]
    assert course.best({"a": spread, "b": steady}, smallest=True) == ["b"]
    wild = [x - 1 + (12 if i % 2 else -12) for i, x in enumerate(spread)]
    assert course.best({"a": spread, "b": steady, "c": wild}) == ["a", "c"]
    assert course.best({"none": 0, "0": F(-3, 20), "2": F(1, 10)}) == ["2"]  # exact numbers
    assert course.best({"x": F(1, 3), "y": 1 / 3, "z": 0.33}) == ["x", "y"]
    assert course.best({"a": 1.0, "b": [0.9, 1.2, 0.9, 0.9]}) == ["a", "b"]


@pytest.mark.parametrize(
    ("values", "right"),
    [
        ((0.9,), ["fewer"]),
        ((1.0,), ["fewer"]),  # an upper end belongs to its range
        ((1.2, 1.15, 1.25), ["up to 1.2", "more"]),
        ((1.25, 0.9), ["fewer", "up to 1.2", "more"]),
    ],
)
def test_a_range_and_those_that_the_interval_touches(values, right):
    ranges = {"fewer": 1.0, "up to 1.2": 1.2, "more": 99.0}
    assert course.within(ranges, *values) == right
    with pytest.raises(ValueError, match="100 lies in none of the ranges, which end at 99"):
        course.within(ranges, 100)


def test_the_nearest_of_some_numbers():
    choices = {"five": 5, "two": 2, "one": 1}
    assert course.nearest(choices, 1.2) == ["one"]
    assert course.nearest(choices, 1.6, 1.4) == ["one", "two"]
    assert course.nearest(choices, 9) == ["five"]


def test_figures_of_every_prompt_are_those_of_the_study():
    document = course.stored("diffuspec-lab-cpu")
    for row in document["rows"][:12]:
        for what in ("tau", "speedup"):
            figures = course.per_prompt(document, row["cell"], what)
            assert sum(figures) / len(figures) == pytest.approx(row[what], abs=1e-4)
    assert course.ratio([2, 4, 6], [1, 2, 3]) == (2.0, 2.0, 2.0)
    assert course.with_intervals({"a": [2.0] * 9}, "x") == "a: 2.00x (2.00-2.00)"
    with pytest.raises(ArgumentError, match=r"no result 'x' in .*; there are .*tune-lab"):
        course.stored("x")


# ------------------------------------------------------------------------------------- exercises


def accept(p, q, x):
    return min(1, p[x] / q[x])


def residual(p, q):
    left = [max(a - b, 0) for a, b in zip(p, q)]
    return [share / sum(left) for share in left] if sum(left) else p


def test_the_smallest_problem_by_hand():
    """Drawing from p again after a rejection: with p = (0, 1), q = (1, 0) nothing is seen, since p
    is what is left; halves show it."""
    found = course.grade("rejection", lambda p, q: lambda tokens: ([accept(p, q, *tokens)], p))
    assert str(found) == (
        "rejection: not yet. p = (1/2, 1/2), q = (1, 0): its output is (3/4, 1/4), right is"
        " (1/2, 1/2)"
    )
    found = course.grade("residual", lambda p, q: [max(a - b, 0) / 0 for a, b in zip(p, q)])
    assert "p = (1, 0), q = (1, 0): it raises ZeroDivisionError" in found.fault
    found = course.grade("mask", lambda parents: [[j == i for j in parents] for i in parents])
    assert found.fault.startswith("parents = (-1, 0)")


@pytest.mark.parametrize(
    "answer",
    [
        None,
        "1/2",
        [],
        {"a": 1},
        float("nan"),
        ([2], None),
        ([-1], None),
        ([0.5], None),
        (0.5, None),
    ],
)
def test_what_is_returned_may_be_anything(answer):
    assert not course.grade("accept", lambda p, q, x: answer).right
    assert not course.grade("residual", lambda p, q: answer).right
    assert not course.grade("rejection", lambda p, q: lambda tokens: answer).right


def test_what_is_handed_in():
    # what it does to its arguments is its own affair, and floats will do
    done = lambda p, q, x: (float(accept(p, q, x)), p.clear(), q.clear())[0]  # noqa: E731
    assert course.grade("accept", done).right
    with pytest.raises(course.ExerciseError, match="no exercise 'acept'; there are step_time, "):
        course.grade("acept", accept)
    with pytest.raises(course.ExerciseError, match="hand in a function, got 3"):
        course.grade("accept", 3)
    assert course.task("accept").startswith("accept(p, q, x): the probability that")
