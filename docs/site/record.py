"""Record what the site plays: one decoding of every method, and the one on the first page.

    python docs/site/record.py [NAME ..] [--minutes 30]

Writes ``data/recordings/NAME.json``, of all of :data:`RECORDINGS` or of those named. A recording
made while other programs had work is not trusted (:func:`disturbed`), so it is made again until the
machine was calm or the time is over; a stored recording is replaced by a calmer one only. SmolLM2
must have been fetched (``specwb`` does so where it can).
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

import specwb
from specwb.engine.methods import METHODS
from specwb.show.course import recording

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
WARM: dict[str, Any] = {"temperature": 0.8, "seed": 2}
OTHER = {**WARM, "seed": 1}  # with the first these end after a sentence

RECORDINGS: dict[str, tuple[str, str, Any, dict[str, Any]]] = {
    "edit": ("smol", "pld", BRIDGE, {"max_new_tokens": 48}),
    "front": ("smol", "sps:gamma=3", QUESTION, {**WARM, "seed": 5}),
    "ar": ("smol", "ar", QUESTION, OTHER),
    "sps": ("smol", "sps:gamma=4", QUESTION, {**WARM, "seed": 6}),
    "mcsd": ("smol", "mcsd:tree=3-2-1", QUESTION, WARM),
    "pld": ("lab", "pld", AREAS, {}),
    "lookahead": ("lab", "lookahead", AREAS, {}),
    "medusa": ("smol", "medusa:nodes=8", QUESTION, WARM),
    "eagle": ("smol", "eagle:nodes=8", QUESTION, WARM),
    "eagle2": ("smol", "eagle2:nodes=8,depth=4,top=3", QUESTION, OTHER),
    "eagle3": ("smol", "eagle3:nodes=8,depth=4,top=3", QUESTION, WARM),
    "falcon": ("smol", "falcon:nodes=8", QUESTION, OTHER),
    "falcon_dynamic": ("smol", "falcon_dynamic:nodes=8", QUESTION, OTHER),
    "kangaroo": ("smol", "kangaroo:gamma=4", QUESTION, OTHER),
    "diffuspec": ("lab", "diffuspec", AREAS, {}),
    "mcsd_ti": ("lab", "mcsd_ti", STORY, {"temperature": 1.0}),
    "easyspec": ("lab", "easyspec:n=4,width=2", STORY, {"temperature": 1.0}),
}
"""Name -> target, method, prompt and settings: a text in which the method does something."""
REPEATS = 3
TOKENS = 24


def disturbed(trace: dict[str, Any]) -> float:
    """How far a recording's times are off; above 1 the microscope says not to trust them."""
    plain = trace["plain"]
    return max(plain["spread"] / 1.25, (plain["load"] or 0.0) / (plain["cores"] or 1))


def calm_load() -> float:
    """How much the machine has to do already, before anything is recorded, over its cores."""
    return os.getloadavg()[0] / ((os.cpu_count() or 1) - 0.5)


def record(names: list[str], minutes: float) -> list[str]:
    """Record until all are calm; returns the names of those that are not when the time is over."""
    FOLDER.mkdir(exist_ok=True)
    targets: dict[str, Any] = {}
    best = {
        name: disturbed(recording(name)) for name in names if (FOLDER / f"{name}.json").exists()
    }
    end = time.monotonic() + 60 * minutes
    while waiting := [name for name in names if best.get(name, 2.0) > 1]:
        for name in sorted(waiting, key=best.__contains__):  # the missing ones at once
            while calm_load() > 1 and time.monotonic() < end and name in best:
                time.sleep(5)
            model, method, prompt, settings = RECORDINGS[name]
            target = targets.setdefault(model, None) or specwb.load(model)
            targets[model] = target
            settings = {"max_new_tokens": TOKENS, "repeats": REPEATS, **settings}
            trace = specwb.record(target, prompt, method, **settings)
            off = disturbed(trace)
            if off < best.get(name, float("inf")):
                best[name] = off
                text = json.dumps(trace, ensure_ascii=False, separators=(",", ":"))
                (FOLDER / f"{name}.json").write_text(text + "\n", "utf-8")
            print(f"{name}: {specwb.show.scope.in_words(trace)}; disturbance {off:.2f}", flush=True)
        if time.monotonic() > end:
            return [name for name in names if best[name] > 1]
    return []


def main() -> None:
    parser = argparse.ArgumentParser(description="Record what the site plays.")
    parser.add_argument("names", nargs="*", help=f"some of {', '.join(RECORDINGS)}; default: all")
    parser.add_argument("--minutes", type=float, default=30, help="until it gives up waiting")
    given = parser.parse_args()
    if unknown := sorted(set(given.names) - set(RECORDINGS)):
        parser.error(f"no such recording: {', '.join(unknown)}")
    left = record(given.names or list(RECORDINGS), given.minutes)
    if left:
        raise SystemExit(f"the machine was busy while these were recorded: {', '.join(left)}")


if __name__ == "__main__":
    assert set(METHODS) <= set(RECORDINGS)
    main()
