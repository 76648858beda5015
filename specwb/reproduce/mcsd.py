"""Multi-candidate speculative decoding (Yang et al. 2401.06706).

Its grid of trees, draws and temperatures is measured and judged. No value of the paper's tables is
known to us, so its statements are judged, not its numbers.

Differs from the paper in: models, machine and prompts; at T = 0 candidates are the draft model's
top-k whatever the draw (its code then has k equal ones "with" replacement).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import prod
from statistics import median
from typing import Any

from specwb.evaluation.prompts import Question
from specwb.evaluation.statistics import mean_and_error, z_score
from specwb.methods import Method
from specwb.methods import method as make_method
from specwb.models.layout import LAYOUTS
from specwb.models.load import draft_model
from specwb.models.target import Target
from specwb.reproduce.grid import MIN_PROMPTS, cell_record, check
from specwb.reproduce.grid import run as grid_run
from specwb.reproduce.grid import values as values_of
from specwb.reproduce.store import Store
from specwb.tree import Tree

PUBLISHED = (
    "Published values: none known (no table of arXiv 2401.06706 was available), "
    "so none is compared with."
)
SMALL = ((1,), (2,), (4,), (8,), (16,), (32,))
"""Trees of one level."""
TREES = ((1, 1, 1), (2, 2, 1), (4, 2, 2), (8, 2, 2), (4, 2, 2, 1), (4, 2, 2, 1, 1))
"""Deeper trees, as children a node by level."""
EQUALS = ((3,), (1,) * 10, (7, 1, 1, 1), (11, 1, 1, 1), (1,) * 4, (1,) * 5)
"""Trees to compare these with: of as many nodes as 1-1-1, 2-2-1, 4-2-2 and 4-2-2-1, and as deep as
4-2-2-1 and 4-2-2-1-1."""
DRAWS: dict[str, dict[str, str]] = {
    "without": {},
    "with": {"draw": "with"},
    "naive": {"rule": "naive"},
    "top": {"draw": "top"},
}


@dataclass(frozen=True)
class Cell:
    """One setting.

    Attributes:
        temperature: of the decoding.
        tree: children a node by level; () is plain decoding.
        draw: how candidates are drawn and verified, one of ``DRAWS``.
        layout: how the target is run over a draft.
        long: whether the prompt has other prompts before it, up to ``grid.LONG`` tokens.
    """

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
        draw = f" {self.draw}" if self.tree else ""
        long = " long" if self.long else ""
        return f"T={self.temperature:g} {self.name}{draw} {self.layout}{long}"

    @property
    def nodes(self) -> int:
        """Draft tokens of the tree; the root is not counted."""
        return Tree.branching(*self.tree).n - 1

    def method(self, target: Target, draft: Target) -> Method:
        """Build the method."""
        if not self.tree:
            return make_method("ar", target)
        return make_method("mcsd", target, draft=draft, tree=self.tree, **DRAWS[self.draw])


def grid(
    temperatures: Sequence[float],
    small: Sequence = SMALL,
    trees: Sequence = TREES,
    equals: Sequence = EQUALS,
    layouts_at: float = 1.0,
) -> list[Cell]:
    """List all cells.

    These are ``ar`` and every tree at every temperature, with every draw that differs from an
    earlier one. At T = 0 and for a single child all draws are the same; naive verification of a
    single child is another rule.

    Args:
        temperatures: of the cells.
        small: trees of one level.
        trees: deeper trees.
        equals: trees to compare them with, only without replacement.
        layouts_at: the temperature at which the batch layout of ``trees`` is measured too, after
            the prompt and after a long text.
    """
    cells = []
    for t in temperatures:
        cells.append(Cell(t))
        for tree in (*small, *trees):
            draws = list(DRAWS)
            if t == 0:
                draws = ["without"]
            elif max(tree) == 1:
                draws = ["without", "naive"]
            cells += [Cell(t, tree, draw) for draw in draws]
        cells += [Cell(t, tree) for tree in equals]
        if t == layouts_at:
            wide = [tree for tree in trees if max(tree) > 1]
            cells += [Cell(t, tree, layout="batch") for tree in wide]
            cells += [
                Cell(t, tree, layout=layout, long=True)
                for tree in wide
                for layout in ("tree", "batch")
            ]
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
    """Measure the cells with :func:`specwb.reproduce.grid.run`.

    ``store.cells[cell.key]`` is filled with ``accepted`` (accepted draft tokens, by prompt and
    step) and ``ms`` (of a step, by prompt).

    Args:
        target: the target model.
        questions: the prompts.
        store: of the results.
        cells: the settings.
        draft: the draft model, default the target's own.
        rounds_each: decoding steps of each prompt and cell.
        seconds: about how long to measure in all.
        seed: of the sampling.
        progress: called with (fraction done, text).
    Returns:
        Whether it was interrupted.
    Raises:
        ValueError: there is no prompt, rounds < 2, or whatever building a method refuses.
    """
    check(questions, cells, rounds_each)
    draft = draft_model(target, draft)
    methods = {cell: cell.method(target, draft) for cell in cells}
    return grid_run(
        target,
        questions,
        store,
        methods,
        rounds_each=rounds_each,
        seconds=seconds,
        seed=seed,
        progress=progress,
    )


# ---------------------------------------------------------------------------------------- results


def values(cells: dict[str, Any], cell: Cell, what: str) -> list[float]:
    """Compute a figure for every prompt, see :func:`specwb.reproduce.grid.values`.

    Plain decoding is taken at the same temperature.
    """
    return values_of(cells, cell.key, Cell(cell.temperature).key, what)


def row(cells: dict[str, Any], cell: Cell) -> dict[str, Any]:
    """Compute one cell's figures.

    - tau is what the paper's code calls block efficiency.
    - ``depth_fraction = (tau - 1) / depth`` is what it calls acceptance rate.
    - ms_per_token is its latency, here the median of the prompts' steps over tau, prompt processing
      left out.
    - speedup = tau times the median over prompts of plain decoding's ms over ms.
    - accepted_by_depth: (accepted, tested) at depth d; tested are the steps that accepted d - 1 or
      more, since every node of these trees has candidates.
    """
    record = cells[cell.key]
    accepted = [a for steps in record["accepted"] for a in steps]
    tau, error = mean_and_error(values(cells, cell, "tau"))
    pace = values(cells, cell, "pace")
    ms, depth = median(record["ms"]), len(cell.tree)
    return {
        "temperature": cell.temperature,
        "tree": cell.name,
        "draw": cell.draw if cell.tree else "",
        "layout": cell.layout,
        "long": cell.long,
        "nodes": cell.nodes if cell.tree else 0,
        "depth": depth,
        "prompts": len(record["ms"]),
        "rounds": len(accepted),
        "tau": round(tau, 4),
        "tau_error": None if error != error else round(error, 4),
        "accepted_per_round": round(tau - 1, 4),
        "accepted_by_depth": [
            [sum(a >= d for a in accepted), sum(a >= d - 1 for a in accepted)]
            for d in range(1, depth + 1)
        ],
        "depth_fraction": round((tau - 1) / depth, 4) if depth else None,
        "ms_per_round": round(ms, 3),
        "ms_per_token": round(ms / tau, 3),
        "speedup": round(tau * median(pace), 4) if pace else None,
    }


@dataclass(frozen=True)
class Statement:
    """The statement that a figure is larger in the first cell of every pair.

    Attributes:
        text: the statement.
        source: who states it.
        what: the figure.
        pairs: of cells.
    """

    text: str
    source: str
    what: str
    pairs: tuple[tuple[Cell, Cell], ...]


RULE = (
    "Rule: paired over prompts, every prompt counting the same; a cell's t is the mean difference "
    "over its standard error, the pooled t that of the prompts' means over cells, and z the normal "
    "quantile as improbable as t (Student's, n - 1 degrees of freedom for n prompts). Holds: "
    "pooled z >= 3 and no cell with z <= -3. Fails: pooled z <= -3. Mixed: pooled z >= 3, but some "
    "cell with z <= -3. Otherwise undecided."
)


def judge(cells: dict[str, Any], statement: Statement) -> dict[str, Any] | None:
    """Give the verdict on one statement by :data:`RULE`, with every pair's difference.

    It is None where fewer than two prompts were measured.
    """
    differences: list[list[float]] = []
    pairs: list[dict[str, Any]] = []
    for a, b in statement.pairs:
        firsts, seconds = (values(cells, cell, statement.what) for cell in (a, b))
        by_prompt = [x - y for x, y in zip(firsts, seconds, strict=False)]
        if len(by_prompt) < MIN_PROMPTS:
            continue
        mean, error = mean_and_error(by_prompt)
        differences.append(by_prompt)
        pairs.append(
            {
                "larger": a.key,
                "smaller": b.key,
                "difference": round(mean, 4),
                "error": round(error, 4),
                "z": round(z_score(mean, error, len(by_prompt)), 2),
            }
        )
    if not pairs:
        return None
    count = min(map(len, differences))  # prompts that every pair has
    pooled, error = mean_and_error(
        [sum(d[i] for d in differences) / len(differences) for i in range(count)]
    )
    z = round(z_score(pooled, error, count), 2)
    verdict = "undecided"
    if z <= -3:
        verdict = "fails"
    elif z >= 3:
        verdict = "holds" if min(pair["z"] for pair in pairs) > -3 else "mixed"
    return {
        "statement": statement.text,
        "source": statement.source,
        "of": statement.what,
        "verdict": verdict,
        "cells": len(pairs),
        "larger": sum(p["difference"] > 0 for p in pairs),
        "clearly": sum(p["z"] > 2 for p in pairs),
        "against": sum(p["z"] < -2 for p in pairs),
        "difference": round(pooled, 4),
        "error": round(error, 4),
        "z": z,
        "pairs": pairs,
    }


ABSTRACT = "abstract of arXiv 2401.06706"
CODE = "the MCSD code's default"
OURS = "not from a paper"


def statements(cells: Sequence[Cell]) -> list[Statement]:
    """List the statements that are judged, over those pairs of cells that the grid has."""
    in_grid = set(cells)
    plain = [c for c in cells if c.tree and c.layout == "tree" and not c.long]

    def pairs(
        firsts: Sequence[Cell], changes: Callable[[Cell], dict[str, Any]]
    ) -> tuple[tuple[Cell, Cell], ...]:
        """Every cell with the cell that differs from it in ``changes``."""
        both = [(cell, replace(cell, **changes(cell))) for cell in firsts]
        return tuple((a, b) for a, b in both if b in in_grid and a != b)

    usual = [c for c in plain if c.draw == "without"]
    flat = [c for c in usual if len(c.tree) == 1 and c.tree[0] > 1]
    deep = [c for c in usual if len(c.tree) > 1 and max(c.tree) > 1]
    branched = [c for c in deep if c.tree in TREES]
    # nodes -> the chain, or the paths that part at the root, of as many nodes
    chains = {2 + 4 + 4: (1,) * 10}
    roots = {28: (7, 1, 1, 1), 44: (11, 1, 1, 1)}
    every_statement = [
        Statement(
            "k candidates at one node are accepted more often than one",
            ABSTRACT,
            "tau",
            pairs(flat, lambda c: {"tree": (1,)}),
        ),
        Statement(
            "twice as many candidates at one node are accepted more often",
            OURS,
            "tau",
            pairs([c for c in flat if c.tree[0] % 2 == 0], lambda c: {"tree": (c.tree[0] // 2,)}),
        ),
        Statement(
            "a tree accepts more a round than the chain of its depth",
            ABSTRACT,
            "tau",
            pairs(branched, lambda c: {"tree": (1,) * len(c.tree)}),
        ),
        Statement(
            "a shallow tree (3, 2-2-1) accepts more a round than a chain of as many nodes",
            OURS,
            "tau",
            pairs([c for c in branched if c.nodes in chains], lambda c: {"tree": chains[c.nodes]})
            + pairs([c for c in usual if c.tree == (3,)], lambda c: {"tree": (1, 1, 1)}),
        ),
        Statement(
            "branching at several levels accepts more a round than as many nodes in paths that "
            "part at the root",
            OURS,
            "tau",
            pairs([c for c in branched if c.nodes in roots], lambda c: {"tree": roots[c.nodes]}),
        ),
        Statement(
            "two more levels (4-2-2-1-1, 60 nodes) accept more a round than twice the width "
            "(8-2-2, 56 nodes)",
            OURS,
            "tau",
            pairs([c for c in usual if c.tree == (4, 2, 2, 1, 1)], lambda c: {"tree": (8, 2, 2)}),
        ),
        Statement(
            "without replacement accepts more than with, at equal nodes",
            CODE,
            "tau",
            pairs([c for c in usual if c.temperature > 0], lambda c: {"draw": "with"}),
        ),
        Statement(
            "speculative verification accepts more than naive sampling of the same candidates",
            "SpecInfer, theorem 4.3 (its rejection probability is at most naive sampling's)",
            "tau",
            pairs([c for c in usual if c.temperature > 0], lambda c: {"draw": "naive"}),
        ),
        Statement(
            "the most probable tokens and one draw from the rest accept more than draws without "
            "replacement, at equal nodes",
            "not MCSD's: Hu et al. 2502.18779",
            "tau",
            pairs([c for c in plain if c.draw == "top"], lambda c: {"draw": "without"}),
        ),
        Statement(
            "multi-candidate decoding is faster than single-candidate decoding of the same depth, "
            "on this machine",
            ABSTRACT,
            "speedup",
            pairs(branched, lambda c: {"tree": (1,) * len(c.tree)}),
        ),
        Statement(
            "a round verified as a tree is faster than one verified as a batch of paths",
            CODE,
            "pace",
            pairs(
                [c for c in cells if c.tree and c.layout == "tree"], lambda c: {"layout": "batch"}
            ),
        ),
    ]
    return [statement for statement in every_statement if statement.pairs]


def report(store: Store, cells: Sequence[Cell]) -> dict[str, Any]:
    """Add the results to ``store.document`` and return it.

    Added are ``rows`` (:func:`row` of every cell measured), ``verdicts`` with their ``rule``,
    ``published`` (what is known of published values) and ``layouts``.
    """
    verdicts = [judge(store.cells, statement) for statement in statements(cells)]
    store.document |= {
        "published": PUBLISHED,
        "rule": RULE,
        "rows": [
            row(store.cells, cell) for cell in cells if cell_record(store.cells, cell.key)["ms"]
        ],
        "verdicts": [verdict for verdict in verdicts if verdict],
        "layouts": same_verdicts(store.cells, cells),
    }
    return store.document


def same_verdicts(records: dict[str, Any], cells: Sequence[Cell]) -> dict[str, int]:
    """Count the steps that accepted as many tokens in both layouts.

    Counted are the steps that were decoded in both from the same seed.
    """
    both: list[tuple[int, int]] = []
    for cell in cells:
        if cell.layout != "batch":
            continue
        by_layout = [
            cell_record(records, replace(cell, layout=layout).key)["accepted"] for layout in LAYOUTS
        ]
        for prompt in zip(*by_layout, strict=False):
            both += zip(*prompt, strict=True)
    return {"rounds": len(both), "same": sum(a == b for a, b in both)}


# --------------------------------------------------------------------------------------- printing


def tables(document: dict[str, Any]) -> list[tuple[str, list[dict[str, str]]]]:
    """Make the printed tables, as (title, rows of text).

    There is one table a temperature with one row a tree, and one of the layouts.
    """
    titled, rows = [], document["rows"]
    for t in dict.fromkeys(r["temperature"] for r in rows):
        usual = [
            r for r in rows if r["temperature"] == t and r["layout"] == "tree" and not r["long"]
        ]
        names = dict.fromkeys(r["tree"] for r in usual)
        lines = [_line([r for r in usual if r["tree"] == name], t) for name in names]
        title = (
            f"T = {t:g}: tau (block efficiency) by draw; then, without replacement, acceptance by "
            "depth, A / (R depth), time and speedup"
        )
        titled.append((title, lines))
    pairs = [
        (a, b)
        for a in rows
        for b in rows
        if b["layout"] == "batch" and a["layout"] == "tree" and _same_but_layout(a, b)
    ]
    if pairs:
        lines = [_layout_line(tree, batch) for tree, batch in pairs]
        titled.append(("The two layouts of verification, without replacement", lines))
    return titled


def _same_but_layout(a: dict[str, Any], b: dict[str, Any]) -> bool:
    return all(a[name] == b[name] for name in ("temperature", "tree", "draw", "long"))


def _layout_line(tree: dict[str, Any], batch: dict[str, Any]) -> dict[str, str]:
    """A row of the table of layouts, from the rows of one cell in both."""
    tree_ms, batch_ms = tree["ms_per_round"], batch["ms_per_round"]
    return {
        "tree": tree["tree"],
        "text": "long" if tree["long"] else "prompt",
        "leaves": str(prod(map(int, tree["tree"].split("-")))),
        "tree, ms/round": f"{tree_ms:.1f}",
        "batch, ms/round": f"{batch_ms:.1f}",
        "batch / tree": f"{batch_ms / tree_ms:.2f}",
    }


def _line(rows: list[dict[str, Any]], temperature: float) -> dict[str, str]:
    """A row of a temperature's table, from the rows of one tree with every draw."""
    by_draw = {r["draw"]: r for r in rows}
    r = by_draw.get("without", rows[0])
    draws = ["without"] if temperature == 0 else list(DRAWS)
    shown = {draw: by_draw.get(draw, r if draw == "without" else None) for draw in draws}
    return {
        "tree": r["tree"],
        "nodes": str(r["nodes"]),
        **{draw: _tau(figures) for draw, figures in shown.items()},
        "by depth": " ".join(f"{a / b:.2f}" if b else "-" for a, b in r["accepted_by_depth"]),
        "A/(R d)": "" if r["depth_fraction"] is None else f"{r['depth_fraction']:.2f}",
        "ms/token": f"{r['ms_per_token']:.2f}",
        "speedup": "" if r["speedup"] is None else f"{r['speedup']:.2f}x",
    }


def _tau(r: dict[str, Any] | None) -> str:
    """tau with its standard error."""
    if r is None:
        return ""
    return f"{r['tau']:.2f}" + (f"±{r['tau_error']:.2f}" if r["tau_error"] else "")


def notes(document: dict[str, Any]) -> list[str]:
    """List the verdicts, the rule that they follow, and what is known of the paper's values."""
    lines = []
    for v in document["verdicts"]:
        lines.append(
            f"{v['verdict'].upper()}: {v['statement']} [{v['source']}]: "
            f"{v['of']} larger in {v['larger']} of {v['cells']} cells "
            f"(z > 2 in {v['clearly']}, z < -2 in {v['against']}), "
            f"pooled {v['difference']:+.3f} ± {v['error']:.3f} (z = {v['z']:.2f})"
        )
    both = document["layouts"]
    if both["rounds"]:
        lines.append(
            f"Of {both['rounds']} rounds in both layouts from the same seed, "
            f"{both['same']} accepted as many tokens."
        )
    counts = [r["prompts"] for r in document["rows"]] or [0]
    return [
        *lines,
        document["rule"],
        document["published"],
        f"{min(counts)} prompts a cell, {document['spent']:.0f} s of measuring.",
    ]
