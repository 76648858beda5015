"""The ledger of the papers' claims as cards: claim, paper, ours, verdict, a reason; the rest is
folded. Read at every width, unlike the table of ``specwb reproduce all``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape

from specwb.lab.studies.verdicts import MEANINGS, VERDICTS
from specwb.show.ledger import HEADER, Rows, escaped, markdown


def page(sections: Sequence[tuple[str, str, tuple[str, ...], Rows]]) -> str:
    """The sections of the ledger as Markdown: claims as cards, all other tables as they are."""
    title, _, _ = markdown([]).partition("\n\n")
    parts = [title.strip()]
    for section in sections:
        name, text, header, rows = section
        if header != HEADER or all(row[3].startswith("not claimed") for row in rows):
            parts.append(markdown([section]).partition("\n\n")[2].strip())
            continue
        cards = "\n".join(map(_card, rows))
        parts += [f"## {escaped(name)}", escaped(text)]
        parts.append(f'```{{raw}} html\n<div class="claims">\n{cards}\n</div>\n```')
    return "\n\n".join(parts) + "\n"


def tone(verdict: str) -> str:
    """The colour of a verdict: yes, no, open or none."""
    return {"reproduced": "yes", "contradicted": "no", "inconclusive": "open"}.get(verdict, "none")


def _card(row: Sequence[str]) -> str:
    claim, paper, ours, judged, seen, cells = row
    verdict = max((v for v in VERDICTS if judged.startswith(v)), key=len)
    why = re.match(r" \((.*?)\)(;|$)", judged[len(verdict) :])
    reason = why[1] if why else MEANINGS.get(verdict, "").split(";")[0].rstrip(".")
    reason, _, further = reason.partition("; ")
    what, _, place = claim.rpartition(" [")
    value, _, rest = ours.partition("; ")
    facts = {
        "place": place.rstrip("]"),
        "measured": rest,
        "further": further,
        "not counted": judged.partition("; not counted: ")[2],
        "a ratio seen with probability 80 %": seen,
    }
    more = "".join(f"<dt>{escape(k)}</dt><dd>{escape(v)}</dd>" for k, v in facts.items() if v)
    first, _, second = cells.partition(" / ")
    more += (
        f"<dt>compared</dt><dd><code>{escape(first)}</code> with <code>{escape(second)}</code></dd>"
    )
    return (
        f'<div class="{tone(verdict)}"><p>{escape(what)}</p>'
        f"<p><small>paper</small> <b>{escape(paper) or '–'}</b> <small>ours</small>"
        f" <b>{escape(value) or '–'}</b></p>"
        f"<p><strong>{escape(verdict)}</strong> {escape(reason)}</p>"
        f"<details><summary>details</summary><dl>{more}</dl></details></div>"
    )
