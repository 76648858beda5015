"""Record what the site plays: one decoding per method, and ``edit``, which is on the first page.

    python docs/site/record.py [NAME ..]

Writes ``data/recordings/NAME.json`` for the rows of :data:`RECORDINGS` that are named, by default
for all. The same row gives the same recording. SmolLM2 must have been fetched (``specwb`` does so
where it can). The gallery has a page for each method that has a recording of its name.
"""

from __future__ import annotations

import argparse
import json
from functools import cache
from pathlib import Path
from typing import Any

import specwb

FOLDER = Path(__file__).parents[2] / "data/recordings"
QUESTION = [{"role": "user", "content": "What is the capital of France, and what is it known for?"}]
AREAS = "def area(width, height):\n    return width * height\n\ndef area_of_square(width):"
BRIDGE = [
    {
        "role": "user",
        "content": "Who built the bridge, when, and how long is it? Answer in full sentences with "
        "the words of the text:\nThe stone bridge over the river Alm was built between 1742 and "
        "1749 by the brothers Johann and Peter Kessler. It is 112 metres long, rests on seven "
        "arches, and was repaired after the flood of 1862.",
    }
]
STORY = "The sun had set, and the old house"


def warm(seed: int) -> dict[str, Any]:
    """Settings of a sampled answer."""
    return {"temperature": 0.8, "seed": seed}


RECORDINGS: dict[str, tuple[str, str, Any, dict[str, Any]]] = {
    "edit": ("smol", "pld", BRIDGE, {"max_new_tokens": 48}),
    "ar": ("smol", "ar", QUESTION, warm(3)),
    "sps": ("smol", "sps:gamma=4", QUESTION, warm(3)),
    "mcsd": ("smol", "mcsd:tree=3-2-1", QUESTION, warm(6)),
    "pld": ("lab", "pld", AREAS, {}),
    "lookahead": ("lab", "lookahead", AREAS, {}),
    "medusa": ("smol", "medusa:nodes=8", QUESTION, warm(2)),
    "eagle": ("smol", "eagle:nodes=8", QUESTION, warm(5)),
    "eagle2": ("smol", "eagle2:nodes=8,depth=4,top=3", QUESTION, warm(2)),
    "eagle3": ("smol", "eagle3:nodes=8,depth=4,top=3", QUESTION, warm(1)),
    "falcon": ("smol", "falcon:nodes=8", QUESTION, warm(2)),
    "falcon_dynamic": ("smol", "falcon_dynamic:nodes=8", QUESTION, warm(4)),
    "kangaroo": ("smol", "kangaroo:gamma=4", QUESTION, warm(4)),
    "diffuspec": ("lab", "diffuspec", AREAS, {}),
    "mcsd_ti": ("lab", "mcsd_ti", STORY, {"temperature": 1.0}),
    "easyspec": ("lab", "easyspec:n=4,width=2", STORY, {"temperature": 1.0}),
}
"""Name -> target, method, prompt and settings: a text in which the method does something, by a seed
with which it ends after a few words or makes sense so far."""


def main() -> None:
    parser = argparse.ArgumentParser(description="Record what the site plays.")
    parser.add_argument("names", nargs="*", help=f"some of {', '.join(RECORDINGS)}; default: all")
    given = parser.parse_args()
    if unknown := sorted(set(given.names) - set(RECORDINGS)):
        parser.error(f"no such recording: {', '.join(unknown)}")
    load = cache(specwb.load)
    FOLDER.mkdir(exist_ok=True)
    for name in given.names or RECORDINGS:
        model, method, prompt, settings = RECORDINGS[name]
        trace = specwb.record(load(model), prompt, method, **settings)
        text = json.dumps(trace, ensure_ascii=False, separators=(",", ":"))
        (FOLDER / f"{name}.json").write_text(text + "\n", "utf-8")
        print(f"{name}: {trace}")


if __name__ == "__main__":
    main()
