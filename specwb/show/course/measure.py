"""Measured figures: what was measured in calm, and the same on this machine at the press of a
button, with a light that says whether the machine was quiet."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cache
from html import escape
from statistics import median
from typing import TYPE_CHECKING, Any

from specwb.core.errors import SpecwbError
from specwb.core.extras import require

if TYPE_CHECKING:
    from specwb.lab.cost.calibrate import CostModel

REPEATS = 5
SHIPPED, HERE = "shipped, measured in calm", "this machine, now"
Numbers = Mapping[Any, float]


class MeasuredError(SpecwbError, ValueError):
    """There is no such result, or no numbers to show."""


def stored(name: str, kind: str = "results") -> dict[str, Any]:
    """A shipped result, ``data/results/NAME.json``, or a file of another kind.

    Raises:
        MeasuredError: there is none of that name.
    """
    from specwb.core.files import document
    from specwb.models.load import data_dir

    folder = data_dir() / kind
    path = folder / f"{name}.json"
    if not path.is_file():
        names = ", ".join(sorted(p.stem for p in folder.glob("*.json")))
        raise MeasuredError(f"no result {name!r} in {folder}; there are {names}")
    return document(path)


def recording(name: str) -> dict[str, Any]:
    """A shipped recording for :func:`specwb.microscope`, made on a machine without other work.

    Raises:
        MeasuredError: there is none of that name.
    """
    return stored(name, "recordings")


def calibration(name: str = "tune-lab-cpu") -> CostModel:
    """The cost model of a shipped result of ``specwb tune``, its times in order.

    Raises:
        MeasuredError: there is none of that name, or it was not calibrated.
    """
    from specwb.lab.cost.calibrate import CostModel

    document = stored(name)
    if "calibrated" not in document:
        raise MeasuredError(f"{name} is no result of specwb tune")
    return CostModel.from_json(document["calibrated"])


TEXTS = 12  # how many of the lab family's prompts lesson 10 looks behind


@cache
def lattices(texts: int = TEXTS) -> tuple[Any, list[Any], Any]:
    """Return the lab's target, the lattices of its diffusion model behind some texts, and the
    trigrams: the arguments of :class:`specwb.show.widgets.LatticeExplorer`.

    The texts are the first prompts of the lab family, each with 4 to 15 tokens that the target
    wrote at T = 0. All is computed in float64, so that the digits are the same on every machine.
    """
    from specwb.drafters.diffuspec_parts.ngram import NGram
    from specwb.engine.decoding import decode
    from specwb.lab.evaluation.lattices import places
    from specwb.models.diffusion import load_diffusion
    from specwb.models.load import data_dir, load
    from specwb.models.questions import load_prompts

    lab = load("lab", dtype="float64", device="cpu")
    begun = [prompt.ids(lab.tokenizer)[:48] for prompt in load_prompts("lab")[:texts]]
    written = decode(lab, begun, "ar", max_new_tokens=4 + TEXTS, eos=()).tokens
    ids = [begun[i] + written[i][: 4 + i % TEXTS] for i in range(len(begun))]
    model = load_diffusion(data_dir() / "lab" / "diffusion", lab)
    trigrams = NGram.load(data_dir() / "lab" / "ngram" / "ngram.npz")
    return lab, places(lab, model, ids), trigrams


def paths_kept(family: str) -> Any:
    """Return the tokens kept at T = 0 of the eight that a family's diffusion model drafts, by what
    chooses the path: a frame with the mean over prompts, its 95 % interval, and the ratio to
    "search + text" with its own, compared prompt by prompt, as stored by ``benchmarks/paths.py``.

    "search" has trigrams counted beforehand, "search + text" also the n-grams of the text at hand
    (``diffuspec``'s default), "pair" is the greedy walk by a learned score, and "best path" is the
    most that any path through the candidates keeps.
    """
    import pandas as pd

    rows = [row for row in stored(f"paths-{family}")["kept"] if (row["k"], row["M"]) == (8, 15)]
    by = pd.DataFrame(rows).set_index("score")
    by[["ratio", "ratio low", "ratio high"]] = by["ratio"].tolist()
    named = {"row": "first choices", "own": "search", "cps": "search + text"}
    by = by.rename(index={**named, "lattice": "best path"})
    return by[["mean", "low", "high", "ratio", "ratio low", "ratio high"]]


@cache
def scorer() -> Any:
    """Return the lab family's learned path score, in float64."""
    from specwb.models.path import KIND, load_path

    lab, _, _ = lattices()
    return load_path(lab.heads / "path" / KIND, lab)


def origin(document: Mapping[str, Any]) -> str:
    """Where a result comes from, in one line: hardware, command."""
    arguments = document.get("arguments") or {}
    device = str(arguments.get("device", "hardware not stored"))
    parts = [re.sub(r"\b1 threads", "1 thread", device)]
    if "command" in document:
        parts.append(str(document["command"]))
    return ", by ".join(parts)


class Light:
    """Whether the machine is quiet: times a small fixed piece of work next to what is measured."""

    def __init__(self) -> None:
        import torch

        from specwb.engine.machine import Watch
        from specwb.lab.bench.measure import seconds_of

        weights = torch.full((384, 384), 0.5)

        def products() -> None:
            for _ in range(10):
                torch.mm(weights, weights)

        self._watch = Watch(lambda: seconds_of({"": products}, weights.device, count=1, warm=0)[""])
        self._steps: list[float] = []
        self.facts: dict[str, Any] = {}  # of the watch, once something was measured

    def around(self, work: Callable[[], Any]) -> Any:
        """Run the work between two probes."""
        before = self._watch.last
        outcome = work()
        slower = max(before, self._watch.probe())
        self._steps.append(slower)
        self.facts = self._watch.facts(self._steps, 0)
        return outcome

    def __str__(self) -> str:
        return says(self.facts)


def says(facts: Mapping[str, Any] | None) -> str:
    """The light in words, a sign first; the facts are those of a comparison's ``machine``."""
    if not facts:
        return "○ how quiet the machine was is not stored"
    slow = f"{facts['disturbed']} of {facts['runs']} runs beside a slow probe"
    if facts["busy"]:
        others = facts.get("others")
        crowd = f", other programs had {others:g} threads" if others else ""
        return f"▲ busy: {slow}{crowd}. Close what else is running and measure again"
    return f"● quiet: {slow}"


class Measured:
    """Numbers that were measured in calm, with a button that measures the same here.

    ```python
    tuned = course.stored("tune-lab-cpu")
    course.measured(v, "cost of scoring", document=tuned, measure=here, xaxis="tokens")
    ```

    The button runs ``measure`` five times, with a small fixed piece of work timed between the
    runs; it draws the medians beside the shipped numbers and says whether the machine was quiet.
    Nothing is measured until it is pressed, so a cell's stored output is the same everywhere.

    Args:
        numbers: x -> number, as shipped.
        title: what is shown.
        document: the result they come from (:func:`stored`): its hardware, command and, where it
            has it, how quiet the machine was are said below.
        measure: a function without arguments that returns numbers of the same keys.
        xaxis, yaxis: their titles, with units.
        draw: makes a figure of {name of the machine: numbers}; default: a line for each.
    Attributes:
        rows: name of the machine -> numbers.
        light: what is said of this machine once it was measured, or empty.
    Raises:
        MeasuredError: no numbers.
    """

    def __init__(
        self,
        numbers: Numbers,
        title: str,
        *,
        document: Mapping[str, Any] | None = None,
        measure: Callable[[], Numbers] | None = None,
        xaxis: str = "",
        yaxis: str = "",
        draw: Callable[[Mapping[str, Numbers]], Any] | None = None,
    ) -> None:
        if not numbers:
            raise MeasuredError(f"{title}: no numbers to show")
        self.rows: dict[str, Numbers] = {SHIPPED: dict(numbers)}
        self.title, self.light, self._measure = title, "", measure
        self._source = "stored" if document is None else origin(document)
        self._facts = None if document is None else document.get("machine")
        self._draw = draw or self._lines
        self._axes = yaxis, xaxis
        self._canvas: Any = None

    def _lines(self, rows: Mapping[str, Numbers]) -> Any:
        from specwb.show.figures import by_setting

        return by_setting(rows, self.title, *self._axes)

    def here(self, repeats: int = REPEATS) -> Numbers:
        """Measure on this machine: the median of several repeats. What the button does.

        Raises:
            MeasuredError: there is nothing to measure with.
        """
        if self._measure is None:
            raise MeasuredError(f"{self.title}: nothing was given to measure with")
        light = Light()
        runs = [light.around(self._measure) for _ in range(repeats)]
        self.rows[HERE] = {key: median(run[key] for run in runs) for key in runs[0]}
        widest = max(
            (max(r[k] for r in runs) - min(r[k] for r in runs)) / abs(self.rows[HERE][k] or 1)
            for k in runs[0]
        )
        self.light = f"{light}. Widest spread of {repeats} repeats: {widest:.0%} of the median"
        return self.rows[HERE]

    @property
    def summary(self) -> str:
        """One line of the shipped numbers; the same in every run."""
        values = ", ".join(f"{key}: {value:.3g}" for key, value in self.rows[SHIPPED].items())
        return f"{self.title} ({self._source}): {values}"

    def _widget(self) -> Any:
        import ipywidgets as w

        from specwb.show.widgets.figure import LiveFigure

        calm = "" if self._facts is None else f" {says(self._facts)}."
        caption = w.HTML(f"<small>Shipped: {escape(self._source)}.{escape(calm)}</small>")
        self._canvas = LiveFigure(self._draw(self.rows))
        parts: list[Any] = [self._canvas, caption]
        if self._measure is not None:
            button = w.Button(
                description="Measure on this machine", layout={"width": "auto", "height": "auto"}
            )
            line = w.HTML()

            def press(_: object) -> None:
                button.disabled, line.value = True, "measuring ..."
                try:
                    self.here()
                    self._canvas.figure = self._draw(self.rows)
                    line.value = f'<small role="status">{escape(self.light)}</small>'
                except Exception as error:  # a button has nowhere else to say it
                    line.value = f'<small role="status">not measured: {escape(str(error))}</small>'
                finally:
                    button.disabled = False

            button.on_click(press)
            parts.append(w.HBox([button, line], layout={"flex_flow": "row wrap"}))
        return w.VBox(parts, layout={"width": "100%"})

    def __repr__(self) -> str:
        return self.summary

    def _ipython_display_(self) -> None:
        require("specwb.show.course.measured", "notebooks", "plotly", "ipywidgets", "anywidget")
        from specwb.show.widgets.display import show

        show(self._widget(), self.summary)


measured = Measured
