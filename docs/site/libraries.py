"""JavaScript that pages take along, so that they ask for nothing: copied from the Python packages
that ``make site`` installs."""

from __future__ import annotations

import shutil
from importlib.util import find_spec
from pathlib import Path


def _package(name: str) -> Path:
    found = find_spec(name)
    if found is None or not found.submodule_search_locations:
        raise SystemExit(f"{name} is not installed: pip install '.[site]'")
    return Path(found.submodule_search_locations[0])


def mathjax(folder: Path) -> None:
    """MathJax's one file, ``FOLDER/mathjax/tex-chtml.js``, with its fonts."""
    source = _package("sphinx-mathjax-offline") / "static" / "mathjax"
    fonts = Path("output", "chtml", "fonts", "woff-v2")
    shutil.copytree(source / fonts, folder / "mathjax" / fonts, dirs_exist_ok=True)
    shutil.copy(source / "tex-chtml.js", folder / "mathjax")


def plotly(folder: Path) -> None:
    """``FOLDER/plotly.min.js``."""
    shutil.copy(_package("plotly") / "package_data" / "plotly.min.js", folder)
