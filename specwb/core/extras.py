"""Packages that only some parts need: which extra brings them, and how it is installed."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
from pathlib import Path

from specwb.core.errors import SpecwbError


class MissingExtra(SpecwbError, ImportError):
    """A part of specwb needs a package that is not installed; ``name`` is the package."""


def how(extra: str) -> str:
    """The command that installs an extra.

    From a checkout it installs the checkout with the extra. Otherwise it names the extra's packages
    one by one, since no index has specwb.
    """
    checkout = Path(__file__).resolve().parents[2]
    if (checkout / "pyproject.toml").is_file():
        return f"pip install -e '{checkout}[{extra}]'"
    needed = importlib.metadata.requires("specwb") or []
    marker = re.compile(rf"extra == ['\"]{extra}['\"]")
    packages = [line.partition(";")[0].strip() for line in needed if marker.search(line)]
    return "pip install " + " ".join(f"'{package}'" for package in packages)


def require(what: str, extra: str, *packages: str) -> None:
    """Checks that the packages, named as they are imported, are installed; ``what`` is the part of
    specwb that needs them, ``extra`` the extra that brings them."""
    for package in packages:
        if importlib.util.find_spec(package) is None:
            brought = f"which the extra '{extra}' brings: {how(extra)}"
            raise MissingExtra(f"{what} needs {package}, {brought}", name=package)
