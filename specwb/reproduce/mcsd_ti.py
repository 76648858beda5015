"""Improved MCSD (Lu et al. 2409.10644): the decision model against none *on one pair*, shapes,
several roots, and what masks cost.

Several roots (``roots=2,lossy=true`` and more) change the output, so they are LOSSY: they stand in
tables of their own, beside how far they move it.

Differs from the paper in: models, machine and prompts; texts go on past an end of text. A fixed
number of rounds a prompt. Times and tokens of a speedup are those of all rounds but the first,
which processes the prompt; times are means and not medians, since rounds of an adaptive draft
differ. The paper's decision model works below several roots; here below one, so that both sides of
a comparison have one output.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict
from statistics import fmean, geometric_mean, median
from typing import Any

import torch
from scipy import stats
from torch import Tensor

from specwb.evaluation import roots as moving
from specwb.evaluation.prompts import Question, interleave
from specwb.methods import draft_model
from specwb.models.load import data_dir
from specwb.models.target import Target
from specwb.reproduce import grid
from specwb.reproduce.grid import Cell
from specwb.reproduce.store import Store, with_commit
from specwb.reproduce.verdicts import (
    EVEN_RULE,
    RULE,
    TUNED_RULE,
    Claim,
    Pooled,
    Tuned,
    judge,
    sentence,
)
from specwb.tree import Tree

PAPER = "papers/mcsd_ti.json"
HEADS = ("decision",)
PAIR = "Llama-2 + 68M"  # of the paper's: a draft much smaller than its target
DEPTH, WIDTHS, WIDTH, THRESHOLD = 5, (1, 2, 3, 4, 6, 8), 4, 0.4
THRESHOLDS = {
    "soft": (0.2, 0.4, 0.6, 0.8),
    "hard": (0.2, 0.4, 0.6, 0.8),
    "top": (0.2, 0.4, 0.6, 0.8),
    "entropy": (0.1, 0.2, 0.4, 0.6),
}
TEMPERATURES, STATIC = (0.0, 1.0), 0.7
ROOTS, FIRST_VERSION = (1, 2, 3, 4), 16
TI, MCSD, EQUALS = (4, 4, 1, 1), (4, 2, 2, 1), ((4, 2, 2), (4, 2, 2, 1))
MASKS = (
    (FIRST_VERSION, *[1] * DEPTH),
    (2, *TI),
    (WIDTH, *[1] * (DEPTH - 1)),
)  # the paper's largest shapes, and the usual one here
TILE = 128  # tokens: the edge of a matrix tile, as the paper's GPU seems to have it
NEW = 32  # tokens of the texts that several roots are judged by
OURS = (
    "Acceptance (depth_fraction) is accepted over drafted levels, roots left out, as there. "
    "Ratios are geometric means over the paper's pairs and "
    f"data sets, over widths those of {PAIR}; its widths are numbers of roots (LOSSY), here of "
    "chains below one root, so that both sides write the "
    "same. LOSSY: the output is not the target's, so a speed there is no speedup at equal output."
)


def cut(
    width: int = WIDTH, stop: str = "soft", threshold: float = THRESHOLD, temperature: float = 0.0
) -> Cell:
    """``width`` chains of ``DEPTH`` tokens, which stop together."""
    asked = "" if stop == "none" else f",threshold={threshold:g}"
    return Cell(
        f"mcsd_ti:tree={_spelled((width, *[1] * (DEPTH - 1)))},stop={stop}{asked}",
        temperature=temperature,
    )


def static(shape: Sequence[int], temperature: float = STATIC) -> Cell:
    """One root, a whole tree: lossless, and what MCSD does."""
    return Cell(f"mcsd_ti:tree={_spelled(shape)},stop=none", temperature=temperature)


def rooted(
    roots: int, below: Sequence[int], temperature: float = STATIC, stop: str = "none"
) -> Cell:
    """``below`` each of several roots; of one root :func:`static`."""
    if roots == 1:
        return static(below, temperature)
    asked = "" if stop == "none" else f",threshold={THRESHOLD:g}"
    return Cell(
        f"mcsd_ti:roots={roots},lossy=true,tree={_spelled(below)},stop={stop}{asked}",
        temperature=temperature,
    )


def mcsd(shape: Sequence[int], temperature: float = STATIC) -> Cell:
    return Cell(f"mcsd:tree={_spelled(shape)}", temperature=temperature)


def lossy(cell: Cell) -> bool:
    return "lossy=true" in cell.spec


def _spelled(shape: Sequence[int]) -> str:
    return "-".join(map(str, shape))


def first_version(temperature: float) -> Cell:
    """The first version's framework: 16 roots, chains below them, the decision model."""
    return rooted(FIRST_VERSION, [1] * DEPTH, temperature, "soft")


def cells() -> list[Cell]:
    """All that is measured."""
    shapes = [r["shape"] for r in paper()["tables"]["shapes"]["rows"]]
    found = []
    for t in TEMPERATURES:
        found += [
            Cell("ar", temperature=t),
            Cell("sps", temperature=t),
            *(mcsd(shape, t) for shape in (*EQUALS, (*MCSD, 1))),
        ]
        found += [cut(width, stop, temperature=t) for width in WIDTHS for stop in ("soft", "none")]
        found += [cut(WIDTH, stop, x, t) for stop, asked in THRESHOLDS.items() for x in asked]
        found += [rooted(n, [1] * DEPTH, t) for n in ROOTS] + [first_version(t)]
    found += [
        Cell("ar", temperature=STATIC),
        Cell("sps", temperature=STATIC),
        mcsd(MCSD),
        static(TI),
    ]
    found += [made for shape in shapes for made in (static(shape), rooted(shape[0], shape[1:]))]
    return list(dict.fromkeys(found))


def run(
    target: Target,
    questions: Sequence[Question],
    store: Store,
    cells: Sequence[Cell],
    *,
    draft: Target | str | None = None,
    head: Any = None,
    rounds_each: int = 10,
    seconds: float | None = None,
    seed: int = 0,
    progress: Callable[[float, str], None] | None = None,
) -> bool:
    """:func:`specwb.reproduce.grid.run` of the cells, then the cost of masks and how far several
    roots move the output.

    Args:
        head: a decision model or its folder instead of the target's own.
    Returns whether it was interrupted.
    """
    grid.check(questions, cells, rounds_each)
    helper = draft_model(target, draft)
    methods = {
        cell: cell.method(
            target,
            head if "stop=soft" in cell.spec or "stop=hard" in cell.spec else None,
            **({} if cell.kind == "ar" else {"draft": helper}),
        )
        for cell in cells
    }
    store.document["shapes"] = {cell.key: grid.shape(made) for cell, made in methods.items()}
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
    document = store.document
    if "masks" not in document:
        document["masks"] = [masks(shape, target.device) for shape in MASKS]
    texts = [q.fit(target.tokenizer, target.context - NEW)[0] for q in interleave(list(questions))]
    found = document.setdefault("moved", {})
    try:
        for t in TEMPERATURES:
            left = [n for n in ROOTS if f"T={t:g} roots={n}" not in found]
            for one in (
                moving.output_shifts(
                    target, helper, texts, left, t, depth=DEPTH, max_new_tokens=NEW, seed=seed
                )
                if left
                else ()
            ):
                values = asdict(one)
                found[f"T={t:g} roots={one.roots}"] = {
                    name: round(x, 5) if isinstance(x, float) else x for name, x in values.items()
                }
                store.save()
                if progress:
                    progress(1.0, f"how far {one.roots} roots move the output")
    except KeyboardInterrupt:
        return True
    return False


def masks(
    shape: Sequence[int], device: torch.device | str = "cpu", repeats: int = 50
) -> dict[str, Any]:
    """What a draft that stops at depth d pays for its mask, milliseconds, means over d = 1..D-1 of
    medians.

    slice: :meth:`specwb.tree.Tree.prefix` the first time, which makes every other tensor of the
    tree too; again: any other time. mask: the mask alone built again from the parents, a level at a
    time. tree: the whole tree built again, node by node.
    """
    tree = Tree.branching(*shape, device=device)

    def first(d: int) -> object:
        tree._prefixes.clear()
        return tree.prefix(d)

    def now() -> float:
        if tree.device.type == "cuda":
            torch.cuda.synchronize(tree.device)
        return 1000 * time.perf_counter()

    kinds: dict[str, tuple[int, Callable[[int], object]]] = {
        "slice": (repeats, first),
        "again": (repeats, tree.prefix),
        "mask": (repeats, lambda d: ancestors(tree, d)),
        "tree": (max(3, repeats // 10), lambda d: Tree.branching(*shape[:d], device=device)),
    }
    spent = {}
    for name, (count, made) in kinds.items():
        each = []
        for d in range(1, tree.D):
            made(d)
            at = []
            for _ in range(count):
                began = now()
                made(d)
                at.append(now() - began)
            each.append(median(at))
        spent[name] = round(fmean(each), 5)
    return {"shape": _spelled(shape), "nodes": tree.n, **spent}


def ancestors(tree: Tree, d: int) -> Tensor:
    """``[n,n]``: the mask of the first d levels, built from the parents."""
    n = tree.levels[d][1]
    mask = torch.eye(n, dtype=torch.bool, device=tree.device)
    for start, stop in tree.levels[1 : d + 1]:
        mask[start:stop] |= mask[tree.parent[0, start:stop]]
    return mask


# ---------------------------------------------------------------------------- the paper's numbers


def paper() -> dict[str, Any]:
    """The published tables and figures, as data."""
    return json.loads((data_dir() / PAPER).read_text("utf-8"))


def widths(pair: str, decision: bool) -> dict[int, dict[str, float]]:
    """Of the width sweep: width -> acceptance, rate."""
    return {
        r["width"]: r
        for r in paper()["tables"]["width"]["rows"]
        if (r["pair"], r["decision"]) == (pair, decision)
    }


def shared(a: dict[int, dict[str, float]], b: dict[int, dict[str, float]]) -> list[float]:
    """Rates of a over b at every width of both."""
    return [a[w]["rate"] / b[w]["rate"] for w in a if w in b]


def ratio(table: str, first: str, second: str, what: str, **where: Any) -> float:
    """Of two methods of a table: the geometric mean over pairs of models and data sets that have
    both; ``where``: of these rows."""
    rows = {
        (r["pair"], r["data"], r["method"]): r[what]
        for r in paper()["tables"][table]["rows"]
        if all(r[k] == v for k, v in where.items())
    }
    both = [
        (x, rows[pair, data, second]) for (pair, data, method), x in rows.items() if method == first
    ]
    return geometric_mean(a / b for a, b in both if a and b)


def contradictions() -> list[str]:
    """What does not fit together in the paper: the words of the data file, the arithmetic done
    here."""
    published = paper()
    tables, figures, usual = published["tables"], published["figures"], published["constants"]
    pairs = list(dict.fromkeys(r["pair"] for r in tables["static"]["rows"]))
    static = {(r["pair"], r["data"], r["method"]): r for r in tables["static"]["rows"]}
    data = list(dict.fromkeys(r["data"] for r in tables["static"]["rows"]))
    gains = {
        p: {d: static[p, d, "TI"]["rate"] / static[p, d, "MCSD"]["rate"] for d in data}
        for p in pairs
    }
    odd = max(data, key=lambda d: gains[PAIR][d])
    bars = {r["pair"]: r for r in figures["static"]["rows"]}
    own = {p: shared(widths(p, True), widths(p, False)) for p in (PAIR, "Llama-2 + TinyLlama")}
    wrong = shared(widths("Vicuna + TinyLlama", True), widths("Llama-2 + TinyLlama", False))
    at = widths(PAIR, True)
    steps = {w: w * (DEPTH + 1) for w in at}
    edge = next(b for a, b in zip(at, list(at)[1:], strict=False) if steps[a] <= TILE < steps[b])
    below = max(w for w in at if w < edge)
    small = [r for r in figures["v1"]["rows"] if r["pair"].endswith("68M")]
    small_rows = {r["pair"] for r in small}
    first = {(r["pair"], r["temperature"], r["data"], r["method"]): r for r in tables["v1"]["rows"]}
    scores = {r["run"]: r["mean"] for r in tables["judged"]["rows"]}

    def rates(temperature: int, method: str) -> float:
        return fmean(first[PAIR, temperature, d, method]["rate"] for d in data)

    plain = rates(1, "DynaSD") / next(
        r["ours"] for r in figures["dynamic"]["rows"] if r["pair"] == PAIR
    )
    joined = next(r for r in figures["ratio"]["rows"] if r["pair"] == "Vicuna + TinyLlama")
    real = geometric_mean(
        static[joined["pair"], d, "MCSD"]["acceptance"]
        / static[joined["pair"], d, "SD"]["acceptance"]
        for d in data
    )
    rise = geometric_mean(
        first[p, 0, "MT-bench", "DynaSD"]["acceptance"]
        / first[p, 0, "MT-bench", "MCSD"]["acceptance"]
        for p in sorted(small_rows)
    )
    words = {
        "maximum": {
            "stated": f"{usual['gain_stated'] - 1:.1%}",
            "ours": f"{bars[PAIR]['TI']:.2f}",
            "theirs": f"{bars[PAIR]['MCSD']:.2f}",
            "ratio": f"{bars[PAIR]['TI'] / bars[PAIR]['MCSD']:.3f}",
            "cell": odd,
            "low": static[PAIR, odd, "MCSD"]["rate"],
            "whole": f"{fmean(gains[PAIR].values()):.2f}",
            "rest": f"{fmean(g for d, g in gains[PAIR].items() if d != odd):.2f}",
            "others": ", ".join(f"{fmean(gains[p].values()):.2f}" for p in pairs if p != PAIR),
        },
        "pairs": {
            "wrong": f"{fmean(wrong):.3f}",
            "same": " and ".join(f"{fmean(x):.3f}" for x in own.values()),
            "faster": " and ".join(str(sum(x > 1 for x in xs)) for xs in own.values()),
            "widths": len(at),
        },
        "tile": {
            "from_": below,
            "low": steps[below],
            "before": at[below]["rate"],
            "tile": TILE,
            "to": edge,
            "high": steps[edge],
            "after": at[edge]["rate"],
        },
        "joined": {
            "stated": f"{joined['MCSD']:.2f}",
            "pair": joined["pair"],
            "found": f"{real:.2f}",
        },
        "v1": {
            "speed": f"{fmean(r['DynaSD'] / r['MCSD'] for r in small):.2f}",
            "acceptance": f"{rise:.2f}",
            "rest": " and ".join(
                f"{r['DynaSD'] / r['MCSD']:.2f}"
                for r in figures["v1"]["rows"]
                if r["pair"] not in small_rows
            ),
        },
        "judged": {
            "scores": ", ".join(
                f"{scores[name]:.2f}" for name in ("single_path", "double_path", "triple_path")
            ),
            "plain": f"{scores['baseline']:.2f}",
        },
        "mixed": {
            "ours": f"{rates(1, 'DynaSD') / plain:.2f}",
            "found": f"{rates(1, 'DynaSD'):.1f} tokens/s over {plain:.1f}",
            "cold": bars[PAIR]["MCSD"],
            "mixed": f"{rates(1, 'DynaSD') / plain / bars[PAIR]['MCSD']:.2f}",
            "hot": f"{rates(1, 'DynaSD') / rates(1, 'MCSD'):.2f}",
        },
    }
    return [text.format(**words[name]) for name, text in published["contradictions"].items()]


# ------------------------------------------------------------------------------ what was measured


def values(cells: dict[str, Any], cell: Cell, what: str) -> list[float]:
    """:func:`specwb.reproduce.grid.split_values`; of several roots the first level, the roots, is
    not drafted."""
    if lossy(cell) and what == "levels":
        return [n - 1 for n in grid.split_values(cells, cell, "levels")]
    if what == "depth_fraction":
        pairs = zip(
            grid.split_values(cells, cell, "accepted"), values(cells, cell, "levels"), strict=True
        )
        return [a / n if n else 0.0 for a, n in pairs]
    return grid.split_values(cells, cell, what)


def row(document: dict[str, Any], cell: Cell) -> dict[str, Any]:
    """:func:`specwb.reproduce.grid.split_row` with ``levels`` and ``depth_fraction``, means over
    prompts."""
    found = grid.split_row(document, cell)
    more = {
        what: round(fmean(values(document["cells"], cell, what)), 4)
        for what in ("levels", "depth_fraction")
    }
    return {**found, **more, "lossy": lossy(cell)}


def claims() -> list[Claim]:
    """What the paper says, compared as it should be, and comparisons that it lacks."""
    with_, without = widths(PAIR, True), widths(PAIR, False)
    out: list[Claim] = []

    def add(
        text: str,
        table: str,
        what: str,
        first: Any,
        second: Any,
        paper: float | None = None,
        even: bool = False,
    ) -> None:
        out.append(
            Claim(
                f"{text}: {what}",
                table if paper else "not in the paper",
                what,
                first,
                second,
                paper,
                False,
                even=even,
            )
        )

    for width in WIDTHS:
        both = cut(width), cut(width, "none")
        there = (with_[width], without[width]) if width in with_ else None
        text = f"decision model over none, {width} chains"
        add(
            text,
            "table width",
            "depth_fraction",
            *both,
            there and there[0]["acceptance"] / there[1]["acceptance"],
        )
        add(
            text,
            "table width",
            "speedup",
            *both,
            there and there[0]["rate"] / there[1]["rate"],
            True,
        )
    for t in TEMPERATURES:
        soft, none = (
            Pooled(
                f"T={t:g} {stop}, all widths", tuple(cut(w, stop, temperature=t) for w in WIDTHS)
            )
            for stop in ("soft", "none")
        )
        theirs = None if t else fmean(shared(with_, without))
        add(
            f"decision model over none, all widths, T = {t:g}",
            "table width",
            "speedup",
            soft,
            none,
            theirs,
            True,
        )
    best = {
        (stop, t): Tuned(
            f"T={t:g} {stop}, threshold tuned", tuple(cut(WIDTH, stop, x, t) for x in asked)
        )
        for stop, asked in THRESHOLDS.items()
        for t in TEMPERATURES
    }
    for t in TEMPERATURES:
        for stop in THRESHOLDS:
            add(
                f"{stop} at its best threshold over none, {WIDTH} chains, T = {t:g}",
                "",
                "speedup",
                best[stop, t],
                cut(stop="none", temperature=t),
            )
        add(
            f"soft over top, each at its best threshold, T = {t:g}",
            "",
            "speedup",
            best["soft", t],
            best["top", t],
        )
        add(
            f"soft over hard, each at its best threshold, T = {t:g}",
            "",
            "speedup",
            best["soft", t],
            best["hard", t],
        )
        add(
            f"6 chains (30 nodes) over MCSD 4-2-2 (28), T = {t:g}",
            "",
            "speedup",
            cut(6, "none", temperature=t),
            mcsd(EQUALS[0], t),
        )
        for n in ROOTS[1:]:
            for what in ("tau", "speedup"):
                add(
                    f"LOSSY: {n} roots over one, chains below, T = {t:g}",
                    "",
                    what,
                    rooted(n, [1] * DEPTH, t),
                    rooted(1, [1] * DEPTH, t),
                )
        for what, name in (("speedup", "rate"), ("depth_fraction", "acceptance")):
            theirs = ratio("v1", "DynaSD", "MCSD", name, temperature=int(t))
            add(
                f"LOSSY: {FIRST_VERSION} roots with the decision model over MCSD 4-2-2-1-1, T = "
                f"{t:g}",
                "table v1",
                what,
                first_version(t),
                mcsd((*MCSD, 1), t),
                theirs,
            )
    for what, name in (("speedup", "rate"), ("depth_fraction", "acceptance")):
        add(
            "MCSD 4-2-2-1 over SpS, T = 0.7",
            "table static",
            what,
            mcsd(MCSD),
            Cell("sps", temperature=STATIC),
            ratio("static", "MCSD", "SD", name),
        )
        add(
            "LOSSY: 2 roots with 4-4-1-1 over MCSD 4-2-2-1, T = 0.7",
            "table static",
            what,
            rooted(2, TI),
            mcsd(MCSD),
            ratio("static", "TI", "MCSD", name),
        )
        add("one root with 4-4-1-1 over MCSD 4-2-2-1, T = 0.7", "", what, static(TI), mcsd(MCSD))
    add(
        "LOSSY: 2 roots with 4-4-1-1 over one root with as many nodes (2-4-4-1-1), T = 0.7",
        "",
        "speedup",
        rooted(2, TI),
        static((2, *TI)),
    )
    rates = {tuple(r["shape"]): r["rate"] for r in paper()["tables"]["shapes"]["rows"]}
    best_shape, worst = max(rates, key=lambda s: rates[s]), min(rates, key=lambda s: rates[s])
    text = f"the paper's best shape {_spelled(best_shape)} over its worst {_spelled(worst)}"
    good, bad = (rooted(s[0], s[1:]) for s in (best_shape, worst))
    add(
        f"LOSSY: {text}, 2 roots",
        "table shapes",
        "speedup",
        good,
        bad,
        rates[best_shape] / rates[worst],
    )
    add(f"{text}, one root", "", "speedup", static(best_shape), static(worst))
    return out


def report(store: Store) -> dict[str, Any]:
    """``store.document`` with ``rows``, ``verdicts`` and the rules they are by."""
    document = store.document
    document["commit"] = with_commit(document)
    document |= {
        "rule": f"{RULE} {EVEN_RULE} {TUNED_RULE} {OURS}",
        "rows": [
            row(document, cell)
            for cell in cells()
            if grid.cell_record(document["cells"], cell.key)["ms"]
        ],
        "verdicts": [found for claim in claims() if (found := judge(document, claim, values))],
    }
    return document


# -------------------------------------------------------------------------------- how it is shown


def tables(document: dict[str, Any]) -> list[tuple[str, list[dict[str, str]]]]:
    """(title, rows of text), those without a row left out."""
    own = {r["cell"]: r for r in document["rows"]}

    def line(
        cell: Cell, theirs: dict[str, str] | None = None, **named: str
    ) -> list[dict[str, str]]:
        return [{**named, **(theirs or {}), **_line(own[cell.key])}] if cell.key in own else []

    def rate(r: dict[str, Any] | None) -> dict[str, str]:
        return {
            "paper: acceptance": f"{r['acceptance']:.2f}" if r else "",
            "tokens/s": f"{r['rate']:.1f}" if r else "",
        }

    swept = []
    for width in WIDTHS:
        for stop, decision in (("soft", True), ("none", False)):
            swept += line(
                cut(width, stop),
                rate(widths(PAIR, decision).get(width)),
                setting=f"{width} chains, {stop}",
            )
    hot = [
        x
        for width in WIDTHS
        for stop in ("soft", "none")
        for x in line(cut(width, stop, temperature=1.0), setting=f"{width} chains, {stop}")
    ]
    stops = []
    for t in TEMPERATURES:
        stops += line(cut(stop="none", temperature=t), setting=f"T = {t:g}, none")
        stops += [
            x
            for stop, asked in THRESHOLDS.items()
            for y in asked
            for x in line(cut(WIDTH, stop, y, t), setting=f"T = {t:g}, {stop} {y:g}")
        ]
    shapes = paper()["tables"]["shapes"]["rows"]
    one = [x for r in shapes for x in line(static(r["shape"]), setting=_spelled(r["shape"]))]
    two = [
        x
        for r in shapes
        for x in line(rooted(r["shape"][0], r["shape"][1:]), rate(r), setting=_spelled(r["shape"]))
    ]
    theirs = {
        (r["method"]): r
        for r in paper()["tables"]["static"]["rows"]
        if (r["pair"], r["data"]) == (PAIR, "MT-bench")
    }
    base = line(Cell("sps", temperature=STATIC), rate(theirs["SD"]), setting="SpS, T = 0.7") + line(
        mcsd(MCSD), rate(theirs["MCSD"]), setting="MCSD 4-2-2-1"
    )
    base += line(static(TI), rate(None), setting="one root with 4-4-1-1")
    base += [
        x
        for t in TEMPERATURES
        for c in (Cell("sps", temperature=t), *(mcsd(e, t) for e in (*EQUALS, (*MCSD, 1))))
        for x in line(c, rate(None), setting=c.key)
    ]
    judged = {r["roots"]: r["mean"] for r in paper()["tables"]["judged"]["rows"] if r["roots"]}
    moved = []
    for t in TEMPERATURES:
        for n in ROOTS:
            found, cell = (
                document.get("moved", {}).get(f"T={t:g} roots={n}"),
                rooted(n, [1] * DEPTH, t),
            )
            here = {
                "paper: score": f"{judged[n]:.2f}" if n in judged else "",
                "not its first choice": f"{found['other']:.1%}" if found else "",
                "log p a token": f"{found['log_p']:.2f}±{found['error']:.2f}" if found else "",
                "TV of the first": f"{found['tv']:.3f}"
                if found and found["tv"] is not None
                else "",
            }
            moved += line(cell, here, setting=f"T = {t:g}, {n} root{'s' * (n > 1)}")
    blank = dict.fromkeys(
        ("paper: score", "not its first choice", "log p a token", "TV of the first"), ""
    )
    moved += [
        x
        for t in TEMPERATURES
        for x in line(
            first_version(t), blank, setting=f"T = {t:g}, {FIRST_VERSION} roots, decision model"
        )
    ]
    costs = [
        {
            "tree": m["shape"],
            "nodes": str(m["nodes"]),
            **{words: f"{m[name]:.4f}" for name, words in COSTS.items()},
        }
        for m in document.get("masks", [])
    ]
    shown = [
        (
            f"Width: chains of {DEPTH} with and without the decision model on the same pair, T = "
            f"0; the paper's {PAIR}",
            swept,
        ),
        ("Width, T = 1", hot),
        (f"What stops drafting, {WIDTH} chains", stops),
        ("Baselines; the paper's on MT-bench at T = 0.7", base),
        ("Shapes at one root, T = 0.7: lossless", one),
        ("LOSSY: shapes at two roots, T = 0.7", two),
        ("LOSSY from two on: roots, and how far they move the output", moved),
        ("Masks, milliseconds for a draft that stops early", costs),
    ]
    return [(title, rows) for title, rows in shown if rows]


COSTS = {
    "slice": "sliced",
    "again": "sliced before",
    "mask": "mask built again",
    "tree": "tree built again",
}


def _line(r: dict[str, Any]) -> dict[str, str]:
    error = f"±{r['tau_error']:.2f}" if r["tau_error"] else ""
    return {
        "here: nodes": f"{r['drafted']:.1f}",
        "levels": f"{r['levels']:.2f}",
        "acceptance": f"{r['depth_fraction']:.2f}",
        "tau": f"{r['tau']:.2f}{error}",
        "ms/round": f"{r['ms_per_round']:.1f}",
        "speedup ": "" if r["speedup"] is None else f"{r['speedup']:.2f}x",
    }


def notes(document: dict[str, Any]) -> list[str]:
    """The verdicts, the rules they are by, and what does not fit together in the paper."""
    published, rows = paper(), document["rows"]
    out = [sentence(v) for v in document["verdicts"]]
    for table in dict.fromkeys(v["table"] for v in document["verdicts"] if v["paper"] is not None):
        mine = Counter(v["verdict"] for v in document["verdicts"] if v["table"] == table)
        out.append(f"Of {table}: {', '.join(f'{n} {verdict}' for verdict, n in mine.items())}.")
    by = {r["cell"]: r["speedup"] for r in rows}
    there = {tuple(r["shape"]): r["rate"] for r in published["tables"]["shapes"]["rows"]}
    for text, made in (("2 roots (LOSSY)", lambda s: rooted(s[0], s[1:])), ("one root", static)):
        both = [(x, by[made(s).key]) for s, x in there.items() if by.get(made(s).key)]
        if len(both) == len(there):
            rank = stats.spearmanr(*zip(*both, strict=True)).statistic
            out.append(
                f"Rank correlation of the {len(both)} shapes' tokens a second with the paper's, "
                f"{text}: {rank:.2f}."
            )
    for m in document.get("masks", []):
        out.append(
            f"Masks of {m['shape']} ({m['nodes']} nodes): slicing takes {m['slice']:.4f} ms the "
            f"first time and {m['again']:.5f} ms again; "
            f"building takes {m['mask']:.4f} ms for the mask alone, a level at a time, and "
            f"{m['tree']:.4f} ms for the tree, node by node."
        )
    out += [f"In the paper: {text}" for text in contradictions()]
    out += [document["rule"], f"Paper: {published['source']}; {published['setting']}."]
    counts = [r["prompts"] for r in rows] or [0]
    return [*out, f"{min(counts)} prompts a cell, {document['spent']:.0f} s of measuring."]
