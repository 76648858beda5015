"""Every explorer, on data small enough for tests."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
import tiny
import torch

import specwb
from specwb.drafters.diffuspec_parts.ngram import NGram
from specwb.lab.evaluation import lattices
from specwb.lab.papers.kangaroo import Rounds, every_round

pytest.importorskip("plotly")
pytest.importorskip("ipywidgets")
pytest.importorskip("anywidget")

from specwb.show import widgets
from specwb.show.widgets.controls import Explorer

RATES = [0.55, 0.2, 0.1, 0.05]
PAIRS = [("a", "b"), ("c", "d"), ("e", "f")]
TEXTS = [[1, 2, 3], [5, 9], [7, 8, 9, 10, 11, 12, 13]]
EXITS = {
    "own": {0: 1.0, 1: 1.5, 2: 1.8, 5: 3.0},
    "other": {0: 1.0, 1: 1.25, 5: 2.0},
}
TOKENS = 30


def ranks(*firsts: float) -> dict[str, Any]:
    """A head's card of two domains: how often the first guess is right at each position, and the
    further ones ever less."""
    tables = {
        "code": [[round(a * 0.3**r, 4) for r in range(5)] for a in firsts],
        "prose": [[round(a * 0.5 * 0.6**r, 4) for r in range(5)] for a in firsts],
    }
    return {"held_out": {d: {"rank": t, "sampled": [0.5] * len(t)} for d, t in tables.items()}}


BLOCKS = {
    "falcon": (2, ranks(0.6, 0.4, 0.6, 0.4, 0.5, 0.4, 0.5, 0.4)),
    "eagle": (1, ranks(0.7, 0.6, 0.6)),
}


@cache
def proxy() -> NGram:
    return NGram.count([np.array([1, 2, 3, *tiny.plain("llama", (1, 2, 3), 40)])], tiny.VOCABULARY)


@cache
def found() -> list[lattices.BlockCandidates]:
    return lattices.places(tiny.target(), tiny.head("diffusion"), TEXTS, 5, 8)


@cache
def replay(tokens: int = 30) -> lattices.Replay:
    return lattices.Replay(tiny.target(), tiny.head("diffusion"), TEXTS[0], tokens, proxy)


@cache
def deep() -> specwb.Target:
    return specwb.load(tiny.build("llama", seed=2, num_hidden_layers=5))


def windows() -> torch.Tensor:
    return torch.arange(24).view(2, 12)


@cache
def traces() -> dict[str, Rounds]:
    method = specwb.method("kangaroo:gamma=5", tiny.target(), head=tiny.head("kangaroo"))
    whole = every_round(tiny.target(), tiny.PROMPTS, method, tokens=TOKENS)
    first = whole.text == 0
    other = Rounds(whole.sure[first], whole.kept[first], whole.text[first])
    return {"own": whole, "other": other}


def stop(**at: Any) -> widgets.StopExplorer:
    measured = {("own", 4): {0.6: (2.0, 1.25), 0.3: (2.1, 1.2)}}
    paper = {"g": {0.0: (2.5, 1.1), 0.5: (2.0, 1.5)}}
    return widgets.StopExplorer(traces(), EXITS, measured, paper, **at)


EXPLORERS: dict[str, Callable[..., Explorer]] = {
    "AcceptanceExplorer": lambda **at: widgets.AcceptanceExplorer(draws=100, **at),
    "BatchExplorer": lambda **at: widgets.BatchExplorer(most=3, **at),
    "BlockDesigner": lambda **at: widgets.BlockDesigner(BLOCKS, most=12, **at),
    "DependenceExplorer": lambda **at: widgets.DependenceExplorer(PAIRS, [0.5, 0.3, 0.2], **at),
    "Dials": lambda **at: widgets.Dials(
        "sps:gamma=2", tiny.target(), TEXTS, {"draft": tiny.draft()}, **at
    ),
    "FuzzyExplorer": lambda **at: widgets.FuzzyExplorer(deep(), windows(), **{"n": 3, **at}),
    "LatticeExplorer": lambda **at: widgets.LatticeExplorer(
        tiny.target(), found(), proxy(), tiny.scorer(tiny.target(), 6), **at
    ),
    "LengthExplorer": lambda **at: widgets.LengthExplorer(replay(), top=12, **at),
    "RootsExplorer": widgets.RootsExplorer,
    "RulesExplorer": widgets.RulesExplorer,
    "SpeedExplorer": lambda **at: widgets.SpeedExplorer(v=lambda gamma: 1 + gamma / 10, **at),
    "StopExplorer": stop,
    "TreeDesigner": lambda **at: widgets.TreeDesigner(RATES, **{"tree": (1, 1, 1, 1), **at}),
}
