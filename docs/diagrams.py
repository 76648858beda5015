"""The floors of docs/architecture.md, docs/floors.svg: ``python -m docs.diagrams``.

A picture and not mermaid, so that it is seen in an editor, on GitHub and on the site, where nothing
is loaded from a network.
"""

from __future__ import annotations

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


if __name__ == "__main__":
    Path(__file__).with_name("floors.svg").write_text(floors().svg, "utf-8")
