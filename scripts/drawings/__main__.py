"""Draw the pictures that show numbers, or those that are named: ``python -m scripts.drawings``."""

from __future__ import annotations

import sys
from pathlib import Path

from scripts.drawings.lessons import DRAWINGS

FOLDER = Path(__file__).parents[2] / "notebooks" / "pictures"

if __name__ == "__main__":
    for name in sys.argv[1:] or DRAWINGS:
        (FOLDER / f"{name}.svg").write_text(DRAWINGS[name]().svg, "utf-8")
