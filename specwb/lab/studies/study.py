"""What a paper's study is: its cells, claims, tables and what is measured beside them, as data.

A study's numbers go one way: the paper's file in ``data/papers`` and the cells give claims and
tables; :mod:`specwb.lab.studies.run` measures the cells into a store; rows, verdicts and printed
tables are computed from the store and from nothing else, so they can be computed again from any
file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from math import inf
from pathlib import Path
from statistics import geometric_mean
from typing import Any

from specwb.core.errors import ArgumentError
from specwb.core.files import document
from specwb.core.options import MethodError
from specwb.engine.methods import Method
from specwb.lab.bench.results import FIGURES
from specwb.lab.studies import grid
from specwb.lab.studies.claim import Bars, Claim, Values, again
from specwb.lab.studies.curves import Picture
from specwb.lab.studies.store import GRID_CELL
from specwb.lab.studies.verdicts import EVEN_RULE, RULE, TUNED_RULE, counts, judge, sentence
from specwb.models.load import data_dir, draft_model
from specwb.models.questions import Question, interleave
from specwb.models.target import Target

Document = dict[str, Any]
Row = dict[str, Any]
Rows = Mapping[str, Row]
"""Key of a cell -> its row."""
Lines = list[dict[str, str]]
"""Rows of a printed table: column -> text."""
Tables = list[tuple[str, Lines]]
Labelled = Iterator[tuple[Any, dict[str, str]]]
"""Cells with their labels, the paper's numbers among them."""
OVER = (
    f"{grid.SHOWN['speedup']}: {FIGURES[grid.SHOWN['speedup']]}. It is over ar, plain decoding by "
    "specwb itself; the library's may be faster on this machine: specwb compare measures both and "
    "says which."
)
FROM_ABLATION = ("command", "commit", "heads", "spent", "rows", "verdicts", "predicted")
"""What a study's document repeats of its ablation's."""


@dataclass(frozen=True)
class Models:
    """The models that take part."""

    target: Target  # the target model
    draft: Any = None  # the draft model, default the target's own
    head: Any = None  # a trained head or its folder, in place of the target's own
    heads: Path | None = None  # the folder of an ablation's heads

    def variant(self, cell: grid.Setting) -> Any:
        """The head that a cell's method is built with, None for the target's own."""
        return str(self.heads / cell.variant) if cell.variant and self.heads else self.head

    def texts(
        self, questions: Sequence[Question], more: int, most: int | None = None
    ) -> list[list[int]]:
        """Token ids of at most so many prompts, of all domains in turn, with room for more."""
        room = self.target.context - more
        return [q.fit(self.target.tokenizer, room)[0] for q in interleave(list(questions))[:most]]


Probe = Callable[
    [Models, Sequence[Question], Sequence[Any], Document, int], Iterator[tuple[float, str]]
]
"""Measures what is no cell of the grid, from (models, questions, cells, document, seed): it adds to
the document what is not there yet, and yields (fraction done, what was added)."""


def own_head(cell: grid.Setting, models: Models) -> dict[str, Any]:
    """The options of a cell that decodes with a head of the ablation, or with the target's own."""
    return {"head": models.variant(cell)} if cell.variant and models.heads else {}


def own_draft(cell: grid.Setting, models: Models) -> dict[str, Any]:
    """The options of a cell that drafts with the study's draft model."""
    return {} if cell.spec.startswith("ar") else {"draft": models.draft}


MEDUSA = grid.Cell("medusa:tree=published")
"""Medusa as it is published, with 64 nodes; the target's Medusa must have four heads for it."""


def medusa_of(document: Document | None) -> tuple[grid.Cell, str]:
    """Choose the cell that a paper's claims about Medusa are judged by: the published tree where it
    was measured, and otherwise the usual one, with what differs from the paper."""
    if document is None or grid.cell_record(document["cells"], MEDUSA.key)["accepted"]:
        return MEDUSA, ""
    return grid.Cell("medusa"), "definition: Medusa's tree here has 10 nodes, the published one 64"


@dataclass(frozen=True)
class Study:
    """A paper's claims and how they are measured here.

    Attributes:
        name: of the paper, here and in ``data/papers``.
        tables: (document, rows of own cells, of the ablation's) -> what is printed.
        cells: document -> the settings that are decoded with the target's own heads; none where
            everything is the probe's.
        claims: document -> what is judged.
        settings: what else its results depend on and can be chosen, with defaults. The document's
            ``arguments`` have them.
        notes: document -> lines of text beside verdicts and rules.
        options: (cell, models) -> what a cell's method is built with.
        row: (document, cell) -> the figures of a cell.
        values: (cells, cell, what) -> a figure for every prompt.
        shape: method -> what is noted of the trees it drafts.
        facts: models -> what cells and claims depend on; it is added to the document.
        probe: measures what is no cell.
        extra: (document, cells) -> further results, added to the document.
        draft: (target, draft) -> the draft model, by default the target's own.
        deep: whether that is another model than the one other studies draft with.
        heads: kinds of trained heads that the results depend on.
        given: the kind of the head that can be given in place of the target's own.
        rules: what is to be known of its verdicts.
        variants: the ablation's heads: name -> what differs from the recipe.
        ablation: the settings that are decoded with the ablation's heads.
        head: the kind of head of the ablation.
        figures: the paper's figures that are drawn with ours, by name.
        machine: the kind of device that the paper's speeds are of.
        bars: what the paper's drafters accept, which ours are held against.
        rounds: decoding steps of each prompt and cell, 0 where there are no cells.
        most: new tokens that there is room for behind a prompt, None for all that may be drafted.
        partial: whether it is of use without the methods that it is compared with: those whose
            model or head the target lacks are left out, and named.
        cell: the JSON schema of a record in the document's ``cells``.
        is_paper: whether it is a paper's, whose claims are judged.
    """

    name: str
    tables: Callable[[Document, Rows, Rows], Tables]
    cells: Callable[[Document], list[Any]] = field(default=lambda document: [])
    claims: Callable[[Document], list[Claim]] = field(default=lambda document: [])
    settings: Mapping[str, Any] = field(default_factory=dict)
    notes: Callable[[Document], list[str]] = field(default=lambda document: [])
    options: Callable[[Any, Models], dict[str, Any]] = own_head
    row: Callable[[Document, Any], Row] = grid.row
    values: Values = grid.values
    shape: Callable[[Method], dict[str, Any]] = grid.shape
    facts: Callable[[Models], Document] = field(default=lambda models: {})
    probe: Probe = field(default=lambda *_: iter(()))
    extra: Callable[[Document, Sequence[Any]], Document] = field(default=lambda document, cells: {})
    draft: Callable[[Target, Any], Target] = draft_model
    deep: bool = False
    heads: tuple[str, ...] = ()
    given: str = ""
    rules: str = ""
    variants: Mapping[str, str] = field(default_factory=dict)
    ablation: Callable[[], list[Any]] = list
    head: str = ""
    figures: Mapping[str, Picture] = field(default_factory=dict)
    machine: str = "cuda"
    bars: Callable[[], Bars] = dict
    rounds: int = 10
    most: int | None = None
    partial: bool = False
    cell: Mapping[str, Any] = field(default_factory=lambda: GRID_CELL)
    is_paper: bool = True

    @cached_property
    def paper(self) -> dict[str, Any]:
        """The published tables and figures."""
        return published(self.name) if self.is_paper else {}

    def trained_cells(self, runs: int) -> list[Any]:
        """List the ablation's settings, those of a trained head once for every training run."""
        first = self.ablation()
        return first + [again(c, run) for run in range(1, runs) for c in first if c.variant]

    def build(self, cells: Sequence[Any], models: Models) -> dict[Any, Method]:
        """Build the methods of cells; of a ``partial`` study those that can be built."""
        methods = {}
        for cell in cells:
            try:
                methods[cell] = cell.method(models.target, **self.options(cell, models))
            except MethodError:
                if not self.partial or cell.spec.partition(":")[0] == self.name:
                    raise
        return methods

    def report(self, document: Document, ablation: Document | None = None) -> Document:
        """Add ``rows``, ``verdicts`` and what else follows from the measurements to a document.

        The document of an ablation gets them too, and what :data:`FROM_ABLATION` names is repeated
        in ``document["ablation"]``.
        """
        verdicts = judge(
            {False: document, True: ablation},
            self.claims(document),
            self.values,
            self.machine,
            self.bars() if self.is_paper else {},
        )
        runs = (ablation or {}).get("runs", 1)
        for part, cells in (
            (document, self.cells(document)),
            (ablation, self.trained_cells(runs)),
        ):
            if part is not None:
                part["rows"] = [
                    self.row(part, cell)
                    for cell in cells
                    if grid.cell_record(part["cells"], cell.key)["accepted"]
                ]
                part["verdicts"] = verdicts[part is ablation]
                part |= self.extra(part, cells)
        common = (RULE, EVEN_RULE, TUNED_RULE) if self.is_paper else ()
        document["rule"] = " ".join(filter(None, (*common, self.rules)))
        if ablation is not None:
            document["ablation"] = {
                name: ablation.get(name) for name in FROM_ABLATION if name in ablation
            }
            made_of = ablation["arguments"]
            document["ablation"] |= {
                "target": made_of.get("sha256"),
                "device": made_of.get("device"),
            }
        return document

    def printed(self, document: Document) -> Tables:
        """Make the tables of a document with its rows; those without a row are left out."""
        own, other = (
            {r["cell"]: r for r in part.get("rows") or [] if "cell" in r}
            for part in (document, document.get("ablation") or {})
        )
        return [(title, lines) for title, lines in self.tables(document, own, other) if lines]

    def summary(self, document: Document) -> list[str]:
        """List the verdicts with their counts and rule, and where the results are from."""
        paper, ablation = self.paper, document.get("ablation") or {}
        verdicts = [*document["verdicts"], *(ablation.get("verdicts") or [])]
        lines = [sentence(v) for v in verdicts] if self.is_paper else []  # tables have the others'
        for table in dict.fromkeys(v["table"] for v in verdicts if v["verdict"] != "not claimed"):
            of_table = counts([v for v in verdicts if v["table"] == table])
            lines.append(f"Of {table}: {_listed(of_table)}.")
        if self.is_paper:
            lines.append(f"Of the paper's claims: {_listed(counts(verdicts))}.")
        lines += self.notes(document)
        if left_out := document.get("left_out"):
            lines.append(f"Left out, as this target has no model for them: {', '.join(left_out)}.")
        lines += [f"In the paper: {text}" for text in paper.get("contradictions", {}).values()]
        lines.append(document["rule"])
        if self.is_paper:
            lines.append(f"Paper: {paper['source']}; {paper['setting']}.")
        if ablation:
            card = next(iter(ablation["heads"].values()))
            budgets = sorted({one["steps"] for one in ablation["heads"].values()})
            steps = f"{budgets[0]} to {budgets[-1]}" if len(budgets) > 1 else str(budgets[0])
            size = f"{steps} steps of {card['rows']} x {card['length']} tokens"
            device, own = ablation.get("device"), document["arguments"].get("device")
            lines.append(
                f"Ablation: {len(ablation['heads'])} heads, {size} each, "
                f"{f'measured on another machine ({device}) ' if device not in (None, own) else ''}"
                f"by `{ablation['command']}` at commit {(ablation['commit'] or '?')[:10]}."
            )
            if ablation.get("target") != document["arguments"].get("sha256"):
                lines.append(
                    "The ablation's heads are of ANOTHER TARGET, an earlier one: its rows compare "
                    "these heads with each other, not with the rows above; --train measures them "
                    "on this one."
                )
        elif self.variants:
            lines.append("No ablation results; --train makes them.")
        records = [cell for cell in document["cells"].values() if "disturbed" in cell]
        if disturbed := sum(sum(cell["disturbed"]) for cell in records):
            lines.append(
                f"Other programs disturbed {disturbed} of "
                f"{sum(len(cell['disturbed']) for cell in records)} decodings, also when they were "
                "measured again."
            )
        if "command" not in document and (counted := document.get("counted")):
            lines.append(f"Tokens only, counted by `{counted['command']}` on {counted['device']}.")
        elif self.is_paper:
            lines.append(OVER)
        return [*lines, f"{extent(document)}, {document['spent']:.0f} s of measuring."]


def extent(document: Document) -> str:
    """Write how many prompts a cell has, and which of them were timed."""
    rows = document["rows"]
    numbers = [r["prompts"] for r in rows] or [0]
    timed = [n for r in rows if (n := r.get("timed", r["prompts"]))]
    least, most = min(numbers), max(numbers)
    words = f"{least if least == most else f'{least} to {most}'} prompts per cell"
    if (counted := document.get("counted")) and timed:
        words += (
            f" (timed: {min(timed)} prompts, in {len(timed)} of {len(rows)} cells; the other "
            f"tokens are counted by `{counted['command']}` on {counted['device']})"
        )
    return words


def _listed(numbers: Mapping[str, int]) -> str:
    return ", ".join(f"{n} {verdict}" for verdict, n in numbers.items()) or "none judged"


NUMBERS: ContextVar[Mapping[str, dict[str, Any]] | None] = ContextVar("NUMBERS", default=None)
"""Papers' numbers that are taken in place of those in ``data/papers``, by the paper's name."""


def published(name: str) -> dict[str, Any]:
    """Return a paper's numbers; they are not to be changed."""
    return (NUMBERS.get() or {}).get(name) or _read(data_dir() / f"papers/{name}.json")


def table_rows(name: str, key: str) -> list[Row]:
    """Return the rows of a paper's table."""
    return published(name)["tables"][key]["rows"]


def figure_rows(name: str, key: str) -> list[Row]:
    """Return the values of a paper's figure, row by row."""
    return published(name)["figures"][key]["rows"]


@lru_cache(maxsize=16)
def _read(path: Path) -> dict[str, Any]:
    paper = document(path)
    for name, table in paper.get("tables", {}).items():
        if "columns" in table:
            _check_typed(f"{path}: table {name}", table)
    return paper


TEXTS = ("target", "draft", "data", "method")
"""Columns of text in a table that a person types."""
SETTINGS = ("target", "draft", "data", "temperature", "width")
"""Columns of such a table in which two rows must agree to be compared."""


def _check_typed(where: str, table: dict[str, Any]) -> None:
    """Check a table that a person types from the paper; one without rows waits for that."""
    columns = table["columns"]
    for i, row in enumerate(table["rows"], 1):
        if list(row) != columns:
            raise ArgumentError(
                f"{where}, row {i} must have the columns {', '.join(columns)} in this order, got "
                f"{', '.join(row) or 'none'}"
            )
        for name, x in row.items():
            is_number = isinstance(x, int | float) and not isinstance(x, bool) and x < inf
            if name in TEXTS:
                is_good = isinstance(x, str) and x != ""
            else:
                is_good = is_number and (x > 0 or (name == "temperature" and x == 0))
            if not is_good:
                kind = "a text" if name in TEXTS else "a number > 0 (a temperature may be 0)"
                raise ArgumentError(f"{where}, row {i}: {name} must be {kind}, got {x!r}")
    missing = [name for name in ("certainty", "by") if table["rows"] and not table.get(name)]
    if missing:
        raise ArgumentError(
            f"{where} has rows, but no {' and no '.join(missing)}: say how sure they are (such as "
            '"read in the PDF of arXiv v1") and who typed them'
        )


def waiting(name: str) -> dict[str, dict[str, Any]]:
    """Return those tables of a paper that wait for a person who types them."""
    tables = published(name).get("tables", {})
    return {key: table for key, table in tables.items() if "columns" in table and not table["rows"]}


def typed_ratio(name: str, first: str, second: str, what: str, **where: Any) -> float | None:
    """Compute the ratio of two methods of a paper's typed table ``speed``.

    It is the geometric mean over all settings that have both; None where there are none.
    """
    found: dict[str, dict[Any, float]] = {first: {}, second: {}}
    for r in published(name)["tables"]["speed"]["rows"]:
        if r["method"] in found and all(r[column] == x for column, x in where.items()):
            found[r["method"]][tuple(r.get(column) for column in SETTINGS)] = r[what]
    a, b = found[first], found[second]
    return geometric_mean(a[at] / b[at] for at in a if at in b) if a.keys() & b.keys() else None


COLUMNS: dict[str, Callable[[Row], str]] = {
    "nodes": lambda r: str(r["nodes"]),
    "passes": lambda r: "" if r["passes"] is None else str(r["passes"]),
    "drafted": lambda r: digits(r["drafted"]),
    "wasted": lambda r: digits(r["wasted"]),
    "levels": lambda r: digits(r["levels"]),
    "accepted": lambda r: digits(r["accepted"]) + _error(r),
    "tau": lambda r: digits(r["tau"]) + _error(r),
    "alpha": lambda r: f"{100 * r['alpha']:.0f} %",
    "acceptance": lambda r: digits(r["depth_fraction"]),
    "CTAR": lambda r: " ".join(f"{x:.2f}" for x in r["ctar"][:4]),
    "by depth": lambda r: " ".join(f"{a / b:.2f}" if b else "-" for a, b in r["by_depth"][:6]),
    "ms/step": lambda r: digits(r["ms_per_round"]),
    grid.SHOWN["speedup"]: lambda r: digits(r["speedup"], "x"),
    # MCSD's
    "A/(R d)": lambda r: digits(r["depth_fraction"]),
    "ms/token": lambda r: digits(r["ms_per_token"]),
    # EasySpec's
    "attentions": lambda r: str(r["rounds"] or ""),
    "by position": lambda r: " ".join("-" if x is None else f"{x:.2f}" for x in r["positions"]),
    "draft ms": lambda r: digits(r["parts"].get("draft")),
    "stage": lambda r: digits(r["stage"], "x"),
}
"""How a measured figure is printed, by the name of its column."""


def digits(x: float | None, unit: str = "") -> str:
    """Write a number with two digits; blank where there is none."""
    return "" if x is None else f"{x:.2f}{unit}"


def _error(r: Row) -> str:
    return f"±{r['tau_error']:.2f}" if r["tau_error"] else ""


def shown(r: Row, columns: Sequence[str]) -> dict[str, str]:
    """Write the measured figures of a row."""
    return {name: COLUMNS[name](r) for name in columns}


def lines(
    rows: Rows, labelled: Iterable[tuple[Any, Mapping[str, str]]], columns: Sequence[str]
) -> Lines:
    """Make the rows of a table: the labels of every cell that was measured, and its figures."""
    return [
        {**labels, **shown(rows[cell.key], columns)}
        for cell, labels in labelled
        if cell.key in rows
    ]


def every(rows: Rows, columns: Sequence[str]) -> Lines:
    """Make a table of all rows."""
    return [{"setting": key, **shown(r, columns)} for key, r in rows.items()]


def theirs(**numbers: Any) -> dict[str, str]:
    """The paper's numbers as columns of their own; blank where it has none."""
    return {
        f"paper: {name}": f"{x:.2f}" if isinstance(x, float) else str("" if x is None else x)
        for name, x in numbers.items()
    }
