"""Every method's options on sliders, and what they change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from time import perf_counter
from types import NoneType
from typing import Any

import numpy as np
from plotly.graph_objects import Figure

from specwb.core.errors import ArgumentError
from specwb.core.flow import Exactness
from specwb.core.options import Option, spell
from specwb.core.tree import Tree
from specwb.engine.decoding import rounds
from specwb.engine.methods import METHODS, Method, method, read_spec
from specwb.lab.bench.statistics import bootstrap
from specwb.models.load import load
from specwb.models.prompts import Prompt, token_rows
from specwb.models.questions import load_prompts
from specwb.models.target import Target
from specwb.rules import RULES
from specwb.show import figures
from specwb.show.scope import record
from specwb.show.widgets.controls import Control, Explorer
from specwb.show.widgets.microscope import Microscope

TEXTS, PROMPT, TOKENS, SHOWN = 6, 32, 24, 16
"""Texts, tokens of a prompt, tokens decoded of a text, tokens under the microscope."""
LARGEST = 256  # nodes of a tree
KEPT = 5  # settings in the figure
DEFAULT, USUAL = "default", "usual"  # a menu shows nothing where its value is None
TREES = ((1, 1, 1), (2, 1), (3, 2, 1), (4, 2, 2), (8,))


def dial(option: Option, given: Any = None) -> Control | None:
    """Make the control of an option: over its range, or up to four times its default where it has
    no end. There is none for models and files.

    Args:
        option: as of :func:`specwb.core.options.options_of`.
        given: a value that must be within the control's range.
    """
    default, kinds = option.default, set(option.types)
    row: dict[str, Any] = {"label": option.name.replace("_", " "), "row": 1, "help": option.help}
    if kinds == {bool}:
        return Control(default, **row)
    words: list[Any] = list(option.choices)
    if bool in kinds:
        words = [False, True, *words]
    if NoneType in kinds:
        words = [DEFAULT, *words]
    if Tree in kinds:
        words += [tree for tree in TREES if tree != default]
        words += [value for value in (default, given) if value not in (*words, None)]
    elif int in kinds:
        numbers = [value for value in (default, given) if value is not None]
        low = min([1, *numbers]) if option.low is None else option.low
        high = max([8, *(4 * number for number in numbers)])
        high = high if option.high is None else min(high, option.high)
        if not words:
            return Control(default, low, high, **row)
        words += range(low, high + 1)
    elif float in kinds:
        low, high = map(float, option.within[1:-1].split(","))
        step = 0.01 if high <= 1 else 0.5
        high = min(high, max(1.0, 4 * default))
        low, high = low + step * (option.within[0] == "("), high - step * (option.within[-1] == ")")
        return Control(default, low, high, step, **row)
    if words in ([], [DEFAULT]):
        return None
    start = DEFAULT if default is None else default
    return Control(start, of=[(spell(word), word) for word in words], **row)


class Dials(Explorer):
    """Move a method's options, and see a decoding under the microscope, tau with its interval over
    short texts, and the speedup on this machine.

    The controls are made from the method's ``Options``, with their ranges and help. Each change
    decodes all texts; settings that were seen before are known. The speedup is over plain decoding
    of the same texts.

    Args:
        spec: a method, with or without options, such as ``"eagle2:nodes=20"``.
        target: what :func:`specwb.load` returned; default the lab model.
        texts: prompts, two at least; default a few of the lab's.
        options: of the method. Models and files, which have no control, are given here.
    Attributes:
        tau: tokens per step with its 95 % interval over the texts.
        speedup: measured, with its 95 % interval.
    Raises:
        ArgumentError: fewer than two texts, or a tree with more than 256 nodes.
        SpecwbError: there is no such method, or its options cannot be used.
    """

    spec: str
    target: Any = None
    texts: Sequence[Prompt] | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    temperature: Any = Control(0.0, high=1.5, step=0.1)
    text: Any = Control(of=lambda self: list(range(1, len(self.rows) + 1)))

    def __post_init__(self) -> None:
        self.scope = Microscope(stage="bonus")
        super().__post_init__()
        self.set_trait("children", (*self.children, self.scope))

    def prepare(self) -> None:
        given = dict(self.options)
        entry, rule, self.given = read_spec(self.spec, given.pop("rule", None), given)
        self.spec, self.rule = entry.key, USUAL if rule is None else rule.name
        self.target = load("lab") if self.target is None else self.target
        if self.texts is None:
            words = self.target.tokenizer
            self.texts = [question.ids(words)[:PROMPT] for question in load_prompts("lab")[:TEXTS]]
        self.rows = token_rows(self.target, self.texts)
        if len(self.rows) < 2:
            raise ArgumentError("texts must be two at least, for an interval of tau")
        self.plain = method("ar", self.target)
        self.counts: dict[tuple[str, float], np.ndarray] = {}  # steps and seconds of each text
        self.tried: dict[str, tuple[Any, Any]] = {}  # settings -> tau, speedup

    def declared(self) -> dict[str, tuple[Control, Any]]:
        controls = super().declared()
        for name, option in METHODS[self.spec].options.items():
            given = self.given.get(name)
            if control := dial(option, given):
                controls[name] = control, given
        help = "the verification rule"
        controls["rule"] = Control(of=[USUAL, *RULES], row=2, help=help), self.rule
        return controls

    def draw(self, *values: Any) -> tuple[str, Figure]:
        at = self.settings()
        heat, rule = at["temperature"], at["rule"]
        chosen = {name: at[name] for name in METHODS[self.spec].options if name in at}
        chosen = {name: None if value == DEFAULT else value for name, value in chosen.items()}
        rule = None if rule == USUAL else rule
        built = method(self.spec, self.target, rule=rule, **{**self.given, **chosen})
        if (nodes := built.drafter.limits.nodes) > LARGEST:
            raise ArgumentError(f"a tree of {nodes} nodes; dials have at most {LARGEST}")
        settings: dict[str, Any] = {"temperature": heat, "seed": 0, "eos": ()}
        text = self.rows[at["text"] - 1]
        self.scope.play(record(self.target, text, built, max_new_tokens=SHOWN, **settings))
        steps, seconds = self._counted(built, settings).T
        _, plain = self._counted(self.plain, settings).T
        self.tau = bootstrap(np.array([[TOKENS] * len(steps), steps]))
        self.speedup = bootstrap(np.array([plain, seconds]))
        name = f"{built.key}, T = {heat:g}"
        self.tried.pop(name, None)
        self.tried = dict([*self.tried.items(), (name, (self.tau, self.speedup))][-KEPT:])
        taus = {key: tau for key, (tau, _) in self.tried.items()}
        speedups = {key: speedup for key, (_, speedup) in self.tried.items()}
        lossy = "" if built.exactness is Exactness.LOSSLESS else ", LOSSY"
        # a time is different in every run: the speedup is in the figure alone
        line = (
            f"{name}{lossy}: tau {{:.2f}} ({{:.2f}} to {{:.2f}}) tokens per step, "
            f"{self.target.name} on {len(self.rows)} texts. Measured speedup in the figure."
        )
        return line.format(*self.tau), figures.tried(taus, speedups)

    def _counted(self, built: Method, settings: dict[str, Any]) -> np.ndarray:
        """Decode the texts, and return the steps and seconds of each ``[texts, 2]``."""
        key = built.key, settings["temperature"]
        if key not in self.counts:
            counts = []
            for row in self.rows:
                began = perf_counter()
                run = rounds(self.target, [row], built, max_new_tokens=TOKENS, **settings)
                counts.append((sum(1 for _ in run), perf_counter() - began))
            self.counts[key] = np.array(counts)
        return self.counts[key]


def dials(
    spec: str,
    target: Target | None = None,
    texts: Sequence[Prompt] | None = None,
    *,
    temperature: float = 0.0,
    **options: Any,
) -> Dials:
    """Put a method's options on sliders::

        specwb.dials("eagle2")
        specwb.dials("sps:gamma=6", specwb.load("lab"), temperature=1.0)

    Args:
        spec, target, texts: as of :class:`specwb.show.widgets.Dials`.
        temperature: at first; 0 is greedy.
        options: of the method.
    Raises:
        SpecwbError: there is no such method, or its options cannot be used.
    """
    return Dials(spec, target, texts, options, temperature=temperature)
