"""The ledger: every number of six papers, every claim with its verdict, on one page.

An entry is one number of a table or figure, or one stated sentence, with its id, its place in the
paper and how sure we are of it. A number of other models is no claim about these; what is judged
are the claims that are made from it.
"""

from __future__ import annotations

import copy
import html
import re
from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from specwb.lab.studies import PLACES, study_of
from specwb.lab.studies.claim import Claim
from specwb.lab.studies.study import NUMBERS, Document, Study, extent, published, waiting
from specwb.lab.studies.verdicts import (
    COUNTED,
    EVEN_RULE,
    INTERVALS,
    MEANINGS,
    TUNED_RULE,
    VERDICTS,
    counts,
    effects,
    uncounted,
)
from specwb.show.pictures import can_picture, picture_of

LABELS = ("k", "width", "eta", "gamma", "exit", "roots", "temperature", "value", "from", "to")
"""Columns whose numbers are settings, not results."""
NOT_CLAIMED = "comparisons that the paper lacks"
"""At the end of a title: a table that is folded away."""
NOT_IMPLEMENTED = ("REST", "Draft&Verify", "Hydra", "SAMD", "Token Recycling")
"""Methods of the papers' tables that are not here."""
HEADER = ("claim", "paper", "ours", "verdict", "detectable", "cells")
Rows = list[tuple[str, ...]]
Way = tuple[str | int, ...]


@dataclass(frozen=True)
class Entry:
    """A number of a paper, or a sentence."""

    id: str  # of the entry: paper, place, settings and column, with slashes between
    place: str  # the table or figure
    value: float | None  # None of a sentence
    certainty: str  # how sure we are of it
    text: str = ""  # of a sentence


def entries(name: str) -> list[Entry]:
    """List everything that is known of a paper's numbers."""
    return [entry for entry, _ in located(name)]


def located(name: str) -> Iterator[tuple[Entry, Way]]:
    """Give a paper's entries, each with the keys by which it is found in the paper's file."""
    paper = published(name)
    for key, text in paper.get("statements", {}).items():
        entry = Entry(f"{name}/stated/{key}", "stated", None, paper["certainty"], text)
        yield entry, ("statements", key)
    for kind in ("tables", "figures"):
        for key, table in paper.get(kind, {}).items():
            place = f"{kind[:-1]} {key}"
            certainty = paper["certainty"]
            if table.get("by"):
                certainty = f"{table['certainty']}, typed by {table['by']}"
            if table.get("read_off"):
                error = table.get("error", paper["constants"].get("error"))
                certainty = f"read off a plot, ±{error}"
            for part, rows in table.items():
                if isinstance(rows, list) and part != "columns":
                    prefix = f"{name}/{place}" + ("" if part == "rows" else f"/{part}")
                    for index, row in enumerate(rows):
                        for path, value, way in _numbers(row):
                            entry = Entry(f"{prefix}/{path}", place, value, certainty)
                            yield entry, (kind, key, part, index, *way)


def _numbers(row: Mapping[str, Any]) -> Iterator[tuple[str, float, Way]]:
    """The numbers of a row, each with the row's settings and its column, and its keys."""
    settings: list[str] = []
    columns: dict[str, Any] = {}
    for name, x in row.items():
        is_shape = isinstance(x, list) and all(isinstance(n, int) for n in x)
        if isinstance(x, str):
            settings.append(x)
        elif isinstance(x, bool) or name in LABELS:
            settings.append(f"{name}={x}")
        elif is_shape:
            settings.append("-".join(map(str, x)))
        elif x is not None:
            columns[name] = x
    for name, x in columns.items():
        if isinstance(x, dict):
            parts: list[Any] = [(f"{name}/{key}", value, (name, key)) for key, value in x.items()]
        elif isinstance(x, list):
            parts = [(f"{name}/{i + 1}", value, (name, i)) for i, value in enumerate(x)]
        else:
            parts = [(name, x, (name,))]
        for column, value, way in parts:
            yield "/".join([*settings, column]), float(value), way


def claimed(study: Study, document: Document) -> set[str]:
    """Return the ids of the numbers that a paper's claims are made from.

    It is found out by trial: a number is in a claim if another one in its place changes the claims.
    """
    paper = published(study.name)

    def claims(numbers: dict[str, Any]) -> list[Claim]:
        token = NUMBERS.set({study.name: numbers})
        try:
            return study.claims(document)
        finally:
            NUMBERS.reset(token)

    usual, found, changed = claims(paper), set(), copy.deepcopy(paper)
    for entry, way in located(study.name):
        place: Any = changed
        for key in way[:-1]:
            place = place[key]
        before = place[way[-1]]
        if entry.value is None or not before:
            continue
        place[way[-1]] = before * (1 + 1e-6)  # too little to change which one is the best
        if claims(changed) != usual:
            found.add(entry.id)
        place[way[-1]] = before
    return found


def claim_rows(verdicts: Sequence[Mapping[str, Any]], claimed: bool = True) -> Rows:
    """Make the page's rows of claims, or of what is not ``claimed``, see :data:`HEADER`."""
    rows: Rows = []
    for v in verdicts:
        if (v["verdict"] != "not claimed") != claimed:
            continue
        ours = effects(dict(v))
        why = f" ({v['why']})" if v["why"] else ""
        left_out = f"; {uncounted(dict(v))}" if uncounted(dict(v)) else ""
        paper = "" if v["paper"] is None else f"{v['paper']:.2f}"
        seen = "" if v["seen"] is None else f"{v['seen']:.2f}"
        rows.append(
            (
                f"{v['claim']} [{v['table']}]",
                paper,
                ours,
                f"{v['verdict']}{why}{left_out}",
                seen,
                f"{v['first']} / {v['second']}",
            )
        )
    return rows


def sections(
    documents: Mapping[str, Document],
    left_out: Mapping[str, str] | None = None,
    others: Mapping[str, Mapping[str, Document]] | None = None,
) -> list[tuple[str, str, tuple[str, ...], Rows]]:
    """Make the page, as (title, text, header, rows).

    Args:
        documents: paper -> its results.
        left_out: paper -> why it has none.
        others: another family of models -> its results, which are judged by themselves.
    """
    left_out, others = left_out or {}, others or {}
    tallies: dict[str, tuple[Mapping[str, int], str]] = {}
    headlines: Rows = []
    out: list[tuple[str, str, tuple[str, ...], Rows]] = []
    places: Rows = []

    def judged(title: str, name: str, document: Document) -> None:
        verdicts = _verdicts(document)
        foregone = sum(bool(v.get("foregone")) for v in verdicts)
        repeats = sum(bool(v.get("repeats")) and not v.get("foregone") for v in verdicts)
        tallies[title] = counts(verdicts), f"{foregone} foregone, {repeats} repeats"
        command = document.get("command") or document.get("counted", {}).get("command", "?")
        text = (
            f"{published(name)['source']}. Measured by `{command}` at commit "
            f"{(document.get('commit') or '?')[:10]}, {document['arguments']['device']}; "
            f"{extent(document)}."
        )
        out.append((title, text, HEADER, claim_rows(verdicts)))
        own = claim_rows(verdicts, claimed=False)
        out.append((f"{title}: {len(own)} {NOT_CLAIMED}", "", HEADER, own))

    for name in PLACES:
        numbers = entries(name)
        if name in documents:
            judged(name, name, documents[name])
        else:
            tallies[name] = {}, left_out.get(name, "no results")
        for family, of_family in others.items():
            if name in of_family:
                judged(f"{name} on {family}", name, of_family[name])
        if name not in documents:
            continue
        document = documents[name]
        verdicts = _verdicts(document)
        headlines += claim_rows([v for v in verdicts if v.get("headline")])
        used = claimed(study_of(name), document)
        for place in dict.fromkeys(entry.place for entry in numbers):
            here = [entry for entry in numbers if entry.place == place]
            sure = ", ".join(dict.fromkeys(entry.certainty for entry in here))
            if here[0].value is None:  # sentences
                claims = f"{sum(v['table'] == place for v in verdicts)} claims"
            else:
                n = sum(entry.id in used for entry in here)
                claims = f"{n} numbers in a claim, {len(here) - n} in none"
            places.append((name, place, str(len(here)), sure, claims))
    given = [
        verdict for verdict in VERDICTS if any(verdict in tally for tally, _ in tallies.values())
    ]
    summary: Rows = []
    for family in ("", *others):
        titles = [name for name in tallies if name.partition(" on ")[2] == family]
        sizes = ["" if family else str(len(entries(name))) for name in titles]
        for title, size in zip(titles, sizes, strict=True):
            tally, note = tallies[title]
            shown = (str(tally.get(verdict, 0)) if tally else "" for verdict in given)
            summary.append((title, size, *shown, note))
        sums = [sum(tallies[title][0].get(verdict, 0) for title in titles) for verdict in given]
        total = "" if family else str(sum(map(int, sizes)))
        summary.append((f"all{family and f' on {family}'}", total, *map(str, sums), ""))
    wanted: Rows = [
        (name, key, table["what"], f"data/papers/{name}.json")
        for name in PLACES
        for key, table in waiting(name).items()
    ]
    missing: Rows = [(method, "not implemented") for method in NOT_IMPLEMENTED]
    meanings: Rows = list(MEANINGS.items())
    return [
        (
            "Claims by verdict",
            "Every measurement counts once, foregone conclusions not at all.",
            ("paper", "entries", *given, ""),
            summary,
        ),
        ("Headline claims", "What the abstracts say.", HEADER, headlines),
        (
            "How a verdict is found",
            " ".join((INTERVALS, EVEN_RULE, TUNED_RULE, COUNTED)),
            ("verdict", "meaning"),
            meanings,
        ),
        *out,
        (
            "Numbers of the papers",
            "A number of other models is not comparable as such (models, hardware); claims are "
            "made of them. All of them, with ids, are in the JSON file beside this page.",
            ("paper", "place", "entries", "how sure", "judged"),
            places,
        ),
        (
            "Tables that wait to be typed",
            "We could not read the tables of these papers. A person who has the PDF types the rows "
            "into the file, with the columns that it names, how sure they are (certainty) and who "
            "typed them (by); from then on they are judged.",
            ("paper", "table", "what", "file"),
            wanted,
        ),
        ("Methods of the papers that are not here", "", ("method", "verdict"), missing),
    ]


def _verdicts(document: Document) -> list[dict[str, Any]]:
    return [*document["verdicts"], *((document.get("ablation") or {}).get("verdicts") or [])]


def escaped(text: str) -> str:
    """Write a text so that Markdown shows it as it is, in one line."""
    return re.sub(r"([\\`*_{}\[\]<>#|~$])", r"\\\1", " ".join(text.split()))


@dataclass(frozen=True)
class Drawn:
    """A figure of a paper on the page."""

    title: str
    note: str
    file: str
    command: str
    png: bytes


Drawings = Mapping[str, Sequence[Drawn]]
"""A paper -> its figures."""


def _picture(paper: str, figure: str) -> str:
    return f"{paper}-{figure}.png"


def pictures() -> list[str]:
    """List the files of all papers' figures, next to the page."""
    return [_picture(name, key) for name in PLACES for key in study_of(name).figures]


def drawings(documents: Mapping[str, Document]) -> dict[str, list[Drawn]]:
    """Draw the figures of every paper; none where no picture can be drawn here."""
    if not can_picture():
        return {}
    out: dict[str, list[Drawn]] = {}
    for name, document in documents.items():
        for key, picture in study_of(name).figures.items():
            command = f"specwb reproduce {name} --figure {key}"
            png = picture_of(picture, document)
            drawn = Drawn(picture.title, picture.note, _picture(name, key), command, png)
            out.setdefault(name, []).append(drawn)
    return out


def markdown(
    page: Sequence[tuple[str, str, tuple[str, ...], Rows]], figures: Drawings | None = None
) -> str:
    """Write the page as Markdown, with the figures of each paper behind its claims."""
    parts = ["# Ledger of the papers' claims"]
    for title, text, header, rows in page:
        lines = [header, ("---",) * len(header), *rows]
        table = "\n".join("| " + " | ".join(map(escaped, line)) + " |" for line in lines)
        if title.endswith(NOT_CLAIMED):
            parts += [f"<details><summary>{escaped(title)}</summary>", table, "</details>"]
            continue
        parts += [f"## {escaped(title)}", *([escaped(text)] if text else []), table]
        for one in (figures or {}).get(title, ()):
            parts.append(f"![{escaped(one.title)}]({one.file})")
            parts.append(f"{escaped(one.title)}: `{one.command}`. {escaped(one.note)}")
    return "\n\n".join(parts) + "\n"


STYLE = (
    "body{font:15px/1.4 sans-serif;max-width:80em;margin:2em auto;padding:0 1em}"
    "table{border-collapse:collapse}td,th{border-bottom:1px solid #ccc;padding:.2em .6em;"
    "text-align:left;vertical-align:top}"
    "figure{margin:1.5em 0}img{max-width:100%}figcaption{color:#555}"
)


def html_page(
    page: Sequence[tuple[str, str, tuple[str, ...], Rows]], figures: Drawings | None = None
) -> str:
    """Write the page as HTML, with the pictures inside it."""
    body = ["<h1>Ledger of the papers' claims</h1>"]
    for title, text, header, rows in page:
        head = "".join(f"<th>{html.escape(cell)}</th>" for cell in header)
        lines = "\n".join(
            "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>"
            for row in rows
        )
        table = f"<table><thead><tr>{head}</tr></thead><tbody>\n{lines}\n</tbody></table>"
        if title.endswith(NOT_CLAIMED):
            body.append(f"<details><summary>{html.escape(title)}</summary>\n{table}</details>")
            continue
        body.append(f"<h2>{html.escape(title)}</h2>\n<p>{html.escape(text)}</p>\n{table}")
        for one in (figures or {}).get(title, ()):
            source = "data:image/png;base64," + b64encode(one.png).decode()
            words = html.escape(f"{one.title}. {one.note}")
            body.append(
                f'<figure><img alt="{words}" src="{source}"><figcaption>{words} '
                f"<code>{html.escape(one.command)}</code></figcaption></figure>"
            )
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f"<title>Ledger</title><style>{STYLE}</style></head><body>\n"
        + "\n".join(body)
        + "\n</body></html>\n"
    )


def as_json(
    documents: Mapping[str, Document],
    others: Mapping[str, Mapping[str, Document]] | None = None,
) -> dict[str, Any]:
    """All entries and verdicts, by paper; those of ``others`` by family of models."""
    return {
        name: {
            "entries": [vars(entry) for entry in entries(name)],
            "verdicts": _verdicts(documents[name]) if name in documents else [],
            "others": {
                family: _verdicts(of_family[name])
                for family, of_family in (others or {}).items()
                if name in of_family
            },
        }
        for name in PLACES
    }
