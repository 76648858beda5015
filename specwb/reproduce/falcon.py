"""Falcon (Gao et al. 2412.12639).

Its tables stand beside the same comparisons here; comparisons that the paper leaves out are
measured and judged too. There are two grids. One decodes with the target's own heads. The other
decodes with the heads of :data:`VARIANTS`, all trained for the recipe's budget ``ablation``; its
results are shipped, since training takes a while.

Differs from the paper in: models, machine, prompts, and trees where none is published. Acceptance
is counted over a fixed number of decoding steps a prompt, and times leave out the first step, which
processes the prompt. The paper's tau does not count the bonus token; here that is ``accepted``, and
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
from specwb.reproduce.verdicts import RULE, Claim, judge, sentence

PAPER = "papers/falcon.json"
SHIPPED = "results/falcon-ablation-lab.json"
OURS = (
    "nodes=n is the tree of n nodes that a head's accuracies on held-out text make best, which is "
    "a guess of what it accepts when decoding. One training run a variant: the interval says "
    "nothing about other seeds of training."
)
HEADS = ("medusa", "eagle", "falcon")
HERE = {"SpS": "sps", "PLD": "pld", "Lookahead": "lookahead", "Medusa": "medusa", "Eagle": "eagle"}
"""The paper's name of a method -> its spec here."""
COPIED = ("SpS", "PLD", "Lookahead")
"""Methods whose figures the paper copied from elsewhere."""
CHAIN4, CHAIN8 = "tree=1-1-1-1", "tree=1-1-1-1-1-1-1-1"
BUDGETS = (5, 10, 26, 64)
"""Numbers of verified tokens, the root included."""
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
"""The ablation's heads: name -> what differs from the first, as ``specwb train falcon --set`` takes
it. "one" is EAGLE-1's head by Falcon's recipe: like "small", but with one token a pass, so twice
the passes for the depths trained, and nothing to glance at."""
PASSES = {"csgd": 4, "k3": 2, "k4": 2}
"""The paper's numbers of passes, by size of the block."""


def own_cells() -> list[Cell]:
    """List the settings that are decoded with the target's own heads."""
    cells = [Cell(name) for name in ("ar", *HERE.values(), "falcon")]
    cells += [Cell(f"{name}:nodes={n}") for n in BUDGETS for name in ("eagle", "falcon") if n != 10]
    cells += [
        Cell("eagle:tree=published"),
        Cell("falcon:tree=vicuna"),
        Cell("falcon:tree=llama"),
        Cell("falcon:nodes=26,align=left"),
    ]
    cells += [Cell(f"{name}:{CHAIN4}") for name in ("eagle", "falcon")]
    cells += [Cell(f"falcon:{CHAIN4},align=left")]
    cells += [Cell(f"falcon:nodes=26,passes={m}") for m in (1, 2, 3)]
    cells += [
        Cell("eagle2:nodes=26,depth=4,top=4"),
        Cell("falcon_dynamic:nodes=26,passes=2,top=4,beams=4"),
    ]
    sampled = [
        "ar",
        "sps",
        "eagle",
        "falcon",
        "falcon:draw=greedy",
        "eagle:nodes=26",
        "falcon:nodes=26",
        "falcon:nodes=26,draw=greedy",
        "falcon:nodes=26,align=left",
    ]
    return cells + [Cell(spec, temperature=1.0) for spec in sampled]


def ablation_cells(variants: Sequence[str] = tuple(VARIANTS)) -> list[Cell]:
    """List the settings that are decoded with the heads of an ablation."""
    cells = [Cell("ar"), Cell("ar", temperature=1.0)]
    for name in variants:
        cells += [
            Cell(f"falcon:{CHAIN4}", name),
            Cell("falcon:nodes=26", name),
            Cell("falcon:nodes=26", name, 1.0),
        ]
        if name in ("csgd", "plain"):
            cells += [Cell(f"falcon:{CHAIN8}", name), Cell("falcon:tree=vicuna", name)]
        if name in PASSES:
            cells.append(Cell(f"falcon:nodes=64,passes={PASSES[name]}", name))
    return cells


def run(
    target: Target,
    questions: Sequence[Question],
    store: Store,
    cells: Sequence[Cell],
    *,
    heads: Path | None = None,
    rounds_each: int = 10,
    seconds: float | None = None,
    seed: int = 0,
    progress: Callable[[float, str], None] | None = None,
) -> bool:
    """Measure the cells with :func:`specwb.reproduce.grid.run`; return whether it was interrupted.

    Args:
        target: the target model.
        questions: the prompts.
        store: of the results.
        cells: the settings.
        heads: the folder of the variants' heads.
        rounds_each: decoding steps of each prompt and cell.
        seconds: about how long to measure in all.
        seed: of the sampling.
        progress: called with (fraction done, text).
    """
    grid.check(questions, cells, rounds_each)

    def build(cell: Cell) -> Method:
        head = heads / cell.variant if cell.variant and heads is not None else None
        return cell.method(target, head)

    methods = {cell: build(cell) for cell in cells}
    store.document["shapes"] = {cell.key: _shape(methods[cell]) for cell in cells}
    return grid.run(
        target,
        questions,
        store,
        methods,
        rounds_each=rounds_each,
        seconds=seconds,
        seed=seed,
        progress=progress,
    )


def _shape(method: Method) -> dict[str, int | None]:
    """The size of the largest tree, and the passes for it.

    passes: of a head or draft model for one draft, None where there is no such thing.
    """
    drafter, limits = method.drafter, method.drafter.limits
    passes = None
    if isinstance(drafter, FalconDrafter):
        passes = -(-limits.depth // drafter.k)
    elif isinstance(drafter, Levels):
        passes = limits.depth
    return {"nodes": limits.nodes, "depth": limits.depth, "passes": passes}


# ---------------------------------------------------------------------------------------- results


def paper() -> dict[str, Any]:
    """Load the published tables."""
    return json.loads((data_dir() / PAPER).read_text("utf-8"))


def values(cells: dict[str, Any], cell: Cell, what: str) -> list[float]:
    """Compute a figure for every prompt: "tau", "accepted" (tau - 1) or "speedup"."""
    if what == "accepted":
        return [tau - 1 for tau in grid.values(cells, cell.key, cell.plain.key, "tau")]
    return grid.values(cells, cell.key, cell.plain.key, what)


def row(document: dict[str, Any], cell: Cell) -> dict[str, Any]:
    """Compute one cell's figures.

    They are tau with its standard error over prompts, accepted = tau - 1 (also by domain), alpha =
    accepted / tau, (accepted, tested) by depth, and the speedup, a mean over prompts.
    """
    cells, domains = document["cells"], document["domains"]
    tau = values(cells, cell, "tau")
    mean, error = mean_and_error(tau)
    accepted = [a for steps in cells[cell.key]["accepted"] for a in steps]
    shape = document["shapes"][cell.key]
    speedup = values(cells, cell, "speedup")
    return {
        "cell": cell.key,
        "spec": cell.spec,
        "variant": cell.variant,
        "temperature": cell.temperature,
        **shape,
        "prompts": len(tau),
        "tau": round(mean, 4),
        "tau_error": None if error != error else round(error, 4),
        "accepted": round(mean - 1, 4),
        "alpha": round((mean - 1) / mean, 4),
        "by_domain": grid.by_domain(values(cells, cell, "accepted"), domains),
        "by_depth": [
            [sum(a >= d for a in accepted), sum(a >= d - 1 for a in accepted)]
            for d in range(1, shape["depth"] + 1)
        ],
        "ms_per_round": round(median(cells[cell.key]["ms"]), 3),
        "speedup": round(float(np.mean(speedup)), 4) if speedup else None,
    }


def claims() -> list[Claim]:
    """List the claims of the paper's tables 1, 3, 4 and 5, and the comparisons that it lacks."""
    return [*_paper_claims(), *_other_claims()]


def _paper_claims() -> list[Claim]:
    """The claims of the paper's tables 1, 3, 4 and 5."""
    tables = paper()["tables"]
    four = {(r["tree"], r["csgd"]): r for r in tables["4"]["rows"]}
    five = {r["k"]: r for r in tables["5"]["rows"]}
    out = [
        Claim(
            f"Falcon is faster than {name}",
            "table 1",
            "speedup",
            Cell("falcon"),
            Cell(key),
            _ratio(tables["1"]["rows"], name),
            False,
            name in COPIED,
        )
        for name, key in HERE.items()
    ]
    # the three values of Vicuna 7B count the bonus token
    comparable = [r for r in tables["3"]["rows"] if r["target"] != "Vicuna 7B"]
    out.append(
        Claim(
            "Falcon accepts more than Eagle, each with its published tree (165 and 25 candidates)",
            "table 3",
            "accepted",
            Cell("falcon:tree=vicuna"),
            Cell("eagle:tree=published"),
            _ratio(comparable, "Eagle"),
            False,
        )
    )
    for what in ("accepted", "speedup"):
        on, off = Cell("falcon:tree=vicuna", "csgd"), Cell("falcon:tree=vicuna", "plain")
        chain, chain_off = Cell(f"falcon:{CHAIN8}", "csgd"), Cell(f"falcon:{CHAIN8}", "plain")
        out += [
            Claim(
                f"CSGD, with the tree: {what}",
                "table 4",
                what,
                on,
                off,
                four[True, True][what] / four[True, False][what],
            ),
            Claim(
                f"CSGD, on a chain: {what}",
                "table 4",
                what,
                chain,
                chain_off,
                four[False, True][what] / four[False, False][what],
            ),
            Claim(
                f"the tree, with CSGD: {what}",
                "table 4",
                what,
                on,
                chain,
                four[True, True][what] / four[False, True][what],
            ),
        ]
        size = {
            k: Cell(f"falcon:nodes=64,passes={PASSES[v]}", v)
            for k, v in ((2, "csgd"), (3, "k3"), (4, "k4"))
        }
        out += [
            Claim(
                f"k = {k} over k = {k + 1}: {what}",
                "table 5",
                what,
                size[k],
                size[k + 1],
                five[k][what] / five[k + 1][what],
            )
            for k in (2, 3)
        ]
    return out


def _other_claims() -> list[Claim]:
    """The comparisons that the paper lacks."""
    out: list[Claim] = []

    def compare(
        text: str, first: Cell, second: Cell, what: str = "accepted", ablation: bool = True
    ) -> None:
        out.append(Claim(text, "not in the paper", what, first, second, None, ablation))

    for n in BUDGETS:
        falcon, eagle = (
            Cell(f"{name}:nodes={n}" if n != 10 else name) for name in ("falcon", "eagle")
        )
        compare(f"Falcon over Eagle at {n} verified tokens", falcon, eagle, ablation=False)
        compare(
            f"Falcon over Eagle at {n} verified tokens: speedup",
            falcon,
            eagle,
            "speedup",
            ablation=False,
        )
    compare(
        "Falcon over Eagle, chains of 4",
        Cell(f"falcon:{CHAIN4}"),
        Cell(f"eagle:{CHAIN4}"),
        ablation=False,
    )
    sampled = Cell("falcon:nodes=26", temperature=1.0)
    compare(
        "Falcon over Eagle at 26 verified tokens, T = 1",
        sampled,
        Cell("eagle:nodes=26", temperature=1.0),
        ablation=False,
    )
    compare(
        "draws without replacement over point masses, T = 1",
        sampled,
        Cell("falcon:nodes=26,draw=greedy", temperature=1.0),
        ablation=False,
    )
    for t in (0.0, 1.0):
        compare(
            f"blocks aligned right over left, T = {t:g}",
            Cell("falcon:nodes=26", temperature=t),
            Cell("falcon:nodes=26,align=left", temperature=t),
            ablation=False,
        )
    compare(
        "dynamic over static tree, 26 verified tokens",
        Cell("falcon_dynamic:nodes=26,passes=2,top=4,beams=4"),
        Cell("falcon:nodes=26,passes=2"),
        ablation=False,
    )
    for t in (0.0, 1.0):
        for name, text in (
            ("plain", "CSGD over none"),
            ("linear", "LSTM over linear fusion, a smaller head"),
            ("pointwise", "recurrent over point-wise LSTM"),
            ("k3", "k = 2 over k = 3"),
            ("k4", "k = 2 over k = 4"),
        ):
            compare(
                f"{text}, 26 verified tokens, T = {t:g}",
                Cell("falcon:nodes=26", "csgd", t),
                Cell("falcon:nodes=26", name, t),
            )
        compare(
            f"k = 2 over k = 1 (Eagle's head), equal heads and recipes, 26 verified tokens, "
            f"T = {t:g}",
            Cell("falcon:nodes=26", "small", t),
            Cell("falcon:nodes=26", "one", t),
        )
        compare(
            f"two layers over one, linear fusion, 26 verified tokens, T = {t:g}",
            Cell("falcon:nodes=26", "linear", t),
            Cell("falcon:nodes=26", "small", t),
        )
        compare(
            f"Falcon's head over one of Eagle's size, both k = 2, 26 verified tokens, T = {t:g}",
            Cell("falcon:nodes=26", "csgd", t),
            Cell("falcon:nodes=26", "small", t),
        )
    return out


def _ratio(rows: Sequence[dict[str, Any]], name: str) -> float:
    """Falcon over another method: the geometric mean over all targets and tasks that have both."""
    sets = ("MT-Bench", "HumanEval", "GSM8K")
    falcon = {r["target"]: r for r in rows if r["method"] == "Falcon"}
    return geometric_mean(
        falcon[r["target"]][s] / r[s] for r in rows if r["method"] == name for s in sets
    )


def report(store: Store, ablation: dict[str, Any] | None = None) -> dict[str, Any]:
    """Add the results to ``store.document`` and return it.

    Added are ``rows`` and ``verdicts`` and, of the ablation's results, the same with where they are
    from.
    """
    store.document["commit"] = with_commit(store.document)
    store.document["rule"] = f"{RULE} {OURS}"
    _add_results(store.document, own_cells(), [c for c in claims() if not c.ablation])
    if ablation is not None:
        _add_results(ablation, ablation_cells(), [c for c in claims() if c.ablation])
        names = ("command", "commit", "heads", "spent", "rows", "verdicts")
        store.document["ablation"] = {name: ablation.get(name) for name in names}
    return store.document


def _add_results(document: dict[str, Any], cells: Sequence[Cell], judged: Sequence[Claim]) -> None:
    """Add the rows of all cells that were measured, and the verdicts on these claims."""
    document["rows"] = [
        row(document, cell) for cell in cells if grid.cell_record(document["cells"], cell.key)["ms"]
    ]
    verdicts = [judge(document, claim, values) for claim in judged]
    document["verdicts"] = [verdict for verdict in verdicts if verdict]


# --------------------------------------------------------------------------------------- printing


def tables(document: dict[str, Any]) -> list[tuple[str, list[dict[str, str]]]]:
    """Make the printed tables, as (title, rows of text)."""
    published = paper()["tables"]
    own = {r["cell"]: r for r in document["rows"]}
    ablation = {r["cell"]: r for r in (document.get("ablation") or {}).get("rows") or []}
    every_table = [
        (
            "Table 1: speedup at T = 0: the paper's range over targets and tasks; "
            "usual settings here, no prompt processing",
            _table_1(published["1"]["rows"], own),
        ),
        (
            "Table 4: tree and CSGD (165 candidates, or a chain of 8), heads of the ablation",
            _table_4(published["4"]["rows"], ablation),
        ),
        (
            "Table 5: size of the block (63 candidates each, trees from each head's accuracies), "
            "heads of the ablation",
            _table_5(published["5"]["rows"], ablation),
        ),
        (
            "Every setting, the target's own heads",
            [{"setting": name, **_line(r)} for name, r in own.items()],
        ),
        (
            "Every setting, heads of the ablation",
            [{"setting": name, **_line(r)} for name, r in ablation.items()],
        ),
    ]
    return [(title, lines) for title, lines in every_table if lines]


def _table_1(published: list[dict[str, Any]], own: dict[str, Any]) -> list[dict[str, str]]:
    lines = []
    for name, key in [*HERE.items(), ("Falcon", "falcon")]:
        if Cell(key).key in own:
            speedups = [
                r[task]
                for r in published
                if r["method"] == name
                for task in ("MT-Bench", "HumanEval", "GSM8K")
            ]
            span = f"{min(speedups):.2f}-{max(speedups):.2f}x"
            lines.append({"method": name, "paper": span, **_line(own[Cell(key).key])})
    return lines


def _table_4(published: list[dict[str, Any]], ablation: dict[str, Any]) -> list[dict[str, str]]:
    lines = []
    for r in published:
        spec = "falcon:tree=vicuna" if r["tree"] else f"falcon:{CHAIN8}"
        cell = Cell(spec, "csgd" if r["csgd"] else "plain")
        if cell.key in ablation:
            lines.append(
                {
                    "tree": "yes" if r["tree"] else "chain",
                    "CSGD": "yes" if r["csgd"] else "no",
                    **_paper_figures(r),
                    **_line(ablation[cell.key]),
                }
            )
    return lines


def _table_5(published: list[dict[str, Any]], ablation: dict[str, Any]) -> list[dict[str, str]]:
    lines = []
    for r in published:
        variant = {2: "csgd", 3: "k3", 4: "k4"}[r["k"]]
        cell = Cell(f"falcon:nodes=64,passes={PASSES[variant]}", variant)
        if cell.key in ablation:
            lines.append(
                {
                    "k": str(r["k"]),
                    "passes": str(r["passes"]),
                    **_paper_figures(r),
                    **_line(ablation[cell.key]),
                }
            )
    return lines


def _paper_figures(r: dict[str, Any]) -> dict[str, str]:
    return {
        "paper: accepted": f"{r['accepted']:.2f}",
        "alpha": f"{r['alpha']:.0f} %",
        "speedup": f"{r['speedup']:.2f}x",
    }


def _line(r: dict[str, Any]) -> dict[str, str]:
    """The figures measured here; a trailing blank tells a column from the paper's of that name."""
    error = f"±{r['tau_error']:.2f}" if r["tau_error"] else ""
    return {
        "here: tokens": str(r["nodes"]),
        "passes": "" if r["passes"] is None else str(r["passes"]),
        "accepted": f"{r['accepted']:.2f}{error}",
        "tau": f"{r['tau']:.2f}",
        "alpha ": f"{100 * r['alpha']:.0f} %",
        "by depth": " ".join(f"{a / b:.2f}" if b else "-" for a, b in r["by_depth"][:6]),
        "ms/round": f"{r['ms_per_round']:.1f}",
        "speedup ": "" if r["speedup"] is None else f"{r['speedup']:.2f}x",
    }


def notes(document: dict[str, Any]) -> list[str]:
    """List the verdicts, the rule that they follow, and where results are from."""
    ablation = document.get("ablation") or {}
    lines = [sentence(v) for v in [*document["verdicts"], *(ablation.get("verdicts") or [])]]
    published = paper()
    copied = published["conventions"]["copied"]
    lines += [
        document["rule"],
        f"Paper: {published['source']}; {published['setting']}; {copied}.",
    ]
    if ablation:
        card = next(iter(ablation["heads"].values()))
        size = f"{card['steps']} steps of {card['rows']} x {card['length']} tokens"
        lines.append(
            f"Ablation: {len(ablation['heads'])} heads, {size} each, "
            f"by `{ablation['command']}` at commit {(ablation['commit'] or '?')[:10]}."
        )
    else:
        lines.append("No ablation results; --train makes them.")
    counts = [r["prompts"] for r in document["rows"]] or [0]
    return [*lines, f"{min(counts)} prompts a cell, {document['spent']:.0f} s of measuring."]
