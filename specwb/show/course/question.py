"""Questions, whose answers stay closed until one has committed oneself.

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
  ``{name:.2f}``, in ``answer``, and in ``show``, a drawing or plotly figure behind the answer.
- ``given = {seed = 2}`` are values that a lesson may replace, as in ``ask("7.bias", seed=3)``.
  Where the answer varies, with these or with the machine, each choice has a sentence in ``wrong``.
"""

from __future__ import annotations

import os
import tomllib
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from specwb.core.errors import SpecwbError
from specwb.core.extras import require
from specwb.show.course.drawing import Drawing

FOLDER = Path(__file__).parent / "questions"
HOLE = "<!--specwb-still-->"
"""Where ``notebooks/execute.py`` puts the PNG of a figure into a folded answer."""


class QuestionError(SpecwbError, ValueError):
    """There is no such question, its file contradicts itself, or the guess is no choice of it."""


_ASKED: dict[str, Question] = {}  # key -> the first one asked, whose guess counts
_SCORES: list[Score] = []  # those that are shown, and follow


@dataclass(eq=False, repr=False)
class Question:
    """A question and the guess at it; what :func:`ask` returns and a notebook shows.

    Attributes:
        key: lesson or paper and name, as in ``"2.keep"``.
        question, because: its texts.
        choices: choice -> why it is wrong; empty for a right one.
        given: the choice that was guessed, or None.
    """

    key: str
    question: str
    choices: dict[str, str]
    because: str
    _show: Any
    _code: str
    given: str | None = None
    _box: Any = None

    @property
    def answer(self) -> list[str]:
        """The right choices."""
        return [choice for choice, wrong in self.choices.items() if not wrong]

    @property
    def right(self) -> bool | None:
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
                self._open()
            for one in _SCORES:
                one._shown.value = one._html()
        return bool(self.right)

    def __repr__(self) -> str:
        return f"Question {self.key}: {self.question} [{' / '.join(self.choices)}]"

    def _answered(self) -> str:
        """The answer and the reason, and behind a fold the code that computed it, as HTML."""
        answer = "</b> or <b>".join(map(escape, self.answer))
        return (
            f"<p>The answer: <b>{answer}</b>. {escape(self.because)}</p>"
            '<details class="specwb-code"><summary><small>how it was computed</small></summary>'
            f"<pre>{escape(self._code)}</pre></details>"
        )

    def _static(self) -> str:
        """Question, choices and the folded answer, for pages without a kernel."""
        listed = "".join(f"<li>{escape(c)}</li>" for c in self.choices)
        wrong = "".join(
            f"<li><i>{escape(c)}</i>: {escape(why)}</li>" for c, why in self.choices.items() if why
        )
        picture = getattr(self._show, "svg", HOLE if self._show is not None else "")
        return (
            f"<p><b>Question.</b> {escape(self.question)}</p><ul>{listed}</ul>"
            "<details><summary>I have made my guess: show the answer</summary>"
            f"{self._answered()}<ul>{wrong}</ul>{picture}</details>"
        )

    def _live(self) -> Any:
        require("specwb.show.course.question", "notebooks", "ipywidgets")
        import ipywidgets as w

        wide = {"width": "auto", "min_width": "90px", "height": "auto"}
        self._line = w.HTML()
        self._buttons = [w.Button(description=c, layout=wide) for c in self.choices]
        for button in self._buttons:
            button.on_click(lambda b: self.guess(b.description))
        question = w.HTML(f"<b>Question.</b> {escape(self.question)}")
        row = w.HBox(self._buttons, layout={"flex_flow": "row wrap"})
        self._box = w.VBox([question, row, self._line], layout={"width": "100%"})
        if self.given is not None:
            self._open()
        return self._box

    def _open(self) -> None:
        """The buttons stand still, and the answer is there."""
        import ipywidgets as w

        for button in self._buttons:
            button.disabled = True
            if button.description in self.answer:
                button.button_style, button.icon = "success", "check"
            elif button.description == self.given:
                button.button_style, button.icon = "danger", "times"
        why = self.choices[str(self.given)]
        head = f"<p><b>Not so.</b> {escape(why)}</p>" if why else "<p><b>Right.</b></p>"
        self._line.value = f'<div role="status">{head}{self._answered()}</div>'
        more = []
        if isinstance(self._show, Drawing):
            more = [w.HTML(self._show.svg)]
        elif self._show is not None:
            from specwb.show.widgets.figure import LiveFigure

            more = [LiveFigure(self._show)]
        self._box.children = (*self._box.children[:3], *more)

    def _ipython_display_(self) -> None:
        from IPython.display import display

        bundle = dict(self._live()._repr_mimebundle_())
        if os.environ.get("SPECWB_STILLS") and HOLE in self._static():
            from specwb.show.widgets.display import STILL, still

            bundle[STILL] = still(self._show)
        display({**bundle, "text/html": self._static(), "text/plain": repr(self)}, raw=True)


def _lessons() -> dict[str, dict[str, Any]]:
    files = sorted(FOLDER.glob("*.toml"), key=lambda path: (len(path.stem), path.stem))
    return {path.stem: tomllib.loads(path.read_text("utf-8")) for path in files}


def questions() -> list[str]:
    """Return the keys of all questions, those of lessons first."""
    return [
        f"{lesson}.{name}"
        for lesson, rows in _lessons().items()
        for name, row in rows.items()
        if isinstance(row, dict)
    ]


def ask(key: str, **given: Any) -> Question:
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
    rows = _lessons()[lesson]
    row, code = rows[name], rows[name].get("facts", "")
    defaults, choices, wrong = row.get("given", {}), row["choices"], row["wrong"]
    if unknown := given.keys() - defaults.keys():
        has = f"it has {', '.join(defaults)}" if defaults else "it takes no values"
        raise QuestionError(f"{key} has no {', '.join(unknown)}; {has}")
    for name, value in given.items():
        if not isinstance(value, type(defaults[name])):
            raise QuestionError(
                f"{key}: {name} must be like {defaults[name]!r}, got {value!r:.200}"
            )
    facts = {**defaults, **given, "choices": choices}
    for part in (rows.get("facts", ""), code):
        exec(compile(part, f"{key}, facts", "exec"), facts)
    answer = eval(compile(row["answer"], f"{key}, answer", "eval"), facts)
    right = list(answer) if isinstance(answer, list | tuple) else [str(answer)]
    if not set(right) < set(choices) or not right:
        raise QuestionError(f"{key}: the answer {right} is none, or all, of {list(choices)}")
    if set(wrong) not in (set(choices), set(choices) - set(right)):
        raise QuestionError(f"{key}: the answer is {right}, `wrong` has {list(wrong)}")
    reasons = {c: "" if c in right else wrong[c].format_map(facts) for c in choices}
    show = eval(row["show"], facts) if "show" in row else None
    question, because = (row[text].format_map(facts) for text in ("question", "because"))
    made = Question(key, question, reasons, because, show, code + row["answer"])
    if key not in _ASKED or _ASKED[key].given is None:
        _ASKED[key] = made
    return made


class Score:
    """How many of the questions that had been asked were answered, and how many rightly."""

    def __init__(self) -> None:
        self._keys = list(_ASKED)

    _asked = property(lambda self: [_ASKED[key] for key in self._keys if key in _ASKED])
    asked = property(lambda self: len(self._asked))
    answered = property(lambda self: sum(one.given is not None for one in self._asked))
    right = property(lambda self: sum(bool(one.right) for one in self._asked))

    def __repr__(self) -> str:
        return f"Questions: {self.asked} asked, {self.answered} answered, {self.right} right"

    def _html(self) -> str:
        signs = {None: "○", True: "●", False: "✗"}
        row = " ".join(
            f'<span title="{escape(one.question, quote=True)}">{signs[one.right]}</span>'
            for one in self._asked
        )
        return f'<div role="status">{escape(repr(self))} {row}</div>'

    def _ipython_display_(self) -> None:
        require("specwb.show.course.score", "notebooks", "ipywidgets")
        import ipywidgets as w
        from IPython.display import display

        self._shown = w.HTML(self._html())
        _SCORES.append(self)
        bundle = {**self._shown._repr_mimebundle_(), "text/html": self._html()}
        display({**bundle, "text/plain": repr(self)}, raw=True)


def score() -> Score:
    """The score of the questions asked so far; shown, it follows every further guess at them."""
    return Score()
