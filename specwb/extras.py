"""Packages that only some parts need: which extra brings them, and how it is installed."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
from pathlib import Path


def how(extra: str) -> str:
    """The command that installs an extra: from the checkout this is, otherwise its packages one by one, since no index has specwb."""
    checkout = Path(__file__).resolve().parents[1]
    if (checkout / "pyproject.toml").is_file():
        return f"pip install -e '{checkout}[{extra}]'"
    needed = importlib.metadata.requires("specwb") or []
    own = [line.partition(";")[0].strip() for line in needed if re.search(rf"extra == ['\"]{extra}['\"]", line)]
    return "pip install " + " ".join(f"'{package}'" for package in own)


def require(what: str, extra: str, *packages: str) -> None:
    """Raises ImportError where a package that ``what`` needs is missing, with the command that brings it."""
    for package in packages:
        if importlib.util.find_spec(package) is None:
            raise ImportError(f"{what} needs {package}, which the extra '{extra}' brings: {how(extra)}", name=package)
