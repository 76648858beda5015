"""EasySpec (Wu et al. 2502.02493).

What its text states of N, calibration, widths and layers is measured on one pair and judged. Every
cell drafts with the same draft model; ``easyspec:n=1,calibrate=false`` is that model as it is, the
baseline of drafting times and acceptance.

Differs from the paper in: models, machine (one device) and prompts; texts go on past an end of
text. The number of decoding steps a prompt is fixed. Times and tokens of a speedup are those of all
steps but the first, which processes the prompt; times are means.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import Any

from specwb.core.options import ranges
from specwb.lab.studies import grid
from specwb.lab.studies.easyspec import cells
from specwb.lab.studies.easyspec.cells import (
    DEPTH,
    DRIFT,
    TEMPERATURE,
    WIDTHS,
    N,
    easy,
    ns_of,
    plain,
)
from specwb.lab.studies.easyspec.claims import NEAR, STATED, claims, cosines_judged
from specwb.lab.studies.easyspec.figures import FIGURES
from specwb.lab.studies.grid import Cell, values
from specwb.lab.studies.study import (
    Document,
    Lines,
    Rows,
    Study,
    Tables,
    own_draft,
    published,
    shown,
)
from specwb.models.fuzzy import grouping, listed
from specwb.theory.analysis.layer_parallel import attention_rounds, stage_speedup, step_time

OURS = (
    "A statement of which is larger, without a number: reproduced if the interval lies above 1. "
    "The 7 %: reproduced if the interval of what is kept lies above 0.93. A ratio of two ratios: "
    "the same bootstrap, all four on the same prompts. Cosines are means over places and layers, "
    f"without interval; near 1 is above {NEAR}. Acceptance (accepted) is the number of draft "
    "tokens kept per step; over the depth it is the paper's. Stage speedup: milliseconds of "
    "drafting per step, the plain drafter's over the cell's, of the same width."
)


def row(document: dict[str, Any], cell: Cell) -> dict[str, Any]:
    """Add to a cell's figures the ``rounds`` of attention in a draft step, ``positions``, the share
    of drafts accepted at depth 1, 2, .. of those accepted above it, and the ``stage`` speedup."""
    figures = grid.row(document, cell)
    reached = grid.by_depth(grid.accepted_in(document, cell), figures["depth"])
    figures["positions"] = [round(a / tested, 4) if tested else None for a, tested in reached]
    if cell.kind == "ar":
        return {**figures, "rounds": None, "stage": None}
    given, layers = cells.settings(cell), document["layers"]
    base = plain(given.get("width", 1), cell.temperature, type(cell))
    base_ms, ms = (values(document["cells"], one, "draft") for one in (base, cell))
    stage = round(fmean(base_ms) / fmean(ms), 4) if base_ms and ms else None
    if "groups" in given:
        groups = listed(layers, ranges("groups", given["groups"]))
    else:
        groups = grouping(layers, given["n"])
    return {**figures, "rounds": attention_rounds(groups), "stage": stage}


# ----------------------------------------------------------------------------------------- tables


def tables(document: Document, own: Rows, _: Rows) -> Tables:
    """Make the printed tables."""
    by_title: dict[str, Lines] = {title: [] for title in (*TITLES, CHAINS)}
    for r in own.values():
        titles = [title for title, part in TITLES.items() if part in r["cell"]]
        label = {"setting": r["spec"].removeprefix("easyspec:")}
        by_title[titles[0] if titles else CHAINS].append({**label, **shown(r, SHOWN)})
    return [
        *reversed(by_title.items()),
        (
            "Mean cosine (of the lowest layer), exact against one fuzzy pass",
            _cosine_lines(document.get("cosines", {})),
        ),
        (
            "Drift: relative error of the draft's keys and values, the worst layer's; "
            "drafted tokens kept; N = 4",
            _drift_lines(document["drift"]) if "drift" in document else [],
        ),
        (
            "Drafting alone, milliseconds per step, stage speedup",
            _stage_lines(document.get("stages", {})),
        ),
        (
            "Milliseconds of a layer's attention and MLP, the head, all layers; "
            "attention's share and the cost model; fused over plain, N = 4",
            _time_lines(document.get("times", {}), document["layers"]),
        ),
    ]


def _cosine_lines(cosines: dict[str, Any]) -> Lines:
    return [
        {"N": n, **{kind: f"{fmean(x):.3f} ({min(x):.2f})" for kind, x in cosines[n].items()}}
        for n in cosines
        if n != "consecutive"
    ]


def _drift_lines(drift: dict[str, Any]) -> Lines:
    lines = [{"round": str(i)} for i in range(1, DRIFT + 1)]
    for on, word in (("true", "calibrated"), ("false", "not")):
        for line, r in zip(lines, drift[on], strict=True):
            for what in ("key", "value"):
                line[f"{what}s, {word}"] = f"{max(r[f'{what}_error']):.1e}"
            line[f"kept, {word}"] = f"{r['accepted']:.2f}"
    return lines


def _stage_lines(stages: dict[str, Any]) -> Lines:
    lines = []
    for spec, times in stages.items():
        base = stages[plain().spec]
        by_way = {how: f"{ms:.3f} ms, {base[how] / ms:.2f}x" for how, ms in times.items()}
        lines.append({"setting": spec.removeprefix("easyspec:"), **by_way})
    return lines


def _time_lines(times: dict[str, Any], layers: int) -> Lines:
    """Measured times beside what the passes of a step take by them."""
    lines = []
    for tokens, ms in times.items():
        share = ms["attention"] / (ms["attention"] + ms["mlp"])
        one, group = (
            step_time(grouping(layers, n), ms["attention"], ms["mlp"], devices=n) for n in (1, N)
        )
        lines.append(
            {
                "tokens": tokens,
                **{name: f"{value:.3f}" for name, value in ms.items()},
                "share": f"{share:.0%}",
                "fuzzy/exact": f"{group / one:.2f}",
                "stage": f"{stage_speedup(group / one, DEPTH):.2f}x",
                "measured": f"{ms['fused'] / ms['plain']:.2f}",
            }
        )
    return lines


SHOWN = (
    "attentions",
    "accepted",
    "by position",
    "draft ms",
    "stage",
    "ms/step",
    grid.SHOWN["speedup"],
)
CHAINS = "N and calibration, chains, T = 0"
"""The title of the table of all cells that no other table takes."""
TITLES = {
    "Eager steps, chains": " eager",
    f"T = {TEMPERATURE:g}": f"T={TEMPERATURE:g}",
    "Widths, T = 0": "width=",
    "Which layers, T = 0": "groups=",
    "MLPs side by side, T = 0": "mlp=",
    "Executions, T = 0": "execution=",
}
"""The title of a table -> what is in the keys of its cells."""


def notes(document: Document) -> list[str]:
    """Judge the cosines, and say which N is fastest and what the paper's numbers imply."""
    rows, paper = document["rows"], published("easyspec")
    out = [
        f"{fact['verdict'].upper()}: {fact['claim']} [{STATED}]: {fact['from']}"
        for fact in document["facts"]
    ]
    out += _width_notes(rows, document["layers"])
    if "cosines" in document:
        cosines = ", ".join(f"{x:.2f}" for x in document["cosines"]["consecutive"])
        out.append(f"Cosine of what enters and leaves each layer: {cosines}.")
    out += grid.fastest(rows, "easyspec", "EasySpec")
    out += [f"The paper's numbers: {text}" for text in paper["implications"].values()]
    return [*out, f"{paper['conventions']['numbers']}."]


def _width_notes(rows: Sequence[dict[str, Any]], layers: int) -> list[str]:
    """The fastest N of every width, and how much lower the acceptance at N = 4 is."""
    by_cell = {r["cell"]: r for r in rows}
    lines = []
    for w in WIDTHS:
        ns = ns_of(layers, cells.NS if w == 1 else cells.WIDE_NS)
        by_n = {n: by_cell[key] for n in ns if (key := easy(n, w).key) in by_cell}
        speedups = {n: r["speedup"] for n, r in by_n.items() if r["speedup"]}
        if not speedups or plain(w).key not in by_cell or N not in by_n:
            continue
        best = max(speedups, key=lambda n: speedups[n])
        exact, grouped = by_cell[plain(w).key]["accepted"], by_n[N]["accepted"]
        loss = ""
        if exact:
            loss = (
                f"acceptance at N = {N} is {1 - grouped / exact:.1%} lower "
                f"({(exact - grouped) / DEPTH:.3f} of the depth)"
            )
        lines.append(f"Width {w}: fastest at N = {best} ({speedups[best]:.2f}x); {loss}.")
    return lines


STUDY = Study(
    name="easyspec",
    cells=cells.cells,
    claims=claims,
    tables=tables,
    notes=notes,
    options=own_draft,
    draft=cells.draft_of,
    deep=True,
    row=row,
    facts=cells.facts,
    probe=cells.probe,
    figures=FIGURES,
    extra=lambda document, _: {"facts": cosines_judged(document)},
    rules=OURS,
)
