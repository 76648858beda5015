"""The ledger: every number of six papers, every claim with its verdict, on one page.

An entry is one number of a table or figure, or one stated sentence, with its id, its place in the
paper and how sure we are of it. A number of other models is no claim about these; what is judged
are the claims that are made from it.
"""

from __future__ import annotations

import html
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from specwb.studies import PLACES
from specwb.studies.study import Document, published
from specwb.studies.verdicts import EVEN_RULE, RULE, TUNED_RULE, VERDICTS, counts, span

LABELS = ("k", "width", "eta", "gamma", "exit", "roots", "temperature", "value", "from", "to")
"""Columns whose numbers are settings, not results."""
NOT_IMPLEMENTED = ("REST", "Draft&Verify", "Hydra", "SAMD", "Token Recycling")
"""Methods of the papers' tables that are not here."""
HEADER = ("claim", "paper", "ours", "verdict", "seen", "cells")
Rows = list[tuple[str, ...]]


@dataclass(frozen=True)
class Entry:
    """A number of a paper, or a sentence.

    Attributes:
        id: of the entry: paper, place, settings and column, with slashes between.
        place: the table or figure.
        value: the number, None of a sentence.
        certainty: how sure we are of it.
        text: the sentence.
    """

    id: str
    place: str
    value: float | None
    certainty: str
    text: str = ""


def entries(name: str) -> list[Entry]:
    """List everything that is known of a paper's numbers."""
    paper = published(name)
    out = [
        Entry(f"{name}/stated/{key}", "stated", None, paper["certainty"], text)
        for key, text in paper.get("statements", {}).items()
    ]
    for kind in ("tables", "figures"):
        for key, table in paper.get(kind, {}).items():
            place = f"{kind[:-1]} {key}"
            certainty = paper["certainty"]
            if table.get("read_off"):
                error = table.get("error", paper["constants"].get("error"))
                certainty = f"read off a plot, ±{error}"
            for part, rows in table.items():
                if isinstance(rows, list):
                    prefix = f"{name}/{place}" + ("" if part == "rows" else f"/{part}")
                    out += [
                        Entry(f"{prefix}/{path}", place, value, certainty)
                        for row in rows
                        for path, value in _numbers(row)
                    ]
    return out


def _numbers(row: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """The numbers of a row, each with the row's settings and its column."""
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
            parts = [(f"{name}/{key}", value) for key, value in x.items()]
        elif isinstance(x, list):
            parts = [(f"{name}/{i}", value) for i, value in enumerate(x, 1)]
        else:
            parts = [(name, x)]
        for column, value in parts:
            yield "/".join([*settings, column]), float(value)


def step_cost(v: Mapping[str, Any], document: Document) -> str:
    """Write what a step costs in plain steps: in the paper by its two numbers, and here.

    A speedup S at tau tokens a step implies the cost tau / S of a step. That is the cost of
    drafting and of verifying: were verification as cheap as a plain step, drafting would take
    what is more than 1.
    """
    if "restated" not in v:
        return ""
    cost = v["restated"]["cost"]
    there = f"step: {cost:.2f} (draft {max(cost - 1, 0):.2f} if verify 1)"
    rows = {r["cell"]: r for r in document["rows"]}
    first, plain = rows.get(v["first"]), rows.get(v["second"])
    if not first or not plain:
        return there
    ms = plain["ms_per_round"]
    here = f"here {first['ms_per_round'] / ms:.2f}"
    if parts := first.get("parts"):
        draft = parts.get("draft", 0) + parts.get("search", 0)
        here += f" (draft {draft / ms:.2f}, verify {parts.get('verify', 0) / ms:.2f})"
    return f"{there}; {here}"


def claim_rows(verdicts: Sequence[Mapping[str, Any]], document: Document) -> Rows:
    """Make the page's rows of claims, see :data:`HEADER`."""
    rows: Rows = []
    for v in verdicts:
        if v["verdict"] == "not claimed":
            continue
        ours = f"{v['of']} {span(dict(v))}"
        if "restated" in v:
            ours += f"; with the paper's cost {span(v['restated'])}"
        if v.get("headline") and (cost := step_cost(v, document)):
            ours += f"; {cost}"
        why = f" ({v['why']})" if v["why"] else ""
        foregone = f"; not counted: {v['foregone']}" if v.get("foregone") else ""
        paper = "" if v["paper"] is None else f"{v['paper']:.2f}"
        seen = "" if v["seen"] is None else f"{v['seen']:.2f}"
        rows.append(
            (
                f"{v['claim']} [{v['table']}]",
                paper,
                ours,
                f"{v['verdict']}{why}{foregone}",
                seen,
                f"{v['first']} / {v['second']}",
            )
        )
    return rows


def sections(
    documents: Mapping[str, Document], left_out: Mapping[str, str] | None = None
) -> list[tuple[str, str, tuple[str, ...], Rows]]:
    """Make the page, as (title, text, header, rows).

    Args:
        documents: paper -> the document of its results, judged.
        left_out: paper -> why it has none.
    """
    left_out = left_out or {}
    summary: Rows = []
    headlines: Rows = []
    out: list[tuple[str, str, tuple[str, ...], Rows]] = []
    places: Rows = []
    for name in PLACES:
        numbers = entries(name)
        if name not in documents:
            reason = left_out.get(name, "no results")
            summary.append((name, str(len(numbers)), *[""] * (len(VERDICTS) - 1), reason))
            continue
        document = documents[name]
        verdicts = _verdicts(document)
        tally = counts(verdicts)
        foregone = sum(bool(v.get("foregone")) for v in verdicts)
        cells = [str(tally.get(verdict, 0)) for verdict in VERDICTS[:-1]]
        summary.append((name, str(len(numbers)), *cells, f"{foregone} foregone, not counted"))
        headlines += claim_rows([v for v in verdicts if v.get("headline")], document)
        prompts = min((r["prompts"] for r in document["rows"]), default=0)
        text = (
            f"{published(name)['source']}. Measured by `{document.get('command', '?')}` "
            f"at commit {(document.get('commit') or '?')[:10]}, {prompts} prompts a cell, "
            f"{document['arguments']['device']}."
        )
        out.append((name, text, HEADER, claim_rows(verdicts, document)))
        judged = {v["table"] for v in verdicts}
        for place in dict.fromkeys(entry.place for entry in numbers):
            here = [entry for entry in numbers if entry.place == place]
            sure = ", ".join(dict.fromkeys(entry.certainty for entry in here))
            n = sum(v["table"] == place for v in verdicts)
            claims = f"in {n} claims" if place in judged else "in no claim"
            places.append((name, place, str(len(here)), sure, claims))
    missing: Rows = [(method, "not implemented") for method in NOT_IMPLEMENTED]
    rule = " ".join((RULE, EVEN_RULE, TUNED_RULE))
    return [
        (
            "Claims by verdict",
            "Foregone conclusions are not counted. " + rule,
            ("paper", "entries", *VERDICTS[:-1], ""),
            summary,
        ),
        ("Headline claims", "What the abstracts say.", HEADER, headlines),
        *out,
        (
            "Numbers of the papers",
            "A number of other models is not comparable as such (models, hardware); claims are "
            "made of them. All of them, with ids, are in the JSON file beside this page.",
            ("paper", "place", "entries", "how sure", "judged"),
            places,
        ),
        ("Methods of the papers that are not here", "", ("method", "verdict"), missing),
    ]


def _verdicts(document: Document) -> list[dict[str, Any]]:
    return [*document["verdicts"], *((document.get("ablation") or {}).get("verdicts") or [])]


def markdown(page: Sequence[tuple[str, str, tuple[str, ...], Rows]]) -> str:
    """Write the page as Markdown."""
    parts = ["# Ledger of the papers' claims"]
    for title, text, header, rows in page:
        lines = [header, ("---",) * len(header), *rows]
        table = "\n".join(
            "| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines
        )
        parts += [f"## {title}", *([text] if text else []), table]
    return "\n\n".join(parts) + "\n"


STYLE = (
    "body{font:15px/1.4 sans-serif;max-width:80em;margin:2em auto;padding:0 1em}"
    "table{border-collapse:collapse}td,th{border-bottom:1px solid #ccc;padding:.2em .6em;"
    "text-align:left;vertical-align:top}"
)


def html_page(page: Sequence[tuple[str, str, tuple[str, ...], Rows]]) -> str:
    """Write the page as HTML."""
    body = ["<h1>Ledger of the papers' claims</h1>"]
    for title, text, header, rows in page:
        head = "".join(f"<th>{html.escape(cell)}</th>" for cell in header)
        lines = "\n".join(
            "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>"
            for row in rows
        )
        body.append(
            f"<h2>{html.escape(title)}</h2>\n<p>{html.escape(text)}</p>\n"
            f"<table><thead><tr>{head}</tr></thead><tbody>\n{lines}\n</tbody></table>"
        )
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f"<title>Ledger</title><style>{STYLE}</style></head><body>\n"
        + "\n".join(body)
        + "\n</body></html>\n"
    )


def as_json(documents: Mapping[str, Document]) -> dict[str, Any]:
    """All entries and verdicts, by paper."""
    return {
        name: {
            "entries": [vars(entry) for entry in entries(name)],
            "verdicts": _verdicts(documents[name]) if name in documents else [],
        }
        for name in PLACES
    }
