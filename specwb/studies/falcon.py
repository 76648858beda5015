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

from specwb.methods import Method
from specwb.studies import grid
from specwb.studies.claim import LACKING, Bar, Bars, Claim
from specwb.studies.clock import Clock
from specwb.studies.curves import THESE, Curve, Picture, Point, in_domain
from specwb.studies.grid import Cell
from specwb.studies.study import Document, Rows, Study, Tables, every, lines, published, theirs

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
    "Medusa": "definition: Medusa's tree here has 10 nodes, the published one 64",
}
"""Why a method of table 1 is not comparable here."""
SPECS = {**HERE, "Eagle": "eagle:tree=published", "Falcon": "falcon:tree=vicuna"}
"""The same with the published trees."""
EQUAL = 26
EQUALS = {name: f"{name.lower()}:nodes={EQUAL}" for name in ("Eagle", "Falcon")}
"""The two with trees of equal numbers of nodes."""
WITH_TREES = ((THESE, SPECS), (f"{THESE}, {EQUAL} nodes each", EQUALS))
"""Our bars: their names, and their specs by method."""
TASKS = ("MT-Bench", "HumanEval", "GSM8K")
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
VARIANTS = {
    name: ",".join(f"{option}={value}" for option, value in {**FIRST, **differs}.items())
    for name, differs in CHANGES.items()
}
"""The ablation's heads, as ``specwb train falcon --set`` takes them."""
PASSES = {"csgd": 4, "k3": 2, "k4": 2}
"""The paper's numbers of passes, by size of the block."""


def own_cells(_: Document | None = None) -> list[Cell]:
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


def shape(method: Method) -> dict[str, Any]:
    """Describe the largest tree, with the passes for it.

    passes: of layers of a head or draft model for one draft, None where there are none.
    """
    passes = sum(one.model != "target" and one.stop != 0 for one in method.forwards)
    return {**grid.shape(method), "passes": passes or None}


def row(document: Document, cell: Cell) -> dict[str, Any]:
    """Compute one cell's figures.

    They are those of :func:`specwb.studies.grid.row` with alpha = accepted / tau, and (accepted,
    tested) by depth of trees too.
    """
    figures = grid.row(document, cell)
    figures["alpha"] = round((figures["tau"] - 1) / figures["tau"], 4)
    figures["alpha_error"] = round((figures["tau_error"] or 0) / figures["tau"] ** 2, 4) or None
    figures["by_depth"] = grid.by_depth(grid.accepted_in(document, cell), figures["depth"])
    return figures


# ----------------------------------------------------------------------------------------- claims


def claims(_: Document | None = None) -> list[Claim]:
    """List the claims of the paper's abstract and tables, and the comparisons that it lacks."""
    return [*_headlines(), *_methods(), *_ablations(), *_other_claims()]


def _tau(r: dict[str, Any], task: str) -> float:
    """Tokens a step of a row of table 3; of Eagle on Vicuna 7B the bonus token is counted there."""
    return r[task] + ((r["target"], r["method"]) != ("Vicuna 7B", "Eagle"))


def bars() -> Bars:
    """What the paper's heads accept; those of its ablations with their trees."""
    tables = published("falcon")["tables"]

    def mean(name: str) -> float:
        """Accepted tokens of a method, over targets and tasks."""
        rows = [r for r in tables["3"]["rows"] if r["method"] == name]
        return geometric_mean(_tau(r, task) - 1 for r in rows for task in TASKS)

    four = {(r["tree"], r["csgd"]): r["accepted"] for r in tables["4"]["rows"]}
    five = {r["k"]: r["accepted"] for r in tables["5"]["rows"]}
    return {
        ("falcon", ""): Bar(Cell("falcon:tree=vicuna"), mean("Falcon")),
        ("eagle", ""): Bar(Cell("eagle:tree=published"), mean("Eagle")),
        ("falcon", "csgd"): Bar(Cell("falcon:tree=vicuna", "csgd"), four[True, True]),
        ("falcon", "plain"): Bar(Cell("falcon:tree=vicuna", "plain"), four[True, False]),
        ("falcon", "k3"): Bar(Cell(f"falcon:nodes=64,passes={PASSES['k3']}", "k3"), five[3]),
        ("falcon", "k4"): Bar(Cell(f"falcon:nodes=64,passes={PASSES['k4']}", "k4"), five[4]),
    }


def _headlines() -> Iterator[Claim]:
    """The abstract's range of speedups over plain decoding, each with its tokens a step."""
    tables = published("falcon")["tables"]
    tau = {
        (r["target"], task): _tau(r, task)
        for r in tables["3"]["rows"]
        if r["method"] == "Falcon"
        for task in TASKS
    }
    speeds = {
        (r["target"], task): r[task]
        for r in tables["1"]["rows"]
        if r["method"] == "Falcon"
        for task in TASKS
    }
    for word, place in (
        ("least", min(speeds, key=lambda at: speeds[at])),
        ("most", max(speeds, key=lambda at: speeds[at])),
    ):
        yield Claim(
            f"Falcon over plain decoding, its {word}: {', '.join(place)}",
            "abstract",
            "speedup",
            Cell("falcon:tree=vicuna"),
            Cell("ar"),
            speeds[place],
            tau=tau.get(place),
            headline=True,
        )


def _methods() -> Iterator[Claim]:
    """The claims of tables 1 and 3."""
    tables = published("falcon")["tables"]
    for name, key in HERE.items():
        usual = name == "Eagle"
        yield Claim(
            f"Falcon is faster than {name}",
            "table 1",
            "speedup",
            Cell("falcon:tree=vicuna" if usual else "falcon"),
            Cell("eagle:tree=published" if usual else key),
            geometric_mean(_ratios(tables["1"]["rows"], name)),
            tau=geometric_mean(taus) if (taus := _tau_ratios(name)) else None,
            costs=tuple(t / s for t, s in zip(taus, _ratios(tables["1"]["rows"], name))),
            differs=DIFFERS.get(name, ""),
        )
    # the three values of Vicuna 7B count the bonus token
    comparable = [r for r in tables["3"]["rows"] if r["target"] != "Vicuna 7B"]
    yield Claim(
        "Falcon accepts more than Eagle, each with its published tree (165 and 25 candidates)",
        "table 3",
        "accepted",
        Cell("falcon:tree=vicuna"),
        Cell("eagle:tree=published"),
        geometric_mean(_ratios(comparable, "Eagle")),
    )
    yield Claim(
        "Falcon accepts more than Medusa",
        "table 3",
        "accepted",
        Cell("falcon:tree=vicuna"),
        Cell("medusa"),
        geometric_mean(_ratios(tables["3"]["rows"], "Medusa")),
        differs=DIFFERS["Medusa"],
    )


def _ablations() -> Iterator[Claim]:
    """The claims of tables 4 and 5."""
    tables = published("falcon")["tables"]
    four = {(r["tree"], r["csgd"]): r for r in tables["4"]["rows"]}
    five = {r["k"]: r for r in tables["5"]["rows"]}

    def compare(
        text: str, table: str, first: Cell, second: Cell, a: Any, b: Any
    ) -> Iterator[Claim]:
        for what in ("accepted", "speedup"):
            tau = (a["accepted"] + 1) / (b["accepted"] + 1)
            yield Claim(f"{text}: {what}", table, what, first, second, a[what] / b[what], tau=tau)

    on, off = Cell("falcon:tree=vicuna", "csgd"), Cell("falcon:tree=vicuna", "plain")
    chain, chain_off = Cell(f"falcon:{CHAIN8}", "csgd"), Cell(f"falcon:{CHAIN8}", "plain")
    both, tree, glanced, none = (four[key] for key in ((1, 1), (1, 0), (0, 1), (0, 0)))
    yield from compare("CSGD, with the tree", "table 4", on, off, both, tree)
    yield from compare("CSGD, on a chain", "table 4", chain, chain_off, glanced, none)
    yield from compare("the tree, with CSGD", "table 4", on, chain, both, glanced)
    size = {
        k: Cell(f"falcon:nodes=64,passes={PASSES[v]}", v)
        for k, v in ((2, "csgd"), (3, "k3"), (4, "k4"))
    }
    for k in (2, 3):
        text = f"k = {k} over k = {k + 1}"
        yield from compare(text, "table 5", size[k], size[k + 1], five[k], five[k + 1])


def _other_claims() -> list[Claim]:
    """The comparisons that the paper lacks."""
    out: list[Claim] = []

    def compare(text: str, first: Cell, second: Cell, what: str = "accepted") -> None:
        out.append(Claim(text, LACKING, what, first, second))

    for n in BUDGETS:
        falcon, eagle = (
            Cell(f"{name}:nodes={n}" if n != 10 else name) for name in ("falcon", "eagle")
        )
        compare(f"Falcon over Eagle at {n} verified tokens", falcon, eagle)
        compare(f"Falcon over Eagle at {n} verified tokens: speedup", falcon, eagle, "speedup")
    compare("Falcon over Eagle, chains of 4", Cell(f"falcon:{CHAIN4}"), Cell(f"eagle:{CHAIN4}"))
    sampled = Cell("falcon:nodes=26", temperature=1.0)
    compare(
        "Falcon over Eagle at 26 verified tokens, T = 1",
        sampled,
        Cell("eagle:nodes=26", temperature=1.0),
    )
    compare(
        "draws without replacement over point masses, T = 1",
        sampled,
        Cell("falcon:nodes=26,draw=greedy", temperature=1.0),
    )
    for t in (0.0, 1.0):
        compare(
            f"blocks aligned right over left, T = {t:g}",
            Cell("falcon:nodes=26", temperature=t),
            Cell("falcon:nodes=26,align=left", temperature=t),
        )
    compare(
        "dynamic over static tree, 26 verified tokens",
        Cell("falcon_dynamic:nodes=26,passes=2,top=4,beams=4"),
        Cell("falcon:nodes=26,passes=2"),
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


def _ratios(rows: Sequence[dict[str, Any]], name: str) -> list[float]:
    """Falcon over another method, for all targets and tasks that have both."""
    falcon = {r["target"]: r for r in rows if r["method"] == "Falcon"}
    return [falcon[r["target"]][s] / r[s] for r in rows if r["method"] == name for s in TASKS]


def _tau_ratios(name: str) -> list[float]:
    """The same of tokens a step, in the order of table 1; empty for a method without them."""
    tables = published("falcon")["tables"]
    rows = {(r["target"], r["method"]): r for r in tables["3"]["rows"]}
    return [
        _tau(rows[r["target"], "Falcon"], s) / _tau(rows[r["target"], name], s)
        for r in tables["1"]["rows"]
        if r["method"] == name and (r["target"], name) in rows
        for s in TASKS
    ]


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


def _tree_cell(r: dict[str, Any]) -> Cell:
    """What a row of table 4 is measured by."""
    spec = "falcon:tree=vicuna" if r["tree"] else f"falcon:{CHAIN8}"
    return Cell(spec, "csgd" if r["csgd"] else "plain")


def _size_cell(r: dict[str, Any]) -> Cell:
    """What a row of table 5 is measured by."""
    variant = {2: "csgd", 3: "k3", 4: "k4"}[r["k"]]
    return Cell(f"falcon:nodes=64,passes={PASSES[variant]}", variant)


def tables(document: Document, own: Rows, ablation: Rows) -> Tables:
    """Make the printed tables."""
    papers = published("falcon")["tables"]

    def span(name: str) -> dict[str, str]:
        speeds = [r[task] for r in papers["1"]["rows"] if r["method"] == name for task in TASKS]
        return {"method": name, "paper: speedup": f"{min(speeds):.2f}-{max(speeds):.2f}x"}

    def numbers(r: dict[str, Any]) -> dict[str, str]:
        return theirs(accepted=r["accepted"], alpha=f"{r['alpha']:.0f} %", speedup=r["speedup"])

    methods = [(Cell(spec), span(name)) for name, spec in SPECS.items()]
    methods += [
        (Cell(spec), {"method": f"{name}, {EQUAL} nodes", "paper: speedup": ""})
        for name, spec in EQUALS.items()
    ]
    trees = [
        (
            _tree_cell(r),
            {
                "tree": "yes" if r["tree"] else "chain",
                "CSGD": "yes" if r["csgd"] else "no",
                **numbers(r),
            },
        )
        for r in papers["4"]["rows"]
    ]
    sizes = [
        (_size_cell(r), {"k": str(r["k"]), **theirs(passes=r["passes"]), **numbers(r)})
        for r in papers["5"]["rows"]
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


def _alphas(_: Document) -> Iterator[Curve]:
    """Means over tasks by method, for every target."""
    rows = published("falcon")["tables"]["2"]["rows"]
    for target in dict.fromkeys(r["target"] for r in rows):
        points = (
            Point(name, fmean(r[task] for task in TASKS) / 100)
            for name in SPECS
            for r in rows
            if (r["target"], r["method"]) == (target, name)
        )
        yield Curve("alpha", target, "alpha", tuple(points))
    here = [name for name in SPECS if any(r["method"] == name for r in rows)]
    for name, specs in WITH_TREES:
        points = (Point(method, None, Cell(specs[method])) for method in here if method in specs)
        yield Curve("alpha", name, "alpha", tuple(points))


def _tasks(table: str, what: str, _: Document) -> Iterator[Curve]:
    """A table by task, a panel each, with the prompts that are likest it here."""
    rows = published("falcon")["tables"][table]["rows"]
    targets = dict.fromkeys(r["target"] for r in rows)
    for task, domain in TASKS_HERE.items():
        panel = f"{task}: {grid.SHOWN.get(what, what)}"
        for target in targets:
            by_name = {r["method"]: r[task] for r in rows if r["target"] == target}
            points = (Point(name, by_name[name]) for name in SPECS if name in by_name)
            yield Curve(panel, target, what, tuple(points))
        names = [name for name in SPECS if any(r["method"] == name for r in rows)]
        for name, specs in WITH_TREES:
            points = (
                Point(n, None, ours=in_domain(Cell(specs[n]), what, domain))
                for n in names
                if n in specs
            )
            yield Curve(panel, name, what, tuple(points))


def _csgd(_: Document) -> Iterator[Curve]:
    rows = published("falcon")["tables"]["4"]["rows"]
    for what in ("accepted", "speedup"):
        for glanced in (True, False):
            points = tuple(
                Point("tree" if r["tree"] else "chain", r[what], _tree_cell(r))
                for r in rows
                if r["csgd"] == glanced
            )
            yield Curve(what, "CSGD" if glanced else "no CSGD", what, points)


def _sizes(_: Document) -> Iterator[Curve]:
    rows = published("falcon")["tables"]["5"]["rows"]
    for what in ("accepted", "speedup"):
        points = tuple(Point(r["k"], r[what], _size_cell(r)) for r in rows)
        yield Curve(what, "63 candidates", what, points)


_sure = published("falcon")["certainty"]
SMALL_BUDGET = "our heads are the ablation's, of a small budget; there on a GPU"
OTHER_TREES = (
    "Eagle and Falcon with their published trees (25 and 165 candidates), Medusa with a tree of 10 "
    "nodes for 64 there; there on a GPU"
)
BY_TASK = f"{OTHER_TREES}; here HumanEval is our code, GSM8K our math, MT-Bench all prompts"
FIGURES = {
    "speed": Picture(
        "Falcon, table 1: speedup at T = 0 by task",
        "",
        partial(_tasks, "1", "speedup"),
        f"{_sure}; SpS, PLD and Lookahead are copied from other reports there",
        bars=True,
        differs=BY_TASK,
    ),
    "accepted": Picture(
        "Falcon, table 3: accepted draft tokens a step by task",
        "",
        partial(_tasks, "3", "accepted"),
        f"{_sure}; Eagle's on Vicuna 7B count the bonus token",
        bars=True,
        differs=BY_TASK,
    ),
    "alpha": Picture(
        "Falcon, table 2: alpha, accepted over all written tokens, mean over tasks",
        "",
        _alphas,
        _sure,
        bars=True,
        differs=OTHER_TREES,
    ),
    "csgd": Picture(
        "Falcon, table 4: tree and CSGD", "", _csgd, _sure, bars=True, differs=SMALL_BUDGET
    ),
    "size": Picture("Falcon, table 5: size of the block", "k", _sizes, _sure, differs=SMALL_BUDGET),
}


STUDY = Study(
    name="falcon",
    clock=Clock("7b", "h800", report="Falcon"),
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
