"""Predicted beside published, row by row, and predictions that nobody has measured yet.

Published acceptance goes in, speed comes out. Published speeds are those of eagerly launched code
over the library's own plain decoding, so they are predicted in that mode.

What the model leaves out is in the intervals, by split conformal prediction: with e the
``ceil(0.9 (n + 1))``-th smallest ``|log(predicted / published)|`` of n published rows, an interval
is that of the card or ``predicted exp(-e)`` to ``predicted exp(e)``, whichever goes further. No row
is judged by an interval that was fitted to it or to another row of its report: its e is that of all
other reports. What a user predicts has the e of all rows.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import combinations
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from specwb.cost.cards import SIZES, Card, card
from specwb.cost.forecast import DRAWS, EAGER, INTERVAL, Forecast, from_card, kernel_seconds, wider
from specwb.cost.shapes import PredictionError, Shape, shape, tables
from specwb.cost.steps import DRAFT, draft_kind, step
from specwb.cost.work import Setting
from specwb.files import whole_file
from specwb.methods import METHODS, Method
from specwb.models.load import data_dir
from specwb.options import spell

BEGIN, END = "<!-- ledger: begin -->", "<!-- ledger: end -->"
MISS = 0.2
"""Rows further off than this are counted."""
LEVEL = 0.9
"""Nominal coverage of an interval."""
SCALE = 0.5
"""The part of the error of a ratio that does not depend on its costs. It is the one number here
that was chosen on all reports' pairs, DiffuSpec's foremost (tests/cost/test_published_rows.py):
some verdicts change between .2 and 1 (docs/predict.md)."""
COVERED = 0.8
"""A report of whose rows a smaller share lies in their intervals is named."""
SIZE = {
    "Vicuna 7B": "7b",
    "Vicuna 13B": "13b",
    "LLaMA2-Chat 7B": "7b",
    "LLaMA2-Chat 13B": "13b",
}


@dataclass(frozen=True)
class Row:
    """One published number and what is predicted of it."""

    group: str  # the report it is from, or a part of it
    what: str  # target, machine, method and task
    quantity: str  # speedup, or ms per token
    predicted: float  # median over the card's ranges
    low: float  # low, high: the interval
    high: float
    published: float  # as reported
    method: str = ""  # what decodes
    place: str = ""  # the target, with the machine where a report has several
    tau: float = 1.0  # the published tokens per step

    @property
    def error(self) -> float:
        """``predicted / published - 1``."""
        return self.predicted / self.published - 1

    @property
    def cost(self) -> float:
        """Of a speedup: the predicted cost of a step, in plain steps."""
        return self.tau / self.predicted

    @property
    def inside(self) -> bool:
        """Whether the published number lies in the interval."""
        return self.low <= self.published <= self.high

    @property
    def report(self) -> str:
        """The report: times of plain decoding are Spec-Bench's too, and Kangaroo's groups one's."""
        return "Spec-Bench" if self.group == "plain decoding" else self.group.partition(",")[0]


@cache
def _of_cards() -> tuple[Row, ...]:
    """All rows, their intervals over the card's ranges alone."""
    return (*_plain(), *_spec_bench(), *_kangaroo(), *_falcon(), *_easyspec(), *_diffuspec())


@cache
def model_error(without: str = "") -> float:
    """The e of the intervals, from the rows of all reports but one."""
    errors = [
        abs(math.log(row.predicted / row.published)) for row in _of_cards() if row.report != without
    ]
    return _conformal(errors)


def ratio_error(without: str = "", same: bool = True, apart: float = 0.0) -> float:
    """The e of a ratio of two predicted speeds, from the rows of all reports but one.

    It is that of :func:`model_error` for pairs of rows of one report and target, with
    ``error = |log((predicted a / predicted b) / (published a / published b))|``: what both
    predictions get wrong alike cancels. The tokens per step are given, so what remains is an error
    of costs, and grows with the distance ``d = |log(cost a / cost b)|`` of the two steps. The
    conformal score is therefore normalised: ``error / (SCALE + d)``.

    Args:
        without: the report whose rows are left out.
        same: whether pairs are of one method's settings or of two methods.
        apart: the d of the two speeds in question.

    Source: Lei et al. 2018, Distribution-free predictive inference for regression, 5.2.
    """
    return _ratio_score(without, same) * (SCALE + apart)


@cache
def _ratio_score(without: str, same: bool) -> float:
    scores = [
        pair.error / (SCALE + pair.apart)
        for pair in pairs()
        if pair.report != without and pair.same == same
    ]
    return _conformal(scores)


@dataclass(frozen=True)
class Pair:
    """Two speeds of one report and target: the error of their ratio, how far the two costs of a
    step are apart (see :func:`ratio_error`), and whether they are of the same method."""

    report: str
    same: bool
    error: float
    apart: float

    @property
    def inside(self) -> bool:
        """Whether the published ratio lies in the interval that other reports give it."""
        return self.error <= ratio_error(self.report, self.same, self.apart)


@cache
def pairs() -> tuple[Pair, ...]:
    """All pairs of published speedups of methods."""
    return tuple(
        Pair(
            a.report,
            a.method == b.method,
            abs(math.log(a.predicted / b.predicted * b.published / a.published)),
            abs(math.log(a.cost / b.cost)),
        )
        for a, b in combinations(_of_cards(), 2)
        if a.method and b.method and (a.report, a.place) == (b.report, b.place)
    )


def _conformal(errors: Sequence[float]) -> float:
    rank = math.ceil(LEVEL * (len(errors) + 1))
    return sorted(errors)[min(rank, len(errors)) - 1]


@cache
def rows() -> tuple[Row, ...]:
    """All rows with a published number, each with the interval that the other reports give it."""
    out = []
    for row in _of_cards():
        low, high = wider(row.predicted, (row.low, row.high), model_error(row.report))
        out.append(replace(row, low=low, high=high))
    return tuple(out)


def forecast(spec: str, target: Shape, card: Card, **more: Any) -> Forecast:
    """Predict as :func:`specwb.cost.forecast.from_card` does, with the model's error."""
    return from_card(spec, target, card, **more).widened(model_error())


def forecast_of(
    built: Method, target: Shape, card: Card, draft: Shape, drafted: float, **more: Any
) -> Forecast:
    """Predict as :func:`forecast` does, for a method that was built and measured with other models.

    A tree that its options leave open is the one that it was built with. Where a chain ends early
    (sps, kangaroo), the number of tokens drafted stands for the options that end it.
    """
    key = built.key.partition(":")[0]
    entry, own = METHODS[key], vars(built.drafter)
    options = {n: v for n, v in built.options.items() if v != entry.options[n].default}
    options |= {n: own[n] for n in ("tree", "k") if n in entry.priced and n in own}
    drop = {"draft", "head"} | ({"nodes"} if "tree" in entry.priced else set())
    if key in ("sps", "kangaroo"):
        drop |= {"confidence", "schedule"}
        more["drafted"] = max(1.0, drafted)
    written = ",".join(f"{n}={spell(v)}" for n, v in options.items() if n not in drop)
    spec = f"{key}:{written}" if written else key
    if kind := draft_kind(key):
        more["draft"] = shape("dream-7b") if kind == "diffusion" else draft
    return forecast(spec, target, card, **more)


def _published() -> dict[str, Any]:
    """``data/predict/published.toml``: values, and a table a report."""
    return dict(tables("published"))


def _asked(spec: str, target: str, name: str, **more: Any) -> Forecast:
    published = _published()
    how: dict[str, Any] = {"dtype": published["dtype"], "context": published["context"]}
    return from_card(spec, shape(target), card(name), mode=EAGER, **how, **more)


def _speedup(group: str, place: str, what: str, told: Forecast, published: float) -> Row:
    assert told.speedup is not None
    assert told.speedup_interval is not None
    name, method = f"{place}, {what}", told.spec.partition(":")[0]
    assert told.tau is not None
    numbers = told.speedup, *told.speedup_interval, published
    return Row(group, name, "speedup", *numbers, method, place, told.tau)


def _plain() -> Iterator[Row]:
    for own in _published()["plain"]["rows"]:
        told = _asked("ar", own["target"], own["card"])
        low, high = told.plain_interval
        times = (1e3 * told.plain, 1e3 * low, 1e3 * high, 1e3 / own["tokens_per_second"])
        yield Row("plain decoding", f"{own['target']}, {own['card']}", "ms per token", *times)


def _spec_bench() -> Iterator[Row]:
    for own in _published()["spec_bench"]["rows"]:
        told = _asked(own["method"], own["target"], own["card"], tau=own["tau"])
        place, what = f"{own['target']}, {own['card']}", own["method"].partition(":")[0]
        yield _speedup("Spec-Bench", place, what, told, own["speedup"])


def _paper(name: str) -> dict[str, Any]:
    return json.loads((data_dir() / "papers" / f"{name}.json").read_text("utf-8"))


def _kangaroo() -> Iterator[Row]:
    paper, name = _paper("kangaroo")["figures"], _published()["kangaroo"]["card"]
    for own in paper["eta"]["rows"]:
        if own["eta"] == 0:  # every step drafts gamma tokens; elsewhere their number is not stated
            told = _asked(f"kangaroo:gamma={own['gamma']},exit=2", "7b", name, tau=own["cr"])
            what = f"exit 2, always {own['gamma']} tokens"
            yield _speedup("Kangaroo, fixed length", "7b", what, told, own["speedup"])
    for own in paper["depth"]["rows"]:
        # a draft that ends with its first wrong token drafts tau tokens, tau - 1 of them right
        spec, target = f"kangaroo:gamma=6,exit={own['exit']}", SIZE[own["target"]]
        told = _asked(spec, target, name, tau=own["cr"], drafted=own["cr"])
        what = f"exit {own['exit']}"
        yield _speedup("Kangaroo, exit layers", target, what, told, own["speedup"])


def _falcon() -> Iterator[Row]:
    paper, name = _paper("falcon")["tables"], _published()["falcon"]["card"]
    accepted = {(own["target"], own["method"]): own for own in paper["3"]["rows"]}
    for own in paper["1"]["rows"]:
        key = own["target"], own["method"]
        if key not in accepted:  # copied from other reports, without what was accepted
            continue
        shown = "llama" if own["target"].startswith("LLaMA") else "vicuna"
        spec = {"Falcon": f"falcon:tree={shown}", "Eagle": "eagle", "Medusa": "medusa"}[key[1]]
        bonus = 0 if key == ("Vicuna 7B", "Eagle") else 1  # see the note of table 3
        for task in ("MT-Bench", "HumanEval", "GSM8K"):
            tau = accepted[key][task] + bonus
            told = _asked(spec, SIZE[own["target"]], name, tau=tau)
            yield _speedup("Falcon", key[0], f"{key[1]}, {task}", told, own[task])
    for own in paper["4"]["rows"]:
        spec = "falcon:tree=vicuna" if own["tree"] else f"falcon:tree={'-'.join('1' * 8)}"
        told = _asked(spec, "7b", name, tau=own["accepted"] + 1)
        words = f"{'tree' if own['tree'] else 'chain'}, {'with' if own['csgd'] else 'no'} CSGD"
        yield _speedup("Falcon", "Vicuna 7B", words, told, own["speedup"])


def _easyspec() -> Iterator[Row]:
    """Its drafting stage with and without attentions on several devices; no tau was published."""
    published, paper = _published(), _paper("easyspec")["constants"]
    own, draft = published["easyspec"], shape(published["easyspec"]["draft"])
    setting = Setting(1, published["context"], SIZES[published["dtype"]])
    machine = card(own["card"])

    def stage(spec: str, on: Any) -> Any:
        kernels = step(spec, shape("70b"), draft, setting, False, own["devices"]).stages[DRAFT]
        working = sum(kernel_seconds(kernel, on, EAGER) for kernel in kernels)
        launches = sum(kernel.count * kernel.launches for kernel in kernels)
        return np.maximum(working, launches * on.launch)

    ways = f"easyspec:n=1,gamma={paper['depth']}", f"easyspec:n={paper['n']},gamma={paper['depth']}"
    drawn = machine.drawn("fp16", DRAWS)
    gain = stage(ways[0], drawn) / stage(ways[1], drawn)
    low, told, high = map(float, np.percentile(gain, (INTERVAL[0], 50, INTERVAL[1])))
    what = f"drafting stage, {own['draft']}, n = {paper['n']}, {own['devices']} x {own['card']}"
    yield Row("EasySpec", what, "speedup", told, low, high, paper["stage"])


def _diffuspec() -> Iterator[Row]:
    """Draft lengths and steps of denoising, with its search."""
    own, paper = _published()["diffuspec"], _paper("diffuspec")
    draft, usual = shape(own["draft"]), own["adaptive"]
    lengths = [
        (f"k={row['k'] if row['k'] != 'adl' else usual}", f"k = {row['k']}", row)
        for row in paper["tables"]["5"]["rows"]
    ]
    steps = [
        (f"k={usual},steps={row['value']}", f"{row['value']} steps of denoising", row)
        for row in paper["figures"]["7"]["steps"]
        if row["value"] > 1
    ]
    for options, what, row in [*lengths, *steps]:
        spec = f"diffuspec:{options}"
        told = _asked(spec, own["target"], own["card"], draft=draft, tau=row["mat"])
        yield _speedup("DiffuSpec", own["target"], what, told, row["speedup"])


@dataclass(frozen=True)
class Summary:
    """How far the rows of a report are off: medians of the errors' sizes and of the errors, the
    row that is furthest off, how many lie inside, and the ``exp(e)`` of their intervals; of all
    rows that of what a user predicts."""

    group: str
    rows: int
    error: float
    bias: float
    worst: Row
    inside: int
    factor: float

    @property
    def report(self) -> str:
        """The report whose rows its intervals leave out, "" of all rows."""
        return "" if self.group == "all" else self.worst.report


def summaries() -> list[Summary]:
    """One a report, and one of all rows."""
    out = []
    for group in (*dict.fromkeys(row.group for row in rows()), "all"):
        own = [row for row in rows() if group in (row.group, "all")]
        out.append(
            Summary(
                group,
                len(own),
                median(abs(row.error) for row in own),
                median(row.error for row in own),
                max(own, key=lambda row: abs(row.error)),
                sum(row.inside for row in own),
                math.exp(model_error("" if group == "all" else own[0].report)),
            )
        )
    return out


def pending() -> Iterator[tuple[str, str, Forecast]]:
    """Machine, method and what is predicted of it in this engine, captured, at T = 0."""
    own = _published()["pending"]
    for name in own["cards"]:
        for spec in own["methods"]:
            with_draft = draft_kind(spec)
            told = forecast(
                spec,
                shape(own["target"]),
                card(name),
                draft=shape(own["draft"]) if with_draft else None,
                dtype=own["dtype"],
                context=own["context"],
            )
            yield name, spec, told


def as_json() -> dict[str, Any]:
    """All rows, summaries and pending predictions, as plain data."""
    return {
        "rows": [{**vars(row), "error": row.error, "inside": row.inside} for row in rows()],
        "summaries": [
            {**vars(own), "worst": f"{own.worst.group}: {own.worst.what}"} for own in summaries()
        ],
        "pending": [
            {
                "card": name,
                "method": spec,
                "step_ms": 1e3 * told.step,
                "step_ms_interval": [1e3 * x for x in told.step_interval],
                "measured_ms": _published()["pending"]["measured"].get(name, {}).get(spec),
                "needed_tau": told.needed,
                "needed_tau_interval": list(told.needed_interval),
            }
            for name, spec, told in pending()
        ],
    }


def markdown() -> str:
    """The ledger as the tables of docs/predict.md."""
    lines = [
        "### By report",
        "",
        "| report | rows | median error | median of signed errors | factor of the interval "
        "| inside the interval | worst |",
        "|---|--:|--:|--:|--:|--:|---|",
    ]
    for own in summaries():
        worst = f"{own.worst.what}: {own.worst.error:+.0%}"
        cells = [own.group, own.rows, f"{own.error:.0%}", f"{own.bias:+.0%}", f"{own.factor:.2f}"]
        lines.append(_line(*cells, f"{own.inside} of {own.rows}", worst))
    *groups, every = summaries()
    badly = [
        f"{own.group} ({own.inside} of {own.rows})"
        for own in groups
        if own.inside < COVERED * own.rows
    ]
    lines += [
        "",
        f"Intervals of nominally {LEVEL:.0%} hold {every.inside / every.rows:.0%} of the rows. Of "
        f"these reports they hold less than {COVERED:.0%}: {', '.join(badly) or 'none'}.",
    ]
    lines += ["", "### Rows", "", "| row | predicted | interval | published | error |"]
    lines.append("|---|--:|--:|--:|--:|")
    for row in rows():
        unit = "" if row.quantity == "speedup" else f", {row.quantity}"
        interval = f"{row.low:.2f} to {row.high:.2f}"
        outside = "" if row.inside else " (outside)"
        cells = [f"{row.group}: {row.what}{unit}", f"{row.predicted:.2f}", interval + outside]
        lines.append(_line(*cells, f"{row.published:.2f}", f"{row.error:+.0%}"))
    missed = [row for row in rows() if abs(row.error) > MISS]
    lines += ["", f"{len(missed)} of {len(rows())} rows are off by more than {MISS:.0%}."]
    asked = _published()["pending"]
    lines += [
        "",
        "### A step of an 8B target",
        "",
        f"{asked['target']} with a draft model of {asked['draft']}, {asked['dtype']}, "
        f"{asked['context']} tokens of text, one row, T = 0, this engine with graphs. A method is "
        "faster than plain decoding if its tau is above the break-even tau. What has been measured "
        "is the median of 30 steps with random weights (`python benchmarks/predicted.py`).",
        "",
        "| machine | method | step, ms | interval | measured | breaks even at tau | interval |",
        "|---|---|--:|--:|--:|--:|--:|",
    ]
    for name, spec, told in pending():
        low, high = told.step_interval
        least, most = told.needed_interval
        cells = [
            name,
            f"`{spec}`",
            f"{1e3 * told.step:.2f}",
            f"{1e3 * low:.2f} to {1e3 * high:.2f}",
            asked["measured"].get(name, {}).get(spec, ""),
        ]
        lines.append(_line(*cells, f"{told.needed:.2f}", f"{least:.2f} to {most:.2f}"))
    return "\n".join(lines) + "\n"


def _line(*cells: object) -> str:
    return "| " + " | ".join(map(str, cells)) + " |"


def write(page: Path) -> None:
    """Put the ledger between the two markers of a page."""
    if not page.is_file():
        raise PredictionError(f"--out: there is no page {page}")
    text = page.read_text("utf-8")
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise PredictionError(f"--out: {page} needs the lines {BEGIN} and {END}")
    with whole_file(page) as part:
        part.write_text(f"{before}{BEGIN}\n\n{markdown()}\n{END}{after}", "utf-8")
