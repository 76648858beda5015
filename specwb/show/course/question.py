"""Questions, whose answers stay closed until the reader has guessed.

``specwb/show/course/questions/2.toml`` holds the questions of lesson 2, ``kangaroo.toml`` those of
the notebook on that paper. A cell of the lesson is ``course.ask("2.keep")`` and nothing else, so no
answer is in sight:

```toml
facts = '''                  # of the file: Python that runs before each of its questions
from specwb.theory import exact
p, q = exact.norm([5, 3, 2]), exact.norm([2, 3, 5])
'''
[keep]
question = "Token 2 was drawn. With which probability should it be kept?"
choices = ["1/5", "2/5", "1/2"]
answer = "min(1, p[2] / q[2])"
because = "It is drafted with probability {q[2]} and must come out with probability {p[2]}."
wrong."1/5" = "Then it would come out with probability 1/2 · 1/5, which is half of p."
wrong."1/2" = "That is how often it is drafted."
```

- ``answer``, an expression, *computes* the right choice, or a list of those that cannot be told
  apart. Of measured things it calls ``course.best``, ``within`` or ``nearest``; for these
  ``choices`` may be a table (choice = number), which the expression knows as ``choices``.
- ``because`` says why the right choice is right, and ``wrong`` of each other choice why it is not.
  The choices without a sentence must be the computed answer, so that no sentence outlives the
  number that it is about: :class:`QuestionError`, and a test asks every question.
- ``facts`` of the question run after those of the file. Their names can stand in the texts, as
  ``{name:.2f}``, in ``answer``, and in ``show``, a plotly figure behind the answer.
- ``given = {seed = 2}`` are values that a lesson may replace, as in ``ask("7.bias", seed=3)``.
  Where the answer varies with these each choice has a sentence in ``wrong``.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from html import escape
from pathlib import Path
from typing import Any

from specwb.core.errors import SpecwbError
from specwb.core.extras import require

FOLDER = Path(__file__).parent / "questions"


class QuestionError(SpecwbError, ValueError):
    """There is no such question, its file contradicts itself, or the guess is no choice of it."""


_ASKED: dict[str, MultipleChoice] = {}  # key -> the first one asked, whose guess counts


@dataclass(eq=False, repr=False)
class MultipleChoice:
    """A question with choices, and the guess at it; what :func:`ask` returns and a notebook shows.

    Attributes:
        key: lesson or paper and name, as in ``"2.keep"``.
        question, because: its texts.
        choices: choice -> why it is wrong; empty for a right one.
        code: Python that computed the answer.
        figure: plotly figure behind the answer, or None.
        given: the choice that was guessed, or None.
    """

    key: str
    question: str
    choices: dict[str, str]
    because: str
    code: str
    figure: Any = None
    given: str | None = None
    _buttons: Any = None
    _box: Any = None

    @property
    def answer(self) -> list[str]:
        """The right choices."""
        return [choice for choice, wrong in self.choices.items() if not wrong]

    @property
    def right(self) -> bool | None:
        """Whether the guess is right; None before it."""
        return None if self.given is None else self.given in self.answer

    def guess(self, choice: str) -> bool:
        """Answer: what a click does. The first guess counts; it cannot be taken back.

        Raises:
            QuestionError: none of the choices.
        """
        if choice not in self.choices:
            raise QuestionError(f"{choice!r} is none of {', '.join(map(repr, self.choices))}")
        if self.given is None:
            self.given = choice
            if self._box is not None:
                self._buttons.given = choice
                self._show_figure()
        return bool(self.right)

    def __repr__(self) -> str:
        return f"Question {self.key}: {self.question} [{' / '.join(self.choices)}]"

    def _explained(self) -> str:
        """The answer and the reason, and behind a fold the code that computed it, as HTML."""
        answer = "</b> or <b>".join(map(escape, self.answer))
        return (
            f"<p>The answer: <b>{answer}</b>. {escape(self.because)}</p>"
            '<details class="specwb-code"><summary><small>how it was computed</small></summary>'
            f"<pre>{escape(self.code)}</pre></details>"
        )

    def _page(self) -> str:
        """Question, choices and the folded answer as HTML, which ``question.js`` reads."""
        listed = "".join(f"<li>{escape(choice)}</li>" for choice in self.choices)
        wrong = "".join(
            f"<li><i>{escape(choice)}</i>: {escape(why)}</li>"
            for choice, why in self.choices.items()
            if why
        )
        return (
            f"<p><b>Question.</b> {escape(self.question)}</p><ul>{listed}</ul>"
            "<details><summary>I have made my guess: show the answer</summary>"
            f"{self._explained()}<ul>{wrong}</ul></details>"
        )

    def _ipython_display_(self) -> None:
        require("specwb.show.course.ask", "notebooks", "ipywidgets", "anywidget")
        import ipywidgets as w
        from IPython.display import display

        from specwb.show.widgets.question import QuestionButtons

        page = self._page()
        self._buttons = QuestionButtons(page=page, given=self.given)
        self._buttons.observe(lambda change: self.guess(change.new), "given")
        self._box = w.VBox([self._buttons], layout={"width": "100%"})
        self._show_figure()
        texts = {"text/html": page, "text/plain": repr(self)}
        display({**self._box._repr_mimebundle_(), **texts}, raw=True)

    def _show_figure(self) -> None:
        """Put the figure behind the answer below it, once there is a guess."""
        if self.given is not None and self.figure is not None:
            from specwb.show.widgets.figure import LiveFigure

            self._box.children = (self._buttons, LiveFigure(self.figure))


def lessons() -> dict[str, dict[str, Any]]:
    """Return the files of all lessons and papers, by their names, the lessons first."""
    files = sorted(FOLDER.glob("*.toml"), key=lambda path: (len(path.stem), path.stem))
    return {path.stem: _parsed(path.read_text("utf-8")) for path in files}


@cache
def _parsed(text: str) -> dict[str, Any]:
    return tomllib.loads(text)


def questions() -> list[str]:
    """Return the keys of all questions, those of lessons first."""
    return [
        f"{lesson}.{name}"
        for lesson, rows in lessons().items()
        for name, row in rows.items()
        if isinstance(row, dict) and name != "exercises"
    ]


def ask(key: str, **given: Any) -> MultipleChoice:
    """Ask before showing: the only line of a cell.

    In a notebook the choices are buttons, and the answer opens on the first click, which counts
    towards :func:`score`. Without a kernel the question stands there with its answer folded.

    Args:
        key: lesson or paper and name, as in ``"2.keep"``.
        given: values that replace those of the question's ``given``.
    Raises:
        QuestionError: no such question or no such value; or the computed answer is none of the
            choices, is all of them, or is not what the sentences of ``wrong`` leave.
    """
    if key not in questions():
        raise QuestionError(f"no question {key!r}; there are {', '.join(questions())}")
    lesson, _, name = key.partition(".")
    rows = lessons()[lesson]
    row = rows[name]
    choices, wrong = row["choices"], row["wrong"]
    values = {**row.get("given", {}), **given}
    if unknown := given.keys() - row.get("given", {}).keys():
        raise QuestionError(f"{key} has no {', '.join(unknown)}")
    facts = {**values, "choices": choices}
    for part in (rows.get("facts", ""), row.get("facts", "")):
        exec(compile(part, f"{key}, facts", "exec"), facts)
    answer = eval(compile(row["answer"], f"{key}, answer", "eval"), facts)
    right = list(answer) if isinstance(answer, list | tuple) else [str(answer)]
    if not set(right) < set(choices) or not right:
        raise QuestionError(f"{key}: the answer {right} is none, or all, of {list(choices)}")
    if set(wrong) not in (set(choices), set(choices) - set(right)):
        raise QuestionError(f"{key}: the answer is {right}, `wrong` has {list(wrong)}")
    asked = MultipleChoice(
        key,
        row["question"].format_map(facts),
        {choice: "" if choice in right else wrong[choice].format_map(facts) for choice in choices},
        row["because"].format_map(facts),
        row.get("facts", "") + row["answer"],
        eval(row["show"], facts) if "show" in row else None,
    )
    if key not in _ASKED or _ASKED[key].given is None:
        _ASKED[key] = asked
    return asked


def score() -> None:
    """Print how many of the questions asked so far were answered, and how many rightly."""
    guesses = [question.right for question in _ASKED.values()]
    answered = len(guesses) - guesses.count(None)
    print(f"Questions: {len(guesses)} asked, {answered} answered, {guesses.count(True)} right")
