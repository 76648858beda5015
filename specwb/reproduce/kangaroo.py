"""Kangaroo (Liu et al. 2404.18911).

Its tables and figures stand beside the same comparisons here; comparisons that the paper leaves out
are measured and judged too. There are two grids. One decodes with the target's own adapter. The
other decodes with the adapters of :data:`VARIANTS`, all trained for the recipe's budget
``ablation``; its results are shipped, with traces from which a decoding at T = 0 with any threshold
can be simulated.

Differs from the paper in: models, machine and prompts; texts go on past an end of text. The number
of decoding steps a prompt is fixed. Times and tokens of a speedup are those of all steps but the
first, which processes the prompt; times are means and not medians, since steps of an adaptive draft
differ.
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
from specwb.reproduce.verdicts import EVEN_RULE, RULE, TUNED_RULE, Claim, Tuned, judge, sentence

PAPER = "papers/kangaroo.json"
SHIPPED = "results/kangaroo-ablation-lab.json"
HEADS = ("kangaroo", "medusa", "eagle")
HERE = {
    "Lookahead": "lookahead",
    "Medusa, chain": "medusa:tree=1-1-1",
    "SpS": "sps",
    "Medusa": "medusa",
}
"""The paper's name of a method -> its spec here."""
ETAS, GAMMAS, USUAL = (0, 0.1, 0.3, 0.5, 0.6, 0.7, 0.9), (4, 6, 8), 0.6
"""Thresholds, largest numbers of draft tokens, and the usual threshold."""
INSIDE = (0.5, 0.6, 0.7)
"""Thresholds between .3 and .9."""
TOPS, TREE_ETAS = (2, 4, 10), (0.2, 0.4, 0.6)
"""Widths and thresholds of dynamic trees."""
STATIC = ("3-2-1", "3-1-1-1-1")
"""Static trees of as many nodes as the dynamic trees may have."""
ENTROPIES = (0.1, 0.2, 0.3, 0.4, 0.6)
"""Thresholds of stopping by entropy; exp(-H) is below the largest probability."""
TEMPERATURES = (0.2, 0.5, 1.0)
EXITS = (0, 1, 2, 3, 4, 6)
REFERENCE = "exit3"
ABLATION_ETAS = (0, 0.3, USUAL)
"""Thresholds of the ablation: adapters with little training are seldom confident."""
VARIANTS = {
    **{f"exit{n}": f"exit={n}" for n in EXITS},
    "own_head": "exit=3,own_head=1",
    "layer": "exit=3,adapter=layer",
    "mlp": "exit=3,adapter=mlp",
}
"""The ablation's adapters: name -> what differs, as ``specwb train kangaroo --set`` takes it."""
TEXTS, PLACES, DEPTH = 12, 48, 8
"""Of the traces: texts, positions of each, and depth of the drafts."""
OURS = (
    "CR is tau: the bonus token is counted. Ratios between methods are geometric means over the "
    "paper's targets and tasks. Of values read off a figure only differences larger than the "
    "reading error are judged. One training run a variant: the interval says nothing about other "
    "seeds of training."
)


def chain(
    eta: float, gamma: int = 6, stop: str = "top", temperature: float = 0.0, variant: str = ""
) -> Cell:
    """Make the cell of a chain."""
    stopping = f",stop={stop}" if stop != "top" else ""
    return Cell(f"kangaroo:gamma={gamma},eta={eta:g}{stopping}", variant, temperature)


def tree(top: int, eta: float) -> Cell:
    """Make the cell of a dynamic tree, with room for every beam of six levels.

    The paper does not say how large its trees may be.
    """
    return Cell(f"kangaroo:tree=true,top={top},nodes={1 + 6 * top},eta={eta:g}")


def own_cells() -> list[Cell]:
    """List the settings that are decoded with the target's own heads."""
    cells = [Cell(name) for name in ("ar", *HERE.values(), "pld", "eagle")]
    cells += [chain(eta, gamma) for gamma in GAMMAS for eta in ETAS]
    cells += [tree(top, eta) for top in TOPS for eta in TREE_ETAS]
    cells += [Cell(f"kangaroo:tree={shape}") for shape in STATIC]
    cells += [chain(eta, stop="entropy") for eta in ENTROPIES]
    for t in TEMPERATURES:
        cells += [Cell("ar", temperature=t)]
        cells += [chain(USUAL, stop=stop, temperature=t) for stop in ("top", "scaled")]
    return cells


def ablation_cells(variants: Sequence[str] = tuple(VARIANTS)) -> list[Cell]:
    """List the settings that are decoded with the adapters of the ablation."""
    return [Cell("ar"), *(chain(eta, variant=name) for name in variants for eta in ABLATION_ETAS)]


def build_methods(
    target: Target, cells: Sequence[Cell], folders: Mapping[Cell, str | None]
) -> dict[Cell, Method]:
    """Build the cells' methods.

    Args:
        target: the target model.
        cells: the settings.
        folders: of adapters that are not the target's own.
    Raises:
        MethodError, HeadError: an adapter is missing or cannot be loaded.
    """
    return {cell: cell.method(target, folders.get(cell)) for cell in cells}


def run(
    target: Target,
    questions: Sequence[Question],
    store: Store,
    cells: Sequence[Cell],
    *,
    head: str | None = None,
    heads: Path | None = None,
    rounds_each: int = 10,
    seconds: float | None = None,
    seed: int = 0,
    progress: Callable[[float, str], None] | None = None,
) -> bool:
    """Measure the cells with :func:`specwb.reproduce.grid.run`, then costs and traces.

    The costs are those of every adapter's steps; a trace is recorded of every exit layer.

    Args:
        target: the target model.
        questions: the prompts.
        store: of the results.
        cells: the settings.
        head: an adapter's folder, in place of the target's own.
        heads: the folder of the variants' adapters.
        rounds_each: decoding steps of each prompt and cell.
        seconds: about how long to measure in all.
        seed: of the sampling.
        progress: called with (fraction done, text).
    Returns:
        Whether it was interrupted.
    """
    grid.check(questions, cells, rounds_each)
    folders = {
        cell: str(heads / cell.variant) if heads and cell.variant else head
        for cell in cells
        if cell.kind == "kangaroo"
    }
    methods = build_methods(target, cells, folders)
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
    costs, traces = store.document.setdefault("costs", {}), store.document.setdefault("traces", {})
    texts = [
        q.fit(target.tokenizer, target.context - PLACES - 2 * DEPTH)[0]
        for q in interleave(list(questions))[:TEXTS]
    ]
    try:
        for name, folder in {cell.variant: folders[cell] for cell in folders}.items():
            if name not in costs:
                costs[name] = costs_to_json(exits.costs(target, folder))
            if (not name or name.startswith("exit")) and name not in traces:
                method = Cell(f"kangaroo:gamma={DEPTH},eta=0").method(target, folder)
                trace = exits.every_round(target, texts, method, tokens=PLACES)
                traces[name] = trace_to_json(trace)
            if progress:
                progress(1.0, f"costs and traces: {name}")
            store.save()
    except KeyboardInterrupt:
        return True
    return False


def costs_to_json(costs: exits.Costs) -> dict[str, Any]:
    """Write costs in milliseconds."""
    parts = {
        name: round(1000 * getattr(costs, name), 4) for name in ("plain", "shallow", "adapter")
    }
    return {**parts, "round": {str(d): round(1000 * s, 4) for d, s in costs.round.items()}}


def costs_of(saved: dict[str, Any]) -> exits.Costs:
    """Read what :func:`costs_to_json` wrote."""
    return exits.Costs(
        plain=saved["plain"] / 1000,
        shallow=saved["shallow"] / 1000,
        adapter=saved["adapter"] / 1000,
        round={int(d): ms / 1000 for d, ms in saved["round"].items()},
    )


def trace_to_json(trace: exits.Rounds) -> dict[str, Any]:
    """Write a trace as it is shipped.

    Confidence is in thousandths, rounded down, so that the same levels as before reach a threshold
    in thousandths.
    """
    return {
        "sure": np.floor(1000 * trace.sure["top"].astype(float)).astype(int).tolist(),
        "kept": trace.kept.tolist(),
        "text": trace.text.tolist(),
    }


def rounds_of(trace: dict[str, Any]) -> exits.Rounds:
    """Read what :func:`trace_to_json` wrote."""
    sure = np.array(trace["sure"]) / 1000
    return exits.Rounds(
        {"top": sure},
        np.array(trace["kept"]),
        np.array(trace["text"]),
        tuple(range(1, sure.shape[1] + 3)),
    )


# ----------------------------------------------------------------------------- the paper's numbers


def paper() -> dict[str, Any]:
    """Load the published tables and figures."""
    return json.loads((data_dir() / PAPER).read_text("utf-8"))


def etas() -> dict[tuple[float, int], dict[str, float]]:
    """Return the figure over thresholds: (eta, gamma) -> cr, speedup."""
    return {(r["eta"], r["gamma"]): r for r in paper()["figures"]["eta"]["rows"]}


def depths(target: str = "Vicuna 7B") -> dict[int, dict[str, float]]:
    """Return the figure over exit layers: exit -> cr, speedup."""
    return {r["exit"]: r for r in paper()["figures"]["depth"]["rows"] if r["target"] == target}


def adapters() -> dict[str, float]:
    """Return the speedup of every adapter variant."""
    return {r["variant"]: r["speedup"] for r in paper()["tables"]["adapter"]["rows"]}


def ratio(first: str, second: str, what: str = "speedup", family: str = "") -> float:
    """Compute the ratio of two methods of the main table.

    It is the geometric mean over all tasks and targets (of a ``family``) that have both.
    """
    rows = {
        (r["target"], r["method"]): r[what]
        for r in paper()["tables"]["main"]["rows"]
        if r["target"].startswith(family)
    }
    pairs = [
        (rows[t, first], rows[t, second]) for t, m in rows if m == first and (t, second) in rows
    ]
    return geometric_mean(a[task] / b[task] for a, b in pairs for task in a)


def contradictions() -> list[str]:
    """Say what does not fit together in the paper.

    The sentences are in the data file; the arithmetic is done here.
    """
    published, by_eta = paper(), etas()
    constants = published["constants"]
    table = {(r["target"], r["method"]): r for r in published["tables"]["main"]["rows"]}
    seven = {m: r for (t, m), r in table.items() if t == "Vicuna 7B"}
    curves = {r["method"]: 1 + sum(r["ctar"]) for r in published["figures"]["ctar"]["rows"]}
    kangaroo = seven["Kangaroo, chain"]
    means = {key: (r["mean"], fmean(r["speedup"].values())) for key, r in table.items()}
    wrong_means = [
        f"{t}, {m} {stated:.2f}, its tasks {mean:.2f}"
        for (t, m), (stated, mean) in means.items()
        if abs(stated - mean) > ROUNDING
    ]
    gains = {
        t: means[t, "Kangaroo"][1] / means[t, "Kangaroo, chain"][1]
        for t in ("Vicuna 7B", "Vicuna 13B")
    }
    without_threshold = [by_eta[0, g] for g in GAMMAS]
    adapter_rows = published["tables"]["adapter"]["rows"]
    parameters = {r["variant"]: r["parameters"] for r in adapter_rows}
    drafting = parameters["attention"] + constants["head_parameters"]
    drafting_share = drafting / constants["target_parameters"]
    mean_speedup = means["Vicuna 7B", "Kangaroo, chain"][1]
    by_figure = [r["speedup"] for r in (by_eta[USUAL, 6], depths()[2])]
    words = {
        "ctar": {
            "found": f"{curves['Kangaroo, chain']:.2f}",
            "stated": f"{kangaroo['cr']['Math']:.2f}",
            "others": ", ".join(
                f"{m} {cr:.2f} and {seven[m]['cr']['Math']:.2f}"
                for m, cr in curves.items()
                if m != "Kangaroo, chain"
            ),
        },
        "means": {"rows": "; ".join(wrong_means)},
        "setting": {
            "table": f"{fmean(kangaroo['cr'].values()):.2f}",
            "eta": f"{by_eta[USUAL, 6]['cr']:.2f}",
            "depth": f"{depths()[2]['cr']:.2f}",
            "speedups": f"{mean_speedup:.2f}, {by_figure[0]:.2f} and {by_figure[1]:.2f}",
        },
        "tree": {
            "stated": f"{constants['tree_gain'] - 1:.0%}",
            "found": " and ".join(f"{g - 1:.1%} ({t})" for t, g in gains.items()),
        },
        "threshold": {
            name: f"{by_eta[eta, 8]['cr'] - by_eta[eta, 6]['cr']:.2f}"
            for name, eta in (("high", 0.9), ("low", 0))
        },
        "cost": {
            "costs": ", ".join(
                f"{(r['cr'] / r['speedup'] - 1) / r['gamma']:.3f}" for r in without_threshold
            ),
            "gammas": ", ".join(map(str, GAMMAS)),
            "counted": f"{2 / constants['layers']['Vicuna 7B'] + drafting_share:.3f}",
        },
    }
    return [text.format(**words[name]) for name, text in published["contradictions"].items()]


ROUNDING = 0.0101
"""How far a mean of numbers with two digits can be from the mean that is stated with two."""


# ---------------------------------------------------------------------------------------- results


def row(document: dict[str, Any], cell: Cell) -> dict[str, Any]:
    """Compute one cell's figures.

    They are those of :func:`specwb.reproduce.grid.split_row` with the variant, ``ctar``, the share
    of steps with at least 1, 2, .. accepted, and ``wasted``, the draft tokens a step that are not
    accepted.
    """
    figures = grid.split_row(document, cell)
    accepted = [a for steps in document["cells"][cell.key]["accepted"] for a in steps]
    ctar = [round(fmean(a >= w for a in accepted), 4) for w in range(1, figures["depth"] + 1)]
    return {
        **figures,
        "variant": cell.variant,
        "ctar": ctar,
        "wasted": round(figures["drafted"] - fmean(accepted), 3),
    }


def claims() -> list[Claim]:
    """List the paper's claims, and comparisons that it lacks."""
    return [*_thresholds(), *_methods(), *_temperatures(), *_variants(), *_other_claims()]


def tuned_chain(gamma: int, thresholds: Sequence[float] = INSIDE, like: int | None = None) -> Tuned:
    """Choose the chain of ``gamma`` with the threshold that is fastest on other prompts.

    With ``like`` the threshold is chosen by the chains of so many tokens.
    """
    where = f" at gamma={like}" if like else ""
    name = f"gamma={gamma}, eta tuned{where} among {', '.join(map(str, thresholds))}"
    compared = tuple(chain(eta, like) for eta in thresholds) if like else ()
    return Tuned(name, tuple(chain(eta, gamma) for eta in thresholds), like=compared)


def _thresholds() -> list[Claim]:
    """The claims of the figure over eta and gamma."""
    out, published = [], etas()
    reading_error = 2 * paper()["constants"]["error"] + 1e-9
    for g in GAMMAS:
        known = [eta for eta in ETAS if (eta, g) in published]
        a, b = known[0], known[-1]
        # That CR does not rise is theorem 12.6. How far it falls is not.
        if published[a, g]["cr"] - published[b, g]["cr"] > reading_error:
            text = f"CR falls with eta, gamma = {g}: {a:g} over {b:g}"
            out.append(
                Claim(
                    text,
                    "figure eta",
                    "tau",
                    chain(a, g),
                    chain(b, g),
                    published[a, g]["cr"] / published[b, g]["cr"],
                    False,
                )
            )
        best = max(published[eta, g]["speedup"] for eta in INSIDE if (eta, g) in published)
        for eta in (0, 0.9):
            text = f"speed peaks at an eta between .3 and .9, gamma = {g}: over {eta:g}"
            out.append(
                Claim(
                    text,
                    "figure eta",
                    "speedup",
                    tuned_chain(g),
                    chain(eta, g),
                    best / published[eta, g]["speedup"],
                    False,
                )
            )
        if g != 6:
            both = [eta for eta in ETAS if (eta, g) in published and (eta, 6) in published]
            chosen = max(both, key=lambda eta: published[eta, 6]["speedup"])
            fastest = max(published[eta, g]["speedup"] for eta in both)
            text = (
                f"the best eta hardly depends on gamma: at {g} the one tuned at 6 over the one "
                f"tuned at {g}"
            )
            out.append(
                Claim(
                    text,
                    "figure eta",
                    "speedup",
                    tuned_chain(g, ETAS, 6),
                    tuned_chain(g, ETAS),
                    published[chosen, g]["speedup"] / fastest,
                    False,
                    even=True,
                )
            )
    for eta, even in ((0, False), (0.7, True)):
        out.append(
            Claim(
                f"gamma = 4 over 8 at eta = {eta:g}",
                "figure eta",
                "speedup",
                chain(eta, 4),
                chain(eta, 8),
                published[eta, 4]["speedup"] / published[eta, 8]["speedup"],
                False,
                even=even,
            )
        )
    return out


def _methods() -> list[Claim]:
    """The claims of the main table."""
    best, usual = tree(10, 0.4), chain(USUAL)
    out = [
        Claim(
            f"Kangaroo's tree over its chain: {what}",
            "main table",
            what,
            best,
            usual,
            ratio("Kangaroo", "Kangaroo, chain", name),
            False,
        )
        for what, name in (("speedup", "speedup"), ("tau", "cr"))
    ]

    def faster(
        text: str, first: Cell, second: Cell, names: tuple[str, str], family: str = ""
    ) -> None:
        out.append(
            Claim(text, "main table", "speedup", first, second, ratio(*names, family=family), False)
        )

    faster(
        "Kangaroo's chain is faster than Medusa's",
        usual,
        Cell(HERE["Medusa, chain"]),
        ("Kangaroo, chain", "Medusa, chain"),
    )
    faster(
        "Kangaroo's chain is faster than Lookahead",
        usual,
        Cell("lookahead"),
        ("Kangaroo, chain", "Lookahead"),
    )
    faster(
        "SpS is faster than Kangaroo's chain (there with Vicuna)",
        Cell("sps"),
        usual,
        ("SpS", "Kangaroo, chain"),
        "Vicuna",
    )
    faster("Kangaroo's tree is faster than SpS", best, Cell("sps"), ("Kangaroo", "SpS"))
    faster("Kangaroo's tree is faster than Medusa's", best, Cell("medusa"), ("Kangaroo", "Medusa"))
    return out


def _temperatures() -> list[Claim]:
    """The claims of the table over temperatures."""
    out = []
    published = {
        (r["temperature"], r["stop"]): r["speedup"]
        for r in paper()["tables"]["temperature"]["rows"]
    }
    for t in TEMPERATURES:
        effect, table = None, "not in the paper"
        if (t, "scaled") in published:
            effect, table = published[t, "top"] / published[t, "scaled"], "temperatures"
        out.append(
            Claim(
                f"unscaled over scaled confidence, T = {t:g}",
                table,
                "speedup",
                chain(USUAL, temperature=t),
                chain(USUAL, stop="scaled", temperature=t),
                effect,
                False,
            )
        )
    return out


def _variants() -> list[Claim]:
    """Claims on exit layers, compared where they are the same part of all layers, and adapters."""
    by_exit, by_adapter = depths(), adapters()
    layers = paper()["constants"]["layers"]["Vicuna 7B"]
    inner = tuple(n for n in EXITS if n not in (EXITS[0], EXITS[-1]))
    peak = Tuned(
        "exit tuned among " + ", ".join(map(str, inner)),
        tuple(chain(USUAL, variant=f"exit{n}") for n in inner),
    )
    best = max(r["speedup"] for r in by_exit.values())
    out = []
    for n, part in ((EXITS[0], 0), (EXITS[-1], layers // 2)):
        text = f"speed peaks at an inner exit layer: over exit {n} (the paper's {part})"
        out.append(
            Claim(
                text,
                "figure depth",
                "speedup",
                peak,
                chain(USUAL, variant=f"exit{n}"),
                best / by_exit[part]["speedup"],
            )
        )
    for (a, at), (b, below) in (((3, 8), (0, 0)), ((6, 16), (3, 8))):
        text = f"CR rises with the exit layer: {a} over {b} (the paper's {at} over {below})"
        first, second = (chain(USUAL, variant=f"exit{n}") for n in (a, b))
        effect = by_exit[at]["cr"] / by_exit[below]["cr"]
        out.append(Claim(text, "figure depth", "tau", first, second, effect))
    for name in ("own_head", "layer", "mlp"):
        first, second = chain(USUAL, variant=REFERENCE), chain(USUAL, variant=name)
        out.append(
            Claim(
                f"attention alone over {name}",
                "table adapter",
                "speedup",
                first,
                second,
                by_adapter["attention"] / by_adapter[name],
            )
        )
    return out


def _other_claims() -> list[Claim]:
    """The comparisons that the paper lacks."""
    out: list[Claim] = []

    def add(
        text: str, first: Any, second: Any, what: str = "speedup", ablation: bool = False
    ) -> None:
        out.append(Claim(text, "not in the paper", what, first, second, None, ablation))

    chains = tuned_chain(6, ETAS)
    trees = Tuned(
        "tree=true, top and eta tuned", tuple(tree(k, e) for k in TOPS for e in TREE_ETAS)
    )
    static = Tuned(
        "a static tree of as many nodes, tuned",
        tuple(Cell(f"kangaroo:tree={shape}") for shape in STATIC),
    )
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
    peak = Tuned(
        "exit and eta tuned",
        tuple(chain(eta, variant=name) for name in inner for eta in ABLATION_ETAS),
    )
    for n in (EXITS[0], EXITS[-1]):
        edge = Tuned(
            f"exit {n}, eta tuned", tuple(chain(eta, variant=f"exit{n}") for eta in ABLATION_ETAS)
        )
        add(
            f"the best inner exit layer over exit {n}, each with its best eta",
            peak,
            edge,
            ablation=True,
        )
    return out


def predictions(document: dict[str, Any], cells: Sequence[Cell]) -> list[dict[str, Any]]:
    """Predict the speedup of every chain at T = 0, beside the one measured.

    The prediction is made from the lengths of the decoding steps and the measured costs of a step.

    Returns:
        One dict a chain with the measured speedup and

        - predicted, error: the prediction, and predicted / measured - 1.
        - simple, simple_error: the same with CR / (1 + D (r + a)), which takes verification to be
          as cheap as a plain step.
        - r, a: see :class:`specwb.evaluation.exits.Costs`.
    """
    out = []
    for cell in cells:
        record = document["cells"].get(cell.key, {})
        saved_costs = document.get("costs", {}).get(cell.variant)
        speedups = values(document["cells"], cell, "speedup")
        if (
            cell.kind != "kangaroo"
            or cell.temperature
            or not document["shapes"].get(cell.key, {}).get("chain")
            or not speedups
            or saved_costs is None
        ):
            continue
        accepted, drafted = (
            [n for prompt in record[name] for n in prompt[1:]] for name in ("accepted", "drafted")
        )
        steps = exits.Simulation(accepted, drafted, [])
        costs, measured = costs_of(saved_costs), fmean(speedups)
        predicted, simple = costs.predicted(steps), costs.simple(steps)
        out.append(
            {
                "cell": cell.key,
                "measured": round(measured, 4),
                "predicted": round(predicted, 4),
                "simple": round(simple, 4),
                "error": round(predicted / measured - 1, 4),
                "simple_error": round(simple / measured - 1, 4),
                "r": round(costs.r, 4),
                "a": round(costs.a, 4),
            }
        )
    return out


def report(store: Store, ablation: dict[str, Any] | None = None) -> dict[str, Any]:
    """Add the results to ``store.document`` and return it.

    Added are ``rows``, ``verdicts``, ``predicted`` and, of the ablation's results, the same with
    where they are from.
    """
    store.document["commit"] = with_commit(store.document)
    store.document["rule"] = f"{RULE} {EVEN_RULE} {TUNED_RULE} {OURS}"
    _add_results(store.document, own_cells(), [c for c in claims() if not c.ablation])
    if ablation is not None:
        _add_results(ablation, ablation_cells(), [c for c in claims() if c.ablation])
        names = ("command", "commit", "heads", "spent", "rows", "verdicts", "predicted")
        store.document["ablation"] = {name: ablation.get(name) for name in names}
    return store.document


def _add_results(document: dict[str, Any], cells: Sequence[Cell], judged: Sequence[Claim]) -> None:
    """Add the rows of all cells that were measured, verdicts on these claims, and predictions."""
    document["rows"] = [
        row(document, cell) for cell in cells if grid.cell_record(document["cells"], cell.key)["ms"]
    ]
    verdicts = [judge(document, claim, values) for claim in judged]
    document["verdicts"] = [verdict for verdict in verdicts if verdict]
    document["predicted"] = predictions(document, cells)


# --------------------------------------------------------------------------------------- printing

Lines = list[dict[str, str]]


def tables(document: dict[str, Any]) -> list[tuple[str, Lines]]:
    """Make the printed tables, as (title, rows of text); those without a row are left out."""
    own = {r["cell"]: r for r in document["rows"]}
    ablation = document.get("ablation") or {}
    other = {r["cell"]: r for r in ablation.get("rows") or []}
    predicted = [*document["predicted"], *(ablation.get("predicted") or [])]
    every_table = [
        (
            "Main table: mean speedup at T = 0, the paper's range over targets; "
            "no prompt processing here",
            _method_lines(own),
        ),
        ("Threshold and steps: CR / speedup of chains by gamma", _threshold_lines(own)),
        (
            "Exit layer, adapters of the ablation, gamma = 6: CR / speedup; "
            "the paper's at the same part of all layers",
            _exit_lines(document, other),
        ),
        (
            "Adapter variants, adapters of the ablation, gamma = 6, eta = 0.6",
            _adapter_lines(document, other),
        ),
        (
            "Temperature and the confidence that is compared with eta",
            _temperature_lines(own),
        ),
        ("Predicted speedup of chains", [_prediction_line(r) for r in predicted]),
        (
            "Every setting, the target's own heads",
            [{"setting": name, **_line(r)} for name, r in own.items()],
        ),
        (
            "Every setting, adapters of the ablation",
            [{"setting": name, **_line(r)} for name, r in other.items()],
        ),
    ]
    return [(title, lines) for title, lines in every_table if lines]


def _method_lines(own: dict[str, Any]) -> Lines:
    lines = []
    specs = {**HERE, "Kangaroo, chain": chain(USUAL).spec, "Kangaroo": tree(10, 0.4).spec}
    for name, spec in specs.items():
        if Cell(spec).key in own:
            rows = [r for r in paper()["tables"]["main"]["rows"] if r["method"] == name]
            speedups = [r["mean"] for r in rows]
            span = f"{min(speedups):.2f}-{max(speedups):.2f}x"
            lines.append({"method": name, "paper": span, **_line(own[Cell(spec).key])})
    return lines


def _threshold_lines(own: dict[str, Any]) -> Lines:
    published, lines = etas(), []
    for eta in ETAS:
        line = {"eta": f"{eta:g}"}
        for g in GAMMAS:
            point = published.get((eta, g))
            line[f"paper: {g}"] = f"{point['cr']:.2f}/{point['speedup']:.2f}x" if point else ""
        for g in GAMMAS:
            r = own.get(chain(eta, g).key)
            line[f"here: {g}"] = f"{r['tau']:.2f}/{_x(r)}" if r else ""
        if any(line[f"here: {g}"] for g in GAMMAS):
            lines.append(line)
    return lines


def _exit_lines(document: dict[str, Any], other: dict[str, Any]) -> Lines:
    same_part = {0: 0, 3: 8, 6: 16}  # the paper's exit layers at the same part of all
    lines = []
    for n in EXITS:
        line = {"exit": str(n), "paper: exit": "", "its CR": "", "its speed": ""}
        if point := depths().get(same_part.get(n, -1)):
            line["paper: exit"] = str(same_part[n])
            line["its CR"] = f"{point['cr']:.2f}"
            line["its speed"] = f"{point['speedup']:.2f}x"
        keys = {eta: chain(eta, variant=f"exit{n}").key for eta in ABLATION_ETAS}
        if all(key in other for key in keys.values()):
            rows = {eta: other[key] for eta, key in keys.items()}
            here = {f"here: eta = {eta:g}": f"{r['tau']:.2f}/{_x(r)}" for eta, r in rows.items()}
            lines.append({**line, **here, **_cost(document, f"exit{n}")})
    return lines


def _adapter_lines(document: dict[str, Any], other: dict[str, Any]) -> Lines:
    published, lines = adapters(), []
    for variant in (REFERENCE, "own_head", "layer", "mlp"):
        r = other.get(chain(USUAL, variant=variant).key)
        if r:
            card = document["ablation"]["heads"][variant]
            name = variant.replace(REFERENCE, "attention")
            first = fmean(domain["rank"][0][0] for domain in card["held_out"].values())
            lines.append(
                {
                    "adapter": name,
                    "paper": f"{published[name]:.2f}x",
                    "parameters": f"{card['parameters']:,}",
                    "held-out first guess": f"{first:.2f}",
                    **_line(r),
                }
            )
    return lines


def _temperature_lines(own: dict[str, Any]) -> Lines:
    rows = paper()["tables"]["temperature"]["rows"]
    published = {(r["temperature"], r["stop"]): r["speedup"] for r in rows}
    lines = []
    for t in (0.0, *TEMPERATURES):
        for stop in ("top", "scaled") if t else ("top",):
            cell = chain(USUAL, stop=stop, temperature=t)
            if cell.key in own:
                speedup = f"{published[t, stop]:.2f}x" if (t, stop) in published else ""
                line = {"T": f"{t:g}", "confidence": stop, "paper": speedup}
                lines.append({**line, **_line(own[cell.key])})
    return lines


def _cost(document: dict[str, Any], variant: str) -> dict[str, str]:
    """What a token costs in the first layers and in adapter and head, in plain steps."""
    predicted = (document.get("ablation") or {}).get("predicted") or []
    for r in predicted:
        if r["cell"].endswith(f"[{variant}]"):
            return {"r": f"{r['r']:.2f}", "a": f"{r['a']:.2f}"}
    return {"r": "", "a": ""}


def _x(r: dict[str, Any]) -> str:
    """A speedup."""
    return "" if r["speedup"] is None else f"{r['speedup']:.2f}x"


def _line(r: dict[str, Any]) -> dict[str, str]:
    """The figures measured here; a trailing blank tells a column from the paper's of that name."""
    error = f"±{r['tau_error']:.2f}" if r["tau_error"] else ""
    return {
        "here: drafted": f"{r['drafted']:.2f}",
        "wasted": f"{r['wasted']:.2f}",
        "CR": f"{r['tau']:.2f}{error}",
        "CTAR": " ".join(f"{x:.2f}" for x in r["ctar"][:4]),
        "ms/round": f"{r['ms_per_round']:.1f}",
        "speedup ": _x(r),
    }


def _prediction_line(r: dict[str, Any]) -> dict[str, str]:
    return {
        "setting": r["cell"],
        "measured": f"{r['measured']:.2f}x",
        "predicted": f"{r['predicted']:.2f}x",
        "error": f"{r['error']:+.0%}",
        "CR / (1 + D (r + a))": f"{r['simple']:.2f}x",
        "error ": f"{r['simple_error']:+.0%}",
        "r": f"{r['r']:.2f}",
        "a": f"{r['a']:.2f}",
    }


def notes(document: dict[str, Any]) -> list[str]:
    """List the verdicts with their rules, how good the cost model is, and the paper's faults."""
    published, rows, ablation = paper(), document["rows"], document.get("ablation") or {}
    verdicts = [*document["verdicts"], *(ablation.get("verdicts") or [])]
    lines = [sentence(v) for v in verdicts]
    for table in dict.fromkeys(v["table"] for v in verdicts if v["paper"] is not None):
        counts = Counter(v["verdict"] for v in verdicts if v["table"] == table)
        lines.append(f"Of {table}: {', '.join(f'{n} {verdict}' for verdict, n in counts.items())}.")
    lines += _threshold_notes(rows)
    lines += _prediction_note("own adapter", document["predicted"])
    lines += _prediction_note("ablation", ablation.get("predicted") or [])
    lines += grid.fastest(rows, "kangaroo", "Kangaroo")
    lines += [f"In the paper: {text}" for text in contradictions()]
    lines += [document["rule"], f"Paper: {published['source']}; {published['setting']}."]
    if ablation:
        card = next(iter(ablation["heads"].values()))
        size = f"{card['steps']} steps of {card['rows']} x {card['length']} tokens"
        lines.append(
            f"Ablation: {len(ablation['heads'])} adapters, {size} each, "
            f"by `{ablation['command']}` at commit {(ablation['commit'] or '?')[:10]}."
        )
    else:
        lines.append("No ablation results; --train makes them.")
    prompts = [r["prompts"] for r in rows] or [0]
    return [*lines, f"{min(prompts)} prompts a cell, {document['spent']:.0f} s of measuring."]


def _threshold_notes(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """How CR and speed change with the threshold."""
    by_cell = {r["cell"]: r for r in rows}
    lines = []
    for g in GAMMAS:
        keys = {eta: chain(eta, g).key for eta in ETAS}
        by_eta = {eta: by_cell[key] for eta, key in keys.items() if key in by_cell}
        if len(by_eta) == len(ETAS) and all(r["speedup"] for r in by_eta.values()):
            taus = [r["tau"] for r in by_eta.values()]
            falls = sum(a >= b for a, b in pairwise(taus))
            best = max(by_eta, key=lambda eta: by_eta[eta]["speedup"])
            lines.append(
                f"gamma = {g}: CR falls at {falls} of {len(taus) - 1} steps of eta; "
                f"fastest at eta = {best:g} ({by_eta[best]['speedup']:.2f}x)."
            )
    return lines


def _prediction_note(name: str, predicted: Sequence[Mapping[str, Any]]) -> list[str]:
    """How far predictions are off, in a list of one line; empty where there are none."""
    if not predicted:
        return []
    error, simple_error = (
        median(abs(r[column]) for r in predicted) for column in ("error", "simple_error")
    )
    return [
        f"Predicted speedup of {len(predicted)} chains, {name}: median error {error:.0%} from the "
        f"cost of a round by what it drafts, {simple_error:.0%} from CR / (1 + D (r + a))."
    ]
