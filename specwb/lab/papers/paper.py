"""A paper as data: its claims, numbers and figures, and the cells that are measured for it.

A *cell* is a method with its settings, written ``T=0.7 mcsd:tree=4-2-2``: the temperature, the
method as on the command line, then where they are needed the trained head in brackets
(``T=0 falcon [k3]``) and the words ``batch`` (the batch layout of verification) and ``long`` (other
prompts stand before the prompt). In all texts of a paper's file ``{a|b}`` stands for both and
``{name}`` for the text that ``[cells]`` has below that name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from specwb.core.errors import SpecwbError
from specwb.core.files import data_dir, toml
from specwb.lab.papers.figures import FIGURE, Table

CELL = re.compile(r"T=(\d[\d.]*) ([\w:=,.+-]+)(?: \[([\w@-]+)\])?( batch)?( long)?")
"""A cell's temperature, method, head and conditions."""
EVEN = 0.02
"""A paper's ratio that is at most so far from 1 is a claim that two settings are even."""
ALTERNATIVES = re.compile(r"\{([^{}]*)\}")


class PaperError(SpecwbError, ValueError):
    """A paper's file is wrong: the file, the claim and what is expected there."""


@dataclass(frozen=True)
class Cell:
    """A method with its settings, read from its name."""

    name: str
    spec: str  # the method, as it is typed
    head: str = ""  # the name of the trained head it decodes with, where there are several
    temperature: float = 0.0
    layout: str = "tree"  # how the target is run over a draft
    long: bool = False  # whether the prompt has other prompts before it, up to LONG tokens

    @classmethod
    def read(cls, name: str) -> Cell:
        """Read a cell's name.

        Raises:
            PaperError: it is none.
        """
        found = CELL.fullmatch(name)
        if found is None:
            raise PaperError(f"{name!r} is no cell; write 'T=0 METHOD' or 'T=0 METHOD [HEAD]'")
        temperature, spec, head, batch, long = found.groups()
        layout = "batch" if batch else "tree"
        return cls(name, spec, head or "", float(temperature), layout, bool(long))

    @property
    def kind(self) -> str:
        """The key of the method in the registry."""
        return self.spec.partition(":")[0]


@dataclass(frozen=True)
class Side:
    """One side of a ratio: a cell, the mean of several, or for every prompt the best of several.

    The best is chosen on all the other prompts: what a choice by such prompts is worth on one that
    had no part in it. The best setting on all prompts would look too good.
    """

    cells: tuple[str, ...]
    # "speedup" or another figure: the best cell by it is taken; "": the mean of all cells
    by: str = ""
    like: tuple[str, ...] = ()  # the best is chosen among these, and the cell of its index taken

    @property
    def name(self) -> str:
        """The cell; of several the first and their number."""
        first, *others = self.cells
        how = f"best by {self.by}" if self.by else "mean"
        return f"{how} of {len(self.cells)}: {first}, .." if others else first


@dataclass(frozen=True)
class Claim:
    """A figure of one side over that of another, on the same prompts.

    Attributes:
        text: what is claimed, in words.
        place: where the paper claims it; "" of a comparison of ours.
        what: the figure, see :func:`specwb.lab.papers.figures.figure`.
        a: the side above the fraction line.
        b: the side below it.
        paper: the ratio in the paper; None where it says only that the first is larger.
        over: two sides; the claim is then about the ratio of ``a / b`` to theirs.
        least: the ratio is claimed to be above this, whatever ``paper`` is.
        even: the claim is that the two sides are even.
        headline: whether it stands in the abstract.
        excluded_by: a theorem by which the claim cannot hold as it is stated.
        implied_by: a theorem by which it holds, whatever is measured.
        note: what differs from the paper.
    """

    text: str
    place: str
    what: str
    a: Side
    b: Side
    paper: float | None = None
    over: tuple[Side, ...] = ()
    least: float | None = None
    even: bool = False
    headline: bool = False
    excluded_by: str = ""
    implied_by: str = ""
    note: str = ""

    @property
    def sides(self) -> tuple[Side, ...]:
        """Two sides, or four."""
        return (self.a, self.b, *self.over)

    @property
    def cells(self) -> list[str]:
        """All cells that are compared."""
        return [cell for side in self.sides for cell in (*side.cells, *side.like)]

    @property
    def methods(self) -> set[tuple[str, str]]:
        """The methods that are compared, each with its trained head where there are several."""
        return {(cell.kind, cell.head) for cell in map(Cell.read, self.cells)}


@dataclass(frozen=True)
class Trained:
    """Heads that are trained to be compared, all for the recipe's budget ``ablation``.

    Attributes:
        kind: of the heads, as in ``specwb train KIND``.
        heads: name -> settings, as ``specwb train --set`` takes them; a setting ``n/m`` is that
            part of the target's layers.
        measure: the cells that are decoded with them.
    """

    kind: str
    heads: Mapping[str, str]
    measure: tuple[str, ...]


@dataclass(frozen=True)
class Paper:
    """What ``data/papers/NAME.toml`` says.

    Attributes:
        name: of the paper here.
        source: authors, title and where it is published; of a comparison of ours what it compares.
        setting: models, machine and data of the paper's numbers.
        certainty: how they are known to us.
        contradictions: what does not agree inside the paper.
        drafters: what the paper's drafters accept: drafter, cell, what, paper.
        published: kind of head -> settings of the paper's, as in its card here.
        measure: the cells that are decoded with the target's own heads.
        by_task: ``prompts``, the names of the paper's own questions, and ``measure``, the cells
            that are decoded on them, for its figures by task.
        trained: heads that are trained to be compared; None where there are none.
        claims: what is judged.
        tables: the paper's numbers: name -> what, rows.
        figures: name -> what is drawn of them, see :mod:`specwb.lab.papers.curves`.
        constants: single numbers of the paper.
        heads: kinds of trained heads of the target that cells need.
        evidence: comparisons of ours whose trained heads its claims may name.
        draft: "deep" where the draft model is the target's deep one.
        rounds: decoding steps of each prompt and cell; 0 where there are no cells.
        room: new tokens that there is room for behind a prompt, None for all that may be drafted.
        settings: what else the results depend on, of a comparison with measurements of its own.
    """

    name: str
    source: str
    setting: str = ""
    certainty: str = ""
    contradictions: tuple[str, ...] = ()
    drafters: tuple[Table, ...] = ()
    published: Mapping[str, Table] = field(default_factory=dict)
    measure: tuple[str, ...] = ()
    by_task: Mapping[str, Sequence[str]] = field(default_factory=dict)
    trained: Trained | None = None
    claims: tuple[Claim, ...] = ()
    tables: Mapping[str, Table] = field(default_factory=dict)
    figures: Mapping[str, Table] = field(default_factory=dict)
    constants: Table = field(default_factory=dict)
    heads: tuple[str, ...] = ()
    evidence: tuple[str, ...] = ()
    draft: str = ""
    rounds: int = 10
    room: int | None = None
    settings: Table = field(default_factory=dict)

    @property
    def is_paper(self) -> bool:
        """Whether it is a paper's; a comparison of ours has no setting."""
        return bool(self.setting)


def expand(text: str, names: Mapping[str, str] | None = None) -> list[str]:
    """Write out the alternatives ``{a|b}`` of a text, and its short ``{name}``.

    Braces that hold neither stay as they are.
    """
    names = names or {}
    for found in ALTERNATIVES.finditer(text):
        if found[1] in names or "|" in found[1]:
            parts = [names[found[1]]] if found[1] in names else found[1].split("|")
            before, after = text[: found.start()], text[found.end() :]
            return [whole for part in parts for whole in expand(before + part + after, names)]
    return [text]


def read_paper(name: str, folder: Path | None = None) -> Paper:
    """Read what is known of a paper.

    Args:
        name: one of :data:`specwb.lab.papers.NAMES` or ``OTHERS``.
        folder: of the file, default ``data/papers``.
    Raises:
        PaperError: the file is missing or no TOML, a claim lacks a field or has an unknown one, or
            names a figure that is not known or a cell that is not measured.
    """
    return _read((folder or data_dir() / "papers") / f"{name}.toml")


@lru_cache(maxsize=32)
def _read(path: Path) -> Paper:
    data, _ = toml(path, PaperError)
    names = data.pop("cells", {})
    for unread in ("conventions", "statements"):  # for people
        data.pop(unread, None)
    claims = data.pop("claims", [])
    try:
        data["measure"] = _measured(data.get("measure", ()), names)
        if "by_task" in data:
            questions, cells = data["by_task"]["prompts"], data["by_task"]["measure"]
            data["by_task"] = {"prompts": questions, "measure": _measured(cells, names)}
        if "trained" in data:
            data["trained"] = _trained(data["trained"], names)
        data["figures"] = _named(data.get("figures", {}), names)
        data["drafters"] = _named(data.get("drafters", ()), names)
        lists = ("contradictions", "drafters", "heads", "evidence")
        data |= {key: tuple(data[key]) for key in lists if key in data}
        paper = Paper(path.stem, claims=tuple(_claims(claims, names)), **data)
        _check(paper, [_read(path.with_stem(name)) for name in paper.evidence])
    except (KeyError, TypeError, ValueError) as error:
        raise PaperError(f"{path}: {error}") from error
    return paper


def _cells(texts: Sequence[str], names: Mapping[str, str]) -> tuple[str, ...]:
    """The cells that are written."""
    cells = tuple(cell for text in texts for cell in expand(text, names))
    for cell in cells:
        Cell.read(cell)  # raises where it is none
    return cells


def _measured(texts: Sequence[str], names: Mapping[str, str]) -> tuple[str, ...]:
    """The cells that are written, each once."""
    return tuple(dict.fromkeys(_cells(texts, names)))


def _named(value: Any, names: Mapping[str, str]) -> Any:
    """A value with the short names of cells in it written out."""
    if isinstance(value, dict):
        return {key: _named(inner, names) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_named(inner, names) for inner in value]
    return expand(value, names)[0] if isinstance(value, str) else value


def _trained(data: Table, names: Mapping[str, str]) -> Trained:
    """Heads by name; a head's settings stand in place of the common ones."""
    heads = {}
    for written, settings in data["heads"].items():
        every, its = expand(written), expand(settings)
        its = its * len(every) if len(its) == 1 else its
        for name, own in zip(every, its, strict=True):
            pairs = [x.split("=") for x in (data.get("common", ""), own) for x in x.split(",") if x]
            heads[name] = ",".join(f"{key}={value}" for key, value in dict(pairs).items())
    return Trained(data["kind"], heads, _measured(data["measure"], names))


def _claims(rows: Sequence[Table], names: Mapping[str, str]) -> Iterator[Claim]:
    """The claims of a row: one a figure, and one an alternative in its text."""
    for row in rows:
        fields = dict(row)
        texts = expand(fields["text"])
        ratios = fields.pop("paper", None) or {fields.pop("what"): None}
        for i, text in enumerate(texts):
            one = {**fields, "text": text}
            for key in ("a", "b", "over"):
                if key in fields:
                    one[key] = _sides(fields[key], names, i, len(texts))
            one |= {key: one[key][0] for key in ("a", "b")}
            for what, ratio in ratios.items():
                claim = Claim(**{**one, "what": what, "paper": ratio})
                value = 1.0 if ratio is None else ratio
                is_large = value >= 1 or claim.least is not None
                if not (abs(value - 1) <= EVEN if claim.even else is_large):
                    raise PaperError(
                        f"claim {text!r}: {what} = {ratio}; an even claim is within {EVEN:.0%} of "
                        "1, and one below 1 without 'least' is written the other way round"
                    )
                yield claim


def _sides(value: Any, names: Mapping[str, str], index: int, count: int) -> tuple[Side, ...]:
    """The sides that are written: a cell, several (``{mean = ..}``, ``{best = .., by = ..}``), or
    a list of sides; of a claim in several alternatives that of number ``index``."""
    if isinstance(value, list):
        return tuple(side for inner in value for side in _sides(inner, names, index, count))
    if isinstance(value, dict):
        cells = _cells((value.get("mean") or value["best"],), names)
        by = value["by"] if "best" in value else ""
        like = _cells((value["like"],), names) if "like" in value else ()
        return (Side(cells, by, like),)
    every = expand(value, names)
    if len(every) not in (1, count):
        raise PaperError(f"{value!r} has {len(every)} alternatives, the claim's text {count}")
    return (Side(_cells((every[index % len(every)],), names)),)


def _check(paper: Paper, others: Sequence[Paper]) -> None:
    """Check that every claim is about figures that exist, of cells that are measured."""
    known = set(paper.measure)
    for other in (paper, *others):
        known |= set(other.trained.measure if other.trained else ())
    for claim in paper.claims:
        if not FIGURE.fullmatch(claim.what):
            raise PaperError(f"claim {claim.text!r}: there is no figure {claim.what!r}")
        if absent := [cell for cell in claim.cells if cell not in known]:
            raise PaperError(f"claim {claim.text!r}: {absent[0]!r} is not in measure")
    for one in paper.drafters:
        if one["cell"] not in known:
            raise PaperError(f"drafter {one['drafter']!r}: {one['cell']!r} is not in measure")
