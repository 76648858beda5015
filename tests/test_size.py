"""scripts/size.py counts what a reader has to hold in mind, and every file once."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SCRIPT = runpy.run_path(str(ROOT / "scripts" / "size.py"))
TEXT = '''"""A docstring
of two lines."""

import os  # and a comment

LIMIT, _own = 3, "text"


class Box:
    """Of one number."""

    def get(self) -> int:
        return LIMIT + 1
'''


def test_docstrings_and_comments_are_no_tokens():
    """Import 2, assignment 7, class 3, function 8, return 4; LIMIT and Box are public."""
    assert SCRIPT["size"](TEXT) == (24, 13, 3, 1, 2)


def test_every_file_is_in_one_room():
    every = sorted((ROOT / "specwb").rglob("*.py"))
    files = [path for _, paths, *_ in SCRIPT["rooms"]() for path in paths]
    assert sorted([*files, ROOT / "specwb" / "__init__.py"]) == every


@pytest.mark.parametrize("word", ["--help", "nowhere"])
def test_what_is_no_folder_is_one_line(word):
    with pytest.raises(SystemExit, match=f"^usage: .* not a folder: {word}$"):
        SCRIPT["main"]([word])
