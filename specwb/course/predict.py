"""Predict, then see: a question whose answer stays closed until one has committed oneself."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from html import escape
from typing import Any

from specwb.course.drawing import Drawing
from specwb.course.question import HOLE
from specwb.errors import SpecwbError
from specwb.extras import require


class PredictionError(SpecwbError, ValueError):
    """The question cannot be answered as it stands, or what was given is no answer to it."""


_ASKED: dict[str, Prediction] = {}  # the first of every question, whose guess counts
_SCORES: list[Any] = []  # score displays that follow


class Prediction:
    """A question and what was answered; what :func:`predict` returns and a notebook shows.

    Attributes:
        question, choices: as they were given to :func:`predict`.
        answer: the number, or the right choices.
        given: the answer that was given, or None.
        right: whether it is a right one, or None.
    """

    def __init__(
        self,
        question: str,
        choices: Sequence[str] | None,
        answer: float | tuple[str, ...],
        because: str,
        show: Any,
        within: float,
    ) -> None:
        self.question, self.choices, self.answer = question, choices, answer
        self.given: str | float | None = None
        self._because, self._show, self._within = because, show, within
        self._box: Any = None

    @property
    def right(self) -> bool | None:
        if self.given is None:
            return None
        if isinstance(self.answer, tuple):
            return self.given in self.answer
        return math.isclose(float(self.given), self.answer, rel_tol=self._within, abs_tol=1e-9)

    def guess(self, given: str | float) -> bool:
        """Answer: what a click does. The first answer counts; it cannot be taken back.

        Raises:
            PredictionError: none of the choices, or no number.
        """
        if self.choices is not None and given not in self.choices:
            raise PredictionError(f"{given!r} is none of {', '.join(map(repr, self.choices))}")
        if self.choices is None and (
            isinstance(given, str | bool) or not math.isfinite(float(given))
        ):
            raise PredictionError(f"a number is asked for, got {given!r}")
        if self.given is None:
            self.given = given
            if self._box is not None:
                self._open()
            for shown in _SCORES:
                shown.value = score()._html()
        return bool(self.right)

    # ---------------------------------------------------------------------------- what is shown

    def __repr__(self) -> str:
        choices = "a number" if self.choices is None else " / ".join(self.choices)
        return f"Predict: {self.question} [{choices}]"

    def _answered(self, head: str = "") -> str:
        """What is right and why, as HTML."""
        if isinstance(self.answer, tuple):
            answer = "</b> or <b>".join(map(escape, self.answer))
        else:
            answer = f"{self.answer:.4g}"
        text = f"{head}<b>{answer}</b>"
        if self._because:
            text += f". {escape(self._because)}"
        return f'<p style="margin:4px 0">{text}</p>'

    def _static(self) -> str:
        """Question, choices and the folded answer, for pages without a kernel."""
        listed = "".join(f"<li>{escape(c)}</li>" for c in self.choices or ())
        picture = HOLE if self._show is not None else ""
        if isinstance(self._show, Drawing):
            picture = self._show.svg
        return (
            f"<p><b>Predict.</b> {escape(self.question)}</p>"
            f"{f'<ul>{listed}</ul>' if listed else ''}"
            "<details><summary>I have made my guess: show the answer</summary>"
            f"{self._answered()}{picture}</details>"
        )

    def _live(self) -> Any:
        require("specwb.course.predict", "notebooks", "ipywidgets")
        import ipywidgets as w

        wide = {"width": "auto", "min_width": "90px", "height": "auto"}
        self._line = w.HTML()
        if self.choices is not None:
            self._controls = [w.Button(description=c, layout=wide) for c in self.choices]
            for button in self._controls:
                button.on_click(lambda b: self.guess(b.description))
        else:
            number = w.FloatText(description="my guess", layout={"width": "220px"})
            button = w.Button(description="Guess", layout=wide)
            button.on_click(lambda _: self.guess(number.value))
            self._controls = [number, button]
        question = w.HTML(f"<b>Predict.</b> {escape(self.question)}")
        row = w.HBox(self._controls, layout={"flex_flow": "row wrap"})
        self._box = w.VBox([question, row, self._line], layout={"width": "100%"})
        if self.given is not None:
            self._open()
        return self._box

    def _open(self) -> None:
        """The controls stand still, and the answer is there."""
        import ipywidgets as w

        for control in self._controls:
            control.disabled = True
            if isinstance(control, w.Button) and self.choices is not None:
                if isinstance(self.answer, tuple) and control.description in self.answer:
                    control.button_style, control.icon = "success", "check"
                elif control.description == self.given:
                    control.button_style, control.icon = "danger", "times"
        head = "Right. " if self.right else "Not so. "
        if self.choices is None:
            head += f"You said {self.given:g}, it is "
        self._line.value = f'<div role="status">{self._answered(head)}</div>'
        more = []
        if isinstance(self._show, Drawing):
            more = [w.HTML(self._show.svg)]
        elif self._show is not None:
            from specwb.widgets.figure import LiveFigure

            more = [LiveFigure(self._show)]
        self._box.children = (*self._box.children[:3], *more)

    def _ipython_display_(self) -> None:
        from IPython.display import display

        bundle = dict(self._live()._repr_mimebundle_())
        if os.environ.get("SPECWB_STILLS") and HOLE in self._static():
            from specwb.widgets.display import STILL, still

            bundle[STILL] = still(self._show)
        display({**bundle, "text/html": self._static(), "text/plain": repr(self)}, raw=True)


def predict(
    question: str,
    choices: Sequence[str] | None = None,
    *,
    answer: float | str | Sequence[str],
    because: str = "",
    show: Any = None,
    within: float = 0.1,
) -> Prediction:
    """Ask before showing: the last line of a cell that has computed the answer.

    ```python
    fastest = min(seconds, key=seconds.get)
    course.predict("Which forward takes longest?", ["1 token", "5 tokens"], answer=fastest)
    ```

    In a notebook the choices are buttons, and the answer opens on the first click, right or wrong.
    Without a kernel (GitHub, a page) the question stands there with its answer folded. The first
    guess at every question counts towards :func:`score`.

    Args:
        question: one sentence.
        choices: short texts, all different; None asks for a number.
        answer: the right choice, the right choices, or the number. Compute it where that is
            possible: of measured things by :func:`best`, :func:`within` or :func:`nearest`, which
            name all that cannot be told from the right one.
        because: a sentence or two that open with the answer.
        show: a :class:`Drawing` or a plotly figure that opens with the answer.
        within: how far off a number may be, as a share of the answer.
    Raises:
        PredictionError: fewer than two choices, two alike, an answer that is none of them, or no
            choice that is wrong.
    """
    right: float | tuple[str, ...]
    if choices is None:
        if isinstance(answer, str | bool | Sequence):
            raise PredictionError(f"without choices the answer is a number, got {answer!r}")
        right = float(answer)
    elif len(set(choices)) != len(choices) or len(choices) < 2:
        raise PredictionError(f"give two or more different choices, got {list(choices)}")
    else:
        several = [answer] if isinstance(answer, str) else answer
        if not isinstance(several, Sequence) or not several or not set(several) <= set(choices):
            raise PredictionError(f"the answer {answer!r} is none of the choices {list(choices)}")
        if len(set(several)) == len(choices):
            raise PredictionError(f"every choice is right, so there is nothing to ask: {question}")
        right = tuple(choice for choice in choices if choice in several)
    if not question.strip() or "\n" in question:
        raise PredictionError(f"the question must be one line, got {question!r}")
    made = Prediction(question, choices, right, because, show, within)
    if question not in _ASKED or _ASKED[question].given is None:
        _ASKED[question] = made
    return made


class Score:
    """How many of the predictions so far were answered, and how many rightly."""

    @property
    def asked(self) -> int:
        return len(_ASKED)

    @property
    def answered(self) -> int:
        return sum(one.given is not None for one in _ASKED.values())

    @property
    def right(self) -> int:
        return sum(bool(one.right) for one in _ASKED.values())

    def __repr__(self) -> str:
        return f"Predictions: {self.asked} asked, {self.answered} answered, {self.right} right"

    def _html(self) -> str:
        signs = {None: "○", True: "●", False: "✗"}
        row = " ".join(
            f'<span title="{escape(q, quote=True)}">{signs[one.right]}</span>'
            for q, one in _ASKED.items()
        )
        return f'<div role="status">{escape(repr(self))} {row}</div>'

    def _ipython_display_(self) -> None:
        require("specwb.course.score", "notebooks", "ipywidgets")
        import ipywidgets as w
        from IPython.display import display

        shown = w.HTML(self._html())
        _SCORES.append(shown)
        bundle = dict(shown._repr_mimebundle_())
        display({**bundle, "text/html": self._html(), "text/plain": repr(self)}, raw=True)


def score() -> Score:
    """The score of this notebook's predictions; shown, it follows every further guess."""
    return Score()
