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

from collections.abc import Iterator, Sequence
from functools import partial
from statistics import fmean, geometric_mean
from typing import Any

from specwb.drafters.falcon import FalconDrafter
from specwb.drafters.falcon_dynamic import DynamicFalcon
from specwb.drafters.level import Levels
from specwb.engine.methods import Method
from specwb.lab.studies import grid
from specwb.lab.studies.claim import LACKING, Bar, Bars, Claim
from specwb.lab.studies.curves import THESE, Curve, Figures, Point, in_domain
from specwb.lab.studies.grid import Cell
from specwb.lab.studies.study import (
    MEDUSA,
    Document,
    Row,
    Rows,
    Study,
    Tables,
    every,
    lines,
    medusa_of,
    published,
    table_rows,
    theirs,
)
from specwb.lab.studies.trained import spelled

OURS = (
    "nodes=n is the tree of n nodes that a head's accuracies on held-out text make best, which is "
    "a guess of what it accepts when decoding. One training run a variant: the interval says "
    "nothing about other seeds of training."
)
HERE = {"SpS": "sps", "PLD": "pld", "Lookahead": "lookahead", "Medusa": "medusa", "Eagle": "eagle"}
"""The paper's name of a method -> its spec here."""
DIFFERS = {
    **dict.fromkeys(
        ("SpS", "PLD", "Lookahead"), "hardware: the paper copied its figures from elsewhere"
    ),
}
"""Why a method of table 1 is not comparable here."""
SPECS = {**HERE, "Eagle": "eagle:tree=published", "Falcon": "falcon:tree=vicuna"}
"""The same with the published trees."""
TREE, EAGLE = (Cell(SPECS[name]) for name in ("Falcon", "Eagle"))
EQUAL = 26
EQUALS = {name: f"{name.lower()}:nodes={EQUAL}" for name in ("Eagle", "Falcon")}
"""The two with trees of equal numbers of nodes."""
WITH_TREES = ((THESE, SPECS), (f"{THESE}, {EQUAL} nodes each", EQUALS))
"""Our bars: their names, and their specs by method."""
TASKS = ("MT-Bench", "HumanEval", "GSM8K")
DYNAMIC = "falcon_dynamic:nodes=26,passes=2,top=4,beams=4"
CHAIN4, CHAIN8 = "tree=1-1-1-1", "tree=1-1-1-1-1-1-1-1"
BUDGETS = (5, 10, 26, 64)
"""Numbers of verified tokens, the root included."""
FIRST = {"k": 2, "layers": 2, "fusion": "lstm", "glance": 0.4, "unroll": 2}
"""The ablation's first head, whatever the lab's own recipe has: the paper's, but for ``unroll``,
the passes that are trained (there one)."""
CHANGES: dict[str, dict[str, object]] = {
    "csgd": {},
    "plain": {"glance": 0},
    "k3": {"k": 3},
    "k4": {"k": 4},
    "linear": {"fusion": "linear"},
    "pointwise": {"fusion": "pointwise"},
    "small": {"fusion": "linear", "layers": 1},
    "one": {"fusion": "linear", "layers": 1, "k": 1, "unroll": 4},
}
"""The ablation's heads, and what differs from the first. "one" is EAGLE-1's head by Falcon's
recipe: like "small", but with one token a pass, so twice the passes for the depths trained, and
nothing to glance at."""


VARIANTS = {name: spelled({**FIRST, **differs}) for name, differs in CHANGES.items()}
"""The ablation's heads, as ``specwb train falcon --set`` takes them."""
PASSES = {"csgd": 4, "k3": 2, "k4": 2}
"""The paper's numbers of passes, by size of the block."""


def own_cells(_: Document | None = None) -> list[Cell]:
    """List the settings that are decoded with the target's own heads."""
    specs = ["ar", *HERE.values(), "falcon"]
    specs += [f"{name}:nodes={n}" for n in BUDGETS for name in ("eagle", "falcon") if n != 10]
    specs += [MEDUSA.spec, "eagle:tree=published", "falcon:tree=vicuna", "falcon:tree=llama"]
    specs += ["falcon:nodes=26,align=left", f"eagle:{CHAIN4}", f"falcon:{CHAIN4}"]
    specs += [f"falcon:{CHAIN4},align=left", *(f"falcon:nodes=26,passes={m}" for m in (1, 2, 3))]
    specs += ["eagle2:nodes=26,depth=4,top=4", DYNAMIC]
    sampled = ["ar", "sps", "eagle", "falcon", "falcon:draw=greedy", "eagle:nodes=26"]
    sampled += [f"falcon:nodes=26{more}" for more in ("", ",draw=greedy", ",align=left")]
    return [*map(Cell, specs), *(Cell(spec, temperature=1.0) for spec in sampled)]


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


def shape(method: Method) -> dict[str, Any]:
    """Describe the largest tree, and how many passes of a head or draft model it takes."""
    drafter, passes = method.drafter, None
    if isinstance(drafter, DynamicFalcon):
        passes = drafter.passes
    elif isinstance(drafter, FalconDrafter):
        passes = len(drafter.blocks.passes)
    elif isinstance(drafter, Levels):
        passes = drafter.limits.depth
    return {**grid.shape(method), "passes": passes}


def row(document: dict[str, Any], cell: Cell) -> dict[str, Any]:
    """Add to a cell's figures alpha = accepted / tau, and (accepted, tested) by depth of trees."""
    figures = grid.row(document, cell)
    figures["alpha"] = round((figures["tau"] - 1) / figures["tau"], 4)
    figures["alpha_error"] = round((figures["tau_error"] or 0) / figures["tau"] ** 2, 4) or None
    figures["by_depth"] = grid.by_depth(grid.accepted_in(document, cell), figures["depth"])
    return figures


# ----------------------------------------------------------------------------------------- claims


def claims(document: Document | None = None) -> list[Claim]:
    """List the claims of the paper's abstract and tables, and the comparisons that it lacks."""
    return [*_headlines(), *_methods(document), *_ablations(), *_other_claims()]


def _tau(r: Row, task: str) -> float:
    """Tokens a step of a row of table 3; of Eagle on Vicuna 7B the bonus token is counted there."""
    return r[task] + ((r["target"], r["method"]) != ("Vicuna 7B", "Eagle"))


def _size(k: int) -> Cell:
    """The ablation's head with blocks of k tokens, in the setting of table 5."""
    variant = {2: "csgd", 3: "k3", 4: "k4"}[k]
    return Cell(f"falcon:nodes=64,passes={PASSES[variant]}", variant)


def _by_tree() -> dict[tuple[bool, bool], Row]:
    """Table 4: (with the tree, with CSGD) -> its row."""
    return {(r["tree"], r["csgd"]): r for r in table_rows("falcon", "4")}


def _by_size() -> dict[int, Row]:
    """Table 5: k -> its row."""
    return {r["k"]: r for r in table_rows("falcon", "5")}


def bars() -> Bars:
    """What the paper's heads accept; those of its ablations with their trees."""

    def mean(name: str) -> float:
        """Accepted tokens of a method, over targets and tasks."""
        rows = [r for r in table_rows("falcon", "3") if r["method"] == name]
        return geometric_mean(_tau(r, task) - 1 for r in rows for task in TASKS)

    four, five = _by_tree(), _by_size()
    return {
        ("falcon", ""): Bar(TREE, mean("Falcon")),
        ("eagle", ""): Bar(EAGLE, mean("Eagle")),
        ("falcon", "csgd"): Bar(Cell(TREE.spec, "csgd"), four[True, True]["accepted"]),
        ("falcon", "plain"): Bar(Cell(TREE.spec, "plain"), four[True, False]["accepted"]),
        ("falcon", "k3"): Bar(_size(3), five[3]["accepted"]),
        ("falcon", "k4"): Bar(_size(4), five[4]["accepted"]),
    }


def _headlines() -> Iterator[Claim]:
    """The abstract's range of speedups over plain decoding."""
    one = {r["target"]: r for r in table_rows("falcon", "1") if r["method"] == "Falcon"}
    speeds = {(target, task): one[target][task] for target in one for task in TASKS}
    for word, choose in (("least", min), ("most", max)):
        target, task = choose(speeds, key=lambda at: speeds[at])
        text = f"Falcon over plain decoding, its {word}: {target}, {task}"
        both, number = (TREE, Cell("ar")), speeds[target, task]
        yield Claim(text, "abstract", "speedup", *both, number, headline=True)


def _methods(document: Document | None) -> Iterator[Claim]:
    """The claims of tables 1 and 3."""
    medusa, other_tree = medusa_of(document)
    with_trees = {"Eagle": (TREE, EAGLE)}  # published ones on both sides
    if medusa == MEDUSA:
        with_trees["Medusa"] = (TREE, MEDUSA)
    one, three = table_rows("falcon", "1"), table_rows("falcon", "3")
    for name, key in HERE.items():
        both = with_trees.get(name, (Cell("falcon"), Cell(key)))
        yield Claim(
            f"Falcon is faster than {name}",
            "table 1",
            "speedup",
            *both,
            geometric_mean(_ratios(one, name)),
            differs=other_tree if name == "Medusa" else DIFFERS.get(name, ""),
        )
    # the three values of Vicuna 7B count the bonus token
    comparable = [r for r in three if r["target"] != "Vicuna 7B"]
    text = "Falcon accepts more than Eagle, each with its published tree (165 and 25 candidates)"
    number = geometric_mean(_ratios(comparable, "Eagle"))
    yield Claim(text, "table 3", "accepted", TREE, EAGLE, number)
    text, number = "Falcon accepts more than Medusa", geometric_mean(_ratios(three, "Medusa"))
    yield Claim(text, "table 3", "accepted", TREE, medusa, number, differs=other_tree)


def _ablations() -> Iterator[Claim]:
    """The claims of tables 4 and 5."""
    four, five = _by_tree(), _by_size()

    def compare(
        text: str, table: str, first: Cell, second: Cell, a: Row, b: Row
    ) -> Iterator[Claim]:
        for what in ("accepted", "speedup"):
            yield Claim(f"{text}: {what}", table, what, first, second, a[what] / b[what])

    both, tree, glanced = (True, True), (True, False), (False, True)
    for text, a, b in (
        ("CSGD, with the tree", both, tree),
        ("CSGD, on a chain", glanced, (False, False)),
        ("the tree, with CSGD", both, glanced),
    ):
        yield from compare(text, "table 4", _trained(*a), _trained(*b), four[a], four[b])
    for k in (2, 3):
        text = f"k = {k} over k = {k + 1}"
        yield from compare(text, "table 5", _size(k), _size(k + 1), five[k], five[k + 1])


def _other_claims() -> Iterator[Claim]:
    """The comparisons that the paper lacks."""

    def lacking(text: str, first: Cell, second: Cell, what: str = "accepted") -> Claim:
        return Claim(text, LACKING, what, first, second)

    def nodes_26(variant: str = "", temperature: float = 0.0, more: str = "") -> Cell:
        return Cell(f"falcon:nodes=26{more}", variant, temperature)

    for n in BUDGETS:
        nodes = f":nodes={n}" if n != 10 else ""
        both = Cell(f"falcon{nodes}"), Cell(f"eagle{nodes}")
        text = f"Falcon over Eagle at {n} verified tokens"
        yield lacking(text, *both)
        yield lacking(f"{text}: speedup", *both, "speedup")
    chains = Cell(f"falcon:{CHAIN4}"), Cell(f"eagle:{CHAIN4}")
    yield lacking("Falcon over Eagle, chains of 4", *chains)
    sampled, eagle = nodes_26(temperature=1.0), Cell("eagle:nodes=26", temperature=1.0)
    yield lacking("Falcon over Eagle at 26 verified tokens, T = 1", sampled, eagle)
    text, points = "draws without replacement over point masses, T = 1", ",draw=greedy"
    yield lacking(text, sampled, nodes_26("", 1.0, points))
    for t in (0.0, 1.0):
        text = f"blocks aligned right over left, T = {t:g}"
        yield lacking(text, nodes_26("", t), nodes_26("", t, ",align=left"))
    text = "dynamic over static tree, 26 verified tokens"
    yield lacking(text, Cell(DYNAMIC), nodes_26(more=",passes=2"))
    for t in (0.0, 1.0):
        for first, second, text in (
            ("csgd", "plain", "CSGD over none"),
            ("csgd", "linear", "LSTM over linear fusion, a smaller head"),
            ("csgd", "pointwise", "recurrent over point-wise LSTM"),
            ("csgd", "k3", "k = 2 over k = 3"),
            ("csgd", "k4", "k = 2 over k = 4"),
            ("small", "one", "k = 2 over k = 1 (Eagle's head), equal heads and recipes"),
            ("linear", "small", "two layers over one, linear fusion"),
            ("csgd", "small", "Falcon's head over one of Eagle's size, both k = 2"),
        ):
            both = nodes_26(first, t), nodes_26(second, t)
            yield lacking(f"{text}, 26 verified tokens, T = {t:g}", *both)


def _ratios(rows: Sequence[Row], name: str) -> list[float]:
    """Falcon over another method, for all targets and tasks that have both."""
    falcon = {r["target"]: r for r in rows if r["method"] == "Falcon"}
    return [falcon[r["target"]][s] / r[s] for r in rows if r["method"] == name for s in TASKS]


# ----------------------------------------------------------------------------------------- tables

SHOWN = (
    "nodes",
    "passes",
    "accepted",
    "tau",
    "alpha",
    "by depth",
    "ms/step",
    grid.SHOWN["speedup"],
)


def _trained(tree: bool, csgd: bool) -> Cell:
    """What a row of table 4 is measured by."""
    spec = TREE.spec if tree else f"falcon:{CHAIN8}"
    return Cell(spec, "csgd" if csgd else "plain")


def tables(document: Document, own: Rows, ablation: Rows) -> Tables:
    """Make the printed tables."""

    def span(name: str) -> dict[str, str]:
        rows = table_rows("falcon", "1")
        speeds = [r[task] for r in rows if r["method"] == name for task in TASKS]
        return {"method": name, "paper: speedup": f"{min(speeds):.2f}-{max(speeds):.2f}x"}

    def numbers(r: Row) -> dict[str, str]:
        return theirs(accepted=r["accepted"], alpha=f"{r['alpha']:.0f} %", speedup=r["speedup"])

    methods = [(Cell(spec), span(name)) for name, spec in SPECS.items()]
    methods += [
        (Cell(spec), {"method": f"{name}, {EQUAL} nodes", "paper: speedup": ""})
        for name, spec in EQUALS.items()
    ]
    trees = []
    for (tree, csgd), r in _by_tree().items():
        label = {"tree": "yes" if tree else "chain", "CSGD": "yes" if csgd else "no"}
        trees.append((_trained(tree, csgd), {**label, **numbers(r)}))
    sizes = [
        (_size(k), {"k": str(k), **theirs(passes=r["passes"]), **numbers(r)})
        for k, r in _by_size().items()
    ]
    return [
        (
            "Table 1: speedup at T = 0: the paper's range over targets and tasks; "
            "usual settings here, no prompt processing",
            lines(own, methods, SHOWN),
        ),
        (
            "Table 4: tree and CSGD (165 candidates, or a chain of 8), heads of the ablation",
            lines(ablation, trees, SHOWN),
        ),
        (
            "Table 5: size of the block (63 candidates each, trees from each head's accuracies), "
            "heads of the ablation",
            lines(ablation, sizes, SHOWN),
        ),
        ("Every setting, the target's own heads", every(own, SHOWN)),
        ("Every setting, heads of the ablation", every(ablation, SHOWN)),
    ]


# ---------------------------------------------------------------------------------------- figures

TASKS_HERE = {"MT-Bench": "", "HumanEval": "code", "GSM8K": "math"}
"""A task -> the domain of our prompts that is likest it, all of them for the mixed one."""
SURE = published("falcon")["certainty"]
SMALL_BUDGET = "our heads are the ablation's, of a small budget; there on a GPU"
OTHER_TREES = (
    "Eagle and Falcon with their published trees (25 and 165 candidates), Medusa with a tree of 10 "
    "nodes for 64 there; there on a GPU"
)
BY_TASK = f"{OTHER_TREES}; here HumanEval is our code, GSM8K our math, MT-Bench all prompts"
FIGURES = Figures()


def _tasks(table: str, what: str, _: Document) -> Iterator[Curve]:
    """A table by task, a panel each, with the prompts that are likest it here."""
    rows = table_rows("falcon", table)
    names = [name for name in SPECS if any(r["method"] == name for r in rows)]
    for task, domain in TASKS_HERE.items():
        panel = f"{task}: {grid.SHOWN.get(what, what)}"
        for target in dict.fromkeys(r["target"] for r in rows):
            by_name = {r["method"]: r[task] for r in rows if r["target"] == target}
            points = (Point(name, by_name[name]) for name in SPECS if name in by_name)
            yield Curve(panel, target, what, points)
        for name, specs in WITH_TREES:
            points = (
                Point(n, None, ours=in_domain(Cell(specs[n]), what, domain))
                for n in names
                if n in specs
            )
            yield Curve(panel, name, what, points)


for _name, _table, _title, _sure in (
    (
        "speed",
        "1",
        "Falcon, table 1: speedup at T = 0 by task",
        f"{SURE}; SpS, PLD and Lookahead are copied from other reports there",
    ),
    (
        "accepted",
        "3",
        "Falcon, table 3: accepted draft tokens a step by task",
        f"{SURE}; Eagle's on Vicuna 7B count the bonus token",
    ),
):
    _drawn = partial(_tasks, _table, "speedup" if _name == "speed" else _name)
    FIGURES.add(_name, _title, _sure, bars=True, differs=BY_TASK)(_drawn)


@FIGURES.add(
    "alpha",
    "Falcon, table 2: alpha, accepted over all written tokens, mean over tasks",
    SURE,
    bars=True,
    differs=OTHER_TREES,
)
def _alphas(_: Document) -> Iterator[Curve]:
    """Means over tasks by method, for every target."""
    rows = table_rows("falcon", "2")
    for target in dict.fromkeys(r["target"] for r in rows):
        points = (
            Point(name, fmean(r[task] for task in TASKS) / 100)
            for name in SPECS
            for r in rows
            if (r["target"], r["method"]) == (target, name)
        )
        yield Curve("alpha", target, "alpha", points)
    here = [name for name in SPECS if any(r["method"] == name for r in rows)]
    for name, specs in WITH_TREES:
        points = (Point(method, None, Cell(specs[method])) for method in here if method in specs)
        yield Curve("alpha", name, "alpha", points)


@FIGURES.add("csgd", "Falcon, table 4: tree and CSGD", SURE, bars=True, differs=SMALL_BUDGET)
def _csgd(_: Document) -> Iterator[Curve]:
    for what in ("accepted", "speedup"):
        for glanced in (True, False):
            points = (
                Point("tree" if tree else "chain", r[what], _trained(tree, csgd))
                for (tree, csgd), r in _by_tree().items()
                if csgd == glanced
            )
            yield Curve(what, "CSGD" if glanced else "no CSGD", what, points)


@FIGURES.add("size", "Falcon, table 5: size of the block", SURE, "k", differs=SMALL_BUDGET)
def _sizes(_: Document) -> Iterator[Curve]:
    for what in ("accepted", "speedup"):
        points = (Point(k, r[what], _size(k)) for k, r in _by_size().items())
        yield Curve(what, "63 candidates", what, points)


STUDY = Study(
    name="falcon",
    bars=bars,
    cells=own_cells,
    claims=claims,
    tables=tables,
    notes=lambda _: [f"{published('falcon')['conventions']['copied']}."],
    row=row,
    shape=shape,
    heads=("medusa", "eagle", "falcon"),
    figures=FIGURES,
    rules=OURS,
    variants=VARIANTS,
    ablation=ablation_cells,
    head="falcon",
    partial=True,
)
