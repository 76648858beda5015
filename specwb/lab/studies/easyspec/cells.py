"""What is decoded for EasySpec, and what is measured beside it: cosines, drift and times."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from specwb.core.errors import ArgumentError
from specwb.core.options import parse_value, spell
from specwb.drafters.easyspec import deep_draft
from specwb.engine.decoding import decode
from specwb.lab.evaluation import fuzzy
from specwb.lab.studies.grid import Cell
from specwb.lab.studies.study import Document, Models
from specwb.models.fuzzy import grouping
from specwb.models.questions import Question
from specwb.models.target import Target

DEPTH, N = 5, 4
"""Depth of the drafts, and layers of a group."""
NS, WIDTHS, WIDE_NS = (1, 2, 3, 4, 5, 6), (1, 4, 8, 12), (1, 2, 4, 5)
"""N of chains, widths of trees, and N of trees."""
TEMPERATURE = 0.8
"""The temperature of the cells that sample."""
TEXTS, PLACES, DRIFT = 12, 64, 12
"""Of what is measured beside the grid: texts, their tokens, and decoding steps."""


@dataclass(frozen=True)
class Eager(Cell):
    """A chain whose decoding steps are not recorded as graphs.

    It is laid out as a batch, which for a chain is the same and always eager.
    """

    layout: str = "batch"

    @property
    def key(self) -> str:
        return f"{super().key} eager"

    @property
    def plain(self) -> Cell:
        return Eager("ar", temperature=self.temperature)


def easy(
    n: int = N,
    width: int = 1,
    calibrate: bool = True,
    temperature: float = 0.0,
    kind: type[Cell] = Cell,
    **others: str,
) -> Cell:
    """Make the cell of an EasySpec drafter."""
    options: dict[str, Any] = {}
    if "groups" not in others:
        options["n"] = n
    if width > 1:
        options["width"] = width
    if not calibrate:
        options["calibrate"] = "false"
    text = ",".join(f"{name}={value}" for name, value in {**options, **others}.items())
    return kind(f"easyspec:{text}", temperature=temperature)


def plain(width: int = 1, temperature: float = 0.0, kind: type[Cell] = Cell) -> Cell:
    """Make the cell of the draft model as it is."""
    return easy(1, width, False, temperature, kind)


def settings(cell: Cell) -> dict[str, Any]:
    """Read the options in a cell's spec."""
    pairs = [part.partition("=") for part in cell.spec.partition(":")[2].split(",")]
    return {name: parse_value(value) for name, _, value in pairs}


def ends(layers: int) -> dict[str, Cell]:
    """Make the cells of groups of four with the first layer, the last or both in them, by name."""
    # whether the first and the last layer stand alone
    alone = {"first": (False, True), "last": (True, False), "first and last": (False, False)}
    out = {}
    for name, (first, last) in alone.items():
        groups = [list(group) for group in grouping(layers, N, first, last) if len(group) > 1]
        out[name] = easy(groups=spell(groups))
    return out


def all_cells(layers: int, device: str = "cpu") -> list[Cell]:
    """List all settings that are measured with a draft model of so many layers."""
    both = (True, False)  # with and without calibration
    kinds = ("simulation", "streams") if device == "cuda" else ("simulation",)
    out = [Cell("ar"), plain()]
    out += [easy(n, 1, on) for n in ns_of(layers) for on in both]
    out += [easy(n, w, on) for w in WIDTHS[1:] for n in ns_of(layers, WIDE_NS) for on in both]
    out += ends(layers).values()
    out += [easy(2, mlp="parallel"), easy(mlp="parallel")]
    out += [easy(execution=kind) for kind in kinds]
    t = TEMPERATURE
    out += [Cell("ar", temperature=t)]
    out += [easy(n, 1, on, t) for n in (1, 2, N) for on in both]
    out += [plain(8, t), easy(1, 8, True, t), easy(N, 8, True, t)]
    if device == "cuda":
        out += [Eager("ar"), plain(kind=Eager), easy(1, kind=Eager), easy(kind=Eager)]
        out += [easy(kind=Eager, execution=kind) for kind in kinds]
    return list(dict.fromkeys(out))


def ns_of(layers: int, ns: Sequence[int] = NS) -> list[int]:
    """Those N that a draft model of so many layers allows."""
    return [n for n in ns if n < layers]


def draft_of(target: Target, draft: Target | str | None = None) -> Target:
    """Return the draft model of all cells, default the target's own deep one."""
    model = deep_draft(target, draft)
    layers = len(model.backbone.layers)
    if layers <= N:
        raise ArgumentError(
            f"easyspec: {model.name!r} has {layers} layer(s), groups of {N} need {N + 1}; "
            "name a deeper one with --draft"
        )
    return model


def cells(document: Document) -> list[Cell]:
    """List the settings that a document is of, by its draft model's layers and its device."""
    return all_cells(document["layers"], document["kind"])


def facts(models: Models) -> Document:
    """Note what cells and claims depend on."""
    draft = draft_of(models.target, models.draft)
    return {"layers": len(draft.backbone.layers), "kind": models.target.device.type}


def probe(
    models: Models,
    questions: Sequence[Question],
    cells: Sequence[Cell],
    document: Document,
    seed: int,
) -> Iterator[tuple[float, str]]:
    """Measure cosines by N, the drift of the cache, and the times of the parts of a step."""
    target, draft = models.target, draft_of(models.target, models.draft)
    texts = models.texts(questions, 40 * (DEPTH + 1) + PLACES, TEXTS)
    chains = [
        plain(),
        *(easy(n) for n in ns_of(len(draft.backbone.layers))),
        *(easy(execution=kind) for kind in ("simulation", "streams")),
    ]

    def drift() -> dict[str, Any]:
        methods = {on: easy(N, 1, on).method(target, draft=draft) for on in (True, False)}
        return {
            spell(on): fuzzy.drift(target, texts, method, DRIFT, seed=seed)
            for on, method in methods.items()
        }

    def stages() -> dict[str, Any]:
        methods = {cell.spec: cell.method(target, draft=draft) for cell in chains if cell in cells}
        return fuzzy.draft_times(target, methods, max(texts, key=len))

    parts: dict[str, Callable[[], dict[str, Any]]] = {
        "cosines": lambda: _cosines(target, draft, texts),
        "drift": drift,
        "stages": stages,
        "times": lambda: {str(m): fuzzy.layer_times(draft, m) for m in WIDTHS},
    }
    for i, name in enumerate(parts, 1):
        if name not in document:
            document[name] = _five_digits(parts[name]())
            yield i / len(parts), name


def _cosines(target: Target, draft: Target, texts: list[list[int]]) -> dict[str, Any]:
    """Cosines between exact and fuzzy execution, by N, and of consecutive layers.

    They are taken over the last tokens of every text, with the target's own continuation.
    """
    layers = len(draft.backbone.layers)
    new = decode(target, texts, max_new_tokens=PLACES, eos=()).tokens
    windows = torch.tensor([(text + more)[-PLACES:] for text, more in zip(texts, new, strict=True)])
    by_n = {
        str(n): fuzzy.similarity(draft, windows, grouping(layers, n)) for n in ns_of(layers)[1:]
    }
    return {**by_n, "consecutive": fuzzy.consecutive(draft, windows)}


def _five_digits(x: Any) -> Any:
    """The same with all numbers rounded."""
    if isinstance(x, dict):
        return {name: _five_digits(value) for name, value in x.items()}
    return [_five_digits(value) for value in x] if isinstance(x, list) else float(f"{x:.5g}")
