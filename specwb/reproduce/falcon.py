"""Falcon (Gao et al. 2412.12639): its tables beside the same comparisons here, and what the paper leaves out, measured and judged.

Two grids. One decodes with the target's own heads. The other with the heads of :data:`VARIANTS`, all trained for the recipe's budget ``ablation``;
its results are shipped, since training takes a while.

Differs from the paper in: models, machine, prompts and trees where none is published. Acceptance is counted over a fixed number of rounds a
prompt, and times leave out the first, which processes the prompt. The paper's tau does not count the closing token; here that is ``accepted``, and
tau counts it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import geometric_mean, median
from typing import Any

import numpy as np

from specwb.drafters.falcon import FalconDrafter
from specwb.drafters.level import Levels
from specwb.evaluation.prompts import Question
from specwb.evaluation.statistics import mean_and_error
from specwb.methods import Method
from specwb.models.load import data_dir
from specwb.models.target import Target
from specwb.reproduce import grid
from specwb.reproduce.grid import Cell
from specwb.reproduce.store import Store, with_commit
from specwb.reproduce.verdicts import RULE, Claim, judge, said

PAPER = "papers/falcon.json"
SHIPPED = "results/falcon-ablation-lab.json"
OURS = (
    "nodes=n is the tree of n nodes that a head's accuracies on held-out text make best, which is a guess of what it accepts when decoding. One "
    "training run a variant: the interval says nothing about other seeds of training."
)
HEADS = ("medusa", "eagle", "falcon")
HERE = {"SpS": "sps", "PLD": "pld", "Lookahead": "lookahead", "Medusa": "medusa", "Eagle": "eagle"}
COPIED = ("SpS", "PLD", "Lookahead")
CHAIN4, CHAIN8 = "tree=1-1-1-1", "tree=1-1-1-1-1-1-1-1"
BUDGETS = (5, 10, 26, 64)  # verified tokens, the root included
# name -> what differs from the first, as `specwb train falcon --set` takes it. "one" is EAGLE-1's head by Falcon's recipe: as "small", but one token
# a pass, so twice the passes for the depths trained, and nothing to glance at
VARIANTS = {
    "csgd": "",
    "plain": "glance=0",
    "k3": "k=3",
    "k4": "k=4",
    "linear": "fusion=linear",
    "pointwise": "fusion=pointwise",
    "small": "fusion=linear,layers=1",
    "one": "fusion=linear,layers=1,k=1,unroll=4",
}
PASSES = {"csgd": 4, "k3": 2, "k4": 2}  # the paper's, by size of the block


def own_cells() -> list[Cell]:
    """What is decoded with the target's own heads."""
    found = [Cell(name) for name in ("ar", *HERE.values(), "falcon")]
    found += [Cell(f"{name}:nodes={n}") for n in BUDGETS for name in ("eagle", "falcon") if n != 10]
    found += [Cell("eagle:tree=published"), Cell("falcon:tree=vicuna"), Cell("falcon:tree=llama"), Cell("falcon:nodes=26,align=left")]
    found += [Cell(f"{name}:{CHAIN4}") for name in ("eagle", "falcon")] + [Cell(f"falcon:{CHAIN4},align=left")]
    found += [Cell(f"falcon:nodes=26,passes={m}") for m in (1, 2, 3)]
    found += [Cell("eagle2:nodes=26,depth=4,top=4"), Cell("falcon_dynamic:nodes=26,passes=2,top=4,beams=4")]
    hot = ["ar", "sps", "eagle", "falcon", "falcon:draw=greedy", "eagle:nodes=26", "falcon:nodes=26", "falcon:nodes=26,draw=greedy"]
    return found + [Cell(spec, temperature=1.0) for spec in [*hot, "falcon:nodes=26,align=left"]]


def ablation_cells(variants: Sequence[str] = tuple(VARIANTS)) -> list[Cell]:
    """What is decoded with the heads of an ablation."""
    found = [Cell("ar"), Cell("ar", temperature=1.0)]
    for name in variants:
        found += [Cell(f"falcon:{CHAIN4}", name), Cell("falcon:nodes=26", name), Cell("falcon:nodes=26", name, 1.0)]
        if name in ("csgd", "plain"):
            found += [Cell(f"falcon:{CHAIN8}", name), Cell("falcon:tree=vicuna", name)]
        if name in PASSES:
            found.append(Cell(f"falcon:nodes=64,passes={PASSES[name]}", name))
    return found


def run(
    target: Target, questions: Sequence[Question], store: Store, cells: Sequence[Cell], *, heads: Path | None = None, rounds_each: int = 10,
    seconds: float | None = None, seed: int = 0, progress: Callable[[float, str], None] | None = None,
) -> bool:  # fmt: skip
    """:func:`specwb.reproduce.grid.run` of the cells; ``heads``: the folder of the variants'. Returns whether it was interrupted."""
    grid.check(questions, cells, rounds_each)
    methods = {cell: cell.method(target, heads / cell.variant if cell.variant and heads is not None else None) for cell in cells}
    store.document["shapes"] = {cell.key: _shape(methods[cell]) for cell in cells}
    return grid.run(target, questions, store, methods, rounds_each=rounds_each, seconds=seconds, seed=seed, progress=progress)


def _shape(method: Method) -> dict[str, int | None]:
    """passes: of a head or draft model for one draft, None where there is no such thing."""
    drafter, limits = method.drafter, method.drafter.limits
    passes = None
    if isinstance(drafter, FalconDrafter):
        passes = -(-limits.depth // drafter.k)
    elif isinstance(drafter, Levels):
        passes = limits.depth
    return {"nodes": limits.nodes, "depth": limits.depth, "passes": passes}


# --------------------------------------------------------------------------------------------------------------------- what was measured


def paper() -> dict[str, Any]:
    """The published tables, as data."""
    return json.loads((data_dir() / PAPER).read_text("utf-8"))


def values(cells: dict[str, Any], cell: Cell, what: str) -> list[float]:
    """By prompt: "tau", "accepted" (tau - 1), "speedup"."""
    found = grid.values(cells, cell.key, cell.plain.key, "tau" if what == "accepted" else what)
    return [x - 1 for x in found] if what == "accepted" else found


def row(document: dict[str, Any], cell: Cell) -> dict[str, Any]:
    """One cell's figures: tau with its standard error over prompts, accepted = tau - 1 (also by domain), alpha = accepted / tau, kept and tested by
    depth, and speedup, a mean over prompts."""
    cells, domains = document["cells"], document["domains"]
    tau = values(cells, cell, "tau")
    mean, error = mean_and_error(tau)
    kept = [a for one in cells[cell.key]["accepted"] for a in one]
    shape = document["shapes"][cell.key]
    speedup = values(cells, cell, "speedup")
    return {
        "cell": cell.key, "spec": cell.spec, "variant": cell.variant, "temperature": cell.temperature, **shape, "prompts": len(tau),
        "tau": round(mean, 4), "tau_error": None if error != error else round(error, 4), "accepted": round(mean - 1, 4),
        "alpha": round((mean - 1) / mean, 4),
        "by_domain": grid.by_domain(values(cells, cell, "accepted"), domains),
        "by_depth": [[sum(a >= d for a in kept), sum(a >= d - 1 for a in kept)] for d in range(1, shape["depth"] + 1)],
        "ms_per_round": round(median(cells[cell.key]["ms"]), 3), "speedup": round(float(np.mean(speedup)), 4) if speedup else None,
    }  # fmt: skip


def claims() -> list[Claim]:
    """What the paper says in tables 1, 3, 4 and 5, and the comparisons that it lacks."""
    tables = paper()["tables"]
    four = {(r["tree"], r["csgd"]): r for r in tables["4"]["rows"]}
    five = {r["k"]: r for r in tables["5"]["rows"]}
    out = [
        Claim(
            f"Falcon is faster than {name}", "table 1", "speedup", Cell("falcon"), Cell(key), _ratio(tables["1"]["rows"], name), False, name in COPIED
        )
        for name, key in HERE.items()
    ]
    theirs = _ratio([r for r in tables["3"]["rows"] if r["target"] != "Vicuna 7B"], "Eagle")  # those three count the closing token
    out.append(
        Claim("Falcon accepts more than Eagle, each with its published tree (165 and 25 candidates)", "table 3", "accepted",
              Cell("falcon:tree=vicuna"), Cell("eagle:tree=published"), theirs, False)
    )  # fmt: skip
    for what in ("accepted", "speedup"):
        on, off = Cell("falcon:tree=vicuna", "csgd"), Cell("falcon:tree=vicuna", "plain")
        chain, chain_off = Cell(f"falcon:{CHAIN8}", "csgd"), Cell(f"falcon:{CHAIN8}", "plain")
        out += [
            Claim(f"CSGD, with the tree: {what}", "table 4", what, on, off, four[True, True][what] / four[True, False][what]),
            Claim(f"CSGD, on a chain: {what}", "table 4", what, chain, chain_off, four[False, True][what] / four[False, False][what]),
            Claim(f"the tree, with CSGD: {what}", "table 4", what, on, chain, four[True, True][what] / four[False, True][what]),
        ]
        size = {k: Cell(f"falcon:nodes=64,passes={PASSES[v]}", v) for k, v in ((2, "csgd"), (3, "k3"), (4, "k4"))}
        out += [Claim(f"k = {k} over k = {k + 1}: {what}", "table 5", what, size[k], size[k + 1], five[k][what] / five[k + 1][what]) for k in (2, 3)]

    def ours(text: str, first: Cell, second: Cell, what: str = "accepted", ablation: bool = True) -> None:
        out.append(Claim(text, "not in the paper", what, first, second, None, ablation))

    for n in BUDGETS:
        falcon, eagle = (Cell(f"{name}:nodes={n}" if n != 10 else name) for name in ("falcon", "eagle"))
        ours(f"Falcon over Eagle at {n} verified tokens", falcon, eagle, ablation=False)
        ours(f"Falcon over Eagle at {n} verified tokens: speedup", falcon, eagle, "speedup", ablation=False)
    ours("Falcon over Eagle, chains of 4", Cell(f"falcon:{CHAIN4}"), Cell(f"eagle:{CHAIN4}"), ablation=False)
    hot = Cell("falcon:nodes=26", temperature=1.0)
    ours("Falcon over Eagle at 26 verified tokens, T = 1", hot, Cell("eagle:nodes=26", temperature=1.0), ablation=False)
    ours("draws without replacement over point masses, T = 1", hot, Cell("falcon:nodes=26,draw=greedy", temperature=1.0), ablation=False)
    for t in (0.0, 1.0):
        ours(f"blocks aligned right over left, T = {t:g}", Cell("falcon:nodes=26", temperature=t), Cell("falcon:nodes=26,align=left", temperature=t),
             ablation=False)  # fmt: skip
    ours("dynamic over static tree, 26 verified tokens", Cell("falcon_dynamic:nodes=26,passes=2,top=4,beams=4"), Cell("falcon:nodes=26,passes=2"),
         ablation=False)  # fmt: skip
    for t in (0.0, 1.0):
        for name, text in (
            ("plain", "CSGD over none"), ("linear", "LSTM over linear fusion, a smaller head"), ("pointwise", "recurrent over point-wise LSTM"),
            ("k3", "k = 2 over k = 3"), ("k4", "k = 2 over k = 4"),
        ):  # fmt: skip
            ours(f"{text}, 26 verified tokens, T = {t:g}", Cell("falcon:nodes=26", "csgd", t), Cell("falcon:nodes=26", name, t))
        ours(f"k = 2 over k = 1 (Eagle's head), equal heads and recipes, 26 verified tokens, T = {t:g}", Cell("falcon:nodes=26", "small", t),
             Cell("falcon:nodes=26", "one", t))  # fmt: skip
        ours(f"two layers over one, linear fusion, 26 verified tokens, T = {t:g}", Cell("falcon:nodes=26", "linear", t),
             Cell("falcon:nodes=26", "small", t))  # fmt: skip
        ours(f"Falcon's head over one of Eagle's size, both k = 2, 26 verified tokens, T = {t:g}", Cell("falcon:nodes=26", "csgd", t),
             Cell("falcon:nodes=26", "small", t))  # fmt: skip
    return out


def _ratio(rows: Sequence[dict[str, Any]], name: str) -> float:
    """Falcon over another method: the geometric mean over all targets and tasks that have both."""
    sets = ("MT-Bench", "HumanEval", "GSM8K")
    falcon = {r["target"]: r for r in rows if r["method"] == "Falcon"}
    return geometric_mean(falcon[r["target"]][s] / r[s] for r in rows if r["method"] == name for s in sets)


def report(store: Store, ablation: dict[str, Any] | None = None) -> dict[str, Any]:
    """``store.document`` with ``rows``, ``verdicts`` and, of the ablation's results, the same beside where they are from."""
    store.document["commit"] = with_commit(store.document)
    store.document["rule"] = f"{RULE} {OURS}"
    _judged(store.document, own_cells(), [c for c in claims() if not c.ablation])
    if ablation is not None:
        _judged(ablation, ablation_cells(), [c for c in claims() if c.ablation])
        told = ("command", "commit", "heads", "spent", "rows", "verdicts")
        store.document["ablation"] = {name: ablation.get(name) for name in told}
    return store.document


def _judged(document: dict[str, Any], cells: Sequence[Cell], made: Sequence[Claim]) -> None:
    document["rows"] = [row(document, cell) for cell in cells if grid.measured(document["cells"], cell.key)["ms"]]
    document["verdicts"] = [found for claim in made if (found := judge(document, claim, values))]


# ------------------------------------------------------------------------------------------------------------------------- how it is shown


def tables(document: dict[str, Any]) -> list[tuple[str, list[dict[str, str]]]]:
    """(title, rows of text)."""
    published = paper()["tables"]
    own = {r["cell"]: r for r in document["rows"]}
    other = {r["cell"]: r for r in (document.get("ablation") or {}).get("rows") or []}
    out = []
    lines = []
    for name, key in [*HERE.items(), ("Falcon", "falcon")]:
        if Cell(key).key in own:
            there = [r[s] for r in published["1"]["rows"] if r["method"] == name for s in ("MT-Bench", "HumanEval", "GSM8K")]
            lines.append({"method": name, "paper": f"{min(there):.2f}-{max(there):.2f}x", **_line(own[Cell(key).key])})
    if lines:
        out.append(("Table 1: speedup at T = 0: the paper's range over targets and tasks; usual settings here, no prompt processing", lines))
    lines = []
    for r in published["4"]["rows"]:
        cell = Cell("falcon:tree=vicuna" if r["tree"] else f"falcon:{CHAIN8}", "csgd" if r["csgd"] else "plain")
        if cell.key in other:
            lines.append({"tree": "yes" if r["tree"] else "chain", "CSGD": "yes" if r["csgd"] else "no", **_theirs(r), **_line(other[cell.key])})
    if lines:
        out.append(("Table 4: tree and CSGD (165 candidates, or a chain of 8), heads of the ablation", lines))
    lines = []
    for r in published["5"]["rows"]:
        variant = {2: "csgd", 3: "k3", 4: "k4"}[r["k"]]
        cell = Cell(f"falcon:nodes=64,passes={PASSES[variant]}", variant)
        if cell.key in other:
            lines.append({"k": str(r["k"]), "passes": str(r["passes"]), **_theirs(r), **_line(other[cell.key])})
    if lines:
        out.append(("Table 5: size of the block (63 candidates each, trees from each head's accuracies), heads of the ablation", lines))
    for title, rows in (("Every setting, the target's own heads", own), ("Every setting, heads of the ablation", other)):
        if rows:
            out.append((title, [{"setting": name, **_line(r)} for name, r in rows.items()]))
    return out


def _theirs(r: dict[str, Any]) -> dict[str, str]:
    return {"paper: accepted": f"{r['accepted']:.2f}", "alpha": f"{r['alpha']:.0f} %", "speedup": f"{r['speedup']:.2f}x"}


def _line(r: dict[str, Any]) -> dict[str, str]:
    error = f"±{r['tau_error']:.2f}" if r["tau_error"] else ""
    return {
        "here: tokens": str(r["nodes"]), "passes": "" if r["passes"] is None else str(r["passes"]),
        "accepted": f"{r['accepted']:.2f}{error}", "tau": f"{r['tau']:.2f}",
        "alpha ": f"{100 * r['alpha']:.0f} %", "by depth": " ".join(f"{a / b:.2f}" if b else "-" for a, b in r["by_depth"][:6]),
        "ms/round": f"{r['ms_per_round']:.1f}", "speedup ": "" if r["speedup"] is None else f"{r['speedup']:.2f}x",
    }  # fmt: skip


def notes(document: dict[str, Any]) -> list[str]:
    """The verdicts, the rule they are by, and where results are from."""
    ablation = document.get("ablation") or {}
    out = [said(v) for v in [*document["verdicts"], *(ablation.get("verdicts") or [])]]
    published = paper()
    out += [document["rule"], f"Paper: {published['source']}; {published['setting']}; {published['conventions']['copied']}."]
    if ablation:
        heads = next(iter(ablation["heads"].values()))
        size = f"{heads['steps']} steps of {heads['rows']} x {heads['length']} tokens"
        out.append(f"Ablation: {len(ablation['heads'])} heads, {size} each, by `{ablation['command']}` at commit {(ablation['commit'] or '?')[:10]}.")
    else:
        out.append("No ablation results; --train makes them.")
    counts = [r["prompts"] for r in document["rows"]] or [0]
    return [*out, f"{min(counts)} prompts a cell, {document['spent']:.0f} s of measuring."]
