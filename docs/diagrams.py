"""The drawings of docs/architecture.md: docs/loop.svg and docs/floors.svg.

    python -m docs.diagrams [FOLDER]

writes them beside this file or into the folder named. They are pictures and not mermaid, so that
they are seen in an editor, on GitHub and on the site, where nothing is loaded from a network.
"""

from __future__ import annotations

import sys
from pathlib import Path

from scripts.drawings.drawing import WIDTH, Drawing

# from top to bottom: the rooms of a floor as in FLOORS of tests/test_layers.py, what they are
FLOORS = (
    ("cli __main__", "the command line"),
    ("show", "figures, widgets, microscope, lessons, the ledger"),
    ("lab certificate", "measuring, papers' claims; certificates of verifiers"),
    ("training", "heads, text, losses"),
    ("engine", "the loop, the registry, recorded steps"),
    ("drafters", "one file per method; what several share"),
    ("theory", "rules over fractions, closed forms, wrong rules"),
    ("rules models", "verification; layers, target, heads, caches"),
    ("core", "types of a step, noise, probabilities, files"),
)


def loop() -> Drawing:
    """One decoding step: what is called, and what flows from one to the next."""
    desc = (
        "State and noise go into drafter.propose, its Draft into target.score, draft and Scores "
        "into rule.verify; the Verdict is trimmed, then committed and observed, and the state "
        "advances and is read."
    )
    d = Drawing(WIDTH, 262, "One decoding step", desc)
    d.box(4, 14, 112, 46, "Noise\nby row, position", hollow=True, size=13)
    d.box(4, 96, 112, 60, "State\ntext, lengths,\nKV cache", hollow=True, size=13)
    d.box(156, 96, 108, 60, "drafter\n.propose", colour="draft")
    d.box(366, 96, 108, 60, "target\n.score", colour="target")
    d.box(576, 96, 108, 60, "rule\n.verify", colour="target")
    d.arrow(116, 126, 154, 126)
    d.arrow(264, 126, 364, 126, "Draft").text(312, 145, "tree, tokens, q", size=12, anchor="middle")
    d.arrow(474, 126, 574, 126, "Scores").text(522, 145, "logits, p", size=12, anchor="middle")
    d.line(116, 37, 630, 37).arrow(210, 37, 210, 94).arrow(630, 37, 630, 94)
    d.text(218, 70, "uniforms", size=12).text(638, 70, "uniforms", size=12)
    d.line(104, 156, 104, 178).line(104, 178, 420, 178).arrow(420, 178, 420, 158)
    d.text(300, 194, "text, KV cache", size=12, anchor="middle")
    d.arrow(630, 156, 630, 204).text(622, 176, "Verdict: path,", size=12, anchor="end")
    d.text(622, 191, "bonus token", size=12, anchor="end")
    d.box(576, 206, 108, 44, "trim", hollow=True)
    d.box(398, 206, 122, 44, "target.commit", colour="target", size=13)
    d.box(230, 206, 122, 44, "drafter.observe", colour="draft", size=13)
    d.box(54, 206, 122, 44, "state.advance\nstate.read", hollow=True, size=13)
    d.arrow(576, 228, 522, 228).arrow(398, 228, 354, 228).arrow(230, 228, 178, 228)
    d.arrow(76, 206, 76, 158)
    return d


def floors() -> Drawing:
    """The floors of the package, the highest first, with all that is on each."""
    desc = "; ".join(f"{rooms.replace(' ', ', ')}: {what}" for rooms, what in FLOORS)
    height = 34
    tall = len(FLOORS) * height + 8
    d = Drawing(WIDTH, tall, "Floors of the package: imports point down", desc)
    d.arrow(14, 10, 14, tall - 12)
    for i, (rooms, what) in enumerate(FLOORS):
        y = 6 + i * height
        d.box(32, y, 260, height - 6, " · ".join(rooms.split()), hollow=True, size=13)
        d.text(302, y + 19, what, size=13)
    return d


DRAWINGS = {"loop": loop, "floors": floors}

if __name__ == "__main__":
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent
    for name, draw in DRAWINGS.items():
        (folder / f"{name}.svg").write_text(draw().svg, "utf-8")
