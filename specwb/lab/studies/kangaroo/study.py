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

from collections.abc import Mapping, Sequence
from itertools import pairwise
from statistics import fmean, median
from typing import Any

from specwb.lab.evaluation import exits
from specwb.lab.studies import grid
from specwb.lab.studies.grid import Cell, values
from specwb.lab.studies.kangaroo import cells, claims
from specwb.lab.studies.kangaroo.cells import (
    ABLATION_ETAS,
    ETAS,
    EXITS,
    GAMMAS,
    PARTS,
    USUAL,
    chain,
)
from specwb.lab.studies.kangaroo.figures import FIGURES, SPECS
from specwb.lab.studies.study import (
    Document,
    Labelled,
    Lines,
    Row,
    Rows,
    Study,
    Tables,
    digits,
    every,
    lines,
    table_rows,
    theirs,
)

OURS = (
    "CR is tau: the bonus token is counted. Ratios between methods are geometric means over the "
    "paper's targets and tasks. Of values read off a figure only differences larger than the "
    "reading error are judged. One training run a variant: the interval says nothing about other "
    "seeds of training."
)


def row(document: dict[str, Any], cell: Cell) -> dict[str, Any]:
    """Add to a cell's figures ``ctar``, the share of steps with at least 1, 2, .. accepted, and
    ``wasted``, the draft tokens a step that are not accepted."""
    figures, accepted = grid.row(document, cell), grid.accepted_in(document, cell)
    ctar = [round(fmean(a >= w for a in accepted), 4) for w in range(1, figures["depth"] + 1)]
    return {**figures, "ctar": ctar, "wasted": round(figures["drafted"] - fmean(accepted), 3)}


def predictions(document: Document, settings: Sequence[Cell]) -> list[dict[str, Any]]:
    """Predict the speedup of every chain at T = 0 from the lengths of its steps and their costs.

    A row has, beside the measured speedup, what is predicted and predicted / measured - 1; the same
    with CR / (1 + D (r + a)), which takes verification to be as cheap as a plain step ("simple");
    and r and a of :class:`specwb.lab.cost.passes.ExitCost`.
    """
    out = []
    for cell in settings:
        saved_costs = document.get("costs", {}).get(cell.variant)
        speedups = values(document["cells"], cell, "speedup")
        is_chain = document["shapes"].get(cell.key, {}).get("chain")
        if cell.kind != "kangaroo" or cell.temperature or not is_chain:
            continue
        if not speedups or saved_costs is None:
            continue
        record = document["cells"][cell.key]
        accepted, drafted = (
            [n for prompt in record[name] for n in prompt[1:]] for name in ("accepted", "drafted")
        )
        steps = exits.Simulation(accepted, drafted, [])
        costs, measured = cells.costs_of(saved_costs), fmean(speedups)
        predicted = steps.speedup(costs.seconds, costs.plain)
        simple = steps.speedup(costs.of_passes, costs.plain)
        figures = {
            "measured": measured,
            "predicted": predicted,
            "simple": simple,
            "error": predicted / measured - 1,
            "simple_error": simple / measured - 1,
            "r": costs.r,
            "a": costs.a,
        }
        out.append({"cell": cell.key, **{name: round(x, 4) for name, x in figures.items()}})
    return out


SHOWN = ("drafted", "wasted", "tau", "CTAR", "ms/step", grid.SHOWN["speedup"])


def tables(document: Document, own: Rows, other: Rows) -> Tables:
    """Make the printed tables; tau is the paper's CR."""
    ablation = document.get("ablation") or {}
    predicted = [*document["predicted"], *(ablation.get("predicted") or [])]
    return [
        (
            "Main table: mean speedup at T = 0, the paper's range over targets; "
            "no prompt processing here",
            lines(own, _methods(), SHOWN),
        ),
        ("Threshold and steps: CR / steady speedup of chains by gamma", _threshold_lines(own)),
        (
            "Exit layer, adapters of the ablation, gamma = 6: CR / steady speedup; "
            "the paper's at the same part of all layers",
            _exit_lines(document, other),
        ),
        (
            "Adapter variants, adapters of the ablation, gamma = 6, eta = 0.6",
            lines(other, _adapters(ablation), SHOWN),
        ),
        (
            "Temperature and the confidence that is compared with eta",
            lines(own, _temperatures(), SHOWN),
        ),
        ("Predicted steady speedup of chains", [_prediction_line(r) for r in predicted]),
        ("Every setting, the target's own heads", every(own, SHOWN)),
        ("Every setting, adapters of the ablation", every(other, SHOWN)),
    ]


def _methods() -> Labelled:
    for name, spec in SPECS.items():
        means = [r["mean"] for r in table_rows("kangaroo", "main") if r["method"] == name]
        label = {"method": name, "paper: speedup": f"{min(means):.2f}-{max(means):.2f}x"}
        yield Cell(spec), label


def _adapters(ablation: Document) -> Labelled:
    for variant in (cells.REFERENCE, *cells.ADAPTERS):
        if card := (ablation.get("heads") or {}).get(variant):
            name = variant.replace(cells.REFERENCE, "attention")
            domains = card.get("held_out") or {}
            first = f"{fmean(d['rank'][0][0] for d in domains.values()):.2f}" if domains else ""
            label = {
                "adapter": name,
                **theirs(speedup=claims.adapters()[name]),
                "parameters": f"{card['parameters']:,}",
                "held-out first guess": first,
            }
            yield chain(USUAL, variant=variant), label


def _temperatures() -> Labelled:
    speedups = claims.temperatures()
    for t in (0.0, *cells.TEMPERATURES):
        for stop in ("top", "scaled") if t else ("top",):
            label = {"T": f"{t:g}", "confidence": stop, **theirs(speedup=speedups.get((t, stop)))}
            yield chain(USUAL, stop=stop, temperature=t), label


def _threshold_lines(own: Rows) -> Lines:
    points, out = claims.etas(), []
    for eta in ETAS:
        known = {g: points.get((eta, g)) for g in GAMMAS}
        here = {g: own.get(chain(eta, g).key) for g in GAMMAS}
        if any(here.values()):
            line = {"eta": f"{eta:g}"}
            for g, point in known.items():
                line[f"paper: {g}"] = f"{point['cr']:.2f}/{point['speedup']:.2f}x" if point else ""
            out.append(line | {f"here: {g}": _both(r) if r else "" for g, r in here.items()})
    return out


def _exit_lines(document: Document, other: Rows) -> Lines:
    out, published = [], claims.depths()
    for n in EXITS:
        there = claims.SAME_PART.get(n)
        point = published.get(-1 if there is None else there, {})
        numbers = theirs(exit=there, CR=point.get("cr"), speedup=point.get("speedup"))
        rows = {eta: other.get(claims.exit_chain(n, eta).key) for eta in ABLATION_ETAS}
        if all(rows.values()):
            here = {f"here: eta = {eta:g}": _both(r) for eta, r in rows.items() if r}
            out.append({"exit": f"{n}/{PARTS}", **numbers, **here, **_cost(document, f"exit{n}")})
    return out


def _both(r: Row) -> str:
    """CR and speedup."""
    return f"{digits(r['tau'])}/{digits(r['speedup'], 'x')}"


def _cost(document: dict[str, Any], variant: str) -> dict[str, str]:
    """What a token costs in the first layers and in adapter and head, in plain steps."""
    predicted = (document.get("ablation") or {}).get("predicted") or []
    for r in predicted:
        if r["cell"].endswith(f"[{variant}]"):
            return {"r": f"{r['r']:.2f}", "a": f"{r['a']:.2f}"}
    return {"r": "", "a": ""}


def _prediction_line(r: dict[str, Any]) -> dict[str, str]:
    return {
        "setting": r["cell"],
        "measured": f"{r['measured']:.2f}x",
        "predicted": f"{r['predicted']:.2f}x",
        "error": f"{r['error']:+.0%}",
        "CR / (1 + D (r + a))": f"{r['simple']:.2f}x",
        "its error": f"{r['simple_error']:+.0%}",
        "r": f"{r['r']:.2f}",
        "a": f"{r['a']:.2f}",
    }


def notes(document: Document) -> list[str]:
    """Say how CR and speed change with the threshold, and how good the cost model is."""
    rows, ablation = document["rows"], document.get("ablation") or {}
    return [
        *_threshold_notes(rows),
        *_prediction_note("own adapter", document["predicted"]),
        *_prediction_note("ablation", ablation.get("predicted") or []),
        *grid.fastest(rows, "kangaroo", "Kangaroo"),
    ]


def _threshold_notes(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """How CR and speed change with the threshold."""
    by_cell = {r["cell"]: r for r in rows}
    lines = []
    for g in GAMMAS:
        by_eta = {eta: r for eta in ETAS if (r := by_cell.get(chain(eta, g).key)) and r["speedup"]}
        if len(by_eta) == len(ETAS):
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
        f"Predicted steady speedup of {len(predicted)} chains, {name}: median error {error:.0%} "
        f"from the cost of a step by what it drafts, {simple_error:.0%} from CR / (1 + D (r + a))."
    ]


STUDY = Study(
    name="kangaroo",
    bars=claims.bars,
    cells=cells.own_cells,
    claims=claims.claims,
    tables=tables,
    notes=notes,
    options=cells.options,
    row=row,
    probe=cells.probe,
    extra=lambda document, settings: {"predicted": predictions(document, settings)},
    heads=("kangaroo", "medusa", "eagle"),
    given="kangaroo",
    rules=OURS,
    variants=cells.VARIANTS,
    ablation=cells.ablation_cells,
    head="kangaroo",
    figures=FIGURES,
    partial=True,
)
