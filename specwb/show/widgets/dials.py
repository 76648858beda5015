"""A control room for every method: its options as sliders, and what they change."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from itertools import takewhile
from time import perf_counter
from types import NoneType
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from plotly.graph_objects import Figure

from specwb.core.errors import ArgumentError, SpecwbError
from specwb.core.flow import Exactness
from specwb.core.options import Option, spell
from specwb.core.probability import Sampling
from specwb.core.tree import Tree
from specwb.engine.decoding import rounds
from specwb.engine.methods import METHODS, Method, method, read_spec
from specwb.lab.papers.judge import bootstrap
from specwb.models.load import load
from specwb.models.prompts import Prompt, token_rows
from specwb.models.questions import load_prompts
from specwb.models.target import Target
from specwb.rules import RULES, Typical
from specwb.show import figures
from specwb.show.scope import record
from specwb.show.widgets.controls import Control, Explorer
from specwb.show.widgets.figure import LiveFigure
from specwb.show.widgets.microscope import Microscope

TEXTS, FEW, PROMPT, TOKENS, SHOWN = 12, 4, 32, 32, 16
"""Texts, those decoded before the others, tokens of a prompt, of a text, under the microscope."""
LARGEST = 256  # nodes of a tree
KEPT = 5  # settings in the figure
LEVELS, MOST = 5, 8  # of a tree that sliders shape, and children of a node
DEFAULT, BY_LEVEL, USUAL = "default", "by level", "usual"
COMMON = ("temperature", "text")
TYPICAL = ("typical epsilon", "typical delta")
# decodings by settings, of every target that has been looked at
_KNOWN: WeakKeyDictionary[Target, dict[Any, Any]] = WeakKeyDictionary()

Interval = tuple[float, float, float]


def dial(option: Option, reach: Sequence[Any] = ()) -> Control | None:
    """Make the control of an option: over its range, or up to four times its default where it has
    no end. There is none for models and files.

    Args:
        option: as of :func:`specwb.core.options.options_of`.
        reach: values that must be within its range.
    """
    default, kinds = option.default, set(option.types)
    kinds = {type(default)} if Any in kinds else kinds
    how: dict[str, Any] = {"label": option.name.replace("_", " "), "row": 1, "help": option.help}
    # a menu shows nothing where its value is None
    words: list[Any] = [DEFAULT] * (NoneType in kinds) + [False, True] * (bool in kinds)
    of = [(spell(one), one) for one in [*words, *option.choices]]
    numbers = [x for x in (default, *reach) if type(x) in (int, float)]
    if Tree in kinds:
        return Control(default if of else None, of=[*of, (BY_LEVEL, BY_LEVEL)], **how)
    if kinds == {bool}:
        return Control(default, **how)
    if option.choices:
        return Control(default, of=of, **how)
    if int in kinds:
        low = min([1, *numbers]) if option.low is None else option.low
        high = max(8, low, *(4 * x for x in numbers[:1]), *numbers)
        high = high if option.high is None else min(high, option.high)
        if of:
            return Control(of=[*of, *((str(n), n) for n in range(low, high + 1))], **how)
        return Control(default, low, high, **how)
    if float in kinds:
        interval = option.within or "[0, 1]"
        low, high = map(float, interval[1:-1].split(","))
        step = 0.01 if high <= 1 else 0.5
        high = min(high, max([1.0, *(4 * x for x in numbers)]))
        low, high = low + step * (interval[0] == "("), high - step * (interval[-1] == ")")
        return Control(default, low, high, step, **how)
    return None


class Dials(Explorer):
    """Move a method's options, and see one of its steps under the microscope, tau with its interval
    over short texts, and the speedup on this machine.

    The controls are made from the method's ``Options``, with their ranges and help. The first few
    texts are decoded at once, the others while the kernel has nothing else to do; decodings of
    settings that were seen before are known. The speedup is over plain decoding of the same texts.

    Args:
        spec: a method, with or without options, such as ``"eagle2:nodes=20"``.
        target: what :func:`specwb.load` returned; default the lab model.
        texts: prompts, two at least; default a few of the lab's.
        options: of the method. Models and files, which have no control, are given here.
    Attributes:
        tau: tokens per step with its 95 % interval, over the texts decoded so far.
        speedup: measured, with its 95 % interval.
    Raises:
        ValueError: there is no such method, or its options cannot be used.
    """

    spec: str
    target: Any = None
    texts: Sequence[Prompt] | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    temperature: Any = Control(0.0, high=1.5, step=0.1)
    text: Any = Control(of=lambda self: self._names)

    def prepare(self) -> None:
        given = dict(self.options)
        entry, rule, self._given = read_spec(self.spec, given.pop("rule", None), given)
        self.spec, self._rule = entry.key, USUAL if rule is None else rule.name
        self.target = load("lab") if self.target is None else self.target
        words = self.target.tokenizer
        if self.texts is None:
            self.texts = [question.ids(words)[:PROMPT] for question in load_prompts("lab")[:TEXTS]]
        self._ids = token_rows(self.target, self.texts)
        if len(self._ids) < 2:
            raise ArgumentError("texts must be two at least, for an interval of tau")
        shown = [str(ids) if words is None else words.decode(ids) for ids in self._ids[:FEW]]
        self._names = [(" ".join(text.split())[:36], n) for n, text in enumerate(shown)]
        self._tried: dict[str, tuple[Interval, Interval]] = {}  # settings -> tau, speedup
        self._work: Iterator[None] = iter(())
        self._task: Any = None
        # of texts with the same models, and a method that was not registered anew
        own = (entry.build, *(self._given.get(name) for name in ("draft", "head")))
        self._known = _KNOWN.setdefault(self.target, {}).setdefault(own, {})

    def declared(self) -> dict[str, tuple[Control, Any]]:
        found, entry = super().declared(), METHODS[self.spec]
        for name, option in entry.options.items():
            given, presets = self._given.get(name), entry.presets.values()
            published = [preset.options[name] for preset in presets if name in preset.options]
            control = dial(option, [*published, given])
            if control is None:
                continue
            if Tree in option.types:
                start: Any = (given,) if type(given) is int else given
                by_level = isinstance(start, tuple)
                if not by_level and start not in [None, False, True, *option.choices]:
                    continue  # a shape that no slider has
                if not by_level:
                    start = option.default if isinstance(option.default, tuple) else (4, 2, 2)
                levels = [f"{name}, level {d}" for d in range(1, max(LEVELS, len(start)) + 1)]
                padded = [*start, *[0] * (len(levels) - len(start))]
                more: dict[str, Any] = {"each": levels, "row": 2}
                more["help"] = "children of a node; 0 ends the tree"
                found[f"{name} levels"] = Control(padded, high=max(MOST, *padded), **more), None
                if len(control.of) == 1:
                    continue
                given = BY_LEVEL if by_level else given
            found[name] = control, given
        rules = Control(of=[USUAL, *RULES], row=3, help="the verification rule")
        found["rule"] = rules, self._rule
        usual, least = Typical(), dict[str, Any](low=0.01, step=0.01, row=3)
        why = "typical goes on where p(x) > min(epsilon, delta exp(-H))"
        for name in TYPICAL:
            start = getattr(usual, name.removeprefix("typical "))
            found[name] = Control(start, **least, help=why), None
        return found

    def _built(self, at: dict[str, Any]) -> Method:
        """Return the method that the controls describe, and show those that it looks at."""
        chosen = dict(self._given)
        for name in METHODS[self.spec].options:
            levels = at.get(f"{name} levels")
            if levels is not None and at.get(name, BY_LEVEL) == BY_LEVEL:
                chosen[name] = tuple(takewhile(bool, levels))
            elif name in at:
                chosen[name] = None if at[name] == DEFAULT else at[name]
            for one in self[f"{name} levels"] if levels is not None else ():
                one.layout.display = None if at.get(name, BY_LEVEL) == BY_LEVEL else "none"
        rule: Any = None if at["rule"] == USUAL else at["rule"]
        for name in TYPICAL:
            self[name].layout.display = None if rule == "typical" else "none"
        if rule == "typical":
            rule = Typical(*(at[name] for name in TYPICAL))
        built = method(self.spec, self.target, rule=rule, **chosen)
        if (nodes := built.drafter.limits.nodes) > LARGEST:
            raise ArgumentError(f"a tree of {nodes} nodes; dials have at most {LARGEST}")
        return built

    def _redraw(self) -> None:
        at = self.settings()
        try:
            self._work = self._steps(at, self._built(at))
        except SpecwbError as error:
            self._work = iter(())
            self._refuse(error)
            return
        while not self._tried and self._step():  # the first settings' first texts
            pass
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            self.settle()  # there is no kernel that could go on later
            return
        if self._task is None or self._task.done():
            self._task = loop.create_task(self._later())

    async def _later(self) -> None:
        try:
            while self._step():
                await asyncio.sleep(0.02)  # the page's messages come first
        except Exception as error:  # the page would wait for ever
            self._say(f"Not drawn: {error!r}")
            raise

    def _step(self) -> bool:
        """Do a part of the work; return whether there is more."""
        try:
            return next(self._work, "end") is None
        except SpecwbError as error:
            self._refuse(error)
            return False

    def settle(self) -> None:
        while self._step():
            pass

    def _steps(self, at: dict[str, Any], built: Method) -> Iterator[None]:
        """Record a step, then decode text by text."""
        heat, tried = at["temperature"], f"{built.key}, T = {at['temperature']:g}"
        if at["rule"] == "typical":
            tried += ", epsilon {:g}, delta {:g}".format(*(at[name] for name in TYPICAL))
        self._say(f"{tried}: decoding .. What is shown are the settings before.")
        yield
        how = {"temperature": heat, "seed": 0, "eos": ()}
        known, prompt = self._known, self._ids[at["text"]]
        if (key := (tried, "trace", *prompt)) not in known:
            more = {"max_new_tokens": SHOWN}
            known[key] = record(self.target, prompt, built, **more, **how)
        if not self._figures:
            self._figures = [Microscope(stage="bonus"), LiveFigure(Figure())]
        self._figures[0].play(known[key])
        yield
        plain, runs = method("ar", self.target), []
        for n, ids in enumerate(self._ids, 1):
            for name, one in ((tried, built), (f"ar, T = {heat:g}", plain)):
                if (key := (name, *ids)) not in known:
                    known[key] = _counted(self.target, ids, one, how)
                runs.append(known[key])
            if n in (FEW, len(self._ids)):
                self._show(tried, at, built, np.array(runs).reshape(n, 2, 2))
            yield

    def _show(self, tried: str, at: dict[str, Any], built: Method, runs: np.ndarray) -> None:
        """Draw tau and speedup; ``runs``: by text, of this method and of plain decoding."""
        steps, seconds = runs[:, 0].T
        self.tau = bootstrap(np.array([[TOKENS] * len(runs), steps]))
        self.speedup = bootstrap(np.array([runs[:, 1, 1], seconds]))
        self._tried.pop(tried, None)
        self._tried[tried] = self.tau, self.speedup
        self._tried = dict(list(self._tried.items())[-KEPT:])
        taus = {name: tau for name, (tau, _) in self._tried.items()}
        speeds = {name: speedup for name, (_, speedup) in self._tried.items()}
        self._figures[1].figure = figures.tried(taus, speeds, "speedup (measured)")
        lost = "" if built.exactness is Exactness.LOSSLESS else ", LOSSY"
        greedy = ""
        if at["rule"] != USUAL and Sampling(at["temperature"]).greedy:
            greedy = "; at T = 0 all rules are greedy"
        # a time is different in every run: the speedup is in the figure alone
        self.summary = (
            f"{tried}{lost}: tau {_words(self.tau)} tokens per step, {self.target.name} on "
            f"{len(runs)} texts{greedy}. Measured speedup in the figure."
        )
        more = f" .. {len(self._ids) - len(runs)} more texts" if len(runs) < len(self._ids) else ""
        self._say(self.summary + more)


def _counted(
    target: Target, ids: list[int], method: Method, how: dict[str, Any]
) -> tuple[float, ...]:
    """Steps of a text, and seconds."""
    steps, begin = 0, perf_counter()
    for _ in rounds(target, [ids], method, max_new_tokens=TOKENS, **how):
        steps += 1
    return steps, perf_counter() - begin


def _words(interval: Interval) -> str:
    return "{:.2f} ({:.2f} to {:.2f})".format(*interval)


def dials(
    spec: str, target: Target | None = None, texts: Sequence[Prompt] | None = None, **options: Any
) -> Dials:
    """Put a method's options on sliders::

        specwb.dials("eagle2")
        specwb.dials("sps:gamma=6", specwb.load("lab"), temperature=1.0)

    The arguments are those of :class:`specwb.show.widgets.Dials`; ``options`` of the method, and
    where ``temperature`` and ``text`` (its number) stand at first, are given by name.

    Raises:
        ValueError: there is no such method, or its options cannot be used.
    """
    common = {name: options.pop(name) for name in COMMON if name in options}
    return Dials(spec, target, texts, options, **common)
