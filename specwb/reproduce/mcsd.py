"""Multi-candidate speculative decoding (Yang et al. 2401.06706): its grid of trees, draws and temperatures, measured and judged.

No value of the paper's tables is known to us, so its statements are judged, not its numbers. Differs from the paper in: models, machine and
prompts; at T = 0 candidates are the draft's top-k whatever the draw (its code then has k equal ones "with" replacement).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import prod
from statistics import median
from typing import Any

from specwb.evaluation.prompts import Question
from specwb.evaluation.statistics import mean_and_error, z_score
from specwb.methods import Method, draft_model
from specwb.methods import method as make_method
from specwb.models.layout import LAYOUTS
from specwb.models.target import Target
from specwb.reproduce.grid import FEWEST, check, measured
from specwb.reproduce.grid import run as grid_run
from specwb.reproduce.grid import values as values_of
from specwb.reproduce.store import Store
from specwb.tree import Tree

PUBLISHED = "Published values: none known (no table of arXiv 2401.06706 was available), so none is compared with."
SMALL = ((1,), (2,), (4,), (8,), (16,), (32,))
TREES = ((1, 1, 1), (2, 2, 1), (4, 2, 2), (8, 2, 2), (4, 2, 2, 1), (4, 2, 2, 1, 1))
# as many nodes as 1-1-1, 2-2-1, 4-2-2 and 4-2-2-1; as deep as 4-2-2-1 and 4-2-2-1-1
EQUALS = ((3,), (1,) * 10, (7, 1, 1, 1), (11, 1, 1, 1), (1,) * 4, (1,) * 5)
DRAWS: dict[str, dict[str, str]] = {"without": {}, "with": {"draw": "with"}, "naive": {"rule": "naive"}, "top": {"draw": "top"}}


@dataclass(frozen=True)
class Cell:
    """One setting: ``tree`` () is plain decoding. ``long``: the prompt has other prompts before it, up to ``grid.LONG`` tokens."""

    temperature: float
    tree: tuple[int, ...] = ()
    draw: str = "without"
    layout: str = "tree"
    long: bool = False

    @property
    def name(self) -> str:
        """``4-2-2``, ``32`` or ``ar``."""
        return "-".join(map(str, self.tree)) or "ar"

    @property
    def key(self) -> str:
        return f"T={self.temperature:g} {self.name}{f' {self.draw}' if self.tree else ''} {self.layout}{' long' if self.long else ''}"

    @property
    def nodes(self) -> int:
        """Drafted ones: the root is not counted."""
        return Tree.branching(*self.tree).n - 1

    def method(self, target: Target, draft: Target) -> Method:
        return make_method("mcsd", target, draft=draft, tree=self.tree, **DRAWS[self.draw]) if self.tree else make_method("ar", target)


def grid(
    temperatures: Sequence[float], small: Sequence = SMALL, trees: Sequence = TREES, equals: Sequence = EQUALS, layouts_at: float = 1.0
) -> list[Cell]:
    """All cells: ``ar`` and every tree at every temperature with every draw that differs from an earlier one, ``equals`` without replacement
    only; and at the temperature ``layouts_at`` the batch layout of ``trees``, after the prompt and after a long text.

    At T = 0 and for a single child all draws are one; naive verification of a single child is another rule.
    """
    cells = []
    for t in temperatures:
        cells.append(Cell(t))
        for tree in (*small, *trees):
            draws = ["without"] if t == 0 else ["without", "naive"] if max(tree) == 1 else list(DRAWS)
            cells += [Cell(t, tree, draw) for draw in draws]
        cells += [Cell(t, tree) for tree in equals]
        if t == layouts_at:
            wide = [tree for tree in trees if max(tree) > 1]
            cells += [Cell(t, tree, layout="batch") for tree in wide]
            cells += [Cell(t, tree, layout=layout, long=True) for tree in wide for layout in ("tree", "batch")]
    return list(dict.fromkeys(cells))


def run(
    target: Target,
    questions: Sequence[Question],
    store: Store,
    cells: Sequence[Cell],
    *,
    draft: Target | str | None = None,
    rounds_each: int = 10,
    seconds: float = 300.0,
    seed: int = 0,
    progress: Callable[[float, str], None] | None = None,
) -> bool:
    """Fill ``store.cells[cell.key]`` with ``accepted`` (drafted tokens kept, by prompt and round) and ``ms`` (a round's, by prompt).

    Goes through the prompts until another would take longer than ``seconds`` of measuring in all (at least two are done), beginning where the
    store ends. Returns whether it was interrupted.

    Raises:
        ValueError: no prompt, rounds < 2, or whatever building a method refuses.
    """
    check(questions, cells, rounds_each)
    helper = draft_model(target, draft)
    methods = {cell: cell.method(target, helper) for cell in cells}
    return grid_run(target, questions, store, methods, rounds_each=rounds_each, seconds=seconds, seed=seed, progress=progress)


# --------------------------------------------------------------------------------------------------------------------- what was measured


def values(cells: dict[str, Any], cell: Cell, what: str) -> list[float]:
    """By prompt, see :func:`specwb.reproduce.grid.values`; beside plain decoding at the same temperature."""
    return values_of(cells, cell.key, Cell(cell.temperature).key, what)


def row(cells: dict[str, Any], cell: Cell) -> dict[str, Any]:
    """One cell's figures. ``tested`` at depth d are the rounds that accepted d - 1 or more: every node of these trees has candidates.

    tau is what the paper's code calls block efficiency, ``depth_fraction = (tau - 1) / depth`` what it calls acceptance rate, ms_per_token its
    latency (here the median of the prompts' rounds over tau, prompt processing left out). speedup = tau times the median over prompts of
    plain decoding's ms over ms.
    """
    found = cells[cell.key]
    kept = [a for one in found["accepted"] for a in one]
    tau, error = mean_and_error(values(cells, cell, "tau"))
    pace = values(cells, cell, "pace")
    ms, depth = median(found["ms"]), len(cell.tree)
    return {
        "temperature": cell.temperature, "tree": cell.name, "draw": cell.draw if cell.tree else "", "layout": cell.layout, "long": cell.long,
        "nodes": cell.nodes if cell.tree else 0, "depth": depth, "prompts": len(found["ms"]), "rounds": len(kept),
        "tau": round(tau, 4), "tau_error": None if error != error else round(error, 4), "accepted_per_round": round(tau - 1, 4),
        "accepted_by_depth": [[sum(a >= d for a in kept), sum(a >= d - 1 for a in kept)] for d in range(1, depth + 1)],
        "depth_fraction": round((tau - 1) / depth, 4) if depth else None,
        "ms_per_round": round(ms, 3), "ms_per_token": round(ms / tau, 3), "speedup": round(tau * median(pace), 4) if pace else None,
    }  # fmt: skip


@dataclass(frozen=True)
class Statement:
    """``text`` says that ``what`` is larger in the first cell of every pair."""

    text: str
    source: str
    what: str
    pairs: tuple[tuple[Cell, Cell], ...]


RULE = (
    "Rule: paired over prompts, every prompt counting the same; a cell's t is the mean difference over its standard error, the pooled t that of "
    "the prompts' means over cells, and z the normal quantile as improbable as t (Student's, n - 1 degrees of freedom for n prompts). Holds: "
    "pooled z >= 3 and no cell with z <= -3. Fails: pooled z <= -3. Mixed: pooled z >= 3, but some cell with z <= -3. Otherwise undecided."
)


def judge(cells: dict[str, Any], statement: Statement) -> dict[str, Any] | None:
    """The verdict on one statement by :data:`RULE`, with every pair's difference; None where fewer than two prompts were measured."""
    differences: list[list[float]] = []
    pairs: list[dict[str, Any]] = []
    for a, b in statement.pairs:
        d = [x - y for x, y in zip(values(cells, a, statement.what), values(cells, b, statement.what), strict=False)]
        if len(d) < FEWEST:
            continue
        mean, error = mean_and_error(d)
        differences.append(d)
        pairs.append(
            {"larger": a.key, "smaller": b.key, "difference": round(mean, 4), "error": round(error, 4), "z": round(z_score(mean, error, len(d)), 2)}
        )
    if not pairs:
        return None
    common = min(map(len, differences))
    pooled, error = mean_and_error([sum(d[i] for d in differences) / len(differences) for i in range(common)])
    z, least = round(z_score(pooled, error, common), 2), min(pair["z"] for pair in pairs)
    verdict = "fails" if z <= -3 else "undecided" if z < 3 else "holds" if least > -3 else "mixed"
    return {
        "statement": statement.text, "source": statement.source, "of": statement.what, "verdict": verdict, "cells": len(pairs),
        "larger": sum(p["difference"] > 0 for p in pairs), "clearly": sum(p["z"] > 2 for p in pairs), "against": sum(p["z"] < -2 for p in pairs),
        "difference": round(pooled, 4), "error": round(error, 4), "z": z, "pairs": pairs,
    }  # fmt: skip


ABSTRACT = "abstract of arXiv 2401.06706"
CODE = "the MCSD code's default"
OURS = "not from a paper"


def statements(cells: Sequence[Cell]) -> list[Statement]:
    """What is judged, over those pairs of cells that the grid has."""
    have = set(cells)
    plain = [c for c in cells if c.tree and c.layout == "tree" and not c.long]

    def pairs(chosen: Sequence[Cell], changes: Callable[[Cell], dict[str, Any]]) -> tuple[tuple[Cell, Cell], ...]:
        both = [(c, replace(c, **changes(c))) for c in chosen]
        return tuple((a, b) for a, b in both if b in have and a != b)

    usual = [c for c in plain if c.draw == "without"]
    flat = [c for c in usual if len(c.tree) == 1 and c.tree[0] > 1]
    deep = [c for c in usual if len(c.tree) > 1 and max(c.tree) > 1]
    branched = [c for c in deep if c.tree in TREES]
    chains = {2 + 4 + 4: (1,) * 10}
    roots = {28: (7, 1, 1, 1), 44: (11, 1, 1, 1)}
    found = [
        Statement("k candidates at one node are accepted more often than one", ABSTRACT, "tau", pairs(flat, lambda c: {"tree": (1,)})),
        Statement(
            "twice as many candidates at one node are accepted more often", OURS, "tau",
            pairs([c for c in flat if c.tree[0] % 2 == 0], lambda c: {"tree": (c.tree[0] // 2,)}),
        ),
        Statement(
            "a tree accepts more a round than the chain of its depth", ABSTRACT, "tau",
            pairs(branched, lambda c: {"tree": (1,) * len(c.tree)}),
        ),
        Statement(
            "a shallow tree (3, 2-2-1) accepts more a round than a chain of as many nodes", OURS, "tau",
            pairs([c for c in branched if c.nodes in chains], lambda c: {"tree": chains[c.nodes]})
            + pairs([c for c in usual if c.tree == (3,)], lambda c: {"tree": (1, 1, 1)}),
        ),
        Statement(
            "branching at several levels accepts more a round than as many nodes in paths that part at the root", OURS, "tau",
            pairs([c for c in branched if c.nodes in roots], lambda c: {"tree": roots[c.nodes]}),
        ),
        Statement(
            "two more levels (4-2-2-1-1, 60 nodes) accept more a round than twice the width (8-2-2, 56 nodes)", OURS, "tau",
            pairs([c for c in usual if c.tree == (4, 2, 2, 1, 1)], lambda c: {"tree": (8, 2, 2)}),
        ),
        Statement(
            "without replacement accepts more than with, at equal nodes", CODE, "tau",
            pairs([c for c in usual if c.temperature > 0], lambda c: {"draw": "with"}),
        ),
        Statement(
            "speculative verification accepts more than naive sampling of the same candidates",
            "SpecInfer, theorem 4.3 (its rejection probability is at most naive sampling's)", "tau",
            pairs([c for c in usual if c.temperature > 0], lambda c: {"draw": "naive"}),
        ),
        Statement(
            "the most probable tokens and one draw from the rest accept more than draws without replacement, at equal nodes",
            "not MCSD's: Hu et al. 2502.18779", "tau",
            pairs([c for c in plain if c.draw == "top"], lambda c: {"draw": "without"}),
        ),
        Statement(
            "multi-candidate decoding is faster than single-candidate decoding of the same depth, on this machine", ABSTRACT, "speedup",
            pairs(branched, lambda c: {"tree": (1,) * len(c.tree)}),
        ),
        Statement(
            "a round verified as a tree is faster than one verified as a batch of paths", CODE, "pace",
            pairs([c for c in cells if c.tree and c.layout == "tree"], lambda c: {"layout": "batch"}),
        ),
    ]  # fmt: skip
    return [s for s in found if s.pairs]


def report(store: Store, cells: Sequence[Cell]) -> dict[str, Any]:
    """``store.document`` with ``rows`` (:func:`row` of every cell measured), ``verdicts`` and what was said about published values."""
    store.document |= {
        "published": PUBLISHED, "rule": RULE,
        "rows": [row(store.cells, cell) for cell in cells if measured(store.cells, cell.key)["ms"]],
        "verdicts": [found for s in statements(cells) if (found := judge(store.cells, s))],
        "layouts": same_verdicts(store.cells, cells),
    }  # fmt: skip
    return store.document


def same_verdicts(found: dict[str, Any], cells: Sequence[Cell]) -> dict[str, int]:
    """Of the rounds decoded in both layouts from the same seed, how many accepted as many tokens."""
    both: list[tuple[int, int]] = []
    for cell in cells:
        if cell.layout == "batch":
            kept_by = [measured(found, replace(cell, layout=layout).key)["accepted"] for layout in LAYOUTS]
            both += [pair for kept in zip(*kept_by, strict=False) for pair in zip(*kept, strict=True)]
    return {"rounds": len(both), "same": sum(a == b for a, b in both)}


# ------------------------------------------------------------------------------------------------------------------------- how it is shown


def tables(document: dict[str, Any]) -> list[tuple[str, list[dict[str, str]]]]:
    """(title, rows of text): one table a temperature, a line a tree, and one of the layouts."""
    out, rows = [], document["rows"]
    for t in dict.fromkeys(r["temperature"] for r in rows):
        mine = [r for r in rows if r["temperature"] == t and r["layout"] == "tree" and not r["long"]]
        names = dict.fromkeys(r["tree"] for r in mine)
        lines = [_line([r for r in mine if r["tree"] == name], t) for name in names]
        title = f"T = {t:g}: tau (block efficiency) by draw; then, without replacement, acceptance by depth, A / (R depth), time and speedup"
        out.append((title, lines))
    pairs = [(a, b) for a in rows for b in rows if b["layout"] == "batch" and a["layout"] == "tree" and _same_but_layout(a, b)]
    if pairs:
        shown = []
        for a, b in pairs:
            slow, fast = b["ms_per_round"], a["ms_per_round"]
            shown.append({
                "tree": a["tree"], "text": "long" if a["long"] else "prompt", "leaves": str(prod(map(int, a["tree"].split("-")))),
                "tree, ms/round": f"{fast:.1f}", "batch, ms/round": f"{slow:.1f}", "batch / tree": f"{slow / fast:.2f}",
            })  # fmt: skip
        out.append(("The two layouts of verification, without replacement", shown))
    return out


def _same_but_layout(a: dict[str, Any], b: dict[str, Any]) -> bool:
    return all(a[name] == b[name] for name in ("temperature", "tree", "draw", "long"))


def _line(mine: list[dict[str, Any]], temperature: float) -> dict[str, str]:
    by_draw = {r["draw"]: r for r in mine}
    r = by_draw.get("without", mine[0])
    draws = ["without"] if temperature == 0 else list(DRAWS)
    found = {draw: by_draw.get(draw, r if draw == "without" else None) for draw in draws}
    return {
        "tree": r["tree"], "nodes": str(r["nodes"]), **{draw: _tau(one) for draw, one in found.items()},
        "by depth": " ".join(f"{a / b:.2f}" if b else "-" for a, b in r["accepted_by_depth"]),
        "A/(R d)": "" if r["depth_fraction"] is None else f"{r['depth_fraction']:.2f}",
        "ms/token": f"{r['ms_per_token']:.2f}", "speedup": "" if r["speedup"] is None else f"{r['speedup']:.2f}x",
    }  # fmt: skip


def _tau(r: dict[str, Any] | None) -> str:
    return "" if r is None else f"{r['tau']:.2f}" + (f"±{r['tau_error']:.2f}" if r["tau_error"] else "")


def notes(document: dict[str, Any]) -> list[str]:
    """The verdicts, each with its statement and source, the rule they are by, and what is known of the paper's values."""
    out = []
    for v in document["verdicts"]:
        out.append(
            f"{v['verdict'].upper()}: {v['statement']} [{v['source']}]: {v['of']} larger in {v['larger']} of {v['cells']} cells "
            f"(z > 2 in {v['clearly']}, z < -2 in {v['against']}), pooled {v['difference']:+.3f} ± {v['error']:.3f} (z = {v['z']:.2f})"
        )
    both = document["layouts"]
    if both["rounds"]:
        out.append(f"Of {both['rounds']} rounds in both layouts from the same seed, {both['same']} accepted as many tokens.")
    counts = [r["prompts"] for r in document["rows"]] or [0]
    return [*out, document["rule"], document["published"], f"{min(counts)} prompts a cell, {document['spent']:.0f} s of measuring."]
