"""What dry runs counted, as it is kept in ``counted.json`` and printed in docs/gpu.md."""

from __future__ import annotations

import json
from pathlib import Path

HERE = Path(__file__).resolve().parent
FILE, PAGE = HERE / "counted.json", HERE.parents[1] / "docs" / "gpu.md"
BEGIN, END = "<!-- dry run: begin -->", "<!-- dry run: end -->"
Kept = dict[str, dict]


def name_of(row: dict) -> str:
    """What a document is about, in one word or a few."""
    if "operation" in row:
        return row["operation"]
    words = [row.get("case") or row.get("size") or "run", row.get("dtype"), row.get("mode")]
    if "T" in row:
        words.append(f"T={row['T']:g}")
    return " ".join(word for word in words if word)


def kept(part: str, rows: list[dict]) -> dict:
    """What is kept of a part: graphs and host reads of recorded steps of the large models,
    exchanges of ranks, and other documents whole."""
    out: dict = {"cases": len(rows)}
    recorded = {name_of(row): row for row in rows if row.get("mode") == "graph"}
    if part == "large bf16":
        out["steps"] = {
            row["case"]: [row["replays"], row["reads"]]
            for row in recorded.values()
            if row["T"] == 1
        }
    exchanged = {name: row.get("collectives") for name, row in recorded.items()}
    if any(exchanged.values()):
        out["collectives"] = {name: count for name, count in exchanged.items() if count}
    if others := [row for row in rows if "chosen" in row or "weights" in row]:
        out["rows"] = others
    return out


def read() -> Kept:
    return json.loads(FILE.read_text()) if FILE.exists() else {}


def write(content: Kept) -> None:
    FILE.write_text(json.dumps(content, indent=1) + "\n")
    page = PAGE.read_text()
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{BEGIN}\n{printed(content)}{END}{after}")


def printed(content: Kept) -> str:
    """The tables, in Markdown."""
    parts = [_steps(content["large bf16"]["steps"]), _memory(content["memory"])]
    parts += [_ranks(content["ranks"]["collectives"]), _attention(content)]
    ran = {part: own["cases"] for part, own in content.items()}
    said = ", ".join(f"{count} of {part}" for part, count in sorted(ran.items()))
    return "\n" + "\n".join(part for part in parts if part) + f"\nCases run: {said}.\n\n"


def _steps(part: dict) -> str:
    lines = [f"| `{name}` | {graphs} | {reads} |" for name, (graphs, reads) in part.items()]
    return "\n".join(["| method, 8B bf16 | graphs | reads |", "|---|--:|--:|", *lines]) + "\n"


def _ranks(exchanged: dict[str, int]) -> str:
    lines = [
        f"| {name.replace(', rank 0 graph', '')} | {count} |"
        for name, count in exchanged.items()
        if "rank 0 graph" in name
    ]
    return "\n".join(["| easyspec on two ranks, tiny | collectives |", "|---|--:|", *lines]) + "\n"


def _memory(part: dict) -> str:
    rows = part.get("rows", [])
    if not rows:
        return ""
    columns = {
        "size": "Llama, bf16",
        "weights": "weights, GiB",
        "reserved": "reserved",
        "peak": "at most while loading",
        "decoding": "a decoding",
    }
    counted = [key for key in columns if any(key in row for row in rows)]
    lines = ["| " + " | ".join(columns[key] for key in counted) + " |"]
    lines.append("|---|" + "--:|" * (len(counted) - 1))
    for row in rows:
        lines.append("| " + " | ".join(str(row.get(key, "")) for key in counted) + " |")
    return "\n".join(lines) + "\n"


def _attention(content: Kept) -> str:
    devices: dict[tuple[str, ...], list[str]] = {}  # rows that are equal on several are one
    for part in ("attention sm_80", "attention sm_90"):
        for row in content.get(part, {}).get("rows", []):
            chosen = ", ".join(f"{count} {name}" for name, count in sorted(row["chosen"].items()))
            cells = (f"`{row['case']}`", row["dtype"], row["mode"], chosen)
            devices.setdefault(cells, []).append(part.split()[1])
    lines = [f"| {' | '.join([', '.join(on), *cells])} |" for cells, on in devices.items()]
    if not lines:
        return ""
    head = [
        "| device | method, 8B | type | steps | attention chosen, calls in a prompt and 3 steps |"
    ]
    return "\n".join([*head, "|---|---|---|---|---|", *lines]) + "\n"
