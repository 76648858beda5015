"""Kangaroo (Liu et al. 2404.18911): its tables and figures beside the same comparisons here, and what the paper leaves out, measured and judged.

Two grids. One decodes with the target's own adapter. The other with the adapters of :data:`VARIANTS`, all trained for the recipe's budget
``ablation``; its results are shipped, with traces from which a decoding at T = 0 with any threshold can be simulated.

Differs from the paper in: models, machine and prompts; texts go on past an end of text. A fixed number of rounds a prompt. Times and tokens of a
speedup are those of all rounds but the first, which processes the prompt; times are means and not medians, since rounds of an adaptive draft differ.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import fmean, geometric_mean, median
from typing import Any

import numpy as np

from specwb.evaluation import exits
from specwb.evaluation.prompts import Question, interleave
from specwb.methods import Method
from specwb.models.load import data_dir
from specwb.models.target import Target
from specwb.reproduce import grid
from specwb.reproduce.grid import Cell
from specwb.reproduce.grid import split_values as values
from specwb.reproduce.store import Store, with_commit
from specwb.reproduce.verdicts import EVEN_RULE, RULE, TUNED_RULE, Claim, Tuned, judge, said

PAPER = "papers/kangaroo.json"
SHIPPED = "results/kangaroo-ablation-lab.json"
HEADS = ("kangaroo", "medusa", "eagle")
HERE = {"Lookahead": "lookahead", "Medusa, chain": "medusa:tree=1-1-1", "SpS": "sps", "Medusa": "medusa"}
ETAS, GAMMAS, USUAL = (0, 0.1, 0.3, 0.5, 0.6, 0.7, 0.9), (4, 6, 8), 0.6
INSIDE = (0.5, 0.6, 0.7)  # between .3 and .9
TOPS, TREE_ETAS = (2, 4, 10), (0.2, 0.4, 0.6)
STATIC = ("3-2-1", "3-1-1-1-1")  # as many nodes as the dynamic trees may have
ENTROPIES = (0.1, 0.2, 0.3, 0.4, 0.6)  # exp(-H) is below the largest probability
HOT = (0.2, 0.5, 1.0)
EXITS = (0, 1, 2, 3, 4, 6)
REFERENCE = "exit3"
ABLATION_ETAS = (0, 0.3, USUAL)  # adapters trained for a moment are seldom sure
# name -> what differs, as `specwb train kangaroo --set` takes it
VARIANTS = {
    **{f"exit{n}": f"exit={n}" for n in EXITS},
    "own_head": "exit=3,own_head=1",
    "layer": "exit=3,adapter=layer",
    "mlp": "exit=3,adapter=mlp",
}
TEXTS, PLACES, DEPTH = 12, 48, 8  # of the traces
OURS = (
    "CR is tau: the closing token is counted. Ratios between methods are geometric means over the paper's targets and tasks. Of values read off a "
    "figure only differences larger than the reading error are judged. One training run a variant: the interval says nothing about other seeds of "
    "training."
)


def chain(eta: float, gamma: int = 6, stop: str = "top", temperature: float = 0.0, variant: str = "") -> Cell:
    return Cell(f"kangaroo:gamma={gamma},eta={eta:g}{f',stop={stop}' if stop != 'top' else ''}", variant, temperature)


def tree(top: int, eta: float) -> Cell:
    """Room for every beam of six levels: the paper does not say how large its trees may be."""
    return Cell(f"kangaroo:tree=true,top={top},nodes={1 + 6 * top},eta={eta:g}")


def own_cells() -> list[Cell]:
    """What is decoded with the target's own heads."""
    found = [Cell(name) for name in ("ar", *HERE.values(), "pld", "eagle")]
    found += [chain(eta, gamma) for gamma in GAMMAS for eta in ETAS]
    found += [tree(top, eta) for top in TOPS for eta in TREE_ETAS] + [Cell(f"kangaroo:tree={shape}") for shape in STATIC]
    found += [chain(eta, stop="entropy") for eta in ENTROPIES]
    for t in HOT:
        found += [Cell("ar", temperature=t)] + [chain(USUAL, stop=stop, temperature=t) for stop in ("top", "scaled")]
    return found


def ablation_cells(variants: Sequence[str] = tuple(VARIANTS)) -> list[Cell]:
    """What is decoded with the adapters of the ablation."""
    return [Cell("ar"), *(chain(eta, variant=name) for name in variants for eta in ABLATION_ETAS)]


def built(target: Target, cells: Sequence[Cell], places: Mapping[Cell, str | None]) -> dict[Cell, Method]:
    """The cells' methods; ``places``: folders of adapters that are not the target's own. Raises: MethodError, HeadError where one cannot be had."""
    return {cell: cell.method(target, places.get(cell)) for cell in cells}


def run(
    target: Target, questions: Sequence[Question], store: Store, cells: Sequence[Cell], *, head: str | None = None, heads: Path | None = None,
    rounds_each: int = 10, seconds: float | None = None, seed: int = 0, progress: Callable[[float, str], None] | None = None,
) -> bool:  # fmt: skip
    """:func:`specwb.reproduce.grid.run` of the cells, then what their rounds cost and, of every exit layer, a trace.

    Args:
        head: an adapter's folder instead of the target's own. heads: the folder of the variants'.
    Returns whether it was interrupted.
    """
    grid.check(questions, cells, rounds_each)
    places = {cell: str(heads / cell.variant) if heads and cell.variant else head for cell in cells if cell.kind == "kangaroo"}
    methods = built(target, cells, places)
    store.document["shapes"] = {cell.key: grid.shape(made) for cell, made in methods.items()}
    if grid.run(target, questions, store, methods, rounds_each=rounds_each, seconds=seconds, seed=seed, progress=progress, split=True):
        return True
    costs, traces = store.document.setdefault("costs", {}), store.document.setdefault("traces", {})
    texts = [q.fit(target.tokenizer, target.context - PLACES - 2 * DEPTH)[0] for q in interleave(list(questions))[:TEXTS]]
    try:
        for name, place in {cell.variant: places[cell] for cell in places}.items():
            if name not in costs:
                costs[name] = as_json(exits.costs(target, place))
            if (not name or name.startswith("exit")) and name not in traces:
                method = Cell(f"kangaroo:gamma={DEPTH},eta=0").method(target, place)
                traces[name] = traced(exits.every_round(target, texts, method, tokens=PLACES))
            if progress:
                progress(1.0, f"costs and traces: {name}")
            store.save()
    except KeyboardInterrupt:
        return True
    return False


def as_json(found: exits.Costs) -> dict[str, Any]:
    """Milliseconds."""
    parts = {name: round(1000 * getattr(found, name), 4) for name in ("plain", "shallow", "adapter")}
    return {**parts, "round": {str(d): round(1000 * s, 4) for d, s in found.round.items()}}


def costs_of(kept: dict[str, Any]) -> exits.Costs:
    """What :func:`as_json` wrote."""
    plain, shallow, adapter = (kept[name] / 1000 for name in ("plain", "shallow", "adapter"))
    return exits.Costs(plain, shallow, adapter, {int(d): ms / 1000 for d, ms in kept["round"].items()})


def traced(found: exits.Rounds) -> dict[str, Any]:
    """A trace as it is shipped: sureness in thousandths, rounded down, so that a threshold in thousandths is met by the same levels as before."""
    return {"sure": np.floor(1000 * found.sure["top"].astype(float)).astype(int).tolist(), "kept": found.kept.tolist(), "text": found.text.tolist()}


def rounds_of(trace: dict[str, Any]) -> exits.Rounds:
    """What :func:`traced` wrote."""
    sure = np.array(trace["sure"]) / 1000
    return exits.Rounds({"top": sure}, np.array(trace["kept"]), np.array(trace["text"]), tuple(range(1, sure.shape[1] + 3)))


# --------------------------------------------------------------------------------------------------------------------- the paper's numbers


def paper() -> dict[str, Any]:
    """The published tables and figures, as data."""
    return json.loads((data_dir() / PAPER).read_text("utf-8"))


def etas() -> dict[tuple[float, int], dict[str, float]]:
    """The figure over thresholds: (eta, gamma) -> cr, speedup."""
    return {(r["eta"], r["gamma"]): r for r in paper()["figures"]["eta"]["rows"]}


def depths(target: str = "Vicuna 7B") -> dict[int, dict[str, float]]:
    """The figure over exit layers: exit -> cr, speedup."""
    return {r["exit"]: r for r in paper()["figures"]["depth"]["rows"] if r["target"] == target}


def adapters() -> dict[str, float]:
    """Speedup by adapter variant."""
    return {r["variant"]: r["speedup"] for r in paper()["tables"]["adapter"]["rows"]}


def ratio(first: str, second: str, what: str = "speedup", family: str = "") -> float:
    """Of two methods of the main table: the geometric mean over all tasks and targets (of a ``family``) that have both."""
    rows = {(r["target"], r["method"]): r[what] for r in paper()["tables"]["main"]["rows"] if r["target"].startswith(family)}
    pairs = [(rows[t, first], rows[t, second]) for t, m in rows if m == first and (t, second) in rows]
    return geometric_mean(a[task] / b[task] for a, b in pairs for task in a)


def contradictions() -> list[str]:
    """What does not fit together in the paper: the words of the data file, the arithmetic done here."""
    published, by_eta = paper(), etas()
    usual, table = published["constants"], {(r["target"], r["method"]): r for r in published["tables"]["main"]["rows"]}
    seven = {m: r for (t, m), r in table.items() if t == "Vicuna 7B"}
    curves = {r["method"]: 1 + sum(r["ctar"]) for r in published["figures"]["ctar"]["rows"]}
    ours = seven["Kangaroo, chain"]
    means = {key: (r["mean"], fmean(r["speedup"].values())) for key, r in table.items()}
    off = [f"{t}, {m} {stated:.2f}, its tasks {mean:.2f}" for (t, m), (stated, mean) in means.items() if abs(stated - mean) > ROUNDED]
    gains = {t: means[t, "Kangaroo"][1] / means[t, "Kangaroo, chain"][1] for t in ("Vicuna 7B", "Vicuna 13B")}
    free = [by_eta[0, g] for g in GAMMAS]
    counted = {r["variant"]: r["parameters"] for r in published["tables"]["adapter"]["rows"]}["attention"] + usual["head_parameters"]
    fast = [r["speedup"] for r in (by_eta[USUAL, 6], depths()[2])]
    words = {
        "ctar": {"found": f"{curves['Kangaroo, chain']:.2f}", "stated": f"{ours['cr']['Math']:.2f}",
                 "others": ", ".join(f"{m} {cr:.2f} and {seven[m]['cr']['Math']:.2f}" for m, cr in curves.items() if m != "Kangaroo, chain")},
        "means": {"rows": "; ".join(off)},
        "setting": {"table": f"{fmean(ours['cr'].values()):.2f}", "eta": f"{by_eta[USUAL, 6]['cr']:.2f}", "depth": f"{depths()[2]['cr']:.2f}",
                    "speedups": f"{means['Vicuna 7B', 'Kangaroo, chain'][1]:.2f}, {fast[0]:.2f} and {fast[1]:.2f}"},
        "tree": {"stated": f"{usual['tree_gain'] - 1:.0%}", "found": " and ".join(f"{g - 1:.1%} ({t})" for t, g in gains.items())},
        "threshold": {name: f"{by_eta[eta, 8]['cr'] - by_eta[eta, 6]['cr']:.2f}" for name, eta in (("high", 0.9), ("low", 0))},
        "cost": {"costs": ", ".join(f"{(r['cr'] / r['speedup'] - 1) / r['gamma']:.3f}" for r in free), "gammas": ", ".join(map(str, GAMMAS)),
                 "counted": f"{2 / usual['layers']['Vicuna 7B'] + counted / usual['target_parameters']:.3f}"},
    }  # fmt: skip
    return [text.format(**words[name]) for name, text in published["contradictions"].items()]


ROUNDED = 0.0101  # how far a mean of numbers with two digits can be from the mean that is stated with two


# --------------------------------------------------------------------------------------------------------------------- what was measured


def row(document: dict[str, Any], cell: Cell) -> dict[str, Any]:
    """:func:`specwb.reproduce.grid.split_row` with the variant, ``ctar``, the share of rounds with at least 1, 2, .. accepted, and ``wasted``,
    drafted tokens a round that are not kept."""
    found = grid.split_row(document, cell)
    kept = [a for one in document["cells"][cell.key]["accepted"] for a in one]
    ctar = [round(fmean(a >= w for a in kept), 4) for w in range(1, found["depth"] + 1)]
    return {**found, "variant": cell.variant, "ctar": ctar, "wasted": round(found["drafted"] - fmean(kept), 3)}


def claims() -> list[Claim]:
    """What the paper says, and comparisons that it lacks."""
    return [*_thresholds(), *_methods(), *_variants(), *_lacking()]


def tuned(gamma: int, thresholds: Sequence[float] = INSIDE, like: int | None = None) -> Tuned:
    """The chain of ``gamma`` with the threshold that is fastest on other prompts, or at ``like`` tokens."""
    which = f"gamma={gamma}, eta tuned{f' at gamma={like}' if like else ''} among {', '.join(map(str, thresholds))}"
    at = tuple(chain(eta, like) for eta in thresholds) if like else ()
    return Tuned(which, tuple(chain(eta, gamma) for eta in thresholds), like=at)


def _thresholds() -> list[Claim]:
    """The figure over eta and gamma."""
    out, there, wrong = [], etas(), 2 * paper()["constants"]["error"] + 1e-9
    for g in GAMMAS:
        known = [eta for eta in ETAS if (eta, g) in there]
        a, b = known[0], known[-1]
        if there[a, g]["cr"] - there[b, g]["cr"] > wrong:  # that it does not rise is theorem 12.6; how far it falls is not
            text = f"CR falls with eta, gamma = {g}: {a:g} over {b:g}"
            out.append(Claim(text, "figure eta", "tau", chain(a, g), chain(b, g), there[a, g]["cr"] / there[b, g]["cr"], False))
        best = max(there[eta, g]["speedup"] for eta in INSIDE if (eta, g) in there)
        for eta in (0, 0.9):
            text = f"speed peaks at an eta between .3 and .9, gamma = {g}: over {eta:g}"
            out.append(Claim(text, "figure eta", "speedup", tuned(g), chain(eta, g), best / there[eta, g]["speedup"], False))
        if g != 6:
            both = [eta for eta in ETAS if (eta, g) in there and (eta, 6) in there]
            chosen = max(both, key=lambda eta: there[eta, 6]["speedup"])
            theirs = there[chosen, g]["speedup"] / max(there[eta, g]["speedup"] for eta in both)
            text = f"the best eta hardly depends on gamma: at {g} the one tuned at 6 over the one tuned at {g}"
            out.append(Claim(text, "figure eta", "speedup", tuned(g, ETAS, 6), tuned(g, ETAS), theirs, False, even=True))
    for eta, even in ((0, False), (0.7, True)):
        theirs = there[eta, 4]["speedup"] / there[eta, 8]["speedup"]
        out.append(Claim(f"gamma = 4 over 8 at eta = {eta:g}", "figure eta", "speedup", chain(eta, 4), chain(eta, 8), theirs, False, even=even))
    return out


def _methods() -> list[Claim]:
    """The main table, and the one over temperatures."""
    best, usual = tree(10, 0.4), chain(USUAL)
    out = [
        Claim(f"Kangaroo's tree over its chain: {what}", "main table", what, best, usual, ratio("Kangaroo", "Kangaroo, chain", name), False)
        for what, name in (("speedup", "speedup"), ("tau", "cr"))
    ]

    def faster(text: str, first: Cell, second: Cell, names: tuple[str, str], family: str = "") -> None:
        out.append(Claim(text, "main table", "speedup", first, second, ratio(*names, family=family), False))

    faster("Kangaroo's chain is faster than Medusa's", usual, Cell(HERE["Medusa, chain"]), ("Kangaroo, chain", "Medusa, chain"))
    faster("Kangaroo's chain is faster than Lookahead", usual, Cell("lookahead"), ("Kangaroo, chain", "Lookahead"))
    faster("SpS is faster than Kangaroo's chain (there with Vicuna)", Cell("sps"), usual, ("SpS", "Kangaroo, chain"), "Vicuna")
    faster("Kangaroo's tree is faster than SpS", best, Cell("sps"), ("Kangaroo", "SpS"))
    faster("Kangaroo's tree is faster than Medusa's", best, Cell("medusa"), ("Kangaroo", "Medusa"))
    cold = {(r["temperature"], r["stop"]): r["speedup"] for r in paper()["tables"]["temperature"]["rows"]}
    for t in HOT:
        theirs = cold[t, "top"] / cold[t, "scaled"] if (t, "scaled") in cold else None
        where = "not in the paper" if theirs is None else "temperatures"
        text = f"unscaled over scaled confidence, T = {t:g}"
        out.append(Claim(text, where, "speedup", chain(USUAL, temperature=t), chain(USUAL, stop="scaled", temperature=t), theirs, False))
    return out


def _variants() -> list[Claim]:
    """Exit layers, compared where they are the same part of all layers, and adapters."""
    there, theirs = depths(), adapters()
    layers = paper()["constants"]["layers"]["Vicuna 7B"]
    inner = tuple(n for n in EXITS if n not in (EXITS[0], EXITS[-1]))
    peak = Tuned("exit tuned among " + ", ".join(map(str, inner)), tuple(chain(USUAL, variant=f"exit{n}") for n in inner))
    best = max(r["speedup"] for r in there.values())
    out = []
    for n, part in ((EXITS[0], 0), (EXITS[-1], layers // 2)):
        text = f"speed peaks at an inner exit layer: over exit {n} (the paper's {part})"
        out.append(Claim(text, "figure depth", "speedup", peak, chain(USUAL, variant=f"exit{n}"), best / there[part]["speedup"]))
    for (a, at), (b, below) in (((3, 8), (0, 0)), ((6, 16), (3, 8))):
        text = f"CR rises with the exit layer: {a} over {b} (the paper's {at} over {below})"
        first, second = (chain(USUAL, variant=f"exit{n}") for n in (a, b))
        out.append(Claim(text, "figure depth", "tau", first, second, there[at]["cr"] / there[below]["cr"]))
    for name in ("own_head", "layer", "mlp"):
        first, second = chain(USUAL, variant=REFERENCE), chain(USUAL, variant=name)
        out.append(Claim(f"attention alone over {name}", "table adapter", "speedup", first, second, theirs["attention"] / theirs[name]))
    return out


def _lacking() -> list[Claim]:
    """Comparisons that the paper does not have."""
    out: list[Claim] = []

    def add(text: str, first: Any, second: Any, what: str = "speedup", ablation: bool = False) -> None:
        out.append(Claim(text, "not in the paper", what, first, second, None, ablation))

    chains, trees = tuned(6, ETAS), Tuned("tree=true, top and eta tuned", tuple(tree(k, e) for k in TOPS for e in TREE_ETAS))
    static = Tuned("a static tree of as many nodes, tuned", tuple(Cell(f"kangaroo:tree={shape}") for shape in STATIC))
    add("Kangaroo's chain over plain decoding", chain(USUAL), Cell("ar"))
    add("the tuned tree over the tuned chain", trees, chains)
    add("the tuned tree over the tuned static tree", trees, static)
    add("the tuned static tree over the tuned chain", static, chains)
    entropy = Tuned("entropy, eta tuned", tuple(chain(eta, stop="entropy") for eta in ENTROPIES))
    add("stopping by the largest probability over by entropy, both tuned", chains, entropy)
    add("Kangaroo's tuned chain over EAGLE", chains, Cell("eagle"))
    for name in ("own_head", "layer", "mlp"):
        for eta in (0, USUAL):
            first, second = chain(eta, variant=REFERENCE), chain(eta, variant=name)
            add(f"attention alone over {name}, eta = {eta:g}: tau", first, second, "tau", True)
    inner = [f"exit{n}" for n in EXITS[1:-1]]
    peak = Tuned("exit and eta tuned", tuple(chain(eta, variant=name) for name in inner for eta in ABLATION_ETAS))
    for n in (EXITS[0], EXITS[-1]):
        edge = Tuned(f"exit {n}, eta tuned", tuple(chain(eta, variant=f"exit{n}") for eta in ABLATION_ETAS))
        add(f"the best inner exit layer over exit {n}, each with its best eta", peak, edge, ablation=True)
    return out


def predicted(document: dict[str, Any], cells: Sequence[Cell]) -> list[dict[str, Any]]:
    """Of every chain at T = 0, the speedup that the rounds' lengths and the measured costs of a round give, beside the one measured.

    ``simple``: with CR / (1 + D (r + a)), verification as cheap as a plain step. error, simple_error: over measured, minus 1.
    """
    out = []
    for cell in cells:
        have, costs = document["cells"].get(cell.key, {}), document.get("costs", {}).get(cell.variant)
        measured = values(document["cells"], cell, "speedup")
        if cell.kind != "kangaroo" or cell.temperature or not document["shapes"].get(cell.key, {}).get("chain") or not measured or costs is None:
            continue
        kept, drafted = ([n for each in have[name] for n in each[1:]] for name in ("accepted", "drafted"))
        one = exits.Simulated(kept, drafted, [])
        made, here = costs_of(costs), fmean(measured)
        both = made.predicted(one), made.simple(one)
        out.append({
            "cell": cell.key, "measured": round(here, 4), "predicted": round(both[0], 4), "simple": round(both[1], 4),
            "error": round(both[0] / here - 1, 4), "simple_error": round(both[1] / here - 1, 4), "r": round(made.r, 4), "a": round(made.a, 4),
        })  # fmt: skip
    return out


def report(store: Store, ablation: dict[str, Any] | None = None) -> dict[str, Any]:
    """``store.document`` with ``rows``, ``verdicts``, ``predicted`` and, of the ablation's results, the same beside where they are from."""
    store.document["commit"] = with_commit(store.document)
    store.document["rule"] = f"{RULE} {EVEN_RULE} {TUNED_RULE} {OURS}"
    _judged(store.document, own_cells(), [c for c in claims() if not c.ablation])
    if ablation is not None:
        _judged(ablation, ablation_cells(), [c for c in claims() if c.ablation])
        told = ("command", "commit", "heads", "spent", "rows", "verdicts", "predicted")
        store.document["ablation"] = {name: ablation.get(name) for name in told}
    return store.document


def _judged(document: dict[str, Any], cells: Sequence[Cell], made: Sequence[Claim]) -> None:
    document["rows"] = [row(document, cell) for cell in cells if grid.measured(document["cells"], cell.key)["ms"]]
    document["verdicts"] = [found for claim in made if (found := judge(document, claim, values))]
    document["predicted"] = predicted(document, cells)


# ------------------------------------------------------------------------------------------------------------------------- how it is shown


def tables(document: dict[str, Any]) -> list[tuple[str, list[dict[str, str]]]]:
    """(title, rows of text), those without a row left out."""
    own = {r["cell"]: r for r in document["rows"]}
    other = {r["cell"]: r for r in (document.get("ablation") or {}).get("rows") or []}
    published, there, theirs = paper(), etas(), adapters()
    main = {m: [r["mean"] for r in published["tables"]["main"]["rows"] if r["method"] == m] for m in (*HERE, "Kangaroo, chain", "Kangaroo")}
    named = {**HERE, "Kangaroo, chain": chain(USUAL).spec, "Kangaroo": tree(10, 0.4).spec}
    methods = [
        {"method": name, "paper": f"{min(main[name]):.2f}-{max(main[name]):.2f}x", **_line(own[Cell(spec).key])}
        for name, spec in named.items() if Cell(spec).key in own
    ]  # fmt: skip
    thresholds = []
    for eta in ETAS:
        line = {"eta": f"{eta:g}"}
        for g in GAMMAS:
            at = there.get((eta, g))
            line[f"paper: {g}"] = f"{at['cr']:.2f}/{at['speedup']:.2f}x" if at else ""
        for g in GAMMAS:
            found = own.get(chain(eta, g).key)
            line[f"here: {g}"] = f"{found['tau']:.2f}/{_x(found)}" if found else ""
        if any(line[f"here: {g}"] for g in GAMMAS):
            thresholds.append(line)
    near = {0: 0, 3: 8, 6: 16}  # the paper's exit layers at the same part of all
    layers = []
    for n in EXITS:
        at = depths().get(near.get(n, -1))
        theirs_too = {"paper: exit": str(near[n]), "its CR": f"{at['cr']:.2f}", "its speed": f"{at['speedup']:.2f}x"} if at else {}
        line = {"exit": str(n), **dict.fromkeys(("paper: exit", "its CR", "its speed"), ""), **theirs_too}
        found = {eta: other.get(chain(eta, variant=f"exit{n}").key) for eta in ABLATION_ETAS}
        here = {f"here: eta = {eta:g}": f"{r['tau']:.2f}/{_x(r)}" for eta, r in found.items() if r}
        layers += [{**line, **here, **_cost(document, f"exit{n}")}] * (len(here) == len(found))
    variants = []
    for name in (REFERENCE, "own_head", "layer", "mlp"):
        found = other.get(chain(USUAL, variant=name).key)
        if found:
            card = document["ablation"]["heads"][name]
            line = {"adapter": name.replace(REFERENCE, "attention"), "paper": f"{theirs[name.replace(REFERENCE, 'attention')]:.2f}x"}
            first = fmean(domain["rank"][0][0] for domain in card["held_out"].values())
            variants.append({**line, "parameters": f"{card['parameters']:,}", "held-out first guess": f"{first:.2f}", **_line(found)})
    cold = {(r["temperature"], r["stop"]): r["speedup"] for r in published["tables"]["temperature"]["rows"]}
    hot = []
    for t in (0.0, *HOT):
        for stop in ("top", "scaled") if t else ("top",):
            cell = chain(USUAL, stop=stop, temperature=t)
            if cell.key in own:
                there_too = f"{cold[t, stop]:.2f}x" if (t, stop) in cold else ""
                hot.append({"T": f"{t:g}", "confidence": stop, "paper": there_too, **_line(own[cell.key])})
    foretold = [*document["predicted"], *((document.get("ablation") or {}).get("predicted") or [])]
    shown = [
        ("Main table: mean speedup at T = 0, the paper's range over targets; no prompt processing here", methods),
        ("Threshold and steps: CR / speedup of chains by gamma", thresholds),
        ("Exit layer, adapters of the ablation, gamma = 6: CR / speedup; the paper's at the same part of all layers", layers),
        ("Adapter variants, adapters of the ablation, gamma = 6, eta = 0.6", variants),
        ("Temperature and the confidence that is compared with eta", hot),
        ("Predicted speedup of chains", [_foretold(r) for r in foretold]),
        ("Every setting, the target's own heads", [{"setting": name, **_line(r)} for name, r in own.items()]),
        ("Every setting, adapters of the ablation", [{"setting": name, **_line(r)} for name, r in other.items()]),
    ]
    return [(title, rows) for title, rows in shown if rows]


def _cost(document: dict[str, Any], variant: str) -> dict[str, str]:
    """What a token costs in the first layers and in adapter and head, in plain steps."""
    foretold = (document.get("ablation") or {}).get("predicted") or []
    found = next((r for r in foretold if r["cell"].endswith(f"[{variant}]")), None)
    return {"r": f"{found['r']:.2f}", "a": f"{found['a']:.2f}"} if found else {"r": "", "a": ""}


def _x(r: dict[str, Any]) -> str:
    return "" if r["speedup"] is None else f"{r['speedup']:.2f}x"


def _line(r: dict[str, Any]) -> dict[str, str]:
    error = f"±{r['tau_error']:.2f}" if r["tau_error"] else ""
    return {
        "here: drafted": f"{r['drafted']:.2f}", "wasted": f"{r['wasted']:.2f}", "CR": f"{r['tau']:.2f}{error}",
        "CTAR": " ".join(f"{x:.2f}" for x in r["ctar"][:4]), "ms/round": f"{r['ms_per_round']:.1f}", "speedup ": _x(r),
    }  # fmt: skip


def _foretold(r: dict[str, Any]) -> dict[str, str]:
    return {
        "setting": r["cell"], "measured": f"{r['measured']:.2f}x", "predicted": f"{r['predicted']:.2f}x", "error": f"{r['error']:+.0%}",
        "CR / (1 + D (r + a))": f"{r['simple']:.2f}x", "error ": f"{r['simple_error']:+.0%}", "r": f"{r['r']:.2f}", "a": f"{r['a']:.2f}",
    }  # fmt: skip


def notes(document: dict[str, Any]) -> list[str]:
    """The verdicts, the rules they are by, how good the cost model is, and what does not fit together in the paper."""
    published, rows, ablation = paper(), document["rows"], document.get("ablation") or {}
    verdicts = [*document["verdicts"], *(ablation.get("verdicts") or [])]
    out = [said(v) for v in verdicts]
    for table in dict.fromkeys(v["table"] for v in verdicts if v["paper"] is not None):
        mine = Counter(v["verdict"] for v in verdicts if v["table"] == table)
        out.append(f"Of {table}: {', '.join(f'{n} {verdict}' for verdict, n in mine.items())}.")
    by = {r["cell"]: r for r in rows}
    for g in GAMMAS:
        at = {eta: by[chain(eta, g).key] for eta in ETAS if chain(eta, g).key in by}
        if len(at) == len(ETAS) and all(r["speedup"] for r in at.values()):
            taus = [r["tau"] for r in at.values()]
            falls, best = sum(a >= b for a, b in pairwise(taus)), max(at, key=lambda eta: at[eta]["speedup"])
            out.append(f"gamma = {g}: CR falls at {falls} of {len(taus) - 1} steps of eta; fastest at eta = {best:g} ({at[best]['speedup']:.2f}x).")
    for name, foretold in (("own adapter", document["predicted"]), ("ablation", ablation.get("predicted") or [])):
        if foretold:
            errors = (median(abs(r[error]) for r in foretold) for error in ("error", "simple_error"))
            words = "median error {:.0%} from the cost of a round by what it drafts, {:.0%} from CR / (1 + D (r + a))."
            out.append(f"Predicted speedup of {len(foretold)} chains, {name}: {words.format(*errors)}")
    out += grid.fastest(rows, "kangaroo", "Kangaroo")
    out += [f"In the paper: {text}" for text in contradictions()]
    out += [document["rule"], f"Paper: {published['source']}; {published['setting']}."]
    if ablation:
        card = next(iter(ablation["heads"].values()))
        size = f"{card['steps']} steps of {card['rows']} x {card['length']} tokens"
        out.append(
            f"Ablation: {len(ablation['heads'])} adapters, {size} each, by `{ablation['command']}` at commit {(ablation['commit'] or '?')[:10]}."
        )
    else:
        out.append("No ablation results; --train makes them.")
    counts = [r["prompts"] for r in rows] or [0]
    return [*out, f"{min(counts)} prompts a cell, {document['spent']:.0f} s of measuring."]
