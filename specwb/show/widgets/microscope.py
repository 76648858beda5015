"""The microscope in a notebook: a trace that plays, or a prompt box with Python behind it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import anywidget
import traitlets

from specwb.core.errors import ArgumentError
from specwb.core.inputs import integer
from specwb.engine.methods import METHODS
from specwb.models.target import Target
from specwb.show.scope import in_words, module, record
from specwb.show.scope.trace import Traces, several

MOST_TOKENS = 200  # of one recording from the page
SETTINGS: dict[str, Any] = {"options": "", "temperature": 0.0, "seed": 0, "max_new_tokens": 24}
"""Settings of the page's controls besides the prompt and the method."""


class Microscope(anywidget.AnyWidget):
    """Plays recorded decodings step by step: draft, score, test, bonus token.

    Keys: left and right move, with shift by whole steps; space plays; in the tree up and down move
    and enter chooses a node. Without ``target`` it needs no Python: the page plays what it has.

    Args:
        traces: what :func:`specwb.record` returned, one or several.
        target: with it the page has a prompt box and a menu of all methods, and :meth:`record` has
            to be called once.
        stage: where it stands at first: at this stage of the first step (draft, score, test,
            bonus), and after another trace at the step and stage before.
    Attributes:
        traces: what is played; the last recording, if there is a target.
        note: why the last recording failed, or empty.
    Raises:
        TraceError: one is no trace.
    """

    _esm = module()
    traces: Any = traitlets.List().tag(sync=True)
    live = traitlets.Dict(allow_none=True, default_value=None).tag(sync=True)
    note = traitlets.Unicode("").tag(sync=True)
    stage = traitlets.Unicode("").tag(sync=True)
    serial = traitlets.Int(0).tag(sync=True)  # the page looks when this has changed

    def __init__(
        self,
        traces: Traces = (),
        *,
        target: Target | None = None,
        stage: str = "",
    ) -> None:
        super().__init__(traces=several(traces), stage=stage)
        self._target = target
        self.on_msg(self._asked)

    def __repr__(self) -> str:
        """Name what is played: an address would differ in every run of a notebook."""
        return f"Microscope({self.summary})"

    @property
    def summary(self) -> str:
        """One line about what is played."""
        if not self.traces:
            return "no trace"
        one, more = self.traces[-1 if self._target else 0], len(self.traces) - 1
        others = f", and {more} more" if more and not self._target else ""
        return in_words(one) + others

    def play(self, trace: Mapping[str, Any]) -> None:
        """Play another trace."""
        self.traces, self.note = several(trace), ""
        self.serial += 1

    def record(self, prompt: str, method: str, **settings: Any) -> None:
        """What the page's Record button does, with other :data:`SETTINGS`. An error becomes the
        ``note``, and what was played stays.
        """
        assert self._target is not None
        chosen = {"prompt": prompt, "method": method, **SETTINGS, **settings}
        self.live = {"methods": list(METHODS), "settings": dict(chosen)}
        if options := chosen.pop("options"):
            chosen["method"] = f"{method}:{options}"
        try:
            integer("tokens", chosen["max_new_tokens"], 1, MOST_TOKENS)
            self.play(record(self._target, **chosen))
        except ValueError as error:  # every error of ours about an argument is one
            self.note = f"Not recorded: {error}"
            self.serial += 1

    def _asked(self, _: object, content: Any, buffers: object) -> None:
        """A message from the page: its settings, of which an empty box is None."""
        given = content.get("settings") if isinstance(content, dict) else None
        if self._target is not None and isinstance(given, dict):
            defaults = {"prompt": "", "method": "mcsd", **SETTINGS}
            self.record(**{name: given.get(name, at) for name, at in defaults.items()})


def microscope(
    what: Target | Traces,
    prompt: str | None = None,
    method: str | None = None,
    **settings: Any,
) -> Microscope:
    """A decoding under the microscope::

        specwb.microscope(specwb.load("lab"), "def fib(n):", temperature=1.0)  # with a prompt box
        specwb.microscope(specwb.record(target, "def fib(n):", "mcsd"))  # plays without Python

    Args:
        what: a target, or one or several traces.
        prompt: with a target: the text in the prompt box.
        method: with a target: what it is decoded with at first; default mcsd, or pld where the
            target has no draft model.
        settings: with a target: ``temperature``, ``seed``, ``max_new_tokens``, ``options`` (of the
            method, such as ``tree=4-2-2``).
    Raises:
        TraceError: this is no trace.
        ValueError: a prompt or settings beside a trace; no prompt beside a target; or what
            :func:`specwb.record` raises.
    """
    if not isinstance(what, Target):
        if prompt is not None or settings:
            raise ArgumentError("a trace is played as recorded: give a target to set a prompt")
        return Microscope(what)
    if not isinstance(prompt, str):
        raise ArgumentError(f"with a target, prompt must be a text (of its box), got {prompt!r}")
    if unknown := settings.keys() - SETTINGS.keys():
        raise ArgumentError(f"settings are {', '.join(SETTINGS)}; got {', '.join(unknown)}")
    if method is None:
        method = "pld" if what.draft is None else "mcsd"
    widget = Microscope(target=what)
    widget.record(prompt, method, **settings)
    if widget.note:
        raise ArgumentError(widget.note)
    return widget
