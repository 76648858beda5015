"""Cards of trained models, and the README of heads that were trained together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from specwb.core.files import document

_RANKS = {"type": "array", "items": {"type": "array", "items": {"type": "number"}, "minItems": 1}}
CARD = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "sha256": {"type": "string"},
        "parameters": {"type": "integer"},
        "steps": {"type": "integer"},
        "tokens": {"type": ["integer", "object"]},
        "held_out": {
            "type": "object",
            "minProperties": 1,
            "additionalProperties": {"type": "object", "properties": {"rank": _RANKS}},
        },
    },
}
"""The schema of ``card.json``."""
HEAD_CARD = {**CARD, "required": ["parameters", "steps", "tokens", "sha256", "held_out"]}
"""The schema of that of a trained head, as its README needs it."""


def table(header: str, rows: Iterable[Sequence[object]]) -> list[str]:
    """A Markdown table behind an empty line; ``header``: its columns' names, with bars between."""
    names = header.split(" | ")
    return ["", _row(names), "|" + "---|" * len(names), *map(_row, rows)]


def _row(cells: Sequence[object]) -> str:
    return "|" + "".join(f" {cell} |" if cell != "" else " |" for cell in cells)


def read_card(folder: Path, schema: Mapping[str, Any] = CARD) -> dict:
    """The card of a model or head in its folder."""
    return document(folder / "card.json", schema)


def megabytes(folder: Path) -> float:
    """The size of a folder's safetensors files, in 10^6 bytes."""
    return sum(p.stat().st_size for p in folder.glob("*.safetensors")) / 1e6


def heads_card(out: Path, names: Sequence[str], target: str, sources: Sequence[dict]) -> str:
    """The README of heads that were trained together, from the cards in the folders ``out/NAME``;
    ``sources`` is the manifest of a :class:`specwb.training.corpus.Corpus`."""
    lines = [
        f"# Heads of {target}",
        "",
        "Made by `specwb train heads` with the settings of `recipe.toml`; the `card.json` of each",
        "has all of them and the whole course of its training. Accuracy: the share of held-out",
        "positions where the head's best token at depth 1, 2, .. is the target's. Overlap: the",
        "mean of sum min(p, q) there, the probability that a draft token is accepted at T = 1.",
    ]
    rows: list[list[object]] = []
    for name in names:
        card = read_card(out / name, HEAD_CARD)
        (held_out,) = card["held_out"].values()
        accuracy = " ".join(f"{row[0]:.2f}" for row in held_out["rank"])
        if before := card.get("before_rounding"):
            accuracy += f" (at depth 1 {before[0]:.3f} before it was rounded)"
        overlap = " ".join(f"{value:.2f}" for value in held_out.get("sampled", []))
        size = f"{megabytes(out / name):.1f} MB {card.get('store', 'fp16')}"
        counts = [f"{card['parameters']:,}", size, card["steps"], f"{card['tokens']:,}"]
        rows.append([name, *counts, accuracy, overlap, card["sha256"][:12]])
    header = "head | parameters | file | steps | tokens | accuracy by depth | overlap | sha256"
    lines += table(header, rows)
    rows = []
    for source in sources:
        use = "held out" if source["held_out"] else "training"
        counts = [source[key] for key in ("documents", "tokens")]
        counts.append(source.get("counted", source["tokens"]))
        rows.append([source["source"], use, *(f"{count:,}" for count in counts)])
    lines += table("text | use | conversations | tokens | of an assistant", rows)
    return "\n".join([*lines, ""])
