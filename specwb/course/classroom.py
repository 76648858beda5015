"""A class: what one student guessed and solved as one file, and the files of all as a histogram of
the guesses and a grade sheet."""

from __future__ import annotations

import csv
import io
import json
import re
import zlib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from specwb.course.exercises import EXERCISES, GRADES
from specwb.course.question import choices_of, guesses, questions
from specwb.errors import SpecwbError
from specwb.files import foreign, from_json, write_all

FORMAT = "specwb-class"
VERSION = 1
WIDTH = 30
"""Characters of the longest bar of a histogram."""


class ClassError(SpecwbError, ValueError):
    """This is no name, or no file that :func:`collect` wrote."""


def seed(name: str) -> int:
    """Return a student's own number, where a lesson draws something: the same for the same name,
    in capitals or not, and for two names different but for chance (1 in 2^31).
    """
    return zlib.crc32(_plain(name).casefold().encode()) % 2**31


def collect(name: str, folder: str | Path = ".") -> Path:
    """Write what was guessed and solved in this notebook so far as ``NAME.json``, to hand in.

    It holds the name, its :func:`seed`, the first guess at every question with whether it was
    right, and of every exercise whether the last solution was right. What the same student's file
    has of other lessons stays in it. Whoever writes the file can write anything into it: it is a
    count for the class, not an examination.

    Raises:
        ClassError: the name is empty or no text, or the file is another student's or no such file.
    """
    name = _plain(name)
    content: dict[str, Any] = {
        "format": FORMAT,
        "version": VERSION,
        "name": name,
        "seed": seed(name),
        "guesses": {
            key: {"guess": one.given, "right": bool(one.right)} for key, one in guesses().items()
        },
        "grades": {key: {"right": one.right, "tried": one.tried} for key, one in GRADES.items()},
    }
    stem = re.sub(r"\W+", "-", name.casefold()).strip("-") or str(seed(name))
    path = Path(folder) / f"{stem}.json"
    if path.exists():
        before = _checked(path)
        if before["name"] != name:
            raise ClassError(f"{path} is of {before['name']!r}; take a longer name")
        content["guesses"] |= before["guesses"]  # the first guess counts
        content["grades"] = {**before["grades"], **content["grades"]}
    write_all({path: lambda: json.dumps(content, ensure_ascii=False, indent=1) + "\n"})
    return path


def read(folder: str | Path) -> list[dict[str, Any]]:
    """Read the files that :func:`collect` wrote, by name."""
    files = sorted(Path(folder).glob("*.json"))
    if not files:
        raise ClassError(f"{folder} has no file NAME.json, as course.collect(NAME) writes it")
    return sorted((_checked(path) for path in files), key=lambda one: one["name"].casefold())


def histogram(sheets: Sequence[dict[str, Any]]) -> str:
    """Who guessed what: of every question its choices, each with how many chose it; a right one
    has a tick. Where a lesson draws the question, the right choice differs by student."""
    lines = [f"{len(sheets)} student" + "s" * (len(sheets) != 1)]
    asked = {key for one in sheets for key in one["guesses"]}
    for key in (key for key in questions() if key in asked):
        given = [one["guesses"][key] for one in sheets if key in one["guesses"]]
        counts = Counter(one["guess"] for one in given)
        right = {one["guess"] for one in given if one["right"]}
        known = choices_of(key)
        other = sum(number for choice, number in counts.items() if choice not in known)
        rows = [(choice, counts[choice], choice in right) for choice in known]
        rows += [("(no choice of this version)", other, False)] * bool(other)
        wide, most = max(len(name) for name, *_ in rows), max(counts.values())
        share = sum(one["right"] for one in given)
        lines += ["", f"{key}: {len(given)} guesses, {share} right"]
        for name, number, ok in rows:
            bar = "█" * max(round(WIDTH * number / most), int(number > 0))
            lines.append(f"  {'✓' if ok else ' '} {name:<{wide}} {number:>3} {bar}".rstrip())
    return "\n".join(lines)


def sheet(sheets: Sequence[dict[str, Any]]) -> str:
    """A grade sheet as CSV: a row for each student with the number of questions answered, of right
    first guesses and of exercises solved, and 1 or 0 for every exercise handed in."""
    tried = [key for key in EXERCISES if any(key in one["grades"] for one in sheets)]
    out = io.StringIO()
    rows = csv.writer(out, lineterminator="\n")
    rows.writerow(["name", "answered", "right", "solved", *tried])
    for one in sheets:
        marks = [one["grades"].get(key) for key in tried]
        name = one["name"]
        rows.writerow(
            [
                f"'{name}" if name[0] in "=+-@" else name,  # a spreadsheet would compute it
                len(one["guesses"]),
                sum(guess["right"] for guess in one["guesses"].values()),
                sum(bool(mark and mark["right"]) for mark in marks),
                *("" if mark is None else int(mark["right"]) for mark in marks),
            ]
        )
    return out.getvalue()


def _plain(name: str, where: str = "") -> str:
    """A name on one line, without what a terminal would carry out."""
    text = "".join(c for c in name if c.isprintable()).strip() if isinstance(name, str) else ""
    if not text:
        raise ClassError(f"{where}a student's name is a text of one line, got {name!r}")
    return " ".join(text.split())


def _checked(path: Path) -> dict[str, Any]:
    with foreign(f"{path} is no file of course.collect", ClassError):
        content = from_json(path.read_bytes())
        if (content["format"], content["version"]) != (FORMAT, VERSION):
            raise ClassError(f"{path} is of another version: collect it again")
        return {
            "name": _plain(content["name"], f"{path}: "),
            "guesses": {
                str(key): {"guess": str(one["guess"]), "right": one["right"] is True}
                for key, one in content["guesses"].items()
            },
            "grades": {
                str(key): {"right": one["right"] is True, "tried": int(one["tried"])}
                for key, one in content["grades"].items()
            },
        }
