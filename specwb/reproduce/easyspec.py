"""EasySpec (Wu et al. 2502.02493): what its text states of N, calibration, widths and layers, measured on one pair and judged.

Every cell drafts with the same draft model; ``easyspec:n=1,calibrate=false`` is that model as it is, the baseline of drafting times and acceptance.

Differs from the paper in: models, machine (one device) and prompts; texts go on past an end of text. A fixed number of rounds a prompt. Times and
tokens of a speedup are those of all rounds but the first, which processes the prompt; times are means.
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

from specwb.analysis.layer_parallel import attention_rounds, fuzzy_ratio, implied_share, largest_stage_speedup, stage_speedup
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
from specwb.reproduce.verdicts import ENOUGH, RULE, TUNED_RULE, Claim, Tuned, judge, said

PAPER = "papers/easyspec.json"
DEPTH, N, NS, WIDTHS, WIDE_NS, HOT = 5, 4, (1, 2, 3, 4, 5, 6), (1, 4, 8, 12), (1, 2, 4, 5), 0.8
TEXTS, PLACES, DRIFT = 12, 64, 12  # of what is measured beside the grid: texts, their tokens, rounds
NEAR = 0.95
STATED, LACKING = "stated", "not in the paper"
OURS = (
    "A statement of which is larger, without a number: reproduced if the interval lies above 1. The 7 %: reproduced if the interval of what is kept "
    "lies above 0.93. A ratio of two ratios: the same bootstrap, all four on the same prompts. Cosines are means over places and layers, without "
    f"interval; near 1 is above {NEAR}. Acceptance (accepted) is drafted tokens kept a round; over the depth it is the paper's. Stage speedup: "
    "milliseconds of drafting a round, the plain drafter's over the cell's, of the same width."
)


@dataclass(frozen=True)
class Eager(Cell):
    """A chain whose rounds are not recorded as graphs: it is laid out as a batch, which of a chain is the same and always eager."""

    layout: str = "batch"

    @property
    def key(self) -> str:
        return f"{super().key} eager"

    @property
    def plain(self) -> Cell:
        return Eager("ar", temperature=self.temperature)


@dataclass(frozen=True)
class Stated(Claim):
    """The ratio is above ``least``; with ``over``, the ratio of the first two over the ratio of those two."""

    least: float = 1.0
    over: tuple[Cell, Cell] | None = None


def easy(n: int = N, width: int = 1, calibrate: bool = True, temperature: float = 0.0, kind: type[Cell] = Cell, **others: str) -> Cell:
    """``others``: further options, as they are typed; with ``groups`` n is left out."""
    options = {**({} if "groups" in others else {"n": n}), **({"width": width} if width > 1 else {}), **({} if calibrate else {"calibrate": "false"})}
    return kind(f"easyspec:{','.join(f'{k}={v}' for k, v in {**options, **others}.items())}", temperature=temperature)


def plain(width: int = 1, temperature: float = 0.0, kind: type[Cell] = Cell) -> Cell:
    """The draft model as it is."""
    return easy(1, width, False, temperature, kind)


def options(cell: Cell) -> dict[str, Any]:
    return {name: parse_value(value) for name, _, value in (part.partition("=") for part in cell.spec.partition(":")[2].split(","))}


def ends(layers: int) -> dict[str, Cell]:
    """Groups of four with the first layer, the last or both in them, by name."""
    made = {"first": (False, True), "last": (True, False), "first and last": (False, False)}
    found = {name: [g for g in grouping(layers, N, *alone) if len(g) > 1] for name, alone in made.items()}
    return {name: easy(groups=spell(list(map(list, parts)))) for name, parts in found.items()}


def cells(layers: int, device: str = "cpu") -> list[Cell]:
    """All that is measured with a draft model of so many layers."""
    found = [Cell("ar"), plain(), *(easy(n, 1, on) for n in _ns(layers) for on in (True, False))]
    found += [easy(n, w, on) for w in WIDTHS[1:] for n in _ns(layers, WIDE_NS) for on in (True, False)]
    kinds = ("simulation", *(("streams",) if device == "cuda" else ()))
    found += [*ends(layers).values(), easy(2, mlp="parallel"), easy(mlp="parallel"), *(easy(execution=kind) for kind in kinds)]
    found += [Cell("ar", temperature=HOT), *(easy(n, 1, on, HOT) for n in (1, 2, N) for on in (True, False))]
    found += [plain(8, HOT), easy(1, 8, True, HOT), easy(N, 8, True, HOT)]
    if device == "cuda":
        found += [Eager("ar"), plain(kind=Eager), easy(1, kind=Eager), *(easy(kind=Eager, **({"execution": k} if k else {})) for k in ("", *kinds))]
    return list(dict.fromkeys(found))


def _ns(layers: int, asked: Sequence[int] = NS) -> list[int]:
    """Those that such a draft model allows."""
    return [n for n in asked if n < layers]


def draft_of(target: Target, draft: Target | str | None = None) -> Target:
    """The draft model of all cells: the one asked for, or the target's own deep one."""
    found = deep_draft(target, draft)
    if len(found.backbone.layers) <= N:
        raise ValueError(
            f"easyspec: {found.name!r} has {len(found.backbone.layers)} layer(s), groups of {N} need {N + 1}; name a deeper one with --draft"
        )
    return found


def run(
    target: Target, questions: Sequence[Question], store: Store, cells: Sequence[Cell], *, draft: Target | str | None = None,
    rounds_each: int = 10, seconds: float | None = None, seed: int = 0, progress: Callable[[float, str], None] | None = None,
) -> bool:  # fmt: skip
    """:func:`specwb.reproduce.grid.run` of the cells, then cosines by N, the drift of the cache, and what parts of a round take.

    Returns whether it was interrupted.
    """
    grid.check(questions, cells, rounds_each)
    helper = draft_of(target, draft)
    methods = {cell: cell.method(target, **({} if cell.kind == "ar" else {"draft": helper})) for cell in cells}
    document, count = store.document, len(helper.backbone.layers)
    document |= {"layers": count, "kind": target.device.type}
    document["shapes"] = {cell.key: grid.shape(made) for cell, made in methods.items()}
    if grid.run(target, questions, store, methods, rounds_each=rounds_each, seconds=seconds, seed=seed, progress=progress, split=True):
        return True
    texts = [q.fit(target.tokenizer, target.context - 40 * (DEPTH + 1) - PLACES)[0] for q in interleave(list(questions))[:TEXTS]]

    def cosines() -> dict[str, Any]:
        new = decode(target, texts, max_new_tokens=PLACES, eos=()).tokens
        windows = torch.tensor([(text + more)[-PLACES:] for text, more in zip(texts, new, strict=True)])
        found = {str(n): fuzzy.similarity(helper, windows, grouping(count, n)) for n in _ns(count)[1:]}
        return {**found, "consecutive": fuzzy.consecutive(helper, windows)}

    chains = [plain(), *(easy(n) for n in _ns(count)), *(easy(execution=kind) for kind in ("simulation", "streams"))]
    parts: dict[str, Callable[[], dict[str, Any]]] = {
        "cosines": cosines,
        "drift": lambda: {spell(on): fuzzy.drift(target, texts, methods[easy(N, 1, on)], DRIFT, seed=seed) for on in (True, False)},
        "stages": lambda: fuzzy.draft_times(target, {cell.spec: methods[cell] for cell in chains if cell in methods}, max(texts, key=len)),
        "times": lambda: {str(m): fuzzy.layer_times(helper, m) for m in WIDTHS},
    }
    try:
        for name in (part for part in parts if part not in document):
            if progress:
                progress(1.0, name)
            document[name] = _rounded(parts[name]())
            store.save()
    except KeyboardInterrupt:
        return True
    return False


def _rounded(x: Any) -> Any:
    if isinstance(x, dict):
        return {name: _rounded(value) for name, value in x.items()}
    return [_rounded(value) for value in x] if isinstance(x, list) else float(f"{x:.5g}")


def paper() -> dict[str, Any]:
    """Its statements, and the numbers in them, as data."""
    return json.loads((data_dir() / PAPER).read_text("utf-8"))


def told(which: str = "contradictions") -> list[str]:
    """What does not fit together in the paper, or what its numbers imply: the words of the data file, the arithmetic of ``specwb.analysis``."""
    published = paper()
    c = published["constants"]
    rounds = attention_rounds(grouping(c["layers"], c["n"]))
    words = {
        **c, "rounds": rounds, "share": f"{implied_share(c['stage'], c['depth'], rounds, c['layers']):.0%}",
        "weights": f"{c['attention_parameters'] / (c['attention_parameters'] + c['mlp_parameters']):.0%}",
        "most": f"{largest_stage_speedup(c['depth'], rounds, c['layers']):.2f}", "tokens": c["depth"] + 1, "least": c["speedup"],
        "step": f"{((c['depth'] + 1) / c['speedup'] - 1) / c['depth']:.3f}",
    }  # fmt: skip
    return [text.format(**words) for text in published[which].values()]


def claims(layers: int, device: str = "cpu") -> list[Claim]:
    """What the paper states, where a draft model of so many layers can be compared so, and comparisons that it lacks."""
    c, ns, wide = paper()["constants"], _ns(layers), _ns(layers, WIDE_NS)
    out: list[Claim] = []

    def add(text: str, what: str, first: Any, second: Any, number: float | None = None, table: str = STATED, **more: Any) -> None:
        out.append(Stated(text, table, what, first, second, number or 1.0, False, sign=number is None, **more))

    clocked = Eager if device == "cuda" else Cell  # a recorded round has no parts
    add("drafting of the plain drafter over N = 4", "draft", plain(kind=clocked), easy(kind=clocked), c["stage"])
    if clocked is Cell:
        add("drafting of the plain drafter over N = 4, width 8", "draft", plain(8), easy(N, 8), c["stage"])
    every = tuple(easy(n, w) for w in WIDTHS for n in (ns if w == 1 else wide) if n > 1)
    add("EasySpec, N and width tuned, over plain decoding", "speedup", Tuned("N and width tuned", every), Cell("ar"), c["speedup"])
    add("a gain without a tree: N = 4 over the plain drafter, width 1", "speedup", easy(), plain())
    for w in (1, 8):
        for n in (2, N):
            add(f"throughput rises with N from 1: N = {n} over 1, width {w}", "speedup", easy(n, w), easy(1, w))
        for n in wide[1::2]:
            add(f"N = 4 is best: over N = {n}, width {w}", "speedup", easy(N, w), easy(n, w))
    for w in WIDTHS:
        text = f"at N = 4 acceptance is at most 7 % below the plain drafter's, width {w}"
        add(text, "accepted", easy(N, w), plain(w), 1 - c["drop"], least=1 - c["drop"])
        for n in (ns if w == 1 else wide)[1:]:
            add(f"calibration raises acceptance, N = {n}, width {w}", "accepted", easy(n, w), easy(n, w, False))
        a, b = (wide[-1], w), (2, w)
        text = f"calibration flattens the decline: N = {wide[-1]} over 2, width {w}"
        add(text, "accepted", easy(*a), easy(*b), over=(easy(*a, False), easy(*b, False)))
    for w, n in product(WIDTHS[1:], wide[2:]):
        text = f"wider trees tolerate larger N: acceptance at N = {n} over 1, width {w} over width 1"
        add(text, "accepted", easy(n, w), plain(w), over=(easy(n), plain()))
    for what in ("accepted", "speedup"):
        for name, cell in ends(layers).items():
            add(f"the first and the last layer left out over {name} grouped: {what}", what, easy(), cell)
        for n in (2, N):
            add(f"MLPs in sequence over side by side, N = {n}: {what}", what, easy(n), easy(n, mlp="parallel"))
    for w in WIDTHS:
        add(f"calibration, N = 4, width {w}: speedup", "speedup", easy(N, w), easy(N, w, False), table=LACKING)
    add(
        "drafting of the simulation over the fused groups, N = 4",
        "draft",
        easy(kind=clocked, execution="simulation"),
        easy(kind=clocked),
        table=LACKING,
    )
    add(f"N = 4 over the plain drafter, T = {HOT:g}", "speedup", easy(temperature=HOT), plain(temperature=HOT), table=LACKING)
    for kind, word in ((Cell, "graphs"), (Eager, "eager")) if device == "cuda" else ():
        for execution in ("simulation", "streams"):
            add(f"fused groups over {execution}, {word}", "speedup", easy(kind=kind), easy(kind=kind, execution=execution), table=LACKING)
        add(f"N = 4 over the plain drafter, {word}", "speedup", easy(kind=kind), plain(kind=kind), table=LACKING)
    return out


def row(document: dict[str, Any], cell: Cell) -> dict[str, Any]:
    """:func:`specwb.reproduce.grid.split_row` with ``rounds`` (of attention, in a draft step), ``positions``, the share of drafts kept at depth 1,
    2, .. of those kept above it, and ``stage``, the stage speedup."""
    found = grid.split_row(document, cell)
    kept = [a for one in document["cells"][cell.key]["accepted"] for a in one]
    reached = [sum(a >= d for a in kept) for d in range(found["depth"] + 1)]
    found["positions"] = [round(b / a, 4) if a else None for a, b in pairwise(reached)]
    if cell.kind == "ar":
        return {**found, "rounds": None, "stage": None}
    base, own = (values(document["cells"], c, "draft") for c in (plain(options(cell).get("width", 1), cell.temperature, type(cell)), cell))
    stage = round(fmean(base) / fmean(own), 4) if base and own else None
    given, layers = options(cell), document["layers"]
    groups = listed(layers, ranges("groups", given["groups"])) if "groups" in given else grouping(layers, given["n"])
    return {**found, "rounds": attention_rounds(groups), "stage": stage}


def judged(document: dict[str, Any], claim: Claim) -> dict[str, Any] | None:
    """:func:`specwb.reproduce.verdicts.judge`, of a :class:`Stated` by its own terms; ``paper`` only where that states a number."""
    found = judge(document, claim, values)
    if found is None or claim.table == LACKING:
        return found and {**found, "verdict": "not comparable", "paper": None}
    if isinstance(claim, Stated) and claim.over:
        series = [values(document["cells"], c, claim.what) for c in (claim.first, claim.second, *claim.over)]  # type: ignore[arg-type]
        if (n := min(map(len, series))) < grid.FEWEST:
            return None
        both = np.array([x[:n] for x in series])
        a, b, c, d = both[:, np.random.default_rng(0).integers(0, n, (10_000, n))].mean(-1)
        with np.errstate(divide="ignore", invalid="ignore"):
            three = (both.mean(1) ** [1.0, -1, -1, 1]).prod(), *np.nanquantile(a * d / (b * c), [0.025, 0.975])
        found |= {name: round(float(x), 4) if np.isfinite(x) else None for name, x in zip(("ratio", "low", "high"), three, strict=True)}
        found |= {"prompts": n, "by_domain": {}, "over": [cell.key for cell in claim.over]}
    if isinstance(claim, Stated) and (claim.over or claim.least < 1) and found["prompts"] >= ENOUGH:
        found["verdict"] = "reproduced" if found["low"] is not None and found["low"] > claim.least else "not reproduced"
    return {**found, "paper": None if claim.sign else found["paper"]}


def facts(document: dict[str, Any]) -> list[dict[str, str]]:
    """Verdicts on what is stated of cosines, each with what it was found from."""
    c, found = paper()["constants"], document.get("cosines", {})
    means = [[fmean(found[str(n)][kind]) for kind in fuzzy.KINDS] for n in c["cosine_n"] if str(n) in found]
    if not means:
        return []
    lowest, near = min(map(min, means)), min(x for of in means for kind, x in zip(fuzzy.KINDS, of, strict=True) if kind in "qk")
    falls = all(a > b for one, more in pairwise(means) for a, b in zip(one, more, strict=True))
    stated = {
        f"mean cosines stay above {c['cosine']}, N from 2 to 4": (lowest > c["cosine"], f"lowest {lowest:.3f}"),
        "mean cosines fall with N": (falls, "all of them" if falls else "not all of them"),
        f"q and k stay near 1 (above {NEAR})": (near > NEAR, f"lowest {near:.3f}"),
    }
    return [{"claim": text, "verdict": "reproduced" if holds else "not reproduced", "from": told} for text, (holds, told) in stated.items()]


def report(store: Store) -> dict[str, Any]:
    """``store.document`` with ``rows``, ``verdicts``, ``facts`` and the rules they are by."""
    document = store.document
    layers, device = document["layers"], document["kind"]
    document["commit"] = with_commit(document)
    document |= {
        "rule": f"{RULE} {TUNED_RULE} {OURS}",
        "rows": [row(document, cell) for cell in cells(layers, device) if grid.measured(document["cells"], cell.key)["ms"]],
        "verdicts": [found for claim in claims(layers, device) if (found := judged(document, claim))],
        "facts": facts(document),
    }
    return document


def tables(document: dict[str, Any]) -> list[tuple[str, list[dict[str, str]]]]:
    """(title, rows of text), those without a row left out."""
    own: dict[str, list[dict[str, str]]] = {title: [] for title in (*TITLES, "N and calibration, chains, T = 0")}
    for r in document["rows"]:
        own[next((title for title, part in TITLES.items() if part in r["cell"]), list(own)[-1])].append(_line(r))
    cosines = [
        {"N": n, **{kind: f"{fmean(x):.3f} ({min(x):.2f})" for kind, x in document["cosines"][n].items()}}
        for n in document.get("cosines", {}) if n != "consecutive"
    ]  # fmt: skip
    drift: list[dict[str, str]] = [{"round": str(i)} for i in range(1, DRIFT + 1)] if "drift" in document else []
    for on, word in (("true", "calibrated"), ("false", "not")) if drift else ():
        for line, r in zip(drift, document["drift"][on], strict=True):
            line |= {f"{what}s, {word}": f"{max(r[f'{what}_error']):.1e}" for what in ("key", "value")} | {f"kept, {word}": f"{r['accepted']:.2f}"}
    stages, layers, drafting, parts = document.get("stages", {}), document["layers"], [], []
    for spec, found in stages.items():
        each = {how: f"{ms:.3f} ms, {stages[plain().spec][how] / ms:.2f}x" for how, ms in found.items()}
        drafting.append({"setting": spec.removeprefix("easyspec:"), **each})
    for m, found in document.get("times", {}).items():
        share = found["attention"] / (found["attention"] + found["mlp"])
        ratio = fuzzy_ratio(share, attention_rounds(grouping(layers, N)), layers)
        model = {"share": f"{share:.0%}", "fuzzy/exact": f"{ratio:.2f}", "stage": f"{stage_speedup(ratio, DEPTH):.2f}x"}
        parts.append(
            {"tokens": m, **{name: f"{ms:.3f}" for name, ms in found.items()}, **model, "measured": f"{found['fused'] / found['plain']:.2f}"}
        )
    shown = [
        *reversed(own.items()), ("Mean cosine (of the lowest layer), exact against one fuzzy pass", cosines),
        ("Drift: relative error of the draft's keys and values, the worst layer's; drafted tokens kept; N = 4", drift),
        ("Drafting alone, milliseconds a round, stage speedup", drafting),
        ("Milliseconds of a layer's attention and MLP, the head, all layers; attention's share and the cost model; fused over plain, N = 4", parts),
    ]  # fmt: skip
    return [(title, rows) for title, rows in shown if rows]


TITLES = {  # what is in the cells' keys
    "Eager rounds, chains": " eager", f"T = {HOT:g}": f"T={HOT:g}", "Widths, T = 0": "width=", "Which layers, T = 0": "groups=",
    "MLPs side by side, T = 0": "mlp=", "Executions, T = 0": "execution=",
}  # fmt: skip


def _line(r: dict[str, Any]) -> dict[str, str]:
    error = f"±{r['tau_error']:.2f}" if r["tau_error"] else ""
    return {
        "setting": r["spec"].removeprefix("easyspec:"), "attentions": str(r["rounds"] or ""), "accepted": f"{r['accepted']:.2f}{error}",
        "by position": " ".join("-" if x is None else f"{x:.2f}" for x in r["positions"]),
        "draft ms": f"{r['parts']['draft']:.2f}" if r["parts"] else "", "stage": f"{r['stage']:.2f}x" if r["stage"] else "",
        "ms/round": f"{r['ms_per_round']:.2f}", "speedup ": f"{r['speedup']:.2f}x" if r["speedup"] else "",
    }  # fmt: skip


def notes(document: dict[str, Any]) -> list[str]:
    """The verdicts, the rules they are by, what the paper's numbers imply, and what does not fit together in it."""
    published, rows, layers = paper(), document["rows"], document["layers"]
    out = [said(v) for v in document["verdicts"]] + [f"{f['verdict'].upper()}: {f['claim']} [{STATED}]: {f['from']}" for f in document["facts"]]
    mine = Counter(v["verdict"] for v in (*(v for v in document["verdicts"] if v["table"] == STATED), *document["facts"]))
    out.append(f"Of what is stated: {', '.join(f'{n} {verdict}' for verdict, n in mine.items())}.")
    by = {r["cell"]: r for r in rows}
    for w in WIDTHS:
        at = {n: by[easy(n, w).key] for n in _ns(layers, NS if w == 1 else WIDE_NS) if easy(n, w).key in by}
        fast = {n: r["speedup"] for n, r in at.items() if r["speedup"]}
        if fast and plain(w).key in by and N in at:
            best, kept = max(fast, key=lambda n: fast[n]), (by[plain(w).key]["accepted"], at[N]["accepted"])
            lost = f"acceptance at N = {N} is {1 - kept[1] / kept[0]:.1%} lower ({(kept[0] - kept[1]) / DEPTH:.3f} of the depth)" if kept[0] else ""
            out.append(f"Width {w}: fastest at N = {best} ({fast[best]:.2f}x); {lost}.")
    if "cosines" in document:
        out.append(f"Cosine of what enters and leaves each layer: {', '.join(f'{x:.2f}' for x in document['cosines']['consecutive'])}.")
    out += grid.fastest(rows, "easyspec", "EasySpec")
    out += [f"The paper's numbers: {text}" for text in told("implications")] + [f"In the paper: {text}" for text in told()]
    out += [document["rule"], f"Paper: {published['source']}; {published['setting']}; {published['conventions']['numbers']}."]
    return [*out, f"{min((r['prompts'] for r in rows), default=0)} prompts a cell, {document['spent']:.0f} s of measuring."]
