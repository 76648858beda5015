"""Improved MCSD (Lu et al. 2409.10644).

Measured are the decision model against none *on one pair*, shapes, several roots, and the cost of
masks. Several roots (``roots=2,lossy=true`` and more) change the output, so they are LOSSY: they
stand in tables of their own, beside how far they move it.

Differs from the paper in: models, machine and prompts; texts go on past an end of text. The number
of decoding steps a prompt is fixed. Times and tokens of a speedup are those of all steps but the
first, which processes the prompt; times are means and not medians, since steps of an adaptive draft
differ. The paper's decision model works below several roots; here it works below one, so that both
sides of a comparison have one output.
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

from specwb.evaluation import roots as root_shifts
from specwb.evaluation.prompts import Question, interleave
from specwb.methods import Method
from specwb.models.load import data_dir, draft_model
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
PAIR = "Llama-2 + 68M"
"""A pair of the paper's whose draft model is much smaller than its target."""
DEPTH, WIDTHS, WIDTH, THRESHOLD = 5, (1, 2, 3, 4, 6, 8), 4, 0.4
"""Depth of chains, numbers of chains, the usual number, and the usual threshold."""
THRESHOLDS = {
    "soft": (0.2, 0.4, 0.6, 0.8),
    "hard": (0.2, 0.4, 0.6, 0.8),
    "top": (0.2, 0.4, 0.6, 0.8),
    "entropy": (0.1, 0.2, 0.4, 0.6),
}
"""What stops drafting -> its thresholds."""
TEMPERATURES, STATIC = (0.0, 1.0), 0.7
"""Temperatures, and the one of static trees."""
ROOTS, FIRST_VERSION = (1, 2, 3, 4), 16
"""Numbers of roots, and that of the paper's first version."""
TI, MCSD, EQUALS = (4, 4, 1, 1), (4, 2, 2, 1), ((4, 2, 2), (4, 2, 2, 1))
"""The paper's tree below a root, MCSD's, and MCSD's trees of about as many nodes as the chains."""
MASKS = ((FIRST_VERSION, *[1] * DEPTH), (2, *TI), (WIDTH, *[1] * (DEPTH - 1)))
"""Trees whose masks are timed: the paper's largest shapes, and the usual one here."""
TILE = 128
"""The edge of a matrix tile in tokens, as the paper's GPU seems to have it."""
NEW = 32
"""Tokens of the texts that several roots are judged by."""
OURS = (
    "Acceptance (depth_fraction) is accepted over drafted levels, roots left out, as there. Ratios "
    "are geometric means over the paper's pairs and data sets, over widths those of "
    f"{PAIR}; its widths are numbers of roots (LOSSY), here of chains below one root, so that both "
    "sides write the same. LOSSY: the output is not the target's, so a speed there is no speedup "
    "at equal output."
)


def cut(
    width: int = WIDTH, stop: str = "soft", threshold: float = THRESHOLD, temperature: float = 0.0
) -> Cell:
    """Make the cell of ``width`` chains of ``DEPTH`` tokens, which stop together."""
    threshold_option = "" if stop == "none" else f",threshold={threshold:g}"
    shape = _spelling((width, *[1] * (DEPTH - 1)))
    return Cell(f"mcsd_ti:tree={shape},stop={stop}{threshold_option}", temperature=temperature)


def static(shape: Sequence[int], temperature: float = STATIC) -> Cell:
    """Make the cell of one root and a full tree: it is lossless, and what MCSD does."""
    return Cell(f"mcsd_ti:tree={_spelling(shape)},stop=none", temperature=temperature)


def rooted(
    roots: int, below: Sequence[int], temperature: float = STATIC, stop: str = "none"
) -> Cell:
    """Make the cell of several roots with a tree below each; of one root, :func:`static`.

    Args:
        roots: how many.
        below: the shape of the tree below each.
        temperature: of the decoding.
        stop: what stops drafting.
    """
    if roots == 1:
        return static(below, temperature)
    threshold_option = "" if stop == "none" else f",threshold={THRESHOLD:g}"
    options = f"roots={roots},lossy=true,tree={_spelling(below)},stop={stop}{threshold_option}"
    return Cell(f"mcsd_ti:{options}", temperature=temperature)


def mcsd(shape: Sequence[int], temperature: float = STATIC) -> Cell:
    """Make the cell of MCSD with a tree."""
    return Cell(f"mcsd:tree={_spelling(shape)}", temperature=temperature)


def lossy(cell: Cell) -> bool:
    """Tell whether a cell's output is not the target's."""
    return "lossy=true" in cell.spec


def _spelling(shape: Sequence[int]) -> str:
    return "-".join(map(str, shape))


def first_version(temperature: float) -> Cell:
    """Make the cell of the paper's first version: 16 roots, chains below, the decision model."""
    return rooted(FIRST_VERSION, [1] * DEPTH, temperature, "soft")


def cells() -> list[Cell]:
    """List all settings that are measured."""
    out = []
    for t in TEMPERATURES:
        out += [Cell("ar", temperature=t), Cell("sps", temperature=t)]
        out += [mcsd(shape, t) for shape in (*EQUALS, (*MCSD, 1))]
        out += [cut(width, stop, temperature=t) for width in WIDTHS for stop in ("soft", "none")]
        out += [cut(WIDTH, stop, x, t) for stop, xs in THRESHOLDS.items() for x in xs]
        out += [rooted(n, [1] * DEPTH, t) for n in ROOTS] + [first_version(t)]
    out += [Cell("ar", temperature=STATIC), Cell("sps", temperature=STATIC)]
    out += [mcsd(MCSD), static(TI)]
    for r in paper()["tables"]["shapes"]["rows"]:
        root, *below = r["shape"]
        out += [static(r["shape"]), rooted(root, below)]
    return list(dict.fromkeys(out))


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
    """Measure the cells with :func:`specwb.reproduce.grid.run`, then masks and several roots.

    Of masks the cost is measured, of several roots how far they move the output.

    Args:
        target: the target model.
        questions: the prompts.
        store: of the results.
        cells: the settings.
        draft: the draft model, default the target's own.
        head: a decision model or its folder, in place of the target's own.
        rounds_each: decoding steps of each prompt and cell.
        seconds: about how long to measure in all.
        seed: of the sampling.
        progress: called with (fraction done, text).
    Returns:
        Whether it was interrupted.
    """
    grid.check(questions, cells, rounds_each)
    draft = draft_model(target, draft)

    def build(cell: Cell) -> Method:
        takes_head = "stop=soft" in cell.spec or "stop=hard" in cell.spec
        options = {} if cell.kind == "ar" else {"draft": draft}
        return cell.method(target, head if takes_head else None, **options)

    methods = {cell: build(cell) for cell in cells}
    store.document["shapes"] = {cell.key: grid.shape(method) for cell, method in methods.items()}
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
    results = document.setdefault("moved", {})
    try:
        for t in TEMPERATURES:
            missing = [n for n in ROOTS if f"T={t:g} roots={n}" not in results]
            if not missing:
                continue
            shifts = root_shifts.output_shifts(
                target, draft, texts, missing, t, depth=DEPTH, max_new_tokens=NEW, seed=seed
            )
            for shift in shifts:
                results[f"T={t:g} roots={shift.roots}"] = {
                    name: round(x, 5) if isinstance(x, float) else x
                    for name, x in asdict(shift).items()
                }
                store.save()
                if progress:
                    progress(1.0, f"how far {shift.roots} roots move the output")
    except KeyboardInterrupt:
        return True
    return False


def masks(
    shape: Sequence[int], device: torch.device | str = "cpu", repeats: int = 50
) -> dict[str, Any]:
    """Measure what a draft that stops at depth d pays for its mask, in milliseconds.

    Returns:
        Means over d = 1..D-1 of medians, of

        - slice: :meth:`specwb.tree.Tree.prefix` the first time, which makes every other tensor of
          the tree too.
        - again: the same any other time.
        - mask: only the mask, built again from the parents, a level at a time.
        - tree: the full tree, built again node by node.
    """
    tree = Tree.branching(*shape, device=device)

    def first_slice(d: int) -> object:
        tree._prefixes.clear()
        return tree.prefix(d)

    def now() -> float:
        if tree.device.type == "cuda":
            torch.cuda.synchronize(tree.device)
        return 1000 * time.perf_counter()

    kinds: dict[str, tuple[int, Callable[[int], object]]] = {
        "slice": (repeats, first_slice),
        "again": (repeats, tree.prefix),
        "mask": (repeats, lambda d: ancestors(tree, d)),
        "tree": (max(3, repeats // 10), lambda d: Tree.branching(*shape[:d], device=device)),
    }
    means = {}
    for name, (count, call) in kinds.items():
        medians = []
        for d in range(1, tree.D):
            call(d)  # warm-up
            times = []
            for _ in range(count):
                began = now()
                call(d)
                times.append(now() - began)
            medians.append(median(times))
        means[name] = round(fmean(medians), 5)
    return {"shape": _spelling(shape), "nodes": tree.n, **means}


def ancestors(tree: Tree, d: int) -> Tensor:
    """Build the mask of the first d levels, ``[n,n]``, from the parents."""
    n = tree.levels[d][1]
    mask = torch.eye(n, dtype=torch.bool, device=tree.device)
    for start, stop in tree.levels[1 : d + 1]:
        mask[start:stop] |= mask[tree.parent[0, start:stop]]
    return mask


# ----------------------------------------------------------------------------- the paper's numbers


def paper() -> dict[str, Any]:
    """Load the published tables and figures."""
    return json.loads((data_dir() / PAPER).read_text("utf-8"))


def widths(pair: str, decision: bool) -> dict[int, dict[str, float]]:
    """Return the sweep over widths: width -> acceptance, rate."""
    return {
        r["width"]: r
        for r in paper()["tables"]["width"]["rows"]
        if (r["pair"], r["decision"]) == (pair, decision)
    }


def rate_ratios(a: dict[int, dict[str, float]], b: dict[int, dict[str, float]]) -> list[float]:
    """Compute the rates of a over those of b, at every width of both."""
    return [a[w]["rate"] / b[w]["rate"] for w in a if w in b]


def ratio(table: str, first: str, second: str, what: str, **where: Any) -> float:
    """Compute the ratio of two methods of a table.

    It is the geometric mean over pairs of models and data sets that have both.

    Args:
        table: its name in the data file.
        first: the method above the fraction line.
        second: the method below it.
        what: the column.
        where: only rows with these values.
    """
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
    """Say what does not fit together in the paper.

    The sentences are in the data file; the arithmetic is done here.
    """
    published = paper()
    tables, figures, constants = published["tables"], published["figures"], published["constants"]
    pairs = list(dict.fromkeys(r["pair"] for r in tables["static"]["rows"]))
    static = {(r["pair"], r["data"], r["method"]): r for r in tables["static"]["rows"]}
    data = list(dict.fromkeys(r["data"] for r in tables["static"]["rows"]))
    gains = {
        p: {d: static[p, d, "TI"]["rate"] / static[p, d, "MCSD"]["rate"] for d in data}
        for p in pairs
    }
    odd = max(data, key=lambda d: gains[PAIR][d])
    bars = {r["pair"]: r for r in figures["static"]["rows"]}
    same_pair = {
        p: rate_ratios(widths(p, True), widths(p, False)) for p in (PAIR, "Llama-2 + TinyLlama")
    }
    wrong_pair = rate_ratios(
        widths("Vicuna + TinyLlama", True), widths("Llama-2 + TinyLlama", False)
    )
    sweep = widths(PAIR, True)
    tokens = {w: w * (DEPTH + 1) for w in sweep}
    edge = next(
        b for a, b in zip(sweep, list(sweep)[1:], strict=False) if tokens[a] <= TILE < tokens[b]
    )
    below = max(w for w in sweep if w < edge)
    small = [r for r in figures["v1"]["rows"] if r["pair"].endswith("68M")]
    small_rows = {r["pair"] for r in small}
    first = {(r["pair"], r["temperature"], r["data"], r["method"]): r for r in tables["v1"]["rows"]}
    scores = {r["run"]: r["mean"] for r in tables["judged"]["rows"]}

    def rate(temperature: int, method: str) -> float:
        return fmean(first[PAIR, temperature, d, method]["rate"] for d in data)

    dynamic = next(r["ours"] for r in figures["dynamic"]["rows"] if r["pair"] == PAIR)
    plain = rate(1, "DynaSD") / dynamic
    joined = next(r for r in figures["ratio"]["rows"] if r["pair"] == "Vicuna + TinyLlama")
    static_ratio = geometric_mean(
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
            "stated": f"{constants['gain_stated'] - 1:.1%}",
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
            "wrong": f"{fmean(wrong_pair):.3f}",
            "same": " and ".join(f"{fmean(xs):.3f}" for xs in same_pair.values()),
            "faster": " and ".join(str(sum(x > 1 for x in xs)) for xs in same_pair.values()),
            "widths": len(sweep),
        },
        "tile": {
            "from_": below,
            "low": tokens[below],
            "before": sweep[below]["rate"],
            "tile": TILE,
            "to": edge,
            "high": tokens[edge],
            "after": sweep[edge]["rate"],
        },
        "joined": {
            "stated": f"{joined['MCSD']:.2f}",
            "pair": joined["pair"],
            "found": f"{static_ratio:.2f}",
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
            "ours": f"{rate(1, 'DynaSD') / plain:.2f}",
            "found": f"{rate(1, 'DynaSD'):.1f} tokens/s over {plain:.1f}",
            "cold": bars[PAIR]["MCSD"],
            "mixed": f"{rate(1, 'DynaSD') / plain / bars[PAIR]['MCSD']:.2f}",
            "hot": f"{rate(1, 'DynaSD') / rate(1, 'MCSD'):.2f}",
        },
    }
    return [text.format(**words[name]) for name, text in published["contradictions"].items()]


# ---------------------------------------------------------------------------------------- results


def values(cells: dict[str, Any], cell: Cell, what: str) -> list[float]:
    """Compute a figure for every prompt, see :func:`specwb.reproduce.grid.split_values`.

    Of several roots the first level, the roots, is not drafted.
    """
    if lossy(cell) and what == "levels":
        return [n - 1 for n in grid.split_values(cells, cell, "levels")]
    if what == "depth_fraction":
        accepted = grid.split_values(cells, cell, "accepted")
        levels = values(cells, cell, "levels")
        return [a / n if n else 0.0 for a, n in zip(accepted, levels, strict=True)]
    return grid.split_values(cells, cell, what)


def row(document: dict[str, Any], cell: Cell) -> dict[str, Any]:
    """Compute one cell's figures.

    They are those of :func:`specwb.reproduce.grid.split_row` with ``levels`` and
    ``depth_fraction``, means over prompts.
    """
    figures = grid.split_row(document, cell)
    for what in ("levels", "depth_fraction"):
        figures[what] = round(fmean(values(document["cells"], cell, what)), 4)
    return {**figures, "lossy": lossy(cell)}


def claims() -> list[Claim]:
    """List the paper's claims, compared as they should be, and comparisons that it lacks."""
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
        acceptance, rate = None, None
        if width in with_:
            acceptance = with_[width]["acceptance"] / without[width]["acceptance"]
            rate = with_[width]["rate"] / without[width]["rate"]
        text = f"decision model over none, {width} chains"
        add(text, "table width", "depth_fraction", *both, acceptance)
        add(text, "table width", "speedup", *both, rate, True)
    for t in TEMPERATURES:
        soft, none = (
            Pooled(
                f"T={t:g} {stop}, all widths", tuple(cut(w, stop, temperature=t) for w in WIDTHS)
            )
            for stop in ("soft", "none")
        )
        add(
            f"decision model over none, all widths, T = {t:g}",
            "table width",
            "speedup",
            soft,
            none,
            None if t else fmean(rate_ratios(with_, without)),
            True,
        )
    best = {
        (stop, t): Tuned(
            f"T={t:g} {stop}, threshold tuned", tuple(cut(WIDTH, stop, x, t) for x in thresholds)
        )
        for stop, thresholds in THRESHOLDS.items()
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
            text = f"{FIRST_VERSION} roots with the decision model over MCSD 4-2-2-1-1, T = {t:g}"
            add(
                f"LOSSY: {text}",
                "table v1",
                what,
                first_version(t),
                mcsd((*MCSD, 1), t),
                ratio("v1", "DynaSD", "MCSD", name, temperature=int(t)),
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
    text = f"the paper's best shape {_spelling(best_shape)} over its worst {_spelling(worst)}"
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
    """Add ``rows`` and ``verdicts`` with their rules to ``store.document`` and return it."""
    document = store.document
    document["commit"] = with_commit(document)
    verdicts = [judge(document, claim, values) for claim in claims()]
    document |= {
        "rule": f"{RULE} {EVEN_RULE} {TUNED_RULE} {OURS}",
        "rows": [
            row(document, cell)
            for cell in cells()
            if grid.cell_record(document["cells"], cell.key)["ms"]
        ],
        "verdicts": [verdict for verdict in verdicts if verdict],
    }
    return document


# --------------------------------------------------------------------------------------- printing

Own = dict[str, dict[str, Any]]
"""Key of a cell -> its row."""
Lines = list[dict[str, str]]


def tables(document: dict[str, Any]) -> list[tuple[str, Lines]]:
    """Make the printed tables, as (title, rows of text); those without a row are left out."""
    own: Own = {r["cell"]: r for r in document["rows"]}
    every_table = [
        (
            f"Width: chains of {DEPTH} with and without the decision model on the same pair, "
            f"T = 0; the paper's {PAIR}",
            _width_lines(own),
        ),
        ("Width, T = 1", _sampled_width_lines(own)),
        (f"What stops drafting, {WIDTH} chains", _stop_lines(own)),
        ("Baselines; the paper's on MT-bench at T = 0.7", _baseline_lines(own)),
        ("Shapes at one root, T = 0.7: lossless", _one_root_lines(own)),
        ("LOSSY: shapes at two roots, T = 0.7", _two_root_lines(own)),
        (
            "LOSSY from two on: roots, and how far they move the output",
            _shift_lines(own, document.get("moved", {})),
        ),
        (
            "Masks, milliseconds for a draft that stops early",
            [_mask_line(m) for m in document.get("masks", [])],
        ),
    ]
    return [(title, lines) for title, lines in every_table if lines]


def _row_of(own: Own, cell: Cell, paper_cells: dict[str, str] | None = None, **label: str) -> Lines:
    """A row of a table, in a list; empty where the cell was not measured."""
    if cell.key not in own:
        return []
    return [{**label, **(paper_cells or {}), **_line(own[cell.key])}]


def _paper_rate(r: dict[str, Any] | None) -> dict[str, str]:
    """The paper's figures; blank where it has none."""
    return {
        "paper: acceptance": f"{r['acceptance']:.2f}" if r else "",
        "tokens/s": f"{r['rate']:.1f}" if r else "",
    }


def _width_lines(own: Own) -> Lines:
    lines = []
    for width in WIDTHS:
        for stop, decision in (("soft", True), ("none", False)):
            published = _paper_rate(widths(PAIR, decision).get(width))
            label = f"{width} chains, {stop}"
            lines += _row_of(own, cut(width, stop), published, setting=label)
    return lines


def _sampled_width_lines(own: Own) -> Lines:
    lines = []
    for width in WIDTHS:
        for stop in ("soft", "none"):
            cell = cut(width, stop, temperature=1.0)
            lines += _row_of(own, cell, setting=f"{width} chains, {stop}")
    return lines


def _stop_lines(own: Own) -> Lines:
    lines = []
    for t in TEMPERATURES:
        lines += _row_of(own, cut(stop="none", temperature=t), setting=f"T = {t:g}, none")
        for stop, thresholds in THRESHOLDS.items():
            for x in thresholds:
                label = f"T = {t:g}, {stop} {x:g}"
                lines += _row_of(own, cut(WIDTH, stop, x, t), setting=label)
    return lines


def _baseline_lines(own: Own) -> Lines:
    published = {
        r["method"]: _paper_rate(r)
        for r in paper()["tables"]["static"]["rows"]
        if (r["pair"], r["data"]) == (PAIR, "MT-bench")
    }
    blank = _paper_rate(None)
    sps = Cell("sps", temperature=STATIC)
    lines = [
        *_row_of(own, sps, published["SD"], setting="SpS, T = 0.7"),
        *_row_of(own, mcsd(MCSD), published["MCSD"], setting="MCSD 4-2-2-1"),
        *_row_of(own, static(TI), blank, setting="one root with 4-4-1-1"),
    ]
    for t in TEMPERATURES:
        trees = [mcsd(shape, t) for shape in (*EQUALS, (*MCSD, 1))]
        for cell in (Cell("sps", temperature=t), *trees):
            lines += _row_of(own, cell, blank, setting=cell.key)
    return lines


def _one_root_lines(own: Own) -> Lines:
    lines = []
    for r in paper()["tables"]["shapes"]["rows"]:
        lines += _row_of(own, static(r["shape"]), setting=_spelling(r["shape"]))
    return lines


def _two_root_lines(own: Own) -> Lines:
    lines = []
    for r in paper()["tables"]["shapes"]["rows"]:
        root, *below = r["shape"]
        label = _spelling(r["shape"])
        lines += _row_of(own, rooted(root, below), _paper_rate(r), setting=label)
    return lines


def _shift_lines(own: Own, shifts: dict[str, Any]) -> Lines:
    scores = {r["roots"]: r["mean"] for r in paper()["tables"]["judged"]["rows"] if r["roots"]}
    lines = []
    for t in TEMPERATURES:
        for n in ROOTS:
            cells = dict.fromkeys(SHIFT_COLUMNS, "")
            if n in scores:
                cells["paper: score"] = f"{scores[n]:.2f}"
            if shift := shifts.get(f"T={t:g} roots={n}"):
                cells["not its first choice"] = f"{shift['other']:.1%}"
                cells["log p a token"] = f"{shift['log_p']:.2f}±{shift['error']:.2f}"
                if shift["tv"] is not None:
                    cells["TV of the first"] = f"{shift['tv']:.3f}"
            label = f"T = {t:g}, {n} root{'s' * (n > 1)}"
            lines += _row_of(own, rooted(n, [1] * DEPTH, t), cells, setting=label)
    for t in TEMPERATURES:
        label = f"T = {t:g}, {FIRST_VERSION} roots, decision model"
        blank = dict.fromkeys(SHIFT_COLUMNS, "")
        lines += _row_of(own, first_version(t), blank, setting=label)
    return lines


SHIFT_COLUMNS = ("paper: score", "not its first choice", "log p a token", "TV of the first")


def _mask_line(m: dict[str, Any]) -> dict[str, str]:
    times = {column: f"{m[name]:.4f}" for name, column in COSTS.items()}
    return {"tree": m["shape"], "nodes": str(m["nodes"]), **times}


COSTS = {
    "slice": "sliced",
    "again": "sliced before",
    "mask": "mask built again",
    "tree": "tree built again",
}
"""A cost of masks -> its column."""


def _line(r: dict[str, Any]) -> dict[str, str]:
    """The figures measured here; a trailing blank tells a column from the paper's of that name."""
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
    """List the verdicts with their rules, and what does not fit together in the paper."""
    published, rows, verdicts = paper(), document["rows"], document["verdicts"]
    lines = [sentence(v) for v in verdicts]
    for table in dict.fromkeys(v["table"] for v in verdicts if v["paper"] is not None):
        counts = Counter(v["verdict"] for v in verdicts if v["table"] == table)
        lines.append(f"Of {table}: {', '.join(f'{n} {verdict}' for verdict, n in counts.items())}.")
    speedups = {r["cell"]: r["speedup"] for r in rows}
    rates = {tuple(r["shape"]): r["rate"] for r in published["tables"]["shapes"]["rows"]}
    for text, cell in (("2 roots (LOSSY)", lambda s: rooted(s[0], s[1:])), ("one root", static)):
        keys = {shape: cell(shape).key for shape in rates}
        both = [(rates[shape], speedups[key]) for shape, key in keys.items() if speedups.get(key)]
        if len(both) == len(rates):
            rank = stats.spearmanr(*zip(*both, strict=True)).statistic
            lines.append(
                f"Rank correlation of the {len(both)} shapes' tokens a second with the paper's, "
                f"{text}: {rank:.2f}."
            )
    for m in document.get("masks", []):
        lines.append(
            f"Masks of {m['shape']} ({m['nodes']} nodes): slicing takes {m['slice']:.4f} ms the "
            f"first time and {m['again']:.5f} ms again; building takes {m['mask']:.4f} ms for the "
            f"mask alone, a level at a time, and {m['tree']:.4f} ms for the tree, node by node."
        )
    lines += [f"In the paper: {text}" for text in contradictions()]
    lines += [document["rule"], f"Paper: {published['source']}; {published['setting']}."]
    prompts = [r["prompts"] for r in rows] or [0]
    return [*lines, f"{min(prompts)} prompts a cell, {document['spent']:.0f} s of measuring."]
