"""The one way to display a figure or a widget in the project's notebooks."""

from __future__ import annotations

import os
from typing import Any

import ipywidgets as w
import plotly.graph_objects as go
from IPython.display import display
from plotly.basedatatypes import BaseFigure

from specwb.core.errors import ArgumentError
from specwb.core.files import stored_png
from specwb.show.figures.kit import read_off
from specwb.show.figures.style import CONFIG
from specwb.show.scope import module
from specwb.show.widgets.figure import LiveFigure, plain
from specwb.show.widgets.microscope import Microscope

FIGURE = "application/vnd.plotly.v1+json"
STILL = "application/vnd.specwb.still+json"
"""What a PNG is drawn from; ``notebooks/execute.py`` asks for it, draws it and throws it away."""


def show(thing: BaseFigure | w.DOMWidget, summary: str | None = None) -> None:
    """Display a figure or a widget together with one line of text that says what is to be read off
    it.

    The line is what is shown where nothing can be drawn (a terminal, a screen reader), and what
    notebook tests compare; so it must be the same in every run: no object addresses, no timings.
    Where the variable SPECWB_STILLS is set, as it is when notebooks are executed for committing,
    what a PNG beside it is drawn from goes along: GitHub and PDFs show the PNG.

    Args:
        thing: a plotly figure or an ipywidgets widget.
        summary: one line, not empty; of a figure by default what can be read off it
            (:func:`specwb.show.figures.kit.read_off`).
    Raises:
        TypeError: neither a figure nor a widget.
        ValueError: the summary is empty or longer than a line.
    """
    if summary is None and isinstance(thing, go.Figure):
        summary = read_off(thing)
    if not isinstance(summary, str) or not summary.strip() or "\n" in summary:
        raise ArgumentError(f"summary must be one line of text, got {summary!r}")
    if isinstance(thing, w.DOMWidget):
        data = thing._repr_mimebundle_()
        bundle = dict(data[0] if isinstance(data, tuple) else data)  # anywidget: with metadata
    elif isinstance(thing, go.Figure):
        bundle = {FIGURE: {**plain(thing), "config": CONFIG}}
    else:
        raise ArgumentError(
            f"show takes a plotly figure or an ipywidgets widget, got {type(thing).__name__}"
        )
    if os.environ.get("SPECWB_STILLS"):
        bundle[STILL] = still(thing)
    elif png := stored_png(summary):
        bundle["image/png"] = png
    display({**bundle, "text/plain": summary}, raw=True)


def still(thing: BaseFigure | w.Widget) -> list[dict[str, Any]]:
    """Return what is seen of a figure or a widget until somebody moves something, top to bottom.

    Each part has one key: ``figure`` (plotly's JSON), ``html``, or ``controls``, pairs of a
    control's description and what it is set to; or two, ``traces`` and the ``module`` for them.
    """
    if isinstance(thing, w.DOMWidget) and thing.layout.display == "none":
        return []
    if isinstance(thing, BaseFigure):
        return [{"figure": plain(thing)}]
    if isinstance(thing, LiveFigure):
        return still(thing.figure)
    if isinstance(thing, w.HTML):
        return [{"html": thing.value}] if thing.value else []
    if isinstance(thing, w.Tab):
        return still(thing.children[thing.selected_index])
    if isinstance(thing, w.Box):
        parts: list[dict[str, Any]] = []
        for part in (part for child in thing.children for part in still(child)):
            if parts and "controls" in part and "controls" in parts[-1]:
                parts[-1]["controls"] += part["controls"]
            else:
                parts.append(part)
        return parts
    if isinstance(thing, Microscope):
        return [{"traces": thing.traces, "module": module()}]
    if isinstance(thing, w.ValueWidget) and hasattr(thing, "description"):
        return [{"controls": [[thing.description, _setting(thing)]]}]
    return []


def _setting(control: w.ValueWidget) -> str:
    if isinstance(control, w.Checkbox):
        return "yes" if control.value else "no"
    if hasattr(control, "options"):  # a choice: its words, not its value
        chosen = control.options[control.index]
        return str(chosen[0] if isinstance(chosen, tuple) else chosen)
    return format(control.value, str(getattr(control, "readout_format", "")))
