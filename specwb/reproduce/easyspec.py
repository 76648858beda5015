"""EasySpec (Wu et al. 2502.02493).

What its text states of N, calibration, widths and layers is measured on one pair and judged. Every
cell drafts with the same draft model; ``easyspec:n=1,calibrate=false`` is that model as it is, the
baseline of drafting times and acceptance.

Differs from the paper in: models, machine (one device) and prompts; texts go on past an end of
text. The number of decoding steps a prompt is fixed. Times and tokens of a speedup are those of all
steps but the first, which processes the prompt; times are means.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from statistics import fmean
from typing import Any

import numpy as np
import torch

from specwb.analysis.layer_parallel import (
    attention_rounds,
    fuzzy_ratio,
    implied_share,
    largest_stage_speedup,
    stage_speedup,
)
from specwb.drafters.easyspec import deep_draft
from specwb.engine import decode
from specwb.evaluation import fuzzy
from specwb.evaluation.prompts import Question, interleave
from specwb.models.fuzzy import grouping, listed
from specwb.models.load import data_dir
from specwb.models.target import Target
from specwb.options import parse_value, ranges, spell
from specwb.reproduce import grid
from specwb.reproduce.grid import Cell
from specwb.reproduce.grid import split_values as values
from specwb.reproduce.store import Store, with_commit
from specwb.reproduce.verdicts import ENOUGH, RULE, TUNED_RULE, Claim, Tuned, judge, sentence

PAPER = "papers/easyspec.json"
DEPTH, N = 5, 4
"""Depth of the drafts, and layers of a group."""
NS, WIDTHS, WIDE_NS = (1, 2, 3, 4, 5, 6), (1, 4, 8, 12), (1, 2, 4, 5)
"""N of chains, widths of trees, and N of trees."""
TEMPERATURE = 0.8
"""The temperature of the cells that sample."""
TEXTS, PLACES, DRIFT = 12, 64, 12
"""Of what is measured beside the grid: texts, their tokens, and decoding steps."""
NEAR = 0.95
"""A cosine above this is near 1."""
STATED, LACKING = "stated", "not in the paper"
"""Where a claim is from."""
OURS = (
    "A statement of which is larger, without a number: reproduced if the interval lies above 1. "
    "The 7 %: reproduced if the interval of what is kept lies above 0.93. A ratio of two ratios: "
    "the same bootstrap, all four on the same prompts. Cosines are means over places and layers, "
    f"without interval; near 1 is above {NEAR}. Acceptance (accepted) is drafted tokens kept a "
    "round; over the depth it is the paper's. Stage speedup: milliseconds of drafting a round, the "
    "plain drafter's over the cell's, of the same width."
)


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


@dataclass(frozen=True)
class StatedClaim(Claim):
    """A claim of the paper's text.

    Attributes:
        least: the ratio is claimed to be above this.
        over: two cells; the ratio is then that of the first two over the ratio of these.
    """

    least: float = 1.0
    over: tuple[Cell, Cell] | None = None


def easy(
    n: int = N,
    width: int = 1,
    calibrate: bool = True,
    temperature: float = 0.0,
    kind: type[Cell] = Cell,
    **others: str,
) -> Cell:
    """Make the cell of an EasySpec drafter.

    Args:
        n: layers of a group; left out where ``others`` have ``groups``.
        width: nodes a level.
        calibrate: whether the cache is made exact again.
        temperature: of the decoding.
        kind: of the cell.
        others: further options, as they are typed.
    """
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


def options(cell: Cell) -> dict[str, Any]:
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


def cells(layers: int, device: str = "cpu") -> list[Cell]:
    """List all settings that are measured with a draft model of so many layers."""
    both = (True, False)  # with and without calibration
    kinds = ("simulation", "streams") if device == "cuda" else ("simulation",)
    out = [Cell("ar"), plain()]
    out += [easy(n, 1, on) for n in _ns(layers) for on in both]
    out += [easy(n, w, on) for w in WIDTHS[1:] for n in _ns(layers, WIDE_NS) for on in both]
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


def _ns(layers: int, ns: Sequence[int] = NS) -> list[int]:
    """Those N that a draft model of so many layers allows."""
    return [n for n in ns if n < layers]


def draft_of(target: Target, draft: Target | str | None = None) -> Target:
    """Return the draft model of all cells, default the target's own deep one.

    Raises:
        ValueError: it has too few layers.
    """
    model = deep_draft(target, draft)
    layers = len(model.backbone.layers)
    if layers <= N:
        raise ValueError(
            f"easyspec: {model.name!r} has {layers} layer(s), groups of {N} need {N + 1}; "
            "name a deeper one with --draft"
        )
    return model


def run(
    target: Target,
    questions: Sequence[Question],
    store: Store,
    cells: Sequence[Cell],
    *,
    draft: Target | str | None = None,
    rounds_each: int = 10,
    seconds: float | None = None,
    seed: int = 0,
    progress: Callable[[float, str], None] | None = None,
) -> bool:
    """Measure the cells with :func:`specwb.reproduce.grid.run`, then cosines, drift and times.

    These are cosines by N, the drift of the cache, and the times of the parts of a step.

    Args:
        target: the target model.
        questions: the prompts.
        store: of the results.
        cells: the settings.
        draft: the draft model, default the target's own deep one.
        rounds_each: decoding steps of each prompt and cell.
        seconds: about how long to measure in all.
        seed: of the sampling.
        progress: called with (fraction done, text).
    Returns:
        Whether it was interrupted.
    """
    grid.check(questions, cells, rounds_each)
    draft = draft_of(target, draft)
    methods = {
        cell: cell.method(target, **({} if cell.kind == "ar" else {"draft": draft}))
        for cell in cells
    }
    document = store.document
    document |= {"layers": len(draft.backbone.layers), "kind": target.device.type}
    document["shapes"] = {cell.key: grid.shape(method) for cell, method in methods.items()}
    if grid.run(
        target,
        questions,
        store,
        methods,
        rounds_each=rounds_each,
        seconds=seconds,
        seed=seed,
        progress=progress,
        split=True,
    ):
        return True
    texts = [
        q.fit(target.tokenizer, target.context - 40 * (DEPTH + 1) - PLACES)[0]
        for q in interleave(list(questions))[:TEXTS]
    ]

    chains = [
        plain(),
        *(easy(n) for n in _ns(len(draft.backbone.layers))),
        *(easy(execution=kind) for kind in ("simulation", "streams")),
    ]
    chain_methods = {cell.spec: methods[cell] for cell in chains if cell in methods}

    def drift() -> dict[str, Any]:
        return {
            spell(on): fuzzy.drift(target, texts, methods[easy(N, 1, on)], DRIFT, seed=seed)
            for on in (True, False)
        }

    parts: dict[str, Callable[[], dict[str, Any]]] = {
        "cosines": lambda: _cosines(target, draft, texts),
        "drift": drift,
        "stages": lambda: fuzzy.draft_times(target, chain_methods, max(texts, key=len)),
        "times": lambda: {str(m): fuzzy.layer_times(draft, m) for m in WIDTHS},
    }
    try:
        for name in (part for part in parts if part not in document):
            if progress:
                progress(1.0, name)
            document[name] = _five_digits(parts[name]())
            store.save()
    except KeyboardInterrupt:
        return True
    return False


def _cosines(target: Target, draft: Target, texts: list[list[int]]) -> dict[str, Any]:
    """Cosines between exact and fuzzy execution, by N, and of consecutive layers.

    They are taken over the last tokens of every text, with the target's own continuation.
    """
    layers = len(draft.backbone.layers)
    new = decode(target, texts, max_new_tokens=PLACES, eos=()).tokens
    windows = torch.tensor([(text + more)[-PLACES:] for text, more in zip(texts, new, strict=True)])
    by_n = {str(n): fuzzy.similarity(draft, windows, grouping(layers, n)) for n in _ns(layers)[1:]}
    return {**by_n, "consecutive": fuzzy.consecutive(draft, windows)}


def _five_digits(x: Any) -> Any:
    """The same with all numbers rounded."""
    if isinstance(x, dict):
        return {name: _five_digits(value) for name, value in x.items()}
    return [_five_digits(value) for value in x] if isinstance(x, list) else float(f"{x:.5g}")


def paper() -> dict[str, Any]:
    """Load the paper's statements and the numbers in them."""
    return json.loads((data_dir() / PAPER).read_text("utf-8"))


def sentences(which: str = "contradictions") -> list[str]:
    """Say what does not fit together in the paper, or what its numbers imply.

    The sentences are in the data file, the arithmetic is that of ``specwb.analysis``.

    Args:
        which: "contradictions" or "implications".
    """
    published = paper()
    c = published["constants"]
    depth, layers = c["depth"], c["layers"]
    rounds = attention_rounds(grouping(layers, c["n"]))
    parameters = c["attention_parameters"] + c["mlp_parameters"]
    words = {
        **c,
        "rounds": rounds,
        "share": f"{implied_share(c['stage'], depth, rounds, layers):.0%}",
        "weights": f"{c['attention_parameters'] / parameters:.0%}",
        "most": f"{largest_stage_speedup(depth, rounds, layers):.2f}",
        "tokens": depth + 1,
        "least": c["speedup"],
        "step": f"{((depth + 1) / c['speedup'] - 1) / depth:.3f}",
    }
    return [text.format(**words) for text in published[which].values()]


def claims(layers: int, device: str = "cpu") -> list[Claim]:
    """List the paper's statements, and comparisons that it lacks.

    They are those for which a draft model of so many layers can be compared.
    """
    c, ns, wide = paper()["constants"], _ns(layers), _ns(layers, WIDE_NS)
    out: list[Claim] = []

    def add(
        text: str,
        what: str,
        first: Any,
        second: Any,
        number: float | None = None,
        table: str = STATED,
        **more: Any,
    ) -> None:
        out.append(
            StatedClaim(
                text, table, what, first, second, number or 1.0, False, sign=number is None, **more
            )
        )

    clocked = Eager if device == "cuda" else Cell  # a recorded step has no parts
    add(
        "drafting of the plain drafter over N = 4",
        "draft",
        plain(kind=clocked),
        easy(kind=clocked),
        c["stage"],
    )
    if clocked is Cell:
        add(
            "drafting of the plain drafter over N = 4, width 8",
            "draft",
            plain(8),
            easy(N, 8),
            c["stage"],
        )
    every = tuple(easy(n, w) for w in WIDTHS for n in (ns if w == 1 else wide) if n > 1)
    add(
        "EasySpec, N and width tuned, over plain decoding",
        "speedup",
        Tuned("N and width tuned", every),
        Cell("ar"),
        c["speedup"],
    )
    add("a gain without a tree: N = 4 over the plain drafter, width 1", "speedup", easy(), plain())
    for w in (1, 8):
        for n in (2, N):
            add(
                f"throughput rises with N from 1: N = {n} over 1, width {w}",
                "speedup",
                easy(n, w),
                easy(1, w),
            )
        for n in wide[1::2]:
            add(f"N = 4 is best: over N = {n}, width {w}", "speedup", easy(N, w), easy(n, w))
    for w in WIDTHS:
        text = f"at N = 4 acceptance is at most 7 % below the plain drafter's, width {w}"
        add(text, "accepted", easy(N, w), plain(w), 1 - c["drop"], least=1 - c["drop"])
        for n in (ns if w == 1 else wide)[1:]:
            add(
                f"calibration raises acceptance, N = {n}, width {w}",
                "accepted",
                easy(n, w),
                easy(n, w, False),
            )
        a, b = (wide[-1], w), (2, w)
        text = f"calibration flattens the decline: N = {wide[-1]} over 2, width {w}"
        add(text, "accepted", easy(*a), easy(*b), over=(easy(*a, False), easy(*b, False)))
    for w, n in product(WIDTHS[1:], wide[2:]):
        text = (
            f"wider trees tolerate larger N: acceptance at N = {n} over 1, width {w} over width 1"
        )
        add(text, "accepted", easy(n, w), plain(w), over=(easy(n), plain()))
    for what in ("accepted", "speedup"):
        for name, cell in ends(layers).items():
            add(
                f"the first and the last layer left out over {name} grouped: {what}",
                what,
                easy(),
                cell,
            )
        for n in (2, N):
            add(
                f"MLPs in sequence over side by side, N = {n}: {what}",
                what,
                easy(n),
                easy(n, mlp="parallel"),
            )
    for w in WIDTHS:
        add(
            f"calibration, N = 4, width {w}: speedup",
            "speedup",
            easy(N, w),
            easy(N, w, False),
            table=LACKING,
        )
    add(
        "drafting of the simulation over the fused groups, N = 4",
        "draft",
        easy(kind=clocked, execution="simulation"),
        easy(kind=clocked),
        table=LACKING,
    )
    add(
        f"N = 4 over the plain drafter, T = {TEMPERATURE:g}",
        "speedup",
        easy(temperature=TEMPERATURE),
        plain(temperature=TEMPERATURE),
        table=LACKING,
    )
    for kind, word in ((Cell, "graphs"), (Eager, "eager")) if device == "cuda" else ():
        for execution in ("simulation", "streams"):
            add(
                f"fused groups over {execution}, {word}",
                "speedup",
                easy(kind=kind),
                easy(kind=kind, execution=execution),
                table=LACKING,
            )
        add(
            f"N = 4 over the plain drafter, {word}",
            "speedup",
            easy(kind=kind),
            plain(kind=kind),
            table=LACKING,
        )
    return out


def row(document: dict[str, Any], cell: Cell) -> dict[str, Any]:
    """Compute one cell's figures.

    They are those of :func:`specwb.reproduce.grid.split_row` with

    - rounds: of attention, in a draft step.
    - positions: the share of drafts accepted at depth 1, 2, .. of those accepted above it.
    - stage: the stage speedup.
    """
    figures = grid.split_row(document, cell)
    accepted = [a for steps in document["cells"][cell.key]["accepted"] for a in steps]
    reached = [sum(a >= d for a in accepted) for d in range(figures["depth"] + 1)]
    figures["positions"] = [round(b / a, 4) if a else None for a, b in pairwise(reached)]
    if cell.kind == "ar":
        return {**figures, "rounds": None, "stage": None}
    settings, layers = options(cell), document["layers"]
    base = plain(settings.get("width", 1), cell.temperature, type(cell))
    base_ms, ms = (values(document["cells"], one, "draft") for one in (base, cell))
    stage = round(fmean(base_ms) / fmean(ms), 4) if base_ms and ms else None
    rounds = attention_rounds(_groups(layers, settings))
    return {**figures, "rounds": rounds, "stage": stage}


def _groups(layers: int, settings: dict[str, Any]) -> Any:
    """The groups of layers that a cell's options name."""
    if "groups" in settings:
        return listed(layers, ranges("groups", settings["groups"]))
    return grouping(layers, settings["n"])


def judge_claim(document: dict[str, Any], claim: Claim) -> dict[str, Any] | None:
    """Give the verdict on a claim, on a :class:`StatedClaim` by its own terms.

    ``paper`` is in the result only where the paper states a number.
    """
    verdict = judge(document, claim, values)
    if verdict is None:
        return None
    if claim.table == LACKING:
        return {**verdict, "verdict": "not comparable", "paper": None}
    if isinstance(claim, StatedClaim) and claim.over:
        series: list[list[float]] = []
        for cell in (claim.first, claim.second, *claim.over):
            series.append(values(document["cells"], cell, claim.what))  # type: ignore[arg-type]
        n = min(map(len, series))
        if n < grid.MIN_PROMPTS:
            return None
        ratio, low, high = _ratio_of_ratios(np.array([numbers[:n] for numbers in series]))
        verdict |= {"ratio": ratio, "low": low, "high": high}
        verdict |= {"prompts": n, "by_domain": {}, "over": [cell.key for cell in claim.over]}
    least = claim.least if isinstance(claim, StatedClaim) else 1.0
    own_terms = "over" in verdict or least < 1
    if own_terms and verdict["prompts"] >= ENOUGH:
        holds = verdict["low"] is not None and verdict["low"] > least
        verdict["verdict"] = "reproduced" if holds else "not reproduced"
    return {**verdict, "paper": None if claim.sign else verdict["paper"]}


def _ratio_of_ratios(series: np.ndarray) -> list[float | None]:
    """``(a / b) / (c / d)`` of the means of four series ``[4,n]``, with its 95 % interval.

    The interval is that of :func:`specwb.reproduce.verdicts.bootstrap`, over the same prompts.
    """
    n = series.shape[1]
    a, b, c, d = series[:, np.random.default_rng(0).integers(0, n, (10_000, n))].mean(-1)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = (series.mean(1) ** [1.0, -1, -1, 1]).prod()
        low, high = np.nanquantile(a * d / (b * c), [0.025, 0.975])
    return [round(float(x), 4) if np.isfinite(x) else None for x in (ratio, low, high)]


def facts(document: dict[str, Any]) -> list[dict[str, str]]:
    """Give verdicts on what is stated of cosines, each with the cosines it is from."""
    c, cosines = paper()["constants"], document.get("cosines", {})
    means = [
        {kind: fmean(cosines[str(n)][kind]) for kind in fuzzy.KINDS}
        for n in c["cosine_n"]
        if str(n) in cosines
    ]
    if not means:
        return []
    lowest = min(min(mean.values()) for mean in means)
    lowest_qk = min(mean[kind] for mean in means for kind in "qk")
    falls = all(a[kind] > b[kind] for a, b in pairwise(means) for kind in fuzzy.KINDS)
    statements = [
        (
            f"mean cosines stay above {c['cosine']}, N from 2 to 4",
            lowest > c["cosine"],
            f"lowest {lowest:.3f}",
        ),
        ("mean cosines fall with N", falls, "all of them" if falls else "not all of them"),
        (
            f"q and k stay near 1 (above {NEAR})",
            lowest_qk > NEAR,
            f"lowest {lowest_qk:.3f}",
        ),
    ]
    return [
        {"claim": text, "verdict": "reproduced" if holds else "not reproduced", "from": reason}
        for text, holds, reason in statements
    ]


def report(store: Store) -> dict[str, Any]:
    """Add ``rows``, ``verdicts`` and ``facts`` with their rules to ``store.document``.

    The document is returned.
    """
    document = store.document
    layers, device = document["layers"], document["kind"]
    document["commit"] = with_commit(document)
    verdicts = [judge_claim(document, claim) for claim in claims(layers, device)]
    document |= {
        "rule": f"{RULE} {TUNED_RULE} {OURS}",
        "rows": [
            row(document, cell)
            for cell in cells(layers, device)
            if grid.cell_record(document["cells"], cell.key)["ms"]
        ],
        "verdicts": [verdict for verdict in verdicts if verdict],
        "facts": facts(document),
    }
    return document


# --------------------------------------------------------------------------------------- printing

Lines = list[dict[str, str]]


def tables(document: dict[str, Any]) -> list[tuple[str, Lines]]:
    """Make the printed tables, as (title, rows of text); those without a row are left out."""
    by_title: dict[str, Lines] = {title: [] for title in (*TITLES, CHAINS)}
    for r in document["rows"]:
        titles = [title for title, part in TITLES.items() if part in r["cell"]]
        by_title[titles[0] if titles else CHAINS].append(_line(r))
    every_table = [
        *reversed(by_title.items()),
        (
            "Mean cosine (of the lowest layer), exact against one fuzzy pass",
            _cosine_lines(document.get("cosines", {})),
        ),
        (
            "Drift: relative error of the draft's keys and values, the worst layer's; "
            "drafted tokens kept; N = 4",
            _drift_lines(document["drift"]) if "drift" in document else [],
        ),
        (
            "Drafting alone, milliseconds a round, stage speedup",
            _stage_lines(document.get("stages", {})),
        ),
        (
            "Milliseconds of a layer's attention and MLP, the head, all layers; "
            "attention's share and the cost model; fused over plain, N = 4",
            _time_lines(document.get("times", {}), document["layers"]),
        ),
    ]
    return [(title, lines) for title, lines in every_table if lines]


def _cosine_lines(cosines: dict[str, Any]) -> Lines:
    return [
        {"N": n, **{kind: f"{fmean(x):.3f} ({min(x):.2f})" for kind, x in cosines[n].items()}}
        for n in cosines
        if n != "consecutive"
    ]


def _drift_lines(drift: dict[str, Any]) -> Lines:
    lines = [{"round": str(i)} for i in range(1, DRIFT + 1)]
    for on, word in (("true", "calibrated"), ("false", "not")):
        for line, r in zip(lines, drift[on], strict=True):
            for what in ("key", "value"):
                line[f"{what}s, {word}"] = f"{max(r[f'{what}_error']):.1e}"
            line[f"kept, {word}"] = f"{r['accepted']:.2f}"
    return lines


def _stage_lines(stages: dict[str, Any]) -> Lines:
    lines = []
    for spec, times in stages.items():
        base = stages[plain().spec]
        cells = {how: f"{ms:.3f} ms, {base[how] / ms:.2f}x" for how, ms in times.items()}
        lines.append({"setting": spec.removeprefix("easyspec:"), **cells})
    return lines


def _time_lines(times: dict[str, Any], layers: int) -> Lines:
    """Measured times beside the cost model of EasySpec."""
    lines = []
    for tokens, ms in times.items():
        share = ms["attention"] / (ms["attention"] + ms["mlp"])
        ratio = fuzzy_ratio(share, attention_rounds(grouping(layers, N)), layers)
        lines.append(
            {
                "tokens": tokens,
                **{name: f"{value:.3f}" for name, value in ms.items()},
                "share": f"{share:.0%}",
                "fuzzy/exact": f"{ratio:.2f}",
                "stage": f"{stage_speedup(ratio, DEPTH):.2f}x",
                "measured": f"{ms['fused'] / ms['plain']:.2f}",
            }
        )
    return lines


CHAINS = "N and calibration, chains, T = 0"
"""The title of the table of all cells that no other table takes."""
TITLES = {
    "Eager rounds, chains": " eager",
    f"T = {TEMPERATURE:g}": f"T={TEMPERATURE:g}",
    "Widths, T = 0": "width=",
    "Which layers, T = 0": "groups=",
    "MLPs side by side, T = 0": "mlp=",
    "Executions, T = 0": "execution=",
}
"""The title of a table -> what is in the keys of its cells."""


def _line(r: dict[str, Any]) -> dict[str, str]:
    """The figures of a cell."""
    error = f"±{r['tau_error']:.2f}" if r["tau_error"] else ""
    return {
        "setting": r["spec"].removeprefix("easyspec:"),
        "attentions": str(r["rounds"] or ""),
        "accepted": f"{r['accepted']:.2f}{error}",
        "by position": " ".join("-" if x is None else f"{x:.2f}" for x in r["positions"]),
        "draft ms": f"{r['parts']['draft']:.2f}" if r["parts"] else "",
        "stage": f"{r['stage']:.2f}x" if r["stage"] else "",
        "ms/round": f"{r['ms_per_round']:.2f}",
        "speedup ": f"{r['speedup']:.2f}x" if r["speedup"] else "",
    }


def notes(document: dict[str, Any]) -> list[str]:
    """List the verdicts with their rules, what the paper's numbers imply, and its faults."""
    published, rows, verdicts = paper(), document["rows"], document["verdicts"]
    lines = [sentence(v) for v in verdicts]
    for fact in document["facts"]:
        lines.append(f"{fact['verdict'].upper()}: {fact['claim']} [{STATED}]: {fact['from']}")
    stated = [v for v in verdicts if v["table"] == STATED]
    counts = Counter(v["verdict"] for v in (*stated, *document["facts"]))
    lines.append(
        f"Of what is stated: {', '.join(f'{n} {verdict}' for verdict, n in counts.items())}."
    )
    lines += _width_notes(rows, document["layers"])
    if "cosines" in document:
        cosines = ", ".join(f"{x:.2f}" for x in document["cosines"]["consecutive"])
        lines.append(f"Cosine of what enters and leaves each layer: {cosines}.")
    lines += grid.fastest(rows, "easyspec", "EasySpec")
    lines += [f"The paper's numbers: {text}" for text in sentences("implications")]
    lines += [f"In the paper: {text}" for text in sentences()]
    numbers = published["conventions"]["numbers"]
    prompts = min((r["prompts"] for r in rows), default=0)
    return [
        *lines,
        document["rule"],
        f"Paper: {published['source']}; {published['setting']}; {numbers}.",
        f"{prompts} prompts a cell, {document['spent']:.0f} s of measuring.",
    ]


def _width_notes(rows: Sequence[dict[str, Any]], layers: int) -> list[str]:
    """The fastest N of every width, and how much lower the acceptance at N = 4 is."""
    by_cell = {r["cell"]: r for r in rows}
    lines = []
    for w in WIDTHS:
        keys = {n: easy(n, w).key for n in _ns(layers, NS if w == 1 else WIDE_NS)}
        by_n = {n: by_cell[key] for n, key in keys.items() if key in by_cell}
        speedups = {n: r["speedup"] for n, r in by_n.items() if r["speedup"]}
        if not speedups or plain(w).key not in by_cell or N not in by_n:
            continue
        best = max(speedups, key=lambda n: speedups[n])
        exact, grouped = by_cell[plain(w).key]["accepted"], by_n[N]["accepted"]
        loss = ""
        if exact:
            loss = (
                f"acceptance at N = {N} is {1 - grouped / exact:.1%} lower "
                f"({(exact - grouped) / DEPTH:.3f} of the depth)"
            )
        lines.append(f"Width {w}: fastest at N = {best} ({speedups[best]:.2f}x); {loss}.")
    return lines
