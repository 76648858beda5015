"""Explorers of the notebooks without a kernel: what their Python draws at the settings of a grid,
stored in the page, where ``explorers.js`` chooses among it.

A page says nothing that :class:`specwb.show.widgets.controls.Explorer` did not compute, and at
other settings than those of the grid a control cannot be put.
"""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import ipywidgets as w
import torch

import specwb
from specwb.core.tree import Tree
from specwb.lab.evaluation.lattices import Replay
from specwb.models.diffusion import load_diffusion
from specwb.models.load import data_dir
from specwb.models.path import KIND, load_path
from specwb.models.questions import load_prompts
from specwb.show import course, widgets
from specwb.show.widgets.controls import Explorer
from specwb.show.widgets.designer import MEASURED, ROOFLINE, SPEED, TOKENS
from specwb.show.widgets.display import _setting
from specwb.show.widgets.figure import plain

Grid = Mapping[str, Sequence[Any]]


@dataclass
class Stored:
    """An explorer and the settings at which it is stored.

    Attributes:
        make: the explorer as its notebook shows it at first.
        grids: control -> values; a control that a grid leaves out stays as it is at first. The
            initial values are added to the first grid.
    """

    make: Callable[[], Explorer]
    grids: Sequence[Grid]

    def settings(self, first: Mapping[str, Any]) -> Iterator[tuple[int, dict[str, Any]]]:
        """Every stored setting, with the number of its grid; ``first``: the initial one."""
        for i, grid in enumerate(self.grids):
            values = {name: [x] for name, x in first.items()}
            for name, given in grid.items():
                values[name] = list(given)
                if i == 0 and first[name] not in given:
                    values[name] = sorted([*given, first[name]])
            for setting in product(*values.values()):
                yield i, dict(zip(values, setting, strict=True))


def warm() -> list[float]:
    counted = course.stored("trees-lab")["sampled"]
    return next(run["by_rank"] for run in counted if run["temperature"] == 1)


def designer() -> Explorer:
    model = course.calibration()

    def cost(parents: list[int]) -> float:
        return model.round_seconds(Tree.parents(parents)) / model.target[1]

    return widgets.TreeDesigner(warm(), cost=cost, tree=(2, 1))


def lattice() -> Explorer:
    lab, texts, trigrams = course.lattices()
    scorer = load_path(lab.heads / "path" / KIND, lab)
    return widgets.LatticeExplorer(lab, texts, trigrams, scorer, text=3, reached=2, top=8)


def lengths() -> Explorer:
    lab, places, trigrams = course.lattices()
    model = load_diffusion(lab.heads / "diffusion", lab)
    replay = Replay(lab, model, list(places[2].text), 40, lambda: trigrams)
    return widgets.LengthExplorer(replay)


def blocks() -> Explorer:
    def card(kind: str) -> dict[str, Any]:
        return json.loads((data_dir() / "lab" / kind / "card.json").read_text("utf-8"))

    heads = {"falcon": (2, card("falcon")), "eagle": (1, card("eagle"))}
    return widgets.BlockDesigner(heads, nodes=16)


def exits() -> Explorer:
    documents = map(course.stored, ("kangaroo-lab-cpu", "kangaroo-ablation-lab"))
    return widgets.StopExplorer.of(*documents, eta=0.6, gamma=6)


def fuzzy() -> Explorer:
    lab = specwb.load("lab", dtype="float64", device="cpu")
    begun = [question.ids(lab.tokenizer)[:32] for question in load_prompts("lab")[::4]]
    begun = [start for start in begun if len(start) == 32][:4]
    written = specwb.decode(lab, begun, "ar", max_new_tokens=24, eos=()).tokens
    texts = torch.tensor([start + rest for start, rest in zip(begun, written, strict=True)])
    return widgets.FuzzyExplorer(specwb.method("easyspec", lab).drafter.draft, texts, n=4)


CITIES = (("New", "York"), ("Los", "Angeles"), ("San", "Francisco"))
LAMBDAS = [0.0, 0.25, 0.5, 0.75, 0.9, 1.0]
TENTHS = [round(i / 10, 1) for i in range(11)]
SHAPES: Grid = {
    "temperature": [0.3, 1.0, 3.0],
    "mismatch": [0.0, 0.5, 1.0, 1.5, 2.0, 3.0],
    "k": [1, 2, 3],
}
WRONG: Grid = {
    "verifier": ["rrs", "residual_from_p", "no_update_sampled", "keep_larger_q", "sorted_by_q",
                 "rrs_without_replacement"],
    "mismatch": SHAPES["mismatch"],
}  # fmt: skip
LEVELS: Grid = {
    "level_1": range(5), "level_2": range(4), "level_3": range(3), "level_4": [0, 1],
}  # fmt: skip
BEST: Grid = {"shape": [TOKENS, SPEED], "nodes": [4, 8, 16, 40], "depth": [1, 2, 4, 8]}

STORED: dict[tuple[str, str], Stored] = {
    ("2_the_rejection_rule", "explorer"): Stored(
        widgets.AcceptanceExplorer,
        [
            {
                "temperature": [0.2, 0.5, 1.0, 2.0, 5.0],
                "shift": [-5.0, -2.0, 0.0, 1.0, 2.0, 3.0, 5.0],
                "sharpness": [0.2, 1.0, 5.0],
            }
        ],
    ),
    ("3_many_candidates", "explorer"): Stored(widgets.RulesExplorer, [SHAPES, WRONG]),
    ("4_draft_trees", "designer"): Stored(
        designer,
        [
            LEVELS,
            {**LEVELS, "costs": [ROOFLINE], "balance": [8, 128]},
            {**BEST, "costs": [MEASURED]},
            {**BEST, "costs": [ROOFLINE], "balance": [1, 8, 32, 128, 512]},
        ],
    ),
    ("6_inside_and_blocks", "stop-explorer"): Stored(
        lambda: widgets.StopExplorer.of(course.stored("kangaroo-lab-cpu")),
        [{"eta": [round(i / 20, 2) for i in range(21)], "gamma": [2, 3, 4, 5, 6]}],
    ),
    ("7_measuring_honestly", "explorer"): Stored(
        widgets.BatchExplorer,
        [
            {
                "rows": [1, 16, 32, 40, 56, 80, 110, 128],
                "alpha": [0.3, 0.5, 0.65],
                "spread": [0.0, 0.25],
                "balance": [32, 128, 512],
            }
        ],
    ),
    ("8_the_residual_k_times", "explorer"): Stored(
        lambda: widgets.RulesExplorer(k=3, tab=2), [SHAPES]
    ),
    ("9_what_a_block_cannot_know", "explorer"): Stored(
        lambda: widgets.DependenceExplorer(CITIES, [0.5, 0.25, 0.25]),
        [{"d": TENTHS, "g": [0.0, 0.25, 0.5, 0.75, 1.0]}],
    ),
    ("10_a_path_through_the_lattice", "explorer"): Stored(
        lattice,
        [
            {"text": [1, 3, 4], "reached": range(1, 9), "lam": LAMBDAS, "top": [8, 11]},
            {"text": range(1, 13), "reached": [8], "score": [KIND], "beams": [1, 3]},
        ],
    ),
    ("diffuspec", "replay"): Stored(
        lengths,
        [
            {
                "least": [1, 2, 4, 8],
                "most": [8, 16, 30],
                "delta": [0, 1, 2, 4, 8],
                "rho": [0.25, 0.5, 0.75],
                "share": [0.0, 0.25, 0.5, 0.75, 0.9, 1.0],
            }
        ],
    ),
    ("easyspec", "explorer"): Stored(
        fuzzy,
        [{"n": range(1, 8), **dict.fromkeys(("first", "last", "whole"), (False, True))}],
    ),
    ("falcon", "designer"): Stored(
        blocks,
        [
            {
                "head": ["falcon", "eagle"],
                "passes": [1, 2, 3, 4],
                "nodes": [8, 16, 64],
                "c": [0.0, 0.05, 0.1, 0.2, 0.3, 0.5, 1.0],
            }
        ],
    ),
    ("kangaroo", "explorer"): Stored(
        exits,
        [
            {
                "exit": ["own", *(f"exit{layer}" for layer in (0, 1, 2, 3, 4, 6))],
                "eta": TENTHS,
                "gamma": [2, 4, 6],
            }
        ],
    ),
    ("mcsd", "designer"): Stored(
        lambda: widgets.TreeDesigner(warm(), nodes=29),
        [
            {
                "level_1": [1, 2, 4],
                "level_2": [0, 1, 2],
                "level_3": [0, 1, 2],
                "balance": [2**i for i in range(10)],
            },
            {**BEST, "balance": [1, 8, 32, 128, 512]},
        ],
    ),
    ("mcsd_ti", "roots"): Stored(
        widgets.RootsExplorer,
        [{"roots": [1, 2, 4], "depth": [1, 3], **dict.fromkeys("abcd", (0.0, 0.2, 0.9, 1.0))}],
    ),
}
"""Notebook and cell -> what its page has of its explorer."""


def frames(stored: Stored) -> dict[str, Any]:
    """What ``explorers.js`` reads. Values are named by texts.

    Returns:
        ``controls``, each a name, a label, whether it is a menu, and the words of its values;
        ``grids``, each control -> names of values; ``first``, where they stand at first; ``tabs``,
        the names of its figures, and ``tab``, the number of the first; ``base``, the figures at
        first; and ``frames``, by the names of all values: the line, and what differs from the base,
        as numbers of ``paths``, each with its value. Where nothing can be drawn the line says so,
        and nothing follows.
    """
    explorer = stored.make()
    redraw, explorer._redraw = explorer._redraw, lambda: None  # once for all controls
    first, base = explorer.settings(), _figures(explorer)
    grids: list[dict[str, list[str]]] = [{name: [] for name in first} for _ in stored.grids]
    words: dict[str, dict[str, str]] = {name: {} for name in first}
    paths: dict[str, int] = {}
    drawn: dict[str, list[Any]] = {}
    for i, setting in stored.settings(first):
        names = [_name(explorer[control], value) for control, value in setting.items()]
        explorer._set(setting)
        redraw()
        for control, name in zip(setting, names, strict=True):
            words[control][name] = _setting(explorer[control])
            if name not in grids[i][control]:
                grids[i][control].append(name)
        frame = drawn["|".join(names)] = [explorer.summary]
        if not explorer.summary.startswith("Not drawn"):
            for path, value in _changes(base, _figures(explorer), ()):
                frame += [paths.setdefault(json.dumps(path), len(paths)), value]
    return {
        "controls": [
            [
                name,
                explorer[name].description,
                isinstance(explorer[name], w.Dropdown | w.Checkbox),
                words[name],
            ]
            for name in first
        ],
        "grids": grids,
        "first": {name: _name(explorer[name], value) for name, value in first.items()},
        "tabs": list(explorer.tabs),
        "tab": explorer.tab,
        "paths": [json.loads(path) for path in paths],
        "base": base,
        "frames": drawn,
    }


def _figures(explorer: Explorer) -> list[Any]:
    return [plain(one.figure) for one in explorer._figures]


def _name(control: Any, value: Any) -> str:
    """A value's name: the number of a choice, or the number that it is."""
    values = [x[1] if isinstance(x, tuple) else x for x in getattr(control, "options", ())]
    return str(values.index(value)) if values else f"{value:g}"


def _changes(old: Any, new: Any, path: tuple[Any, ...]) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Paths and values of what differs; lists of numbers or words are replaced whole."""
    if isinstance(old, dict) and isinstance(new, dict) and old.keys() == new.keys():
        for key in old:
            yield from _changes(old[key], new[key], (*path, key))
    elif _parts(old) and _parts(new) and len(old) == len(new):
        for i, pair in enumerate(zip(old, new, strict=True)):
            yield from _changes(*pair, (*path, i))
    elif old != new:
        yield path, new


def _parts(x: Any) -> bool:
    return isinstance(x, list) and any(isinstance(part, dict | list) for part in x)


def html(notebook: str, cell: str, summary: str) -> str:
    """The explorer of a notebook's cell for its page, "" where none is stored.

    Raises:
        SystemExit: at first it says something else than the ``summary`` that the notebook stored.
    """
    if (notebook, cell) not in STORED:
        return ""
    table = frames(STORED[notebook, cell])
    if table["frames"]["|".join(table["first"].values())][0] != summary:
        raise SystemExit(f"the explorer of {notebook}, cell {cell}, has changed: execute it")
    text = json.dumps(table, ensure_ascii=False, separators=(",", ":"))
    packed = base64.b64encode(gzip.compress(text.encode(), mtime=0)).decode()
    return f'<div class="specwb-explorer explorer" data-frames="{packed}"></div>'
