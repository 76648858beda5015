"""Multi-candidate speculative decoding (Yang et al. 2401.06706).

Its grid of trees, draws and temperatures is measured and judged. No value of the paper's tables is
known to us, so its statements are judged, not its numbers.

Differs from the paper in: models, machine and prompts; at T = 0 candidates are the draft model's
top-k whatever the draw (its code then has k equal ones "with" replacement).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod
from statistics import median
from typing import Any

from specwb.core.tree import Tree
from specwb.engine.methods import Method
from specwb.engine.methods import method as make_method
from specwb.lab.studies import grid
from specwb.lab.studies.claim import LACKING, Claim, Pooled
from specwb.lab.studies.curves import Curve, Figures, Point
from specwb.lab.studies.grid import cell_record, values
from specwb.lab.studies.study import (
    COLUMNS,
    Document,
    Row,
    Rows,
    Study,
    Tables,
    own_draft,
    published,
    shown,
    typed_ratio,
)
from specwb.models.layout import LAYOUTS
from specwb.models.target import Target

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
    """A tree, as children a node by level (() is plain decoding), with one of ``DRAWS``."""

    temperature: float
    tree: tuple[int, ...] = ()
    draw: str = "without"
    layout: str = "tree"
    long: bool = False
    variant = ""

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
    def spec(self) -> str:
        """The method, as it is typed."""
        options = {"tree": self.name, **DRAWS[self.draw]}
        text = ",".join(f"{name}={value}" for name, value in options.items())
        return f"mcsd:{text}" if self.tree else "ar"

    @property
    def plain(self) -> Cell:
        """Plain decoding at the same temperature."""
        return Cell(self.temperature)

    def method(self, target: Target, **options: Any) -> Method:
        """Build the method."""
        return make_method(self.spec, target, **options)


def all_cells(
    temperatures: Sequence[float],
    small: Sequence = SMALL,
    trees: Sequence = TREES,
    equals: Sequence = EQUALS,
    layouts_at: float = 1.0,
) -> list[Cell]:
    """List all cells.

    These are ``ar`` and every tree at every temperature, with every draw that differs from an
    earlier one. At T = 0 and for a single child all draws are the same; naive verification of a
    single child is another rule. ``equals`` are only drawn without replacement. At ``layouts_at``
    the batch layout of ``trees`` is measured too, after the prompt and after a long text.
    """
    cells = []
    wide = [tree for tree in trees if max(tree) > 1]
    for t in temperatures:
        cells.append(Cell(t))
        for tree in (*small, *trees):
            draws = list(DRAWS) if max(tree) > 1 else ["without", "naive"]
            cells += [Cell(t, tree, draw) for draw in (draws if t else ["without"])]
        cells += [Cell(t, tree) for tree in equals]
        if t == layouts_at:
            cells += [Cell(t, tree, layout="batch") for tree in wide]
            cells += [
                Cell(t, tree, layout=layout, long=True) for tree in wide for layout in LAYOUTS
            ]
    return list(dict.fromkeys(cells))


def cells(document: Document) -> list[Cell]:
    """List the cells of a run, at the temperatures of its arguments."""
    return all_cells(document["arguments"]["temperatures"])


def row(document: Document, cell: Cell) -> dict[str, Any]:
    """Compute one cell's figures.

    - tau is what the paper's code calls block efficiency.
    - ``depth_fraction = (tau - 1) / depth`` is what it calls acceptance rate.
    - ms_per_token is its latency, here the mean time of a step over tau, prompt processing left
      out.
    - accepted_by_depth: (accepted, tested) at depth d; tested are the steps that accepted d - 1 or
      more, since every node of these trees has candidates.
    - speedup of medians is tau times the median of the pace.
    """
    figures, record = grid.row(document, cell), document["cells"][cell.key]
    ms = figures["ms_per_round"]
    accepted = grid.accepted_in(document, cell)
    depth, tau = len(cell.tree), figures["tau"]
    if "mean" not in record:
        pace = values(document["cells"], cell, "pace")
        figures["speedup"] = round(tau * median(pace), 4) if pace else None
    return {
        **figures,
        "tree": cell.name,
        "draw": cell.draw if cell.tree else "",
        "layout": cell.layout,
        "long": cell.long,
        "nodes": Tree.branching(*cell.tree).n,
        "depth": depth,
        "rounds": len(accepted),
        "accepted_per_round": figures["accepted"],
        "accepted_by_depth": grid.by_depth(accepted, depth),
        "depth_fraction": round((tau - 1) / depth, 4) if depth else None,
        "depth_fraction_error": round((figures["tau_error"] or 0) / depth, 4) if depth else None,
        "ms_per_token": round(ms / tau, 3) if ms else None,
    }


ABSTRACT = "abstract"
CODE = "the code's default"
THEOREM = "SpecInfer, theorem 4.3"


def claims(document: Document) -> list[Claim]:
    """List what is judged, over those pairs of cells that the grid has.

    A claim is that a figure's mean over the first cells of all pairs is larger than over the
    second ones.
    """
    every_cell = cells(document)
    return [*_claims(every_cell), *_typed(every_cell)]


def _typed(every_cell: Sequence[Cell]) -> Iterator[Claim]:
    """The claims of the main table, where somebody has typed it, with the published tree."""
    for tree in (cell for cell in every_cell if cell == Cell(cell.temperature, TREES[4])):
        chain, t = replace(tree, tree=(1,) * len(tree.tree)), tree.temperature
        for what in ("tau", "speedup"):
            number = typed_ratio("mcsd", "MCSD", "SpS", what, temperature=t)
            if number is not None:
                text = f"MCSD over SpS, T = {t:g}: {what}"
                yield Claim(text, "table speed", what, tree, chain, number)


def _claims(every_cell: Sequence[Cell]) -> Iterator[Claim]:
    in_grid = set(every_cell)
    plain = [c for c in every_cell if c.tree and c.layout == "tree" and not c.long]
    usual = [c for c in plain if c.draw == "without"]
    sampled = [c for c in usual if c.temperature > 0]
    flat = [c for c in usual if len(c.tree) == 1 and c.tree[0] > 1]
    branched = [c for c in usual if len(c.tree) > 1 and max(c.tree) > 1 and c.tree in TREES]
    # tree -> the chain, or the paths that part at the root, of as many nodes
    chains = {(2, 2, 1): (1,) * 10, (3,): (1, 1, 1)}
    roots = {(4, 2, 2): (7, 1, 1, 1), (4, 2, 2, 1): (11, 1, 1, 1)}

    def chain(c: Cell) -> Cell:
        return replace(c, tree=(1,) * len(c.tree))

    rows: list[tuple[str, str, str, Sequence[Cell], Callable[[Cell], Cell]]] = [
        (
            "k candidates at one node are accepted more often than one",
            ABSTRACT,
            "tau",
            flat,
            chain,
        ),
        (
            "twice as many candidates at one node are accepted more often",
            LACKING,
            "tau",
            [c for c in flat if c.tree[0] % 2 == 0],
            lambda c: replace(c, tree=(c.tree[0] // 2,)),
        ),
        (
            "a tree accepts more per step than the chain of its depth",
            ABSTRACT,
            "tau",
            branched,
            chain,
        ),
        (
            "a shallow tree accepts more per step than a chain of as many nodes",
            LACKING,
            "tau",
            [c for tree in chains for c in usual if c.tree == tree],
            lambda c: replace(c, tree=chains[c.tree]),
        ),
        (
            "branching at several levels accepts more per step than as many nodes in paths that "
            "part at the root",
            LACKING,
            "tau",
            [c for c in branched if c.tree in roots],
            lambda c: replace(c, tree=roots[c.tree]),
        ),
        (
            "two more levels (4-2-2-1-1, 61 nodes) accept more per step than twice the width "
            "(8-2-2, 57 nodes)",
            LACKING,
            "tau",
            [c for c in usual if c.tree == (4, 2, 2, 1, 1)],
            lambda c: replace(c, tree=(8, 2, 2)),
        ),
        (
            "without replacement accepts more than with, at equal nodes",
            CODE,
            "tau",
            sampled,
            lambda c: replace(c, draw="with"),
        ),
        (
            "speculative verification accepts more than naive sampling of the same candidates",
            THEOREM,
            "tau",
            sampled,
            lambda c: replace(c, draw="naive"),
        ),
        (
            "the most probable tokens and one draw from the rest accept more than draws without "
            "replacement, at equal nodes (Hu et al. 2502.18779)",
            LACKING,
            "tau",
            [c for c in plain if c.draw == "top"],
            lambda c: replace(c, draw="without"),
        ),
        (
            "multi-candidate decoding is faster than single-candidate decoding of the same depth",
            ABSTRACT,
            "speedup",
            branched,
            chain,
        ),
        (
            "a step verified as a tree is faster than one verified as a batch of paths",
            CODE,
            "pace",
            [c for c in every_cell if c.tree and c.layout == "tree"],
            lambda c: replace(c, layout="batch"),
        ),
    ]
    known = "its rejection probability is at most naive sampling's, by that theorem"
    for text, table, what, firsts, other in rows:
        pairs = [(c, other(c)) for c in firsts]
        pairs = [(a, b) for a, b in pairs if b in in_grid and a != b]
        if pairs:
            first, second = (
                Pooled(f"{side} of {len(pairs)} pairs", cells)
                for side, cells in zip(("first", "second"), zip(*pairs, strict=True), strict=True)
            )
            more: dict[str, Any] = {
                "headline": table == ABSTRACT,
                "foregone": known if table == THEOREM else "",
            }
            yield Claim(text, table, what, first, second, sign=True, **more)


def same_verdicts(document: Document, cells: Sequence[Cell]) -> Document:
    """Count the steps that accepted as many tokens in both layouts, from the same seed."""
    both: list[tuple[int, int]] = []
    for cell in cells:
        if cell.layout == "batch":
            records = (
                cell_record(document["cells"], replace(cell, layout=layout).key)["accepted"]
                for layout in LAYOUTS
            )
            for prompt in zip(*records, strict=False):
                both += zip(*prompt, strict=True)
    return {"layouts": {"rounds": len(both), "same": sum(a == b for a, b in both)}}


# ----------------------------------------------------------------------------------------- tables


def tables(document: Document, own: Rows, _: Rows) -> Tables:
    """Make the printed tables: one a temperature with one row a tree, and one of the layouts."""
    titled, rows = [], list(own.values())
    for t in dict.fromkeys(r["temperature"] for r in rows):
        by_tree: dict[str, dict[str, Row]] = {}
        for r in rows:
            if r["temperature"] == t and r["layout"] == "tree" and not r["long"]:
                by_tree.setdefault(r["tree"], {})[r["draw"]] = r
        title = (
            f"T = {t:g}: tau (block efficiency) by draw; then, without replacement, acceptance by "
            "depth, A / (R depth), time and steady speedup"
        )
        titled.append((title, [_line(by_draw, t) for by_draw in by_tree.values()]))
    place = ("temperature", "tree", "draw", "long")
    lines = [
        _layout_line(a, b)
        for a in rows
        for b in rows
        if b["layout"] == "batch" and a["layout"] == "tree" and all(a[x] == b[x] for x in place)
    ]
    return [*titled, ("The two layouts of verification, without replacement", lines)]


def _layout_line(tree: Row, batch: Row) -> dict[str, str]:
    """A row of the table of layouts, from the rows of one cell in both."""
    tree_ms, batch_ms = tree["ms_per_round"], batch["ms_per_round"]
    return {
        "tree": tree["tree"],
        "text": "long" if tree["long"] else "prompt",
        "leaves": str(prod(map(int, tree["tree"].split("-")))),
        "tree, ms/step": f"{tree_ms:.1f}",
        "batch, ms/step": f"{batch_ms:.1f}",
        "batch / tree": f"{batch_ms / tree_ms:.2f}",
    }


def _line(by_draw: dict[str, Row], temperature: float) -> dict[str, str]:
    """A row of a temperature's table, from the rows of one tree with every draw."""
    r = by_draw.get("without") or next(iter(by_draw.values()))
    by_draw = {"without": r, **by_draw}
    taus = {
        draw: COLUMNS["tau"](by_draw[draw]) if draw in by_draw else ""
        for draw in (DRAWS if temperature else ["without"])
    }
    return {
        "tree": r["tree"],
        **shown(r, ("nodes",)),
        **taus,
        "by depth": " ".join(f"{a / b:.2f}" if b else "-" for a, b in r["accepted_by_depth"]),
        **shown(r, ("A/(R d)", "ms/token", grid.SHOWN["speedup"])),
    }


def notes(document: Document) -> list[str]:
    """Say how the layouts agree, and what is known of the paper's values."""
    both, numbers = document["layouts"], published("mcsd")["conventions"]["numbers"]
    agree = (
        f"Of {both['rounds']} steps in both layouts from the same seed, "
        f"{both['same']} accepted as many tokens."
    )
    return [*([agree] if both["rounds"] else []), f"Published values: none known; {numbers}."]


UNKNOWN = "none; no table or plot of the paper could be read"
FIGURES = Figures()


@FIGURES.add("candidates", "MCSD: acceptance of one of k candidates at a node", UNKNOWN, "k")
def _candidates(document: Document) -> Iterator[Curve]:
    for t in document["arguments"]["temperatures"]:
        for draw in DRAWS if t else ("without",):
            points = (Point(k, None, Cell(t, (k,), draw)) for (k,) in SMALL)
            yield Curve(f"T = {t:g}: acceptance", draw, "depth_fraction", points)


@FIGURES.add("trees", "MCSD: trees, without replacement", UNKNOWN, bars=True)
def _trees(document: Document) -> Iterator[Curve]:
    """Block efficiency and speed by tree."""
    for what in ("tau", "speedup"):
        for t in document["arguments"]["temperatures"]:
            points = (Point(Cell(t, tree).name, None, Cell(t, tree)) for tree in TREES)
            yield Curve(what, f"T = {t:g}", what, points)


STUDY = Study(
    name="mcsd",
    figures=FIGURES,
    cells=cells,
    claims=claims,
    tables=tables,
    notes=notes,
    options=own_draft,
    row=row,
    extra=same_verdicts,
    settings={"temperatures": [0.0, 0.3, 0.7, 1.0]},
)
