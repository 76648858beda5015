"""What dry runs counted, as it is kept in ``budget.json`` and printed in docs/gpu.md."""

from __future__ import annotations

import json
from pathlib import Path

HERE = Path(__file__).resolve().parent
FILE, PAGE = HERE / "budget.json", HERE.parents[1] / "docs" / "gpu.md"
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


def cost(row: dict) -> int:
    """Kernels and copies of a step: nodes of its graphs, and what is launched beside them."""
    return row["nodes"] + row["launches"]


def kept(rows: list[dict]) -> dict:
    """What is kept of a part: budgets of steps, and other documents whole."""
    steps = [row for row in rows if "nodes" in row]
    out: dict = {"cases": len(rows), "budget": {name_of(row): cost(row) for row in steps}}
    if any(row.get("case", "").startswith("ar") and "replays" in row for row in steps):
        out["steps"] = {name_of(row): [row["replays"], row["reads"], row["gemms"]] for row in steps}
    if exchanged := {name_of(row): row["collectives"] for row in steps if row.get("collectives")}:
        out["collectives"] = exchanged
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
    parts = [_steps(content.get("large bf16", {})), _memory(content.get("memory", {}))]
    parts += [_ranks(content.get("ranks", {})), _attention(content)]
    ran = {part: own["cases"] for part, own in content.items()}
    said = ", ".join(f"{count} of {part}" for part, count in sorted(ran.items()))
    return "\n" + "\n".join(part for part in parts if part) + f"\nCases run: {said}.\n\n"


def _steps(part: dict) -> str:
    budget, details = part.get("budget", {}), part.get("steps", {})
    names = dict.fromkeys(name.split()[0] for name in budget)
    if not names:
        return ""
    columns = [(mode, t) for mode in ("graph", "stopped", "eager") for t in (0, 1)]
    titles = {"graph": "recorded", "stopped": "stopped at once", "eager": "eager"}
    lines = ["| method, 8B bf16 | " + " | ".join(f"{titles[m]}, T = {t}" for m, t in columns)]
    lines[0] += " | graphs | reads |"
    lines.append("|---|" + "--:|" * (len(columns) + 2))
    for name in names:
        cells = [budget.get(f"{name} {mode} T={t}", "") for mode, t in columns]
        replays, reads, _ = details.get(f"{name} graph T=1", ["", "", ""])
        lines.append("| " + " | ".join(map(str, [f"`{name}`", *cells, replays, reads])) + " |")
    return "\n".join(lines) + "\n"


def _ranks(part: dict) -> str:
    budget, exchanged = part.get("budget", {}), part.get("collectives", {})
    names = [name for name in budget if "rank 0 graph" in name]
    if not names:
        return ""
    head = ["easyspec on two ranks, tiny", "recorded, rank 0", "rank 1", "collectives"]
    lines = ["| " + " | ".join(head) + " |", "|---|--:|--:|--:|"]
    for name in names:
        case = name.replace(", rank 0 graph", "")
        other = budget[name.replace("rank 0", "rank 1")]
        lines.append(f"| {case} | {budget[name]} | {other} | {exchanged[name]} |")
    return "\n".join(lines) + "\n"


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
